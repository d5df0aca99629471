//! Writing safetensors files of any size without holding them.

use std::path::Path;

use oss_memory::file;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::safetensors::header::{HEADER_LIMIT, can_hold};
use crate::sequence::Sequence;
use crate::tensor::TensorPlan;

/// Writes a safetensors file: header first, then the tensors' bytes in the order in which they
/// were declared.
///
/// Nothing stands at the path before [`Writer::finish`]. The header is padded to a multiple of
/// eight bytes, so tensors are aligned when wider types are declared before narrower ones.
#[derive(Debug)]
pub struct Writer {
    out: file::Writer,
    sequence: Sequence,
}

impl Writer {
    /// Starts a file and writes its header. `notes` become the header's `__metadata__`; readers
    /// that follow Python's conventions expect `format` = `pt` there.
    ///
    /// # Errors
    /// When the file cannot be created, a name comes twice, or a type or shape cannot be held
    /// (MXFP4 is written as two tensors of bytes, `_blocks` and `_scales`).
    pub fn create(
        path: &Path,
        notes: &[(String, String)],
        tensors: &[TensorPlan],
    ) -> Result<Writer> {
        let sequence = Sequence::new(path, tensors)?;
        let mut header = Map::new();
        if !notes.is_empty() {
            let notes = notes.iter().map(|(key, value)| (key.clone(), json!(value)));
            header.insert("__metadata__".to_string(), Value::Object(notes.collect()));
        }
        let mut offset = 0u64;
        for (plan, bytes) in tensors.iter().zip(sequence.sizes()) {
            if !can_hold(plan.dtype) || plan.name == "__metadata__" {
                let what = "name and element type";
                let expected = "ones that safetensors can hold";
                return Err(Error::tensor(path, &plan.name, what, plan.dtype, expected));
            }
            let entry = json!({
                "dtype": plan.dtype.name(),
                "shape": plan.shape,
                "data_offsets": [offset, offset + bytes],
            });
            header.insert(plan.name.clone(), entry);
            offset += bytes;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        if text.len() as u64 > HEADER_LIMIT {
            let expected = format!("at most {HEADER_LIMIT}");
            return Err(Error::invalid(path, "header length", text.len(), expected));
        }
        let mut out = file::Writer::create(path)?;
        out.append(&(text.len() as u64).to_le_bytes())?;
        out.append(&text)?;
        Ok(Writer { out, sequence })
    }

    /// Appends bytes of the current tensor: the first that is not complete, in the order of the
    /// declaration. A call may bring any part of one tensor, never of two.
    ///
    /// # Errors
    /// When the tensor gets more bytes than its shape says, or writing fails.
    pub fn tensor_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.sequence.advance(bytes.len() as u64)?;
        Ok(self.out.append(bytes)?)
    }

    /// Completes the file and puts it in its place.
    ///
    /// # Errors
    /// When a tensor lacks bytes, or writing fails; nothing is left at the path then.
    pub fn finish(mut self) -> Result<()> {
        self.sequence.finish()?;
        Ok(self.out.commit()?)
    }
}
