//! How often experts were needed, kept for the next engine with the same model: one file for each
//! packed file, in the folder of such files.

use std::io;
use std::path::{Path, PathBuf};

use oss_memory::file;
use oss_model::{Popularity, Weights};
use oss_weights::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Counts up when what is counted changes, or how it is written.
const VERSION: u32 = 1;
/// No such file is longer.
const LONGEST: u64 = 16 << 20;

/// The popularity of all layers with what it was counted of.
#[derive(Serialize, Deserialize)]
struct Stored {
    key: String,
    layers: Vec<Layer>,
}

#[derive(Serialize, Deserialize)]
struct Layer {
    rows: f32,
    sent: Vec<f32>,
}

/// The file of a model's popularity.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    key: String,
    /// How often it could not be read or written.
    pub(crate) failures: u64,
}

impl Kept {
    /// The file in a folder for what was packed from files of such a fingerprint.
    pub(crate) fn new(directory: &Path, source: Fingerprint) -> Self {
        let path = directory.join(format!("{source}-popularity.json"));
        Self { path, key: format!("popularity {VERSION}; {source}"), failures: 0 }
    }

    /// What the last engine has left; nothing where none has. A file that cannot be understood is
    /// counted and otherwise as if it were not there: the end of this engine replaces it.
    pub(crate) fn begin(&mut self, weights: &Weights) -> Vec<Popularity> {
        self.read(weights).unwrap_or_else(|error| {
            tracing::warn!(%error, "experts begin without the popularity of earlier runs");
            self.failures += 1;
            Vec::new()
        })
    }

    /// Keeps what was counted, the whole of it or nothing. Where it cannot be written, the next
    /// engine begins as this one did.
    pub(crate) fn end(&mut self, popularity: Vec<Popularity>) {
        if let Err(error) = self.write(popularity) {
            tracing::warn!(%error, "the popularity of experts could not be kept");
            self.failures += 1;
        }
    }

    fn read(&self, weights: &Weights) -> Result<Vec<Popularity>> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let bytes = file::read(&self.path, LONGEST)?;
        let stored: Stored =
            serde_json::from_slice(&bytes).map_err(|error| self.wrong(error.to_string()))?;
        if stored.key != self.key {
            return Err(self.wrong(format!("got {}, expected {}", stored.key, self.key)).into());
        }
        let layers = stored.layers.into_iter();
        let layers: Vec<_> = layers.map(|Layer { rows, sent }| Popularity { rows, sent }).collect();
        match weights.may_have(&layers) {
            true => Ok(layers),
            false => Err(self.wrong("got counts that these experts cannot have".to_owned()).into()),
        }
    }

    fn write(&self, popularity: Vec<Popularity>) -> Result<()> {
        if let Some(directory) = self.path.parent() {
            file::create_directory(directory)?;
        }
        let layers = popularity.into_iter();
        let layers = layers.map(|Popularity { rows, sent }| Layer { rows, sent }).collect();
        let text = serde_json::to_vec(&Stored { key: self.key.clone(), layers });
        Ok(file::write(&self.path, &text.expect("names and numbers are JSON"))?)
    }

    fn wrong(&self, reason: String) -> oss_memory::Error {
        let cause = io::Error::new(io::ErrorKind::InvalidData, reason);
        oss_memory::Error::File { action: "understand", path: self.path.clone(), cause }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oss_model::{LoadOptions, Model};
    use oss_weights::Container;

    use super::*;

    const SOURCE: Fingerprint = Fingerprint(7);

    fn model() -> Model {
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let load = LoadOptions::new(oss_simd::Isa::scalar());
        Model::load(Arc::new(container), load).unwrap()
    }

    /// Numbers that the demo model's experts may have.
    fn popularity(model: &Model) -> Vec<Popularity> {
        let experts = model.config.layers.iter().map(|layer| match layer.feed_forward {
            oss_model::FeedForward::Experts { n_experts, .. } => n_experts,
            oss_model::FeedForward::Dense { .. } => 0,
        });
        experts.map(|n| Popularity { rows: 9.75, sent: vec![0.1; n] }).collect()
    }

    #[test]
    fn what_was_kept_is_found_again_by_the_same_model_alone() {
        let (directory, model) = (tempfile::tempdir().unwrap(), model());
        let within = directory.path().join("not/yet/there");
        let mut kept = Kept::new(&within, SOURCE);
        assert!(kept.begin(&model.weights).is_empty());
        kept.end(popularity(&model));
        assert_eq!(kept.begin(&model.weights), popularity(&model));
        let mut other = Kept::new(&within, Fingerprint(8));
        assert!(other.begin(&model.weights).is_empty());
        assert_eq!((kept.failures, other.failures), (0, 0));
        // Even where its file has the other one's name.
        std::fs::rename(&kept.path, &other.path).unwrap();
        assert_eq!((other.begin(&model.weights), other.failures), (Vec::new(), 1));
    }

    #[test]
    fn damaged_and_foreign_files_are_counted_and_replaced() {
        let (directory, model) = (tempfile::tempdir().unwrap(), model());
        let mut kept = Kept::new(directory.path(), SOURCE);
        kept.end(popularity(&model));
        let whole = std::fs::read_to_string(&kept.path).unwrap();
        let wrong = [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            format!("{whole}{whole}"),
            whole.replacen("popularity 1;", "popularity 0;", 1),
            whole.replacen("9.75", "-9.75", 1),
            whole.replacen("9.75", "null", 1),
            whole.replacen("9.75", "1e99", 1),
            whole.replacen("0.1", "9.76", 1),
            whole.replacen("0.1", "-0.1", 1),
            whole.replacen("0.1,", "", 1),
        ];
        for (count, wrong) in (1..).zip(&wrong) {
            assert_ne!(*wrong, whole);
            std::fs::write(&kept.path, wrong).unwrap();
            assert!(kept.begin(&model.weights).is_empty(), "{wrong}");
            assert_eq!(kept.failures, count, "{wrong}");
        }
        kept.end(popularity(&model));
        assert_eq!(kept.begin(&model.weights), popularity(&model));
        assert_eq!(kept.failures, wrong.len() as u64);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_counted() {
        let (directory, model) = (tempfile::tempdir().unwrap(), model());
        let folder = directory.path().join("a file");
        std::fs::write(&folder, "no folder").unwrap();
        let mut kept = Kept::new(&folder, SOURCE);
        kept.end(popularity(&model));
        assert_eq!(kept.failures, 1);
    }
}
