//! The header of one file.

use oss_quant::Dtype;

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::safetensors::json::{self, Entry};
use crate::source::Source;
use crate::tensor::{Span, TensorInfo, check_disjoint, stored_bytes};

/// The longest header, as the format's own implementation has it.
pub(crate) const HEADER_LIMIT: u64 = 100_000_000;

/// The element types of the format that tensors may have here.
const TYPES: [Dtype; 13] = [
    Dtype::Bool,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::U32,
    Dtype::I32,
    Dtype::F32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F64,
];

/// The type of a name as the format spells it.
fn dtype(name: &str) -> Option<Dtype> {
    TYPES.into_iter().find(|dtype| dtype.name() == name)
}

/// Whether files of this format can hold the type.
pub(crate) fn can_hold(dtype: Dtype) -> bool {
    TYPES.contains(&dtype)
}

/// What one file holds.
pub(crate) struct Header {
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where the tensors' bytes start.
    pub(crate) bytes: usize,
}

/// Reads and checks the header of `source`, the container's file number `file`.
pub(crate) fn parse(source: &Source, file: usize) -> Result<Header> {
    let path = source.path();
    let mut cursor = Cursor::new(path, source.bytes(), 0);
    let length = cursor.u64("header length")?;
    if length > HEADER_LIMIT {
        let expected = format!("at most {HEADER_LIMIT}");
        return Err(Error::invalid(path, "header length", length, expected));
    }
    let text = cursor.take(length, "header")?;
    let data_start = cursor.position() as u64;
    let data_bytes = cursor.remaining();
    let entries = json::header(path, text)?;
    let place = |(name, entry): (String, Entry)| place(source, file, name, &entry, data_start);
    let tensors: Vec<TensorInfo> = entries.into_iter().map(place).collect::<Result<_>>()?;
    let mut spans = tensors.iter().map(|t| (t.data, t.name.as_str())).collect();
    check_disjoint(path, &mut spans)?;
    // The format allows no bytes that belong to no tensor: without overlaps, sizes add up.
    let sum: u64 = tensors.iter().map(|t| t.bytes() as u64).sum();
    if sum != data_bytes {
        let expected = format!("the {sum} of all tensors");
        return Err(Error::invalid(path, "bytes after the header", data_bytes, expected));
    }
    Ok(Header { tensors, bytes: data_start as usize })
}

/// Checks one tensor and finds its bytes.
fn place(
    source: &Source,
    file: usize,
    name: String,
    entry: &Entry,
    data_start: u64,
) -> Result<TensorInfo> {
    let path = source.path();
    let dtype = dtype(&entry.dtype).ok_or_else(|| Error::UnsupportedType {
        file: path.to_path_buf(),
        tensor: shown(&name),
        got: shown(&entry.dtype),
    })?;
    let expected = stored_bytes(path, &name, dtype, &entry.shape)?;
    let [start, end] = entry.data_offsets;
    let data_bytes = source.bytes().len() as u64 - data_start;
    if start > end || end > data_bytes {
        let got = format!("{start}..{end}");
        let expected = format!("a range within the {data_bytes} bytes after the header");
        return Err(Error::tensor(path, &name, "data_offsets", got, expected));
    }
    if end - start != expected {
        let what = format!("bytes of {start}..{end}");
        let expected = format!("{expected} for {dtype} {:?}", entry.shape);
        return Err(Error::tensor(path, &name, what, end - start, expected));
    }
    let shape = entry.shape.iter().map(|&dimension| dimension as usize).collect();
    let (start, end) = ((data_start + start) as usize, (data_start + end) as usize);
    Ok(TensorInfo { name, dtype, shape, data: Span { file, start, end }, scales: None })
}
