//! Where keys and values go that leave memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oss_cache::Options;
use oss_memory::file::{self, RandomAccess};
use oss_memory::placement::MemoryPolicy;
use oss_model::Model;

use crate::error::Result;
use crate::options::EngineOptions;

/// Bytes that may wait to be written to the file, and as many to be read.
const QUEUE_BYTES: usize = 16 << 20;

/// A folder for keys and values that leave memory, found again by the next process.
///
/// There is one file for each model and choice of options that decides bits; other models and
/// options never see it. It is no more than a cache: it may be deleted whenever no engine uses it.
/// One engine at a time uses a file; a second one of the same kind gets an error when it is loaded.
/// Should the file not take what is written (as on a full disk), the engine goes on without, and
/// [`crate::Metrics`] count what failed. What is damaged is never used. The last handle of an
/// engine that goes waits until everything worth keeping has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdTier {
    /// The folder; made if there is none.
    pub directory: PathBuf,
    /// The size of one file at most.
    pub bytes: u64,
}

/// How the cache is to be made, with so many bytes of resident pages in memory so placed.
///
/// # Errors
/// When the folder cannot be made.
pub(crate) fn cache_options(
    model: &Model,
    options: &EngineOptions,
    capacity_bytes: usize,
    memory: MemoryPolicy,
) -> Result<Options> {
    let (policy, warm_bytes, pages) = (options.eviction, options.warm_bytes, options.pages);
    let mut cache = Options { capacity_bytes, memory, pages, policy, warm_bytes, cold: None };
    if let Some(ColdTier { directory, bytes }) = &options.cold {
        file::create_directory(directory).map_err(oss_cache::Error::from)?;
        let content_key = model.content_key();
        let path = directory.join(format!("{content_key:016x}.kv"));
        if let Some(age) = options.keep_unused {
            remove_unused(directory, &path, age);
        }
        let queue = queue(model);
        cache.cold = Some(oss_cache::ColdOptions { path, bytes: *bytes, queue, content_key });
    }
    Ok(cache)
}

/// Removes the files of other models and options that have been left alone for so long. What
/// cannot be removed stays: the engine does without.
fn remove_unused(directory: &Path, own: &Path, age: Duration) {
    let files = file::list(directory).unwrap_or_else(|error| {
        tracing::warn!(%error, "unused files of keys and values stay");
        Vec::new()
    });
    for path in files.iter().filter(|path| path.as_path() != own && is_cold_file(path)) {
        match remove_if_unused(path, age) {
            Ok(true) => tracing::info!(path = %path.display(), "unused keys and values removed"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "an unused file of keys and values stays"),
        }
    }
}

/// Whether a file's name is one that [`cache_options`] gives.
fn is_cold_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let key = name.and_then(|name| name.strip_suffix(".kv"));
    key.is_some_and(|key| key.len() == 16 && u64::from_str_radix(key, 16).is_ok())
}

/// Removes a file that no engine uses and whose time, which each engine that opens it renews, is
/// long past; false when it stays.
fn remove_if_unused(path: &Path, age: Duration) -> oss_memory::Result<bool> {
    let modified = path.metadata().and_then(|about| about.modified());
    let unused = modified.ok().and_then(|time| time.elapsed().ok());
    if unused.is_none_or(|unused| unused < age) {
        return Ok(false);
    }
    // Locked until it is gone, so that nobody begins to use it meanwhile.
    let file = RandomAccess::open_read_only(path)?;
    Ok(file.try_lock()? && file::remove(path)?)
}

/// Bytes of pages that may be on their way between the tiers.
pub(crate) fn queue_bytes(model: &Model, options: &EngineOptions) -> usize {
    let pages = usize::from(options.cold.is_some()) * 2 * queue(model)
        + if options.warm_bytes > 0 { oss_cache::PACK_QUEUE } else { 0 };
    pages * page_bytes(model)
}

/// Pages that may wait to be written.
fn queue(model: &Model) -> usize {
    (QUEUE_BYTES / page_bytes(model)).clamp(8, 1024)
}

/// Bytes of the largest page.
pub(crate) fn page_bytes(model: &Model) -> usize {
    let shape = model.cache_shape();
    let layers = shape.groups.iter().map(|group| group.layers.len()).max().unwrap_or(1);
    layers * shape.n_kv_heads * shape.slot_bytes.next_multiple_of(64)
}
