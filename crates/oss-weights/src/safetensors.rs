//! safetensors: a JSON header with names, types, shapes and offsets, then the bytes.
//!
//! Format: <https://huggingface.co/docs/safetensors/index>. The header is read here and not by
//! the format's own crate, because an error has to name file, tensor, what is there and what
//! should be; that crate is the oracle of the tests.

use std::collections::HashMap;
use std::path::Path;

use oss_memory::file;

use crate::container::{Parts, is_plain_name};
use crate::error::{Error, Result, shown};
use crate::metadata::Metadata;
use crate::source::Source;
use crate::tensor::TensorInfo;

mod header;
mod json;
mod mxfp4;
mod write;

pub use write::Writer;

/// How the names of indices of shards end.
pub(crate) const INDEX_SUFFIX: &str = ".safetensors.index.json";

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest index that is read; those of models with 100,000 tensors take some 10 MB.
const INDEX_LIMIT: u64 = 64 << 20;

/// Opens the model in `directory`: one file when there is one, otherwise shards by their index.
pub(crate) fn open_directory(directory: &Path) -> Result<Parts> {
    let single = directory.join(SINGLE);
    if single.exists() {
        return open_file(Source::open(&single)?);
    }
    let index = directory.join(INDEX);
    if index.exists() {
        return open_index(&index);
    }
    Err(Error::NotAModel {
        file: directory.to_path_buf(),
        got: "a directory without either".to_string(),
        expected: format!("{SINGLE} or {INDEX}"),
    })
}

/// Reads the header of one file.
pub(crate) fn open_file(source: Source) -> Result<Parts> {
    join(vec![source], None)
}

/// Opens the shards that the index at `path` names.
pub(crate) fn open_index(path: &Path) -> Result<Parts> {
    let text = file::read(path, INDEX_LIMIT)?;
    let weight_map = json::weight_map(path, &text)?;
    let mut names: Vec<&str> = weight_map.values().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let mut sources = Vec::with_capacity(names.len());
    for name in names {
        if !is_plain_name(name) {
            let expected = "the name of a file beside the index";
            return Err(Error::invalid(path, "weight_map: shard", shown(name), expected));
        }
        sources.push(Source::open(&path.with_file_name(name))?);
    }
    if sources.is_empty() {
        return Err(Error::invalid(path, "weight_map", "no shards", "at least one"));
    }
    join(sources, Some((path, &weight_map)))
}

/// Reads the headers of all files, compares them with the index, and merges MXFP4 pairs.
fn join(sources: Vec<Source>, index: Option<(&Path, &HashMap<String, String>)>) -> Result<Parts> {
    let mut tensors = Vec::new();
    let mut header_bytes = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        let header = header::parse(source, number)?;
        tensors.extend(header.tensors);
        header_bytes.push(header.bytes);
    }
    if let Some((path, weight_map)) = index {
        check_index(path, weight_map, &sources, &tensors)?;
    }
    let tensors = mxfp4::merge(&sources, tensors)?;
    let metadata = Metadata::empty(sources[0].path());
    Ok(Parts { metadata, tensors, header_bytes, sources })
}

/// Every tensor of the index is in the shard that the index names.
fn check_index(
    path: &Path,
    weight_map: &HashMap<String, String>,
    sources: &[Source],
    tensors: &[TensorInfo],
) -> Result<()> {
    let shard = |tensor: &TensorInfo| sources[tensor.data.file].path().file_name();
    let places: HashMap<&str, _> = tensors.iter().map(|t| (t.name.as_str(), shard(t))).collect();
    for (name, expected) in weight_map {
        let got = places.get(name.as_str()).copied().flatten().and_then(|shard| shard.to_str());
        if got != Some(expected) {
            let got = got.unwrap_or("no such tensor in any shard");
            let expected = format!("{}, as the index says", shown(expected));
            return Err(Error::tensor(path, name, "shard", got, expected));
        }
    }
    Ok(())
}
