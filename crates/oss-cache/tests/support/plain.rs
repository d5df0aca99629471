//! Sequences whose keys and values are known: plain vectors of tokens beside the cache.

use oss_cache::{Error, Group, KvCache, SequenceId, Shape};
use oss_testing::Seeded;

pub(crate) const PAGE: usize = 4;
/// Bytes of a slot per position.
pub(crate) const BYTES: usize = 512;

pub(crate) fn shape(groups: &[(&[usize], Option<usize>)]) -> Shape {
    let groups =
        groups.iter().map(|&(layers, window)| Group { layers: layers.to_vec(), window }).collect();
    Shape { page_tokens: PAGE, n_kv_heads: 1, head_dim: 1, slot_bytes: PAGE * BYTES, groups }
}

pub(crate) const WINDOWED: &[(&[usize], Option<usize>)] = &[(&[0], Some(8)), (&[1], None)];

/// Stands for the keys and values at a position: a function of all tokens up to there.
pub(crate) fn states(tokens: &[u32]) -> Vec<u64> {
    let mut state = 1u64;
    let mix =
        |state: u64, token: u32| (state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    tokens
        .iter()
        .map(|&token| {
            state = mix(state, token).rotate_left(29);
            state
        })
        .collect()
}

/// As many bf16 numbers as fit: random signs and mantissas, exponents of two bits.
pub(crate) fn pattern(layer: usize, state: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut mixed = state ^ (layer as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    for element in bytes.chunks_exact_mut(2) {
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(17);
        let bits = mixed as u16 & 0x81ff | 0x3e00;
        element.copy_from_slice(&bits.to_le_bytes());
    }
    bytes
}

pub(crate) fn layers(cache: &KvCache) -> usize {
    cache.shape().groups.iter().map(|group| group.layers.len()).sum()
}

/// "Computes" the tokens from the sequence's length on.
pub(crate) fn compute(cache: &mut KvCache, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
    let from = write(cache, id, tokens)?;
    cache.commit_tokens(id, tokens[from..].iter().copied());
    Ok(())
}

/// The same for drafts.
pub(crate) fn draft(cache: &mut KvCache, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
    let from = write(cache, id, tokens)?;
    cache.commit_drafts(id, tokens[from..].iter().copied());
    Ok(())
}

/// Writes what is not yet committed, and returns where that begins.
fn write(cache: &mut KvCache, id: SequenceId, tokens: &[u32]) -> Result<usize, Error> {
    let from = cache.len(id);
    cache.reserve(id, tokens.len() - from)?;
    for (position, state) in states(tokens).into_iter().enumerate().skip(from) {
        for layer in 0..layers(cache) {
            let at =
                cache.slot_range(layer, id, position / PAGE, 0).start + position % PAGE * BYTES;
            cache.arena_mut(layer)[at..at + BYTES].copy_from_slice(&pattern(layer, state));
        }
    }
    Ok(from)
}

/// What the next query needs reads back as if computed.
pub(crate) fn check(cache: &KvCache, id: SequenceId, tokens: &[u32]) {
    assert_eq!(cache.len(id), tokens.len());
    let states = states(tokens);
    for group in &cache.shape().groups {
        let first = (tokens.len() + 1).saturating_sub(group.window.unwrap_or(usize::MAX));
        for &layer in &group.layers {
            for (position, &state) in states.iter().enumerate().skip(first) {
                let slot = cache.slot(layer, id, position / PAGE, 0);
                let got = &slot[position % PAGE * BYTES..][..BYTES];
                assert_eq!(got, pattern(layer, state), "layer {layer}, position {position}");
            }
        }
    }
}

pub(crate) fn adopt(cache: &mut KvCache, tokens: &[u32]) -> (SequenceId, usize) {
    let found = cache.lookup(tokens);
    let id = cache.create();
    let len = cache.adopt(id, &found, usize::MAX).expect("a living sequence");
    assert_eq!(len, found.len(), "nothing happened in between");
    (id, len)
}

/// A cache, the plain model beside it, and the random numbers that drive both.
pub(crate) struct Run {
    pub(crate) cache: KvCache,
    pub(crate) plain: Vec<(SequenceId, Vec<u32>)>,
    pub(crate) seeded: Seeded,
    pub(crate) reused: usize,
    pub(crate) refused: usize,
}

impl Run {
    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| u32::from(self.seeded.chance(0.12))).collect()
    }

    fn start(&mut self) {
        let n = self.seeded.below(60);
        let tokens = self.tokens(n);
        let found = self.cache.lookup(&tokens);
        assert!(found.len() <= tokens.len());
        let id = self.cache.create();
        let at_most = if self.seeded.chance(0.5) { usize::MAX } else { self.seeded.below(n + 1) };
        let len = self.cache.adopt(id, &found, at_most).expect("a living sequence");
        assert!(len <= at_most.min(found.len()));
        self.reused += len;
        check(&self.cache, id, &tokens[..len]);
        self.plain.push((id, tokens[..len].to_vec()));
        let at = self.plain.len() - 1;
        self.extend(at, &tokens[len..]);
    }

    fn extend(&mut self, at: usize, more: &[u32]) {
        let (id, tokens) = &mut self.plain[at];
        let before = tokens.len();
        tokens.extend_from_slice(more);
        match compute(&mut self.cache, *id, tokens) {
            Ok(()) => {}
            Err(Error::OutOfPages { .. }) => {
                tokens.truncate(before);
                check(&self.cache, *id, tokens);
                self.refused += 1;
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
            }
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn step(&mut self) {
        let choice = self.seeded.below(100);
        if self.plain.is_empty() || choice < 20 {
            return self.start();
        }
        let at = self.seeded.below(self.plain.len());
        let id = self.plain[at].0;
        match choice {
            20..60 => {
                let n = 1 + self.seeded.below(12);
                let more = self.tokens(n);
                self.extend(at, &more);
            }
            60..66 => {
                let child = self.cache.fork(id).expect("the parent lives");
                let tokens = self.plain[at].1.clone();
                self.plain.push((child, tokens));
            }
            66..76 => {
                let wanted = self.seeded.below(self.plain[at].1.len() + 1);
                let got = self.cache.truncate(id, wanted).expect("within the sequence");
                assert!(got <= wanted);
                self.plain[at].1.truncate(got);
            }
            76..80 => self.cache.mark(id),
            80..83 => {
                // Tokens that the cache is not told.
                if self.cache.reserve(id, 1).is_ok() {
                    self.cache.commit(id, 1);
                    let (id, _) = self.plain.swap_remove(at);
                    self.cache.remove(id);
                }
            }
            83..90 => self.draft(at),
            _ => {
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
            }
        }
    }

    /// Drafts, all of them, some or none right; now and then nobody says which.
    fn draft(&mut self, at: usize) {
        let n = 1 + self.seeded.below(PAGE);
        let more = self.tokens(n);
        let (id, tokens) = &mut self.plain[at];
        let before = tokens.len();
        tokens.extend_from_slice(&more);
        let drafted = draft(&mut self.cache, *id, tokens).is_ok();
        let right = if drafted { self.seeded.below(n + 1) } else { 0 };
        if drafted && self.seeded.chance(0.8) {
            let len = self.cache.truncate(*id, before + right).expect("within the sequence");
            assert_eq!(len, before + right, "a page can be taken back");
            self.cache.accept_drafts(*id);
        } else if drafted {
            check(&self.cache, *id, tokens);
            let (id, _) = self.plain.swap_remove(at);
            return self.cache.remove(id);
        }
        self.plain[at].1.truncate(before + right);
    }
}
