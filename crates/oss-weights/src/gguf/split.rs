//! Parts of a split file: `name-00001-of-00003.gguf` and its siblings.

use std::path::{Path, PathBuf};

use crate::container::Parts;
use crate::error::{Error, Result};
use crate::gguf::{Part, parse};
use crate::metadata::Metadata;
use crate::source::Source;

/// Opens `source` and, when it is one part of several, all the other parts.
pub(crate) fn open(source: Source) -> Result<Parts> {
    let part = parse(&source, 0)?;
    let count = number(&part.metadata, &source, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(Parts {
            metadata: part.metadata,
            tensors: part.tensors,
            header_bytes: vec![part.header_bytes],
            sources: vec![source],
        });
    }
    if !source.is_file() {
        let expected = "1 for bytes in memory";
        return Err(Error::invalid(source.path(), "split.count", count, expected));
    }
    let stem = stem(source.path(), count)?;
    let sources: Result<Vec<Source>> =
        (1..=count).map(|part| Source::open(&part_path(&stem, part, count))).collect();
    join(sources?, count)
}

/// The key as a number, of whichever integer type it was written.
fn number(metadata: &Metadata, source: &Source, key: &str) -> Result<Option<u64>> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let limit = u64::from(u16::MAX);
    match value.as_u64() {
        Some(number) if number <= limit || key == "split.tensors.count" => Ok(Some(number)),
        _ => {
            let expected = format!("an integer from 0 to {limit}");
            Err(Error::invalid(source.path(), key, value.describe(), expected))
        }
    }
}

/// The part of the path before `-00001-of-00003.gguf`.
fn stem(path: &Path, count: u64) -> Result<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name
        .strip_suffix(&format!("-of-{count:05}.gguf"))
        .and_then(|rest| rest.rsplit_once('-'))
        .filter(|(_, digits)| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()));
    match stem {
        Some((stem, _)) => Ok(path.with_file_name(stem)),
        None => {
            let expected = format!("a name that ends in -00001-of-{count:05}.gguf");
            Err(Error::invalid(path, "name of a part of a split file", name, expected))
        }
    }
}

fn part_path(stem: &Path, part: u64, count: u64) -> PathBuf {
    let name = stem.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    stem.with_file_name(format!("{name}-{part:05}-of-{count:05}.gguf"))
}

/// Puts the parts together; the metadata is the first part's.
fn join(sources: Vec<Source>, count: u64) -> Result<Parts> {
    let mut tensors = Vec::new();
    let mut header_bytes = Vec::new();
    let mut metadata = None;
    for (index, source) in sources.iter().enumerate() {
        let part: Part = parse(source, index)?;
        let expected = [("split.no", index as u64), ("split.count", count)];
        for (key, expected) in expected {
            let got = number(&part.metadata, source, key)?;
            if got != Some(expected) {
                let got = got.map_or("no such key".to_string(), |got| got.to_string());
                return Err(Error::invalid(source.path(), key, got, expected));
            }
        }
        tensors.extend(part.tensors);
        header_bytes.push(part.header_bytes);
        metadata.get_or_insert(part.metadata);
    }
    let metadata = metadata.unwrap_or_default();
    if let Some(total) = number(&metadata, &sources[0], "split.tensors.count")?
        && total != tensors.len() as u64
    {
        let expected = format!("{}, the tensors of all parts", tensors.len());
        return Err(Error::invalid(sources[0].path(), "split.tensors.count", total, expected));
    }
    Ok(Parts { metadata, tensors, header_bytes, sources })
}
