//! Writing GGUF files of any size without holding them.

use std::path::Path;

use oss_memory::file;

use crate::error::{Error, Result};
use crate::gguf::{DIMENSIONS_LIMIT, MAGIC, alignment, read_header, types};
use crate::metadata::{Metadata, Value, encode_string};
use crate::sequence::Sequence;
use crate::source::Source;
use crate::tensor::TensorPlan;

/// Writes a GGUF file of version 3: header first, then the tensors' bytes in the order in which
/// they were declared.
///
/// Nothing stands at the path before [`Writer::finish`].
///
/// ```
/// use oss_weights::{Container, Dtype, TensorPlan, gguf};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("tiny.gguf");
/// let metadata = [("general.architecture".to_string(), "tiny".into())];
/// let plan = TensorPlan { name: "w".to_string(), dtype: Dtype::F32, shape: vec![2, 3] };
/// let mut writer = gguf::Writer::create(&path, &metadata, &[plan])?;
/// for row in [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]] {
///     let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
///     writer.tensor_bytes(&bytes)?;
/// }
/// writer.finish()?;
///
/// let container = Container::open(&path)?;
/// assert_eq!(container.tensor("w")?.info.shape, [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    out: file::Writer,
    sequence: Sequence,
    alignment: u64,
    position: u64,
}

impl Writer {
    /// Starts a file and writes its header. `general.alignment` among the metadata is obeyed.
    ///
    /// # Errors
    /// When the file cannot be created, a name comes twice, a type or shape cannot be held, the
    /// alignment is not one, or a reader would refuse the header.
    pub fn create(
        path: &Path,
        metadata: &[(String, Value)],
        tensors: &[TensorPlan],
    ) -> Result<Writer> {
        let mut checked = Metadata::empty(path);
        for (key, value) in metadata {
            checked.insert(key, value.clone())?;
        }
        let alignment = alignment(&checked, path)?;
        let sequence = Sequence::new(path, tensors)?;
        let header = header(path, &checked, tensors, &sequence, alignment)?;
        let position = header.len() as u64;
        // What the reader refuses (a name, a text, or a list that is too long) is not written.
        let header = Source::memory(&path.display().to_string(), header.into());
        read_header(&header)?;
        let mut out = file::Writer::create(path)?;
        out.append(header.bytes())?;
        let mut writer = Writer { out, sequence, alignment, position };
        writer.pad()?;
        Ok(writer)
    }

    /// Appends bytes of the current tensor: the first that is not complete, in the order of the
    /// declaration. A call may bring any part of one tensor, never of two.
    ///
    /// # Errors
    /// When the tensor gets more bytes than its shape says, or writing fails.
    pub fn tensor_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let complete = self.sequence.advance(bytes.len() as u64)?;
        self.out.append(bytes)?;
        self.position += bytes.len() as u64;
        if complete {
            self.pad()?;
        }
        Ok(())
    }

    /// Completes the file and puts it in its place.
    ///
    /// # Errors
    /// When a tensor lacks bytes, or writing fails; nothing is left at the path then.
    pub fn finish(mut self) -> Result<()> {
        self.sequence.finish()?;
        Ok(self.out.commit()?)
    }

    fn pad(&mut self) -> Result<()> {
        let zeros = [0; 4096];
        let mut missing = self.position.next_multiple_of(self.alignment) - self.position;
        self.position += missing;
        while missing > 0 {
            let step = missing.min(zeros.len() as u64);
            self.out.append(&zeros[..step as usize])?;
            missing -= step;
        }
        Ok(())
    }
}

/// The image of a GGUF file that holds these keys and values and no tensors.
pub fn metadata_image(metadata: &Metadata) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    begin(&mut out, metadata, 0);
    out
}

/// Version, counts, and all keys with their values.
fn begin(out: &mut Vec<u8>, metadata: &Metadata, tensors: usize) {
    out.extend(3u32.to_le_bytes());
    out.extend((tensors as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        encode_string(key, out);
        value.encode(out);
    }
}

/// The bytes before the first padding.
fn header(
    path: &Path,
    metadata: &Metadata,
    tensors: &[TensorPlan],
    sequence: &Sequence,
    alignment: u64,
) -> Result<Vec<u8>> {
    let mut out = MAGIC.to_vec();
    begin(&mut out, metadata, tensors.len());
    let mut offset = 0u64;
    for (plan, bytes) in tensors.iter().zip(sequence.sizes()) {
        let type_id = types::id(plan.dtype).ok_or_else(|| {
            let expected = "an element type that GGUF has";
            Error::tensor(path, &plan.name, "element type", plan.dtype, expected)
        })?;
        if plan.shape.len() > DIMENSIONS_LIMIT as usize {
            let expected = format!("at most {DIMENSIONS_LIMIT}");
            let got = plan.shape.len();
            return Err(Error::tensor(path, &plan.name, "number of dimensions", got, expected));
        }
        encode_string(&plan.name, &mut out);
        out.extend((plan.shape.len() as u32).to_le_bytes());
        for &dimension in plan.shape.iter().rev() {
            out.extend((dimension as u64).to_le_bytes());
        }
        out.extend(type_id.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let end = bytes.checked_next_multiple_of(alignment).and_then(|b| offset.checked_add(b));
        offset = end.filter(|&end| end <= i64::MAX as u64).ok_or_else(|| {
            let expected = "tensors that fit in 63 bits together";
            Error::tensor(path, &plan.name, "bytes", bytes, expected)
        })?;
    }
    Ok(out)
}
