//! What is done about a step that failed: refused memory, panics.

use oss_cache::{KvCache, SequenceId};

use crate::error::Error;
use crate::step::Scheduler;
use crate::step::hold::Hold;
use crate::step::partway::Partway;

impl Scheduler {
    /// The step's requests fail; where a row is no number, its own alone, as no sequence has
    /// changed. After a panic nothing that it may have left half done is used again: scratch and
    /// cache are made anew, and the other requests are computed again.
    pub(crate) fn fail_step(&mut self, error: Error) {
        use oss_model::Error::NotFinite;
        tracing::error!(%error, "a step failed");
        // Its scratch may be gone; it begins anew.
        self.plan.partway = Partway::default();
        if let Some(&NotFinite { sequence, position, .. }) = error.model() {
            self.state = None;
            return self.fail_row(sequence, position, error);
        }
        let rebuild = matches!(error, Error::Panicked { .. });
        if rebuild {
            self.unpinned(Self::rebuild_cache);
            self.state = None;
            self.sessions.clear();
            for task in &mut self.running {
                task.sequence = None;
            }
        }
        for part in std::mem::take(&mut self.plan.parts) {
            self.end_running(part.task, Err(error.clone()));
        }
        if rebuild {
            self.queue.append(&mut self.running);
            self.queue.iter_mut().for_each(|task| task.hold = Hold::default());
        }
    }

    /// The request of a row fails, unless the row was only a guess: then it goes on without any.
    fn fail_row(&mut self, sequence: SequenceId, position: usize, error: Error) {
        let mut running = self.running.iter_mut();
        let task = running.find(|task| task.sequence == Some(sequence));
        let task = task.expect("nobody leaves during a step");
        if position >= task.tokens.len() {
            task.drafter = None;
            return;
        }
        let id = task.id;
        self.end_running(id, Err(error));
    }

    /// Checks the cache's books; pages that somebody holds.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn check_books(&mut self) -> Result<usize, Error> {
        self.sweep();
        self.report();
        self.cache.validate()?;
        let groups = 0..self.cache.shape().groups.len();
        let pages = groups.map(|group| self.cache.pages(group));
        Ok(pages.map(|pages| pages.in_use - pages.idle).sum())
    }

    /// Makes an empty cache; what the file of cold pages has is found again, as by a new process.
    /// Where the file cannot be had, the engine goes on without it.
    fn rebuild_cache(&mut self) {
        let mut options = self.cache_options.clone();
        let shape = || self.model.cache_shape();
        // The old cache has to be gone before its file can be opened, and its memory had again.
        match KvCache::new(shape(), shape().largest_page_bytes()) {
            Ok(least) => {
                self.counted += self.cache.stats();
                self.cache = least;
            }
            Err(refused) => {
                tracing::error!(%refused, "the cache stays as it is");
                while self.sessions.give_up_oldest(&mut self.cache) {}
                for sequence in self.running.iter_mut().filter_map(|task| task.sequence.take()) {
                    self.cache.remove(sequence);
                }
                return;
            }
        }
        let mut made = KvCache::with_options(shape(), &options);
        if let Err(error) = &made {
            tracing::error!(%error, "the cache goes on without its file");
            options.cold = None;
            made = KvCache::with_options(shape(), &options);
        }
        if let Err(error) = &made {
            tracing::error!(%error, "the cache goes on without its lower tiers");
            made = KvCache::new(shape(), options.capacity_bytes);
        }
        match made {
            Ok(cache) => self.cache = cache,
            Err(error) => tracing::error!(%error, "the cache goes on with a page"),
        }
        self.cache_options = options;
    }
}
