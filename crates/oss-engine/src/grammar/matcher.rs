//! One grammar beside one text.

use std::sync::Arc;

use llguidance::earley::Parser;
use oss_sampler::Mask;

use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// Follows a text by the tokens that make it up.
pub(crate) struct Matcher {
    vocabulary: Arc<Vocabulary>,
    parser: Parser,
}

impl Matcher {
    pub(super) fn new(vocabulary: Arc<Vocabulary>, parser: Parser) -> Self {
        Self { vocabulary, parser }
    }

    /// Overwrites `mask` with the tokens that may come next.
    ///
    /// # Errors
    /// [`Error::Constraint`]: the grammar takes more work than it may.
    pub(super) fn fill(&mut self, mask: &mut Mask) -> Result<()> {
        let tokens = self.parser.compute_bias(self.vocabulary.slices(), &[]);
        if let Some(error) = self.parser.get_error() {
            return Err(Error::Constraint { reason: error.message() });
        }
        mask.copy_from_words_u32(tokens.as_slice());
        mask.intersect(self.vocabulary.text());
        Ok(())
    }

    /// This token comes next; `false`, and nothing has changed, where the grammar does not allow
    /// it.
    pub(super) fn push(&mut self, token: u32) -> bool {
        if !self.vocabulary.text().is_allowed(token) || self.parser.validate_tokens(&[token]) == 0 {
            return false;
        }
        // What goes wrong stays with the parser, and the next mask tells it.
        let _ = self.parser.apply_token(self.vocabulary.bytes(token), token);
        true
    }

    /// Whether the text may end here.
    pub(super) fn accepts(&mut self) -> bool {
        self.parser.is_accepting()
    }

    /// Whether the text has to end here.
    pub(super) fn is_complete(&mut self) -> bool {
        !self.parser.can_advance() && self.accepts()
    }
}
