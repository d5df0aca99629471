//! Packing matrices in parallel, into memory or into a packed file.

use super::layout::{Layout, PackJob, SectionLayout};
use super::load_pool::on_load_pool;
use super::{Progress, packed_file};
use crate::error::{Error, Result};
use oss_memory::placement::Replicas;
use oss_memory::{Buffer, Pages};
use oss_quant::GROUP_ROWS;
use oss_simd::Isa;
use oss_weights::{Container, Encoded, Tensor};
use rayon::prelude::*;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Groups of 16 rows that one task packs: so few that many threads share a matrix.
const TASK_GROUPS: usize = 4;
/// Packed bytes after which the pages that were read for them go back to the system.
const SLAB: usize = 64 << 20;

/// Counts packed bytes.
struct Report<'a> {
    done: AtomicU64,
    total: u64,
    progress: Option<Progress<'a>>,
}

impl<'a> Report<'a> {
    fn new(layout: &Layout<'_>, progress: Option<Progress<'a>>) -> Self {
        let jobs = layout.sections.iter().flat_map(|section| &section.jobs);
        let total = jobs.map(|job| job.location.packing.bytes() as u64).sum();
        Self { done: AtomicU64::new(0), total, progress }
    }

    /// Counts so many more.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when who is told wants no more.
    fn add(&self, bytes: usize) -> Result<()> {
        let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        match self.progress.map(|progress| progress(done, self.total)) {
            Some(ControlFlow::Break(())) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }
}

/// Packs all sections, each into a buffer.
pub(super) fn to_memory(
    layout: &Layout<'_>,
    pages: Pages,
    progress: Option<Progress<'_>>,
) -> Result<Vec<Replicas>> {
    let report = Report::new(layout, progress);
    let section = |section: &SectionLayout| {
        let mut buffer = Buffer::new(section.bytes, pages)?;
        for job in &section.jobs {
            let out = &mut buffer[job.location.start..][..job.location.packing.bytes()];
            pack_job(layout.container(), job, out, &report)?;
        }
        Ok(Replicas::from(buffer))
    };
    on_load_pool(|| layout.sections.iter().map(section).collect())
}

/// Packs all sections into a file, which appears at `path` whole or not at all; what an earlier
/// call wrote before it was interrupted is kept.
pub(super) fn to_file(
    layout: &Layout<'_>,
    path: &Path,
    progress: Option<Progress<'_>>,
) -> Result<()> {
    let report = Report::new(layout, progress);
    let container = layout.container();
    let blobs = packed_file::blobs(container, layout.catalog())?;
    let kept = packed_file::kept_tensors(layout);
    let writer = packed_file::create(layout, path, &blobs, &kept)?;
    for (name, bytes) in &blobs {
        if !writer.is_complete(name) {
            writer.section(name, bytes)?;
        }
    }
    for name in &kept {
        if !writer.is_complete(name) {
            writer.section(name, packed_file::plain(container, name)?)?;
        }
    }
    let pack = |section: &SectionLayout| -> Result<()> {
        if writer.is_complete(&section.name) {
            return section
                .jobs
                .iter()
                .try_for_each(|job| report.add(job.location.packing.bytes()));
        }
        let mut out = writer.begin(&section.name);
        let mut written = 0;
        for job in &section.jobs {
            out.append(&vec![0; job.location.start - written])?;
            let mut bytes = Buffer::new(job.location.packing.bytes(), Pages::Ordinary)?;
            pack_job(container, job, &mut bytes, &report)?;
            out.append(&bytes)?;
            written = job.location.start + bytes.len();
        }
        out.append(&vec![0; section.bytes - written])?;
        Ok(out.finish()?)
    };
    on_load_pool(|| layout.sections.iter().try_for_each(pack))?;
    Ok(writer.finish()?)
}

/// Packs a matrix slab by slab, and hands the source's pages back after each, so that no more than
/// a slab is resident twice.
fn pack_job(
    container: &Container,
    job: &PackJob,
    out: &mut [u8],
    report: &Report<'_>,
) -> Result<()> {
    let group_bytes = job.location.packing.group_bytes();
    let slab_groups = (SLAB / group_bytes).max(1);
    let tensors = Tensors::of(container, job)?;
    for (slab, out) in out.chunks_mut(slab_groups * group_bytes).enumerate() {
        out.par_chunks_mut(TASK_GROUPS * group_bytes).enumerate().try_for_each(
            |(task, out)| -> Result<()> {
                for (i, group) in out.chunks_exact_mut(group_bytes).enumerate() {
                    tensors.pack(slab * slab_groups + task * TASK_GROUPS + i, group)?;
                }
                report.add(out.len())
            },
        )?;
        for tensor in job.source.tensors() {
            container.release(tensor);
        }
    }
    Ok(())
}

/// A job with its tensors looked up.
struct Tensors<'a> {
    container: &'a Container,
    job: &'a PackJob,
    found: Vec<(&'a str, Tensor<'a>)>,
}

impl<'a> Tensors<'a> {
    fn of(container: &'a Container, job: &'a PackJob) -> Result<Self> {
        let found = job
            .source
            .tensors()
            .into_iter()
            .map(|name| Ok((name, container.tensor(name)?)))
            .collect::<Result<_>>()?;
        Ok(Self { container, job, found })
    }

    fn pack(&self, group: usize, out: &mut [u8]) -> Result<()> {
        let packing = self.job.location.packing;
        let changed = self.changed(group)?;
        let row = |index: usize| match &changed[index % GROUP_ROWS] {
            Some(bytes) => Encoded::Plain(bytes),
            None => self.row(index).2,
        };
        packing.pack_group(group, row, out).map_err(|error| match error {
            // Of the tensor's own row: the job may have rows of several, in another order.
            oss_quant::Error::ScaleNotFinite { row, block, got } => {
                let (tensor, row, _) = self.row(row);
                let cause = oss_quant::Error::ScaleNotFinite { row, block, got };
                self.wrong(&tensor.info.name, cause)
            }
            other => self.wrong(self.found[0].0, other),
        })
    }

    /// The tensor of a row of the job, which of its rows that is, and its bytes.
    fn row(&self, index: usize) -> (&Tensor<'a>, usize, Encoded<'a>) {
        let (rows, index) = self.job.source.row(index);
        let tensor = self.found.iter().find(|(name, _)| *name == rows.tensor);
        let (_, tensor) = tensor.expect("all tensors of the job were looked up");
        let row = rows.source(index);
        (tensor, row, row_of(tensor, row, self.job.location.packing.cols))
    }

    /// The rows of a group that are of another type than the job's, encoded as that.
    fn changed(&self, group: usize) -> Result<[Option<Vec<u8>>; GROUP_ROWS]> {
        let (packing, to) = (self.job.location.packing, self.job.dtype);
        let first = group * GROUP_ROWS;
        let mut changed = [const { None }; GROUP_ROWS];
        let mut numbers = Vec::new();
        for index in first..packing.rows.min(first + GROUP_ROWS) {
            let (Tensor { info, .. }, row, bytes) = self.row(index);
            if info.dtype == to {
                continue;
            }
            let wrong = |cause| self.wrong(&info.name, cause);
            numbers.resize(packing.cols, 0.0);
            bytes.dequantise(Isa::scalar(), info.dtype, &mut numbers).map_err(wrong)?;
            self.check_finite((&info.name, row), &numbers)?;
            let mut encoded = vec![0; to.row_bytes(packing.cols).unwrap_or_default()];
            to.quantise_row(&numbers, &mut encoded).map_err(wrong)?;
            if to.block_len() == 1 {
                // A float of fewer bits may be infinite where the file's number is not.
                to.dequantise_row(Isa::scalar(), &encoded, &mut numbers).map_err(wrong)?;
                self.check_finite((&info.name, row), &numbers)?;
            }
            changed[index - first] = Some(encoded);
        }
        Ok(changed)
    }

    /// Refuses a tensor's row with numbers that are infinite or none, in the file or as the job
    /// has them.
    fn check_finite(&self, (tensor, row): (&str, usize), numbers: &[f32]) -> Result<()> {
        let Some(column) = numbers.iter().position(|number| !number.is_finite()) else {
            return Ok(());
        };
        Err(Error::Shape {
            path: self.container.path().to_owned(),
            tensor: tensor.to_owned(),
            got: format!("{} in row {row}, column {column}", numbers[column]),
            expected: format!("finite numbers, to be packed as {}", self.job.dtype.name()),
        })
    }

    fn wrong(&self, tensor: &str, cause: oss_quant::Error) -> Error {
        let (path, tensor) = (self.container.path().to_owned(), tensor.to_owned());
        Error::Packing { path, tensor, cause }
    }
}

/// The bytes of a tensor's row.
fn row_of<'a>(tensor: &Tensor<'a>, row: usize, cols: usize) -> Encoded<'a> {
    match tensor.data {
        Encoded::Plain(bytes) => {
            let rows = tensor.info.shape.iter().product::<usize>() / cols;
            let row_bytes = bytes.len() / rows;
            Encoded::Plain(&bytes[row * row_bytes..][..row_bytes])
        }
        Encoded::Split { codes, scales } => Encoded::Split {
            codes: &codes[row * (cols / 2)..][..cols / 2],
            scales: &scales[row * (cols / 32)..][..cols / 32],
        },
    }
}
