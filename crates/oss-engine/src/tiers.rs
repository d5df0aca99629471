//! Where keys and values go that leave memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oss_cache::{Options, Shape};
use oss_memory::file::{self, RandomAccess};
use oss_memory::placement::MemoryPolicy;
use oss_model::Model;

use crate::error::Result;
use crate::options::EngineOptions;

/// Bytes that may wait to be written to the file, and as many to be read.
const QUEUE_BYTES: usize = 16 << 20;

/// A folder for keys and values that leave memory, found again by the next process. They tell
/// prompts: folder and files are made for this user alone.
///
/// There is one file for each model and choice of options that decides bits; other models and
/// options never see it. It is no more than a cache: it may be deleted whenever no engine uses it.
/// One engine at a time uses a file; a second one of the same kind gets an error when it is loaded.
/// Should the file not take what is written (as on a full disk), the engine goes on without, and
/// [`crate::Metrics`] count what failed. What is damaged is never used; a file is emptied when the
/// model's own files are found damaged. The last handle of an engine that goes waits until
/// everything worth keeping has been written.
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
        file::create_private_directory(directory).map_err(oss_cache::Error::from)?;
        let content_key = model.content_key();
        let path = directory.join(format!("{content_key:016x}.kv"));
        if let Some(age) = options.keep_unused {
            remove_unused(directory, &path, age);
        }
        let queue = queue(&model.cache_shape());
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
    let is_old = || {
        let modified = path.metadata().and_then(|about| about.modified());
        let unused = modified.ok().and_then(|time| time.elapsed().ok());
        unused.is_some_and(|unused| unused >= age)
    };
    // What is not old stays unlocked: whoever opens it would have to wait.
    if !is_old() {
        return Ok(false);
    }
    // Locked until it is gone, so that nobody begins to use it meanwhile. Just before, somebody may
    // have used it, or removed it and made another.
    let file = RandomAccess::open_read_only(path)?;
    Ok(file.try_lock()? && file.has_its_name()? && is_old() && file::remove(path)?)
}

/// Bytes of pages that may be on their way between the tiers.
pub(crate) fn queue_bytes(model: &Model, options: &EngineOptions) -> usize {
    let shape = model.cache_shape();
    let queue = if options.cold.is_some() { queue(&shape) } else { 0 };
    shape.queue_bytes(options.warm_bytes, queue)
}

/// Pages that may wait to be written.
fn queue(shape: &Shape) -> usize {
    (QUEUE_BYTES / shape.largest_page_bytes()).clamp(8, 1024)
}
