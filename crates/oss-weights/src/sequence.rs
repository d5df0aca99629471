//! Tensors written one after another: which one is next, and how much it still needs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, shown};
use crate::tensor::{TensorPlan, stored_bytes};

/// The tensors of a file that is being written, each with its number of bytes.
#[derive(Debug)]
pub(crate) struct Sequence {
    file: PathBuf,
    tensors: Vec<(String, u64)>,
    current: usize,
    written: u64,
}

impl Sequence {
    /// Checks shapes and names.
    pub(crate) fn new(file: &Path, plans: &[TensorPlan]) -> Result<Sequence> {
        let mut seen = HashSet::new();
        let mut tensors = Vec::with_capacity(plans.len());
        for plan in plans {
            if !seen.insert(plan.name.as_str()) {
                let (got, expected) = ("a second one", "every name once");
                return Err(Error::tensor(file, &plan.name, "name", got, expected));
            }
            let shape: Vec<u64> = plan.shape.iter().map(|&dimension| dimension as u64).collect();
            let bytes = stored_bytes(file, &plan.name, plan.dtype, &shape)?;
            tensors.push((plan.name.clone(), bytes));
        }
        Ok(Sequence { file: file.to_path_buf(), tensors, current: 0, written: 0 })
    }

    /// The number of bytes of each tensor.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.tensors.iter().map(|(_, bytes)| *bytes)
    }

    /// Takes note of `bytes` more for the current tensor; true when it is complete.
    pub(crate) fn advance(&mut self, bytes: u64) -> Result<bool> {
        while self.written == 0 && self.tensors.get(self.current).is_some_and(|t| t.1 == 0) {
            self.current += 1;
        }
        if bytes == 0 {
            return Ok(false);
        }
        let Some((name, size)) = self.tensors.get(self.current) else {
            let got = format!("{bytes} bytes after the last tensor");
            return Err(Error::invalid(&self.file, "writing", got, "finish"));
        };
        let left = size - self.written;
        if bytes > left {
            let what = format!("writing after {} of {size} bytes", self.written);
            let expected = format!("at most {left}");
            return Err(Error::tensor(&self.file, name, what, bytes, expected));
        }
        self.written += bytes;
        let complete = self.written == *size;
        if complete {
            self.current += 1;
            self.written = 0;
        }
        Ok(complete)
    }

    /// All tensors have their bytes.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.advance(0)?;
        match self.tensors.get(self.current) {
            None => Ok(()),
            Some((name, size)) => {
                let got = format!("the end of the file after {} bytes", self.written);
                let name = shown(name);
                Err(Error::tensor(&self.file, &name, "writing", got, format!("{size} bytes")))
            }
        }
    }
}
