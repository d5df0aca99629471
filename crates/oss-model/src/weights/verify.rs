//! Whether the files are still what was opened: as long as they were at every use, and a packed
//! file as it was written, checked while no step uses the weights.

use super::{Embedding, Weights};
use crate::error::{Error, Result};
use std::sync::Arc;

/// Says, for as long as it lives, that somebody uses the weights.
#[derive(Clone, Debug)]
pub struct InUse {
    _user: Arc<()>,
}

impl Weights {
    /// Says that somebody uses the weights from now on, so that [`Weights::verify`] can keep away.
    ///
    /// # Errors
    /// As [`Weights::verify_len`].
    pub fn begin_use(&self) -> Result<InUse> {
        self.verify_len()?;
        Ok(InUse { _user: Arc::clone(&self.users) })
    }

    /// Checks that files in which weights are looked up have the length that they were mapped with:
    /// to touch what another program has cut off would kill the process.
    ///
    /// # Errors
    /// [`Error::Damaged`] where one has another length, and from then on, whatever becomes of it.
    pub fn verify_len(&self) -> Result<()> {
        self.check_damage()?;
        match self.are_in_files() {
            true => self.container.verify_len().map_err(|error| self.damaged(error)),
            false => Ok(()),
        }
    }

    /// Asks no file, but says what was found before.
    ///
    /// # Errors
    /// [`Error::Damaged`] once [`Weights::verify_len`] or [`Weights::verify`] has found damage.
    pub fn check_damage(&self) -> Result<()> {
        match self.damage.get() {
            None => Ok(()),
            Some(error) => Err(Error::Damaged(Arc::clone(error))),
        }
    }

    fn damaged(&self, error: oss_weights::Error) -> Error {
        Error::Damaged(Arc::clone(self.damage.get_or_init(|| Arc::new(error))))
    }

    /// Whether weights are looked up in mapped files: all matrices, or embeddings alone.
    #[must_use]
    pub fn are_in_files(&self) -> bool {
        let looked_up = self.are_mapped() || matches!(self.embedding, Embedding::Tensor(_));
        looked_up && self.container.is_in_files()
    }

    /// Whether somebody uses them (see [`Weights::begin_use`]).
    #[must_use]
    pub fn are_in_use(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }

    /// Compares the sections of a packed file with their checksums, where the weights are mapped
    /// ([`Weights::are_mapped`]; elsewhere there is nothing to do): what has been copied to huge
    /// pages as it lies there, the rest in the map, into which this brings what nobody has touched
    /// yet. `go_on` is asked before each few megabytes, with how many they are; what is left when
    /// it says no is not compared.
    ///
    /// # Errors
    /// Names the first section that is damaged. From then on the others say so too.
    pub fn verify(&self, go_on: impl FnMut(usize) -> bool) -> Result<()> {
        self.storage.verify(&self.container, go_on).map_err(|error| self.damaged(error))
    }
}
