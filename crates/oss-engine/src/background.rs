//! What is done for weights in files in the background: those of a packed file are brought onto
//! huge pages while the engine works, and then compared with their checksums while it does not,
//! both only where there is room in memory. All the while the files' lengths are watched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oss_memory::file;
use oss_memory::pressure::Pressure;
use oss_model::Model;

use crate::error::{Error, Result};
use crate::options::EngineOptions;

/// An engine without requests for so long is idle: programs that ask one after another, or end soon
/// after they began, shall have all of the memory's speed.
const QUIET: Duration = Duration::from_secs(1);
/// How often a thread that waits for that looks.
const LOOK: Duration = Duration::from_millis(50);
/// How often the files' lengths are asked for, beside each request's asking.
const WATCH: Duration = Duration::from_millis(500);

/// The thread that does so; it ends with this, after the megabytes that it is at.
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts it, where weights are mapped or looked up in files. A packed file that engines have
    /// made, and make again where it is not there, goes when it is damaged.
    pub(crate) fn start(
        model: &Arc<Model>,
        options: &EngineOptions,
        made: Option<PathBuf>,
    ) -> Result<Option<Self>> {
        if !(model.weights.are_mapped() || model.weights.are_in_files()) {
            return Ok(None);
        }
        let (model, root) = (Arc::clone(model), options.system_root.clone());
        let huge_pages = options.huge_pages;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let work = move || {
            let stopped = || asked.load(Ordering::Relaxed);
            let is_whole = || model.weights.verify_len().is_ok();
            let go_on = |bytes| huge_pages && !stopped() && is_whole() && has_room(&root, bytes);
            if let Err(error) = model.weights.promote(go_on) {
                tracing::warn!(%error, "the weights stay in the file's own pages");
            }
            let mut used = Instant::now();
            let go_on = |bytes| {
                while !stopped() && is_whole() {
                    if model.weights.are_in_use() {
                        used = Instant::now();
                    }
                    if used.elapsed() >= QUIET {
                        return has_room(&root, bytes);
                    }
                    thread::park_timeout(LOOK);
                }
                false
            };
            // What is wrong is remembered, as a length that has changed is.
            let verified = model.weights.verify(go_on);
            if let (Err(error), Some(path)) = (verified, &made) {
                tracing::warn!(%error, "the next engine packs the model anew");
                if let Err(error) = file::remove(path) {
                    tracing::error!(%error, "the damaged file stays");
                }
            }
            while !stopped() && model.weights.are_in_files() {
                if let Err(error) = model.weights.verify_len() {
                    tracing::error!(%error, "the file is damaged: requests are refused");
                    break;
                }
                thread::park_timeout(WATCH);
            }
        };
        let builder = thread::Builder::new().name("oss-background".to_owned());
        let thread = builder.spawn(work).map_err(|error| Error::Spawn(Arc::new(error)))?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }

    /// Ends it without waiting for that.
    pub(crate) fn leave(mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.store(true, Ordering::Relaxed);
            thread.thread().unpark();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic has been printed, and changes no weight.
            drop(thread.join());
        }
    }
}

/// Whether so many bytes more leave memory calm; no where the system does not say.
fn has_room(root: &Path, bytes: usize) -> bool {
    let spare = Pressure::read_under(root).ok().and_then(|pressure| pressure.spare_bytes());
    spare.is_some_and(|spare| spare > bytes as u64)
}
