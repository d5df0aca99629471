//! `min_tokens`: no end before so many tokens.

use oss_engine::{Constraint, Mask, Result};

/// Forbids the tokens that end an answer until enough others have come.
pub(crate) struct AtLeast {
    /// Every token but those that end.
    mask: Mask,
    wanted: usize,
    accepted: usize,
}

impl AtLeast {
    /// At least `wanted` tokens before one of `ends`.
    pub(crate) fn new(wanted: usize, vocabulary: usize, ends: &[u32]) -> Self {
        let mut mask = Mask::all(vocabulary);
        ends.iter().filter(|id| (**id as usize) < vocabulary).for_each(|id| mask.forbid(*id));
        Self { mask, wanted, accepted: 0 }
    }
}

impl Constraint for AtLeast {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        Ok((self.accepted < self.wanted).then_some(&self.mask))
    }

    fn accept(&mut self, _token: u32) {
        self.accepted += 1;
    }

    fn rollback(&mut self, tokens: usize) {
        self.accepted -= tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_forbidden_until_enough_tokens_have_come() {
        let mut constraint = AtLeast::new(2, 8, &[3, 99]);
        assert!(!constraint.mask().unwrap().unwrap().is_allowed(3));
        constraint.accept(1);
        constraint.accept(1);
        assert!(constraint.mask().unwrap().is_none());
        constraint.rollback(1);
        assert_eq!(constraint.mask().unwrap().unwrap().count(), 7);
    }
}
