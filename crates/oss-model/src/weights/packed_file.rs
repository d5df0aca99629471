//! What a packed file holds besides matrices: the configuration, the tokenizer, and the tensors
//! that are not packed, so that the file stands alone.

use super::layout::Layout;
use crate::catalog::Catalog;
use crate::content_key;
use crate::error::{Error, Result};
use oss_weights::packed::{METADATA, SectionPlan, TENSOR, Writer};
use oss_weights::{Container, Encoded, Fingerprint, Kind, gguf, shown};
use std::path::Path;

/// The `kind` of sections that hold packed matrices.
pub(super) const MATRICES: &str = "matrices";
/// The `format` of such sections: changes whenever the same model would be laid out differently.
pub(super) const LAYOUT: &str = "p16.2";

/// Files beside safetensors that a packed file keeps.
const SIDE_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Bytes, by the names of their sections.
type Blobs = Vec<(&'static str, Vec<u8>)>;

/// Configuration, tokenizer and catalog.
pub(super) fn blobs(container: &Container, catalog: &Catalog) -> Result<Blobs> {
    let mut blobs = catalog.blobs();
    blobs.append(&mut beside(container)?);
    Ok(blobs)
}

/// A number for what a packed file is made from: another one for other weights, another
/// configuration or another tokenizer. Of weights in files it sees samples of every tensor: all
/// bytes would take as long as packing.
fn source(container: &Container) -> Result<u128> {
    Ok(content_key::of_files(container, &beside(container)?))
}

/// The same, and another number whenever a file has been written again, as one that was changed in
/// place.
pub(super) fn written(container: &Container) -> Result<u128> {
    Ok(content_key::of_written_files(source(container)?, container))
}

/// What stands beside the tensors.
fn beside(container: &Container) -> Result<Blobs> {
    let mut blobs = Vec::new();
    match container.kind() {
        Kind::Gguf => blobs.push((METADATA, gguf::metadata_image(container.metadata()))),
        Kind::Safetensors => {
            for name in SIDE_FILES {
                blobs.extend(container.side_file(name)?.map(|bytes| (name, bytes)));
            }
        }
        Kind::Packed => {
            return Err(Error::Unsupported {
                path: container.path().to_owned(),
                what: "packing",
                got: "a packed file".to_owned(),
                expected: "a GGUF file or safetensors".to_owned(),
            });
        }
    }
    Ok(blobs)
}

/// The tensors that no packed matrix is made of.
pub(super) fn kept_tensors(layout: &Layout<'_>) -> Vec<String> {
    let packed = layout.packed_tensors();
    let names = layout.container().tensors().map(|info| &info.name);
    names.filter(|name| !packed.contains(name.as_str())).cloned().collect()
}

/// The bytes of a tensor that is kept as it is.
pub(super) fn plain<'a>(container: &'a Container, name: &str) -> Result<&'a [u8]> {
    let tensor = container.tensor(name)?;
    match tensor.data {
        Encoded::Plain(bytes) => Ok(bytes),
        Encoded::Split { .. } => Err(Error::Shape {
            path: container.path().to_owned(),
            tensor: shown(name),
            got: "codes and scales apart, used by no layer".to_owned(),
            expected: "a plain tensor".to_owned(),
        }),
    }
}

/// Begins the file, or goes on with one that was interrupted.
pub(super) fn create(
    layout: &Layout<'_>,
    path: &Path,
    blobs: &[(&str, Vec<u8>)],
    kept: &[String],
) -> Result<Writer> {
    let container = layout.container();
    let mut plans: Vec<SectionPlan> =
        blobs.iter().map(|(name, bytes)| SectionPlan::blob(name, bytes.len() as u64)).collect();
    for name in kept {
        let info = container.tensor(name)?.info;
        plans.push(SectionPlan {
            kind: TENSOR.to_owned(),
            format: info.dtype.name().to_owned(),
            shape: info.shape.iter().map(|n| *n as u64).collect(),
            ..SectionPlan::blob(name, info.bytes() as u64)
        });
    }
    for section in &layout.sections {
        plans.push(SectionPlan {
            kind: MATRICES.to_owned(),
            format: LAYOUT.to_owned(),
            ..SectionPlan::blob(&section.name, section.bytes as u64)
        });
    }
    let fingerprint = layout.catalog().precision().fingerprint(source(container)?);
    // Samples miss what was written anew in between.
    let modified = container.modified().flatten().max();
    Ok(Writer::create(path, Fingerprint(fingerprint), &plans, modified)?)
}
