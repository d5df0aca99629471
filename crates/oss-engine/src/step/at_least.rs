//! `min_tokens`: no end before so many tokens.

use oss_sampler::Mask;

/// Forbids the tokens that end an answer until enough others have come.
pub(crate) struct AtLeast {
    tokens: usize,
    ends: Vec<u32>,
    /// Every token but those that end.
    others: Mask,
    /// Those of them that a constraint allows.
    allowed: Mask,
}

impl AtLeast {
    /// At least so many tokens before one of `ends`; `None` where that is no bound.
    pub(crate) fn new(tokens: usize, vocabulary: usize, ends: &[u32]) -> Option<Self> {
        // A model may lack tokens that its tokenizer has.
        let ends: Vec<u32> =
            ends.iter().copied().filter(|id| (*id as usize) < vocabulary).collect();
        if tokens == 0 || ends.is_empty() {
            return None;
        }
        let mut others = Mask::all(vocabulary);
        ends.iter().for_each(|id| others.forbid(*id));
        Some(Self { tokens, ends, allowed: others.clone(), others })
    }

    /// Takes note of which of the ends would be text after `drawn` tokens, and so no end.
    pub(crate) fn look(&mut self, drawn: usize, mut is_text: impl FnMut(u32) -> bool) {
        if drawn >= self.tokens {
            return;
        }
        for id in &self.ends {
            match is_text(*id) {
                true => self.others.allow(*id),
                false => self.others.forbid(*id),
            }
        }
    }

    /// The tokens that may come after `drawn` others, where a constraint allows `constraint`. One
    /// that allows nothing but an end has its way.
    pub(crate) fn mask<'mask>(
        &'mask mut self,
        drawn: usize,
        constraint: Option<&'mask Mask>,
    ) -> Option<&'mask Mask> {
        if drawn >= self.tokens {
            return constraint;
        }
        let Some(constraint) = constraint else { return Some(&self.others) };
        self.allowed.clone_from(constraint);
        self.allowed.intersect(&self.others);
        Some(if self.allowed.count() > 0 { &self.allowed } else { constraint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_forbidden_until_enough_tokens_have_come() {
        let mut at_least = AtLeast::new(2, 8, &[3, 99]).unwrap();
        assert_eq!(at_least.mask(0, None).unwrap().count(), 7);
        assert!(!at_least.mask(1, None).unwrap().is_allowed(3));
        assert!(at_least.mask(2, None).is_none());
        assert!(AtLeast::new(0, 8, &[3]).is_none());
        assert!(AtLeast::new(2, 8, &[99]).is_none());
    }

    #[test]
    fn a_constraint_that_allows_nothing_but_an_end_has_its_way() {
        let mut at_least = AtLeast::new(2, 8, &[3]).unwrap();
        let mut constraint = Mask::new(8);
        constraint.allow(3);
        assert_eq!(at_least.mask(0, Some(&constraint)), Some(&constraint));
        constraint.allow(5);
        let allowed: Vec<u32> = at_least.mask(0, Some(&constraint)).unwrap().allowed().collect();
        assert_eq!(allowed, [5]);
        assert_eq!(at_least.mask(2, Some(&constraint)), Some(&constraint));
    }

    #[test]
    fn an_end_is_not_forbidden_where_it_is_text() {
        let mut at_least = AtLeast::new(2, 8, &[3, 5, 99]).unwrap();
        let mut allowed = |text: Option<u32>| -> Vec<u32> {
            at_least.look(0, |id| Some(id) == text);
            let mask = at_least.mask(0, None).unwrap();
            [3, 5].into_iter().filter(|id| mask.is_allowed(*id)).collect()
        };
        assert_eq!([Some(5), Some(3), None].map(&mut allowed), [vec![5], vec![3], vec![]]);
    }
}
