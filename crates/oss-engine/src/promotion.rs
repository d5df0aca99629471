//! A packed file's weights are brought onto huge pages while the engine works, where there is room.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use oss_memory::pressure::{Pressure, TIGHT_SHARE};
use oss_model::Model;

use crate::error::{Error, Result};
use crate::options::EngineOptions;

/// The thread that does so; it ends with this, after the section that it is at.
pub(crate) struct Promotion {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Promotion {
    /// Starts it, where that is asked for and there are mapped weights.
    pub(crate) fn start(model: &Arc<Model>, options: &EngineOptions) -> Result<Option<Self>> {
        if !options.huge_pages || !model.weights.are_mapped() {
            return Ok(None);
        }
        let (model, root) = (Arc::clone(model), options.system_root.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let copy = move || {
            let go_on = |bytes| !asked.load(Ordering::Relaxed) && has_room(&root, bytes);
            if let Err(error) = model.weights.promote(go_on) {
                tracing::warn!(%error, "the weights stay in the file's own pages");
            }
        };
        let builder = thread::Builder::new().name("oss-promotion".to_owned());
        let thread = builder.spawn(copy).map_err(Error::Spawn)?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }
}

impl Drop for Promotion {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed, and changes no weight.
            drop(thread.join());
        }
    }
}

/// Whether a copy leaves memory calm; no where the system does not say.
fn has_room(root: &Path, bytes: usize) -> bool {
    let Ok(Pressure { room: Some(room), limit: Some(limit), .. }) = Pressure::read_under(root)
    else {
        return false;
    };
    room.saturating_sub(bytes as u64) as f64 > 2.0 * TIGHT_SHARE * limit as f64
}
