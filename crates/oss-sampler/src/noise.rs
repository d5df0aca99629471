//! The noise of a draw: a function of (seed, choice, position, id) and of nothing else.
//!
//! Adding independent Gumbel noise to log-probabilities and taking the largest draws from the
//! distribution (Gumbel 1954; Maddison and others 2014). No sum over the vocabulary is needed, and
//! because each token's noise is its own, the result depends neither on the order in which tokens
//! are looked at nor on which others are candidates.

use oss_simd::{Isa, Kernel, Simd};
use rand_core::Rng;
use rand_pcg::Pcg64;

/// No noise is larger: `−ln(−ln(1 − 2⁻³³))` is 22.9.
pub(crate) const LARGEST_NOISE: f32 = 23.0;

/// What the tokens' noise at one position grows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u32; 2]);

impl Key {
    /// The key of a position: the generator of the seed, stream `choice`, advanced to `position`.
    pub(crate) fn new(seed: u64, choice: u32, position: u64) -> Key {
        let mut generator = Pcg64::new(u128::from(seed), u128::from(choice));
        generator.advance(u128::from(position));
        let bits = generator.next_u64();
        Key([bits as u32, (bits >> 32) as u32])
    }
}

/// Adds noise to `values[i]` of token `ids[i]`, in place.
pub(crate) fn add(isa: Isa, key: Key, ids: &[u32; 16], values: &mut [f32; 16]) {
    isa.run(Add { key, ids, values });
}

struct Add<'a> {
    key: Key,
    ids: &'a [u32; 16],
    values: &'a mut [f32; 16],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ids = s.load_i32(&self.ids.map(u32::cast_signed));
        let noisy = s.add(s.load(self.values), gumbel(s, self.key, ids));
        s.store(noisy, self.values);
    }
}

/// `first`, `first + 1`, …
#[inline(always)]
pub(crate) fn consecutive<S: Simd>(s: S, first: u32) -> S::I32 {
    let steps = s.load_i32(&std::array::from_fn(|lane| lane as i32));
    s.add_i32(s.splat_i32(first.cast_signed()), steps)
}

/// `−ln(−ln u)` for a uniform `u` of each id.
///
/// With 32 random bits h, u = 1 − (h + ½) / 2³². The inner logarithm is taken so that it is exact
/// to single precision at both ends, so rare tokens (down to about 1e-10) are drawn as often as
/// they should be.
#[inline(always)]
pub(crate) fn gumbel<S: Simd>(s: S, key: Key, ids: S::I32) -> S::F32 {
    let bits = random_bits(s, key, ids);
    let below = fraction(s, bits);
    let above = fraction(s, s.sub_i32(s.splat_i32(-1), bits));
    let quarter = s.splat(0.25);
    let one = s.splat(1.0);
    // ln(1 − below): from `below` itself while that is small, else from the exact complement.
    let (exponent, fraction) = split(s, s.select_lt(below, quarter, one, above));
    let fraction = s.select_lt(below, quarter, s.sub(s.zero(), below), fraction);
    let exponential = s.sub(s.zero(), logarithm(s, exponent, fraction));
    let (exponent, fraction) = split(s, exponential);
    s.sub(s.zero(), logarithm(s, exponent, fraction))
}

/// 32 bits for each id: two rounds of multiply and xor-shift (constants found by Wellons' hash
/// prospector), each keyed with half of the key.
#[inline(always)]
fn random_bits<S: Simd>(s: S, key: Key, ids: S::I32) -> S::I32 {
    mix(s, mix(s, ids, key.0[0]), key.0[1])
}

#[inline(always)]
fn mix<S: Simd>(s: S, x: S::I32, key: u32) -> S::I32 {
    let x = s.add_i32(x, s.splat_i32(key.cast_signed()));
    let x = s.mul_i32(xor(s, x, s.shr_i32::<16>(x)), s.splat_i32(0x21f0_aaad));
    let x = s.mul_i32(xor(s, x, s.shr_i32::<15>(x)), s.splat_i32(0x735a_2d97));
    xor(s, x, s.shr_i32::<15>(x))
}

#[inline(always)]
fn xor<S: Simd>(s: S, a: S::I32, b: S::I32) -> S::I32 {
    s.sub_i32(s.or_i32(a, b), s.and_i32(a, b))
}

/// `(bits + ½) / 2³²` of unsigned bits, rounded once.
#[inline(always)]
fn fraction<S: Simd>(s: S, bits: S::I32) -> S::F32 {
    let high = s.i32_to_f32(s.shr_i32::<8>(bits));
    let low = s.i32_to_f32(s.and_i32(bits, s.splat_i32(0xff)));
    let low = s.mul(s.add(low, s.splat(0.5)), s.splat(1.0 / 4_294_967_296.0));
    s.fma(high, s.splat(1.0 / 16_777_216.0), low)
}

/// A normal positive number as `2^e (1 + f)` with `1 + f` in [√½, √2): (e, f).
#[inline(always)]
fn split<S: Simd>(s: S, x: S::F32) -> (S::F32, S::F32) {
    let root_half = 0x3f35_04f3;
    let bits = s.f32_as_i32(x);
    let shifted = s.add_i32(s.sub_i32(bits, s.splat_i32(root_half)), s.splat_i32(127 << 23));
    let exponent = s.sub_i32(s.shr_i32::<23>(shifted), s.splat_i32(127));
    let one_more = s.i32_as_f32(s.sub_i32(bits, s.shl_i32::<23>(exponent)));
    (s.i32_to_f32(exponent), s.sub(one_more, s.splat(1.0)))
}

/// `ln(2^e (1 + f))` for f in [√½ − 1, √2 − 1]: ln(1 + f) = 2 artanh(f / (2 + f)), whose series is
/// cut after the ninth power (next term below 3e-9).
#[inline(always)]
fn logarithm<S: Simd>(s: S, e: S::F32, f: S::F32) -> S::F32 {
    let t = s.div(f, s.add(f, s.splat(2.0)));
    let square = s.mul(t, t);
    let mut p = s.splat(2.0 / 9.0);
    p = s.fma(p, square, s.splat(2.0 / 7.0));
    p = s.fma(p, square, s.splat(2.0 / 5.0));
    p = s.fma(p, square, s.splat(2.0 / 3.0));
    p = s.fma(s.mul(p, square), t, s.add(t, t));
    s.fma(e, s.splat(std::f32::consts::LN_2), p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_testing::{Seeded, assert_close};

    /// `gumbel`'s second half in double precision, from the same bits.
    fn twin(bits: u32) -> f64 {
        let below = (f64::from(bits) + 0.5) / 4_294_967_296.0;
        -(-(-below).ln_1p()).ln()
    }

    /// The bits of one id, with ordinary integers.
    fn scalar_bits(key: Key, id: u32) -> u32 {
        key.0.into_iter().fold(id, |x, key| {
            let x = x.wrapping_add(key);
            let x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
            let x = (x ^ (x >> 15)).wrapping_mul(0x735a_2d97);
            x ^ (x >> 15)
        })
    }

    fn noise(isa: Isa, key: Key, ids: &[u32; 16]) -> [f32; 16] {
        let mut values = [0.0; 16];
        add(isa, key, ids, &mut values);
        values
    }

    #[test]
    fn noise_is_the_double_logarithm_of_the_bits_on_every_isa() {
        let mut seeded = Seeded::new(21);
        for isa in Isa::available() {
            for position in 0..2000 {
                let key = Key::new(9, 3, position);
                let ids: [u32; 16] = std::array::from_fn(|_| seeded.below(1 << 31) as u32);
                let want = ids.map(|id| twin(scalar_bits(key, id)));
                assert_close(&noise(isa, key, &ids), &want, 3e-7, 3e-7);
            }
        }
    }

    struct OfBits<'a>(&'a [i32; 16], &'a mut [f32; 16]);

    impl Kernel for OfBits<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            s.store(fraction(s, s.load_i32(self.0)), self.1);
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_are_never_reached_from_below() {
        let bits = [0, 1, 255, 256, -1, -2, i32::MIN, i32::MAX, 5, 6, 7, 8, 9, 10, 11, 12];
        let mut got = [0.0; 16];
        Isa::scalar().run(OfBits(&bits, &mut got));
        let want = bits.map(|b| (f64::from(b.cast_unsigned()) + 0.5) / 4_294_967_296.0);
        assert_close(&got, &want, 0.0, 6e-8);
        assert!(got[0] > 0.0);
    }

    #[test]
    fn the_largest_noise_bounds_every_bit_pattern() {
        assert!(twin(0) < f64::from(LARGEST_NOISE) - 0.1);
        assert!(twin(u32::MAX) > -3.2);
    }

    #[test]
    fn keys_differ_by_seed_choice_and_position() {
        let keys = [Key::new(0, 0, 0), Key::new(1, 0, 0), Key::new(0, 1, 0), Key::new(0, 0, 1)];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys.iter().skip(i + 1).all(|b| a != b), "{keys:?}");
        }
    }

    #[test]
    fn bits_of_neighbouring_ids_positions_choices_and_seeds_are_uncorrelated() {
        // Each of 32 bits flips about half of the time between neighbours.
        let neighbours: [fn(u32) -> u32; 4] = [
            |i| scalar_bits(Key::new(1, 1, 1), i),
            |i| scalar_bits(Key::new(1, 1, u64::from(i)), 1),
            |i| scalar_bits(Key::new(1, i, 1), 1),
            |i| scalar_bits(Key::new(u64::from(i), 1, 1), 1),
        ];
        for (which, bits) in neighbours.into_iter().enumerate() {
            let mut flips = [0u32; 32];
            for i in 0..10_000 {
                let change = bits(i) ^ bits(i + 1);
                flips.iter_mut().enumerate().for_each(|(b, f)| *f += change >> b & 1);
            }
            assert!(flips.iter().all(|f| (4750..5250).contains(f)), "{which}: {flips:?}");
        }
    }

    #[test]
    fn noise_is_these_bits() {
        let pinned: [(u64, u32, u64, u32, u32); 8] = [
            (0, 0, 0, 0, 0x3fc1_5762),
            (1, 0, 0, 0, 0xbe4d_c71e),
            (0, 1, 0, 0, 0x3fbf_fd23),
            (0, 0, 1, 0, 0x4038_70c7),
            (42, 0, 4095, 201_087, 0x3f4d_389b),
            (7, 127, 131_072, 1, 0xbebe_dd6a),
            (u64::MAX, 3, 12, 99, 0x4000_fa7e),
            (0x0123_4567_89ab_cdef, 1, 1_000_000, 0x7fff_ffff, 0xbfa9_0e3f),
        ];
        for (seed, choice, position, id, want) in pinned {
            let key = Key::new(seed, choice, position);
            for isa in Isa::available() {
                let got = noise(isa, key, &[id; 16]).map(f32::to_bits);
                assert_eq!(got, [want; 16], "{isa}: {seed} {choice} {position} {id}");
            }
        }
    }
}
