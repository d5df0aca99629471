//! Packing all matrices into one buffer, in parallel.

use super::Progress;
use super::layout::{Job, Layout};
use crate::error::{Error, Result};
use oss_memory::{Buffer, Pages};
use oss_quant::Row;
use oss_weights::{Container, Data, Tensor};
use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Groups of 16 rows that one task packs.
const TASK_GROUPS: usize = 16;

pub(super) fn pack(
    container: &Container,
    layout: &Layout<'_>,
    progress: Option<Progress<'_>>,
) -> Result<Buffer> {
    let mut storage = Buffer::new(layout.bytes, Pages::Huge)?;
    let done = AtomicU64::new(0);
    let report = |bytes: usize| {
        let sum = done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if let Some(progress) = progress {
            progress(sum, layout.bytes as u64);
        }
    };
    let mut first = 0;
    for &end in &layout.sections {
        let jobs = &layout.jobs[first..end];
        for job in jobs {
            let packing = job.stored.packing;
            let bytes = &mut storage[job.stored.start..][..packing.bytes()];
            let tensors = Tensors::of(container, job)?;
            bytes.par_chunks_mut(packing.group_bytes() * TASK_GROUPS).enumerate().try_for_each(
                |(task, out)| {
                    for (i, group) in out.chunks_exact_mut(packing.group_bytes()).enumerate() {
                        tensors.pack(task * TASK_GROUPS + i, group)?;
                    }
                    report(out.len());
                    Ok::<(), Error>(())
                },
            )?;
        }
        for job in jobs {
            for tensor in job.source.tensors() {
                container.release(tensor);
            }
        }
        first = end;
    }
    Ok(storage)
}

/// A job with its tensors looked up.
struct Tensors<'a> {
    container: &'a Container,
    job: &'a Job,
    found: Vec<(&'a str, Tensor<'a>)>,
}

impl<'a> Tensors<'a> {
    fn of(container: &'a Container, job: &'a Job) -> Result<Self> {
        let found = job
            .source
            .tensors()
            .into_iter()
            .map(|name| Ok((name, container.tensor(name)?)))
            .collect::<Result<_>>()?;
        Ok(Self { container, job, found })
    }

    fn pack(&self, group: usize, out: &mut [u8]) -> Result<()> {
        let packing = self.job.stored.packing;
        let row = |index: usize| {
            let (rows, index) = self.job.source.row(index);
            let tensor = self.found.iter().find(|(name, _)| *name == rows.tensor);
            let (_, tensor) = tensor.expect("all tensors of the job were looked up");
            row_of(tensor, rows.source(index), packing.cols)
        };
        packing.pack_group(group, row, out).map_err(|source| Error::Packing {
            path: self.container.path().to_owned(),
            tensor: self.found[0].0.to_owned(),
            source,
        })
    }
}

/// The bytes of a tensor's row.
fn row_of<'a>(tensor: &Tensor<'a>, row: usize, cols: usize) -> Row<'a> {
    match tensor.data {
        Data::Plain(bytes) => {
            let rows = tensor.info.shape.iter().product::<usize>() / cols;
            let row_bytes = bytes.len() / rows;
            Row::Plain(&bytes[row * row_bytes..][..row_bytes])
        }
        Data::Split { codes, scales } => Row::Split {
            codes: &codes[row * (cols / 2)..][..cols / 2],
            scales: &scales[row * (cols / 32)..][..cols / 32],
        },
    }
}
