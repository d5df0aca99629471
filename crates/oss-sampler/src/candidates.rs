//! The tokens that may still be drawn.
//!
//! At first they are all tokens, standing as logits and the largest one of each block; the first
//! filter that narrows them down makes a list. Every decision depends on the set alone, never on
//! the list's order: probabilities are summed as fixed-point integers, and orders are total (ties
//! by lowest id).

use crate::noise::{self, Key};
use crate::scan::{self, BLOCK, ScaledLogits};
use oss_simd::{Isa, Kernel, Simd, math};

/// One token of the list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its place: what is kept first is lowest. The id is in the lower half, so that it breaks
    /// ties.
    rank: u64,
    pub(crate) logit: f32,
    /// `exp((logit − max) / temperature)`: 1 for the best token.
    pub(crate) weight: f32,
}

/// Buffers that are kept from draw to draw.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    list: Vec<Candidate>,
    /// The largest of [`ScaledLogits::block_max`].
    largest: Vec<f32>,
}

impl Buffers {
    /// Room for every token, so that nothing grows.
    pub(crate) fn new(vocabulary: usize) -> Buffers {
        let list = Vec::with_capacity(vocabulary);
        Buffers { list, largest: Vec::with_capacity(vocabulary.div_ceil(BLOCK)) }
    }

    /// Bytes of them, as they are.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        size_of::<Candidate>() * self.list.capacity() + size_of::<f32>() * self.largest.capacity()
    }

    /// Bytes of them.
    pub(crate) fn bytes(vocabulary: usize) -> usize {
        size_of::<Candidate>() * vocabulary + size_of::<f32>() * vocabulary.div_ceil(BLOCK)
    }
}

/// See the module.
pub(crate) struct Candidates<'a> {
    isa: Isa,
    scaled: ScaledLogits<'a>,
    buffers: &'a mut Buffers,
    /// Whether the list stands for the candidates, no longer all logits.
    listed: bool,
}

/// Fixed-point probability mass: the best token has 2⁴⁴, 2³¹ tokens of mass 1/2 still fit.
const ONE: f64 = (1u64 << 44) as f64;

/// A sum of weights that does not depend on the order of summation.
fn mass(list: &[Candidate]) -> u128 {
    list.iter().map(|candidate| u128::from(fixed(candidate.weight))).sum()
}

fn fixed(weight: f32) -> u64 {
    (f64::from(weight) * ONE) as u64
}

impl Candidate {
    /// A candidate whose rank is by logit, the best first.
    fn new(id: u32, logit: f32) -> Candidate {
        // Minus the logit; added to zero, both zeros are the same.
        Candidate { rank: rank(0.0 - logit, id), logit, weight: 0.0 }
    }

    pub(crate) fn id(&self) -> u32 {
        self.rank as u32
    }
}

/// An integer that orders by key, then by id. The key is no NaN and not −0.
fn rank(key: f32, id: u32) -> u64 {
    let bits = key.to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(id)
}

impl<'a> Candidates<'a> {
    /// All tokens with a finite logit. `scaled.max` is finite.
    pub(crate) fn new(
        isa: Isa,
        scaled: ScaledLogits<'a>,
        buffers: &'a mut Buffers,
    ) -> Candidates<'a> {
        assert!(scaled.max.is_finite(), "largest logit: got {}, expected a number", scaled.max);
        buffers.list.clear();
        Candidates { isa, scaled, buffers, listed: false }
    }

    /// Sets the temperature, before anything is listed.
    pub(crate) fn set_temperature(&mut self, temperature: f32) {
        assert!(!self.listed, "the temperature is set before candidates are listed");
        self.scaled.temperature = temperature;
    }

    /// Keeps the `k` largest logits.
    pub(crate) fn top_k(&mut self, k: usize) {
        if !self.listed {
            self.list_best(k);
        }
        let list = &mut self.buffers.list;
        if k < list.len() {
            list.select_nth_unstable_by_key(k - 1, |candidate| candidate.rank);
            list.truncate(k);
        }
        self.weigh();
    }

    /// Keeps the smallest set of best tokens with at least the fraction `p` of all mass.
    pub(crate) fn top_p(&mut self, p: f32) {
        if self.listed {
            let target = part(mass(&self.buffers.list), p);
            return self.keep_mass(target);
        }
        let total = (scan::sum_exp(self.isa, self.scaled) * ONE) as u128;
        let target = part(total, p);
        // Few tokens usually suffice: look ever farther below the best.
        for distance in [3.0, 9.0, 27.0, f32::INFINITY] {
            self.list_from(self.scaled.max - self.scaled.temperature * distance);
            self.weigh();
            if mass(&self.buffers.list) >= target {
                break;
            }
        }
        self.keep_mass(target);
    }

    /// Keeps tokens whose weight is at least `least`, in (0, 1].
    pub(crate) fn min_p(&mut self, least: f32) {
        if !self.listed {
            // A little lower than exact, so that rounding of the logarithm loses nothing.
            let distance = self.scaled.temperature * (0.001 - least.ln() * 1.001);
            self.list_from(self.scaled.max - distance);
            self.weigh();
        }
        self.buffers.list.retain(|candidate| candidate.weight >= least);
    }

    /// The candidates as a list, in no particular order.
    pub(crate) fn list(&mut self) -> &[Candidate] {
        if !self.listed {
            self.list_from(f32::NEG_INFINITY);
            self.weigh();
        }
        &self.buffers.list
    }

    /// The candidates, best first.
    pub(crate) fn sorted(&mut self) -> &[Candidate] {
        self.list();
        let list = &mut self.buffers.list;
        for candidate in list.iter_mut() {
            candidate.rank = rank(0.0 - candidate.logit, candidate.id());
        }
        list.sort_unstable_by_key(|candidate| candidate.rank);
        list
    }

    /// The mass of the candidates, as a multiple of the best token's.
    pub(crate) fn total(&mut self) -> f64 {
        mass(self.list()) as f64 / ONE
    }

    /// The mean, by probability, of the candidates' tempered distances from the best: at most zero.
    pub(crate) fn mean_value(&mut self) -> f64 {
        let scaled = self.scaled;
        let list = self.list();
        // A weight of zero has a distance that may be infinite.
        let weighed = list.iter().filter(|candidate| candidate.weight > 0.0);
        // |w v| is at most 1 / e.
        let product = |c: &Candidate| -f64::from(c.weight) * f64::from(scaled.value(c.logit));
        let sum: u128 = weighed.map(|c| (product(c) * ONE) as u128).sum();
        -(sum as f64) / mass(list) as f64
    }

    /// Keeps the candidates of smallest `key`, as few as have at least the fraction `p` of all
    /// mass. The key is taken of the tempered distance from the best; it is not −0.
    pub(crate) fn keep_mass_by(&mut self, p: f32, key: impl Fn(f32) -> f32) {
        self.list();
        let scaled = self.scaled;
        for candidate in &mut self.buffers.list {
            candidate.rank = rank(key(scaled.value(candidate.logit)), candidate.id());
        }
        self.keep_mass(part(mass(&self.buffers.list), p));
    }

    /// Draws a token: the largest noisy value.
    pub(crate) fn draw(&mut self, key: Key) -> u32 {
        if !self.listed {
            return scan::gumbel_argmax(self.isa, self.scaled, key);
        }
        let (mut best, mut winner) = (f32::NEG_INFINITY, u32::MAX);
        for candidates in self.buffers.list.chunks(16) {
            let (mut ids, mut values) = ([0; 16], [f32::NEG_INFINITY; 16]);
            for (lane, candidate) in candidates.iter().enumerate() {
                ids[lane] = candidate.id();
                values[lane] = self.scaled.value(candidate.logit);
            }
            noise::add(self.isa, key, &ids, &mut values);
            for (&id, &value) in ids.iter().zip(&values).take(candidates.len()) {
                if value > best || (value == best && id < winner) {
                    (best, winner) = (value, id);
                }
            }
        }
        winner
    }

    /// Keeps as few candidates of lowest rank as have at least `target` mass; at least one.
    /// Expected linear time: halves are selected, never the whole sorted.
    fn keep_mass(&mut self, target: u128) {
        let list = &mut self.buffers.list;
        let (mut start, mut end, mut before) = (0, list.len(), 0);
        while end - start > 64 {
            let half = (end - start) / 2;
            list[start..end].select_nth_unstable_by_key(half, |candidate| candidate.rank);
            let left = mass(&list[start..start + half]);
            if before + left >= target {
                end = start + half;
            } else {
                before += left;
                start += half;
            }
        }
        list[start..end].sort_unstable_by_key(|candidate| candidate.rank);
        let mut keep = start;
        while keep < end && before < target {
            before += u128::from(fixed(list[keep].weight));
            keep += 1;
        }
        list.truncate(keep.max(1));
    }

    /// Lists all tokens whose finite logit is at least `least`.
    fn list_from(&mut self, least: f32) {
        self.listed = true;
        let list = &mut self.buffers.list;
        list.clear();
        let least = least.max(f32::MIN);
        for (block, &largest) in self.scaled.block_max.iter().enumerate() {
            if largest >= least {
                push_from(list, self.scaled.logits, block, least);
            }
        }
    }

    /// Lists at least the `k` best tokens (all, if they are fewer), and at most `2 k + 63`.
    fn list_best(&mut self, k: usize) {
        self.listed = true;
        let Buffers { list, largest } = &mut *self.buffers;
        list.clear();
        // The largest logits of blocks are logits, so the k-th largest of them bounds the k-th
        // largest logit from below.
        let mut least = kth_largest(self.scaled.block_max, k, largest).max(f32::MIN);
        for (block, &largest) in self.scaled.block_max.iter().enumerate() {
            if largest < least {
                continue;
            }
            push_from(list, self.scaled.logits, block, least);
            if list.len() >= k.saturating_mul(2) {
                let (_, worst, _) =
                    list.select_nth_unstable_by_key(k - 1, |candidate| candidate.rank);
                // Ids ascend: what equals the k-th best from here on loses to it.
                least = worst.logit.next_up();
                list.truncate(k);
            }
        }
    }

    /// Fills in the weights.
    fn weigh(&mut self) {
        let Candidates { isa, scaled, buffers, .. } = self;
        isa.run(Weigh { scaled: *scaled, list: &mut buffers.list });
    }
}

/// The fraction `p` of a mass; at least one unit.
fn part(total: u128, p: f32) -> u128 {
    ((total as f64 * f64::from(p)) as u128).max(1)
}

#[inline]
fn push_from(list: &mut Vec<Candidate>, logits: &[f32], block: usize, least: f32) {
    let start = block * BLOCK;
    let end = logits.len().min(start + BLOCK);
    for (part, logits) in logits[start..end].chunks(16).enumerate() {
        if !logits.iter().fold(false, |any, &logit| any | (logit >= least)) {
            continue;
        }
        let first = (start + 16 * part) as u32;
        for (id, &logit) in (first..).zip(logits) {
            if logit >= least {
                list.push(Candidate::new(id, logit));
            }
        }
    }
}

/// The k-th largest value, −∞ if there are fewer. Linear time: a buffer of 2 k is cut to its best k
/// when it is full, and what is below those is not looked at again.
fn kth_largest(values: &[f32], k: usize, buffer: &mut Vec<f32>) -> f32 {
    if k > values.len() {
        return f32::NEG_INFINITY;
    }
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    buffer.clear();
    let mut floor = f32::NEG_INFINITY;
    for &value in values {
        if value >= floor {
            buffer.push(value);
            if buffer.len() == 2 * k {
                floor = *buffer.select_nth_unstable_by(k - 1, descending).1;
                buffer.truncate(k);
            }
        }
    }
    *buffer.select_nth_unstable_by(k - 1, descending).1
}

struct Weigh<'a> {
    scaled: ScaledLogits<'a>,
    list: &'a mut [Candidate],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for candidates in self.list.chunks_mut(16) {
            let mut values = [0.0; 16];
            for (value, candidate) in values.iter_mut().zip(candidates.iter()) {
                *value = self.scaled.value(candidate.logit);
            }
            let mut weights = [0.0; 16];
            s.store(math::exp(s, s.load(&values)), &mut weights);
            for (candidate, weight) in candidates.iter_mut().zip(weights) {
                candidate.weight = weight;
            }
        }
    }
}
