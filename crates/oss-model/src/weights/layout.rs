//! Which packed matrix lies where.

use super::{MatrixLocation, PackedMatrix};
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::plan::{MatrixPlan, Rows};
use crate::precision::Precision;
use oss_quant::{Dtype, Packing};
use oss_weights::{Container, shown};
use std::collections::HashSet;

/// Matrices begin at multiples of this.
const ALIGNMENT: usize = 64;

/// One matrix to be packed.
pub(super) struct PackJob {
    pub(super) location: MatrixLocation,
    /// What its rows are packed as.
    pub(super) dtype: Dtype,
    pub(super) source: MatrixPlan,
}

/// A run of matrices that lie together and move together.
pub(super) struct SectionLayout {
    /// Unique in the model.
    pub(super) name: String,
    pub(super) jobs: Vec<PackJob>,
    pub(super) bytes: usize,
}

/// The matrices of a model, in the order in which they lie in memory.
pub(super) struct Layout<'a> {
    container: &'a Container,
    catalog: Catalog,
    pub(super) sections: Vec<SectionLayout>,
}

impl<'a> Layout<'a> {
    /// An empty layout over the tensors of a container, packed as a plan says.
    pub(super) fn new(container: &'a Container, precision: &Precision) -> Result<Self> {
        let catalog = Catalog::of(container)?;
        // A packed file has its tensors as they are.
        let catalog = if precision.is_empty() { catalog } else { catalog.with(precision) };
        Ok(Self { container, catalog, sections: Vec::new() })
    }

    pub(super) const fn container(&self) -> &'a Container {
        self.container
    }

    /// What the container's tensors were before they were packed.
    pub(super) const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Begins a section: matrices go to the last one begun.
    pub(super) fn begin(&mut self, name: String) {
        self.sections.push(SectionLayout { name, jobs: Vec::new(), bytes: 0 });
    }

    /// Gives a matrix its place; `cols` is what its tensors must have.
    pub(super) fn matrix(&mut self, plan: &MatrixPlan, cols: usize) -> Result<PackedMatrix> {
        match plan {
            MatrixPlan::Paired(first, second) => {
                let dtype = self.dtype(first, cols)?;
                let other = self.dtype(second, cols)?;
                if dtype != other || first.count != second.count || !first.count.is_multiple_of(16)
                {
                    return Err(Error::Shape {
                        path: self.container.path().to_owned(),
                        tensor: second.tensor.clone(),
                        got: format!("{} rows of {}", second.count, other.name()),
                        expected: format!(
                            "{} rows of {} as in {}, a multiple of 16",
                            first.count,
                            dtype.name(),
                            first.tensor
                        ),
                    });
                }
                let rows = 2 * first.count;
                let location = self.add(dtype, (rows, cols), plan.clone())?;
                Ok(PackedMatrix { parts: vec![(0, location)], rows, parts_begin_at: 64 })
            }
            MatrixPlan::Stacked(all) => {
                let mut parts = Vec::new();
                let mut row = 0;
                let mut rest = all.as_slice();
                while let Some(first) = rest.first() {
                    let dtype = self.dtype(first, cols)?;
                    let mut n = 1;
                    while n < rest.len() && self.dtype(&rest[n], cols)? == dtype {
                        n += 1;
                    }
                    let rows = rest[..n].iter().map(|rows| rows.count).sum();
                    let source = MatrixPlan::Stacked(rest[..n].to_vec());
                    parts.push((row, self.add(dtype, (rows, cols), source)?));
                    row += rows;
                    rest = &rest[n..];
                }
                let even = |by: usize| parts.iter().all(|(first, _)| first.is_multiple_of(by));
                if !even(16) {
                    return Err(Error::Shape {
                        path: self.container.path().to_owned(),
                        tensor: all[0].tensor.clone(),
                        got: format!("{} rows, then rows of another type", parts[1].0),
                        expected: "a multiple of 16 rows of each type".to_owned(),
                    });
                }
                let parts_begin_at = if even(64) { 64 } else { 16 };
                Ok(PackedMatrix { parts, rows: row, parts_begin_at })
            }
        }
    }

    fn add(
        &mut self,
        dtype: Dtype,
        (rows, cols): (usize, usize),
        source: MatrixPlan,
    ) -> Result<MatrixLocation> {
        let packing = Packing::for_dtype(dtype, rows, cols).map_err(|cause| Error::Packing {
            path: self.container.path().to_owned(),
            tensor: source.tensors()[0].to_owned(),
            cause,
        })?;
        let number = self.sections.len() - 1;
        let section = &mut self.sections[number];
        let location = MatrixLocation { packing, section: number, start: section.bytes };
        let end = section.bytes.checked_add(packing.bytes());
        let end = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        section.bytes = end.ok_or_else(|| Error::Shape {
            path: self.container.path().to_owned(),
            tensor: source.tensors()[0].to_owned(),
            got: format!("[{rows}, {cols}]"),
            expected: "matrices that fit an address space together".to_owned(),
        })?;
        section.jobs.push(PackJob { location: location.clone(), dtype, source });
        Ok(location)
    }

    /// The tensors that matrices are made of.
    pub(super) fn packed_tensors(&self) -> HashSet<&str> {
        let jobs = self.sections.iter().flat_map(|section| &section.jobs);
        jobs.flat_map(|job| job.source.tensors()).collect()
    }

    /// Refuses a plan that names what no matrix is made of.
    pub(super) fn check_precision(&self) -> Result<()> {
        let packed = self.packed_tensors();
        match self.catalog.precision().iter().find(|(tensor, _)| !packed.contains(tensor)) {
            None => Ok(()),
            Some((tensor, dtype)) => Err(Error::Field {
                path: self.container.path().to_owned(),
                field: format!("precision of {}", shown(tensor)),
                got: dtype.name().to_owned(),
                expected: "the name of a matrix".to_owned(),
            }),
        }
    }

    /// A tensor's type, once its shape is found to be that of the rows.
    fn dtype(&self, rows: &Rows, cols: usize) -> Result<Dtype> {
        let (dtype, shape) = self.catalog.get(self.container, &rows.tensor)?;
        // Rows that a plan does not name would be left out silently.
        let each = rows.step * rows.count;
        let expected = match rows.experts {
            Some(experts) => vec![experts, each, cols],
            None => vec![each, cols],
        };
        if shape != expected {
            return Err(Error::Shape {
                path: self.container.path().to_owned(),
                tensor: rows.tensor.clone(),
                got: format!("{shape:?}"),
                expected: format!("{expected:?}"),
            });
        }
        Ok(dtype)
    }
}
