//! A set of small numbers as a tree of bits.

/// Numbers below a fixed limit; the smallest is found in `log64(limit)` steps, and nothing is
/// allocated after the start.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    /// Level 0 has a bit per number; a bit of a higher level says that a word below is not 0.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl Bits {
    pub(super) fn new(limit: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = limit.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, len: 0 };
            }
            words = words.div_ceil(64);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        let word = self.levels[0].get(number / 64).copied().unwrap_or(0);
        word >> (number % 64) & 1 == 1
    }

    /// Adds a number that is not in the set.
    pub(super) fn insert(&mut self, mut number: usize) {
        debug_assert!(!self.contains(number), "{number} is in the set already");
        self.len += 1;
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            let before = *word;
            *word |= 1 << (number % 64);
            if before != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Takes a number out; false when it is not in the set.
    pub(super) fn remove(&mut self, mut number: usize) -> bool {
        if !self.contains(number) {
            return false;
        }
        self.len -= 1;
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                break;
            }
            number /= 64;
        }
        true
    }

    /// The smallest number.
    pub(super) fn first(&self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let down =
            |index: usize, level: &Vec<u64>| index * 64 + level[index].trailing_zeros() as usize;
        Some(self.levels.iter().rev().fold(0, down))
    }
}
