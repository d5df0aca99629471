//! Whether a packed file is still what was written, looked at while nobody uses the weights.

use super::Weights;
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
    /// [`Error::Damaged`] once that has found damage.
    pub fn begin_use(&self) -> Result<InUse> {
        match self.damage.get() {
            None => Ok(InUse { _user: Arc::clone(&self.users) }),
            Some(error) => Err(Error::Damaged(Arc::clone(error))),
        }
    }

    /// Whether somebody does.
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
    /// Names the first section that is damaged. From then on [`Weights::begin_use`] says so too.
    pub fn verify(&self, go_on: impl FnMut(usize) -> bool) -> Result<()> {
        self.storage.verify(&self.container, go_on).map_err(|error| {
            Error::Damaged(Arc::clone(self.damage.get_or_init(|| Arc::new(error))))
        })
    }
}
