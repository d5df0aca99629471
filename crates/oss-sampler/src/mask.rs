//! Which tokens may be drawn.

/// A set of tokens of one vocabulary: bit `id % 64` of word `id / 64`.
///
/// ```
/// use oss_sampler::Mask;
/// let mut mask = Mask::new(100);
/// mask.allow(3);
/// mask.allow(99);
/// assert_eq!(mask.count(), 2);
/// assert!(mask.is_allowed(3) && !mask.is_allowed(4));
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Mask {
    words: Vec<u64>,
    vocabulary: usize,
}

impl Clone for Mask {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), vocabulary: self.vocabulary }
    }

    /// Allocates nothing where the vocabulary is the same.
    fn clone_from(&mut self, other: &Self) {
        self.words.clone_from(&other.words);
        self.vocabulary = other.vocabulary;
    }
}

impl Mask {
    /// A mask that allows no token.
    #[must_use]
    pub fn new(vocabulary: usize) -> Mask {
        Mask { words: vec![0; vocabulary.div_ceil(64)], vocabulary }
    }

    /// A mask that allows every token.
    #[must_use]
    pub fn all(vocabulary: usize) -> Mask {
        let mut mask = Mask::new(vocabulary);
        mask.fill(true);
        mask
    }

    /// Overwrites the mask with 32-bit words, bit `id % 32` of word `id / 32`; bits past the
    /// vocabulary and missing words count as not allowed. Allocates nothing.
    pub fn copy_from_words_u32(&mut self, words: &[u32]) {
        let half = |index: usize| words.get(index).map_or(0, |&word| u64::from(word));
        for (index, word) in self.words.iter_mut().enumerate() {
            *word = half(2 * index) | half(2 * index + 1) << 32;
        }
        self.clear_tail();
    }

    /// How many tokens the vocabulary has.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Allows, or forbids, every token.
    pub fn fill(&mut self, allowed: bool) {
        self.words.fill(if allowed { u64::MAX } else { 0 });
        self.clear_tail();
    }

    /// Allows a token.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn allow(&mut self, id: u32) {
        let (word, bit) = self.place(id);
        self.words[word] |= bit;
    }

    /// Forbids a token.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn forbid(&mut self, id: u32) {
        let (word, bit) = self.place(id);
        self.words[word] &= !bit;
    }

    /// Whether a token may be drawn; false for a token that is not in the vocabulary.
    #[must_use]
    pub fn is_allowed(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / 64).copied().unwrap_or(0);
        word >> (id % 64) & 1 == 1
    }

    /// Keeps the tokens that both masks allow.
    ///
    /// # Panics
    /// If the vocabularies differ.
    pub fn intersect(&mut self, other: &Mask) {
        let (got, expected) = (other.vocabulary, self.vocabulary);
        assert_eq!(got, expected, "vocabulary of a mask: got {got}, expected {expected}");
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// How many tokens are allowed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The allowed tokens in ascending order.
    pub fn allowed(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.vocabulary as u32).filter(|&id| self.is_allowed(id))
    }

    /// The bits; those past the vocabulary are zero.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn place(&self, id: u32) -> (usize, u64) {
        let vocabulary = self.vocabulary;
        assert!((id as usize) < vocabulary, "token: got {id}, expected one below {vocabulary}");
        (id as usize / 64, 1 << (id % 64))
    }

    fn clear_tail(&mut self) {
        let tail = self.vocabulary % 64;
        if let (1.., Some(last)) = (tail, self.words.last_mut()) {
            *last &= (1 << tail) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_the_set_of_what_was_allowed() {
        for vocabulary in [1, 63, 64, 65, 200] {
            let mut mask = Mask::new(vocabulary);
            assert_eq!(mask.count(), 0);
            mask.allow(vocabulary as u32 - 1);
            mask.allow(0);
            assert_eq!(mask.count(), vocabulary.min(2));
            mask.forbid(0);
            assert!(!mask.is_allowed(0) && !mask.is_allowed(vocabulary as u32));
            assert_eq!(Mask::all(vocabulary).count(), vocabulary);
        }
    }

    #[test]
    fn an_intersection_is_that_of_sets() {
        let (mut evens, mut threes) = (Mask::new(100), Mask::new(100));
        (0..100).step_by(2).for_each(|id| evens.allow(id));
        (0..100).step_by(3).for_each(|id| threes.allow(id));
        evens.intersect(&threes);
        assert_eq!(evens.allowed().collect::<Vec<_>>(), (0..100).step_by(6).collect::<Vec<_>>());
    }

    #[test]
    fn words_of_32_bits_are_joined_and_cut_at_the_vocabulary() {
        let mut mask = Mask::new(70);
        mask.copy_from_words_u32(&[1, 2, u32::MAX, u32::MAX]);
        assert_eq!(mask.allowed().collect::<Vec<_>>(), [0, 33, 64, 65, 66, 67, 68, 69]);
        mask.copy_from_words_u32(&[1]);
        assert_eq!(mask.count(), 1);
    }

    #[test]
    #[should_panic(expected = "token: got 70, expected one below 70")]
    fn a_token_past_the_vocabulary_cannot_be_allowed() {
        Mask::new(70).allow(70);
    }
}
