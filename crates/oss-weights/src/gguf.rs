//! GGUF: one header with typed metadata and tensor descriptions, then aligned tensor bytes.
//!
//! Versions 2 and 3, little endian; byte by byte in the format's specification
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). A file may be split in parts
//! that each are a whole GGUF file; `split.*` keys number them.

use std::path::Path;

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::metadata::{Metadata, ValueType, read_value};
use crate::source::Source;
use crate::tensor::{Span, TensorInfo, check_disjoint, stored_bytes};

mod split;
mod types;
mod write;

pub(crate) use split::open;
pub use write::{Writer, metadata_image};

/// The first four bytes of every GGUF file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// The key of the alignment of tensor bytes.
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u32 = 32;
/// The specification sets none; a page of 2 MiB is the largest that means anything.
const ALIGNMENT_LIMIT: u32 = 2 << 20;

/// The longest key or tensor name: the specification's limit for keys.
const NAME_LIMIT: u64 = 65_535;
/// Far more tensors than any model has: their descriptions take memory before any is looked at.
const MOST_TENSORS: usize = 1 << 20;
/// Far more metadata than any model has, for the same reason.
const MOST_PAIRS: usize = 1 << 16;
/// ggml's number of dimensions.
const DIMENSIONS_LIMIT: u32 = 4;

/// What one file (one part of a split one) holds.
pub(crate) struct Part {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where the header ends: all before is metadata and descriptions.
    pub(crate) header_bytes: usize,
}

/// A header as it is written: where tensors should lie has not been compared with the file.
struct Header<'a> {
    metadata: Metadata,
    described: Vec<Description<'a>>,
    bytes: usize,
    alignment: u64,
}

/// Reads the header of `source`.
fn read_header(source: &Source) -> Result<Header<'_>> {
    let mut cursor = Cursor::new(source.path(), source.bytes(), 0);
    check_version(&mut cursor)?;
    // The least that a description takes: name, dimensions, type, offset; that a pair takes:
    // key, type, value.
    let mut count = |what, bytes, most| match cursor.count(what, bytes)? {
        n if n > most => Err(Error::invalid(source.path(), what, n, format!("at most {most}"))),
        n => Ok(n),
    };
    let n_tensors = count("tensor count", 8 + 4 + 4 + 8, MOST_TENSORS)?;
    let n_pairs = count("metadata count", 8 + 4 + 1, MOST_PAIRS)?;

    let mut metadata = Metadata::empty(source.path());
    for index in 0..n_pairs {
        let key = cursor.string(&format!("metadata key {index}"), NAME_LIMIT)?;
        let what = format!("metadata {}", shown(key));
        let kind = ValueType::read(&mut cursor, &what)?;
        let value = read_value(&mut cursor, source, kind, &what)?;
        metadata.insert(key, value)?;
    }
    let alignment = alignment(&metadata, source.path())?;

    let mut described = Vec::new();
    for index in 0..n_tensors {
        described.push(Description::read(&mut cursor, index, alignment)?);
    }
    Ok(Header { metadata, described, bytes: cursor.position(), alignment })
}

/// Reads and checks the header of `source`, the container's file number `file`.
pub(crate) fn parse(source: &Source, file: usize) -> Result<Part> {
    let Header { metadata, described, bytes: header_bytes, alignment } = read_header(source)?;
    let data_start = (header_bytes as u64).next_multiple_of(alignment);
    let tensors: Result<Vec<TensorInfo>> =
        described.into_iter().map(|d| d.place(source, file, data_start)).collect();
    let tensors = tensors?;
    let mut spans = tensors.iter().map(|t| (t.data, t.name.as_str())).collect();
    check_disjoint(source.path(), &mut spans)?;
    Ok(Part { metadata, tensors, header_bytes })
}

/// Magic and version.
fn check_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let file = cursor.file();
    let magic: [u8; 4] = cursor.array("magic")?;
    if &magic != MAGIC {
        let got = format!("{:02x?}", magic);
        return Err(Error::invalid(file, "magic", got, format!("{MAGIC:02x?}")));
    }
    let version = cursor.u32("version")?;
    let expected = "2 or 3, little endian";
    match version {
        2 | 3 => Ok(()),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            let got = format!("{}, big endian", version.swap_bytes());
            Err(Error::invalid(file, "GGUF version", got, expected))
        }
        _ => Err(Error::invalid(file, "GGUF version", version, expected)),
    }
}

/// The alignment of tensor bytes: a power of two of at least 8, as the specification says.
pub(crate) fn alignment(metadata: &Metadata, file: &Path) -> Result<u64> {
    let alignment = match metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT.into(),
        Some(value) => value.as_u64().ok_or_else(|| {
            Error::invalid(file, ALIGNMENT_KEY, value.describe(), "a non-negative integer")
        })?,
    };
    if !alignment.is_power_of_two() || !(8..=ALIGNMENT_LIMIT.into()).contains(&alignment) {
        let expected = format!("a power of two from 8 to {ALIGNMENT_LIMIT}");
        return Err(Error::invalid(file, ALIGNMENT_KEY, alignment, expected));
    }
    Ok(alignment)
}

/// One tensor as the header describes it.
struct Description<'a> {
    name: &'a str,
    /// Outermost first: the file's order reversed.
    shape: Vec<u64>,
    type_id: u32,
    offset: u64,
}

impl<'a> Description<'a> {
    fn read(cursor: &mut Cursor<'a>, index: usize, alignment: u64) -> Result<Description<'a>> {
        let file = cursor.file();
        let name = cursor.string(&format!("name of tensor {index}"), NAME_LIMIT)?;
        let what = format!("tensor {}", shown(name));
        let n_dimensions = cursor.u32(&what)?;
        if n_dimensions > DIMENSIONS_LIMIT {
            let expected = format!("at most {DIMENSIONS_LIMIT}");
            return Err(Error::tensor(file, name, "number of dimensions", n_dimensions, expected));
        }
        let mut shape = Vec::with_capacity(n_dimensions as usize);
        for _ in 0..n_dimensions {
            shape.push(cursor.u64(&what)?);
        }
        shape.reverse();
        let type_id = cursor.u32(&what)?;
        let offset = cursor.u64(&what)?;
        if !offset.is_multiple_of(alignment) {
            let expected = format!("a multiple of the alignment {alignment}");
            return Err(Error::tensor(file, name, "offset", offset, expected));
        }
        Ok(Description { name, shape, type_id, offset })
    }

    /// Finds the tensor's bytes in its file.
    fn place(self, source: &Source, file: usize, data_start: u64) -> Result<TensorInfo> {
        let path = source.path();
        let dtype = types::dtype(self.type_id).ok_or_else(|| Error::UnsupportedType {
            file: path.to_path_buf(),
            tensor: shown(self.name),
            got: types::describe(self.type_id),
        })?;
        let bytes = stored_bytes(path, self.name, dtype, &self.shape)?;
        let file_bytes = source.bytes().len() as u64;
        let end = data_start.checked_add(self.offset).and_then(|start| start.checked_add(bytes));
        let Some(end) = end.filter(|&end| bytes == 0 || end <= file_bytes) else {
            let got = format!("{bytes} bytes at {} + {}", data_start, self.offset);
            let expected = format!("an end within the file's {file_bytes} bytes");
            return Err(Error::tensor(path, self.name, "bytes", got, expected));
        };
        let range = if bytes == 0 { 0..0 } else { (end - bytes) as usize..end as usize };
        Ok(TensorInfo {
            name: self.name.to_string(),
            dtype,
            shape: self.shape.iter().map(|&dimension| dimension as usize).collect(),
            data: Span { file, start: range.start, end: range.end },
            scales: None,
        })
    }
}
