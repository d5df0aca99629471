//! How many products the processor can sum up in a second.

use crate::best;
use oss_simd::{Extension, Isa, Kernel, Simd};
use oss_threads::Team;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

/// Units of a pass for each thread.
const UNITS: usize = 24;

/// Groups of four activations, 4 KiB: they stay in the nearest cache.
const QUADS: usize = 1024;
/// How often a unit goes through them.
const PASSES: usize = 64;
/// Vectors of codes, each of which meets all activations.
const CODES: usize = 24;

/// Multiplies and adds out of registers: 4-bit codes, as [`Simd::dot`] takes the most calls of.
struct Products<'a> {
    quads: &'a [i32; QUADS],
    codes: &'a [[u8; 64]; CODES],
}

impl Kernel for Products<'_> {
    type Output = i32;
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        // As many sums at a time as registers hold, together with their codes.
        if const { S::REGISTERS >= 32 } { self.sum_up::<S, 8>(s) } else { self.sum_up::<S, 3>(s) }
    }
}

impl Products<'_> {
    #[inline(always)]
    fn sum_up<S: Simd, const N: usize>(self, s: S) -> i32 {
        const { assert!(CODES.is_multiple_of(N)) };
        let mut all = s.zero_i32();
        for some in self.codes.as_chunks::<N>().0 {
            let mut codes = [s.i32_as_u8(s.zero_i32()); N];
            for (to, from) in codes.iter_mut().zip(some) {
                *to = s.load_u8(from);
            }
            let mut sums = [s.zero_i32(); N];
            for _ in 0..PASSES {
                // Eight calls are what sums of 4-bit codes allow.
                for eight in self.quads.as_chunks::<8>().0 {
                    let mut dots = [s.dot_start(0, 0); N];
                    for quad in eight {
                        for (dot, codes) in dots.iter_mut().zip(codes) {
                            *dot = s.dot(*dot, codes, *quad);
                        }
                    }
                    for (sum, dot) in sums.iter_mut().zip(dots) {
                        *sum = s.add_i32(*sum, s.dot_sum(dot));
                    }
                }
            }
            for sum in sums {
                all = s.add_i32(all, sum);
            }
        }
        s.reduce_add_i32(all)
    }
}

/// How many factors numbers are multiplied with: they stay in the nearest cache.
const FACTORS: usize = 1024;
/// Vectors of sums, each of which meets all factors.
const SUMS: usize = 60;

/// Multiplies and adds numbers out of registers.
struct MultiplyAdds<'a> {
    factors: &'a [f32; FACTORS],
    sums: &'a [[f32; 16]; SUMS],
}

impl Kernel for MultiplyAdds<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        // More sums at a time than are under way, as many as registers hold.
        if const { S::REGISTERS >= 32 } { self.sum_up::<S, 12>(s) } else { self.sum_up::<S, 5>(s) }
    }
}

impl MultiplyAdds<'_> {
    #[inline(always)]
    fn sum_up<S: Simd, const N: usize>(self, s: S) -> f32 {
        const { assert!(SUMS.is_multiple_of(N)) };
        let (x, mut all) = (s.splat(1.0), s.zero());
        for some in self.sums.as_chunks::<N>().0 {
            let mut sums = [s.zero(); N];
            for (to, from) in sums.iter_mut().zip(some) {
                *to = s.load(from);
            }
            for factor in self.factors {
                let factor = s.splat(*factor);
                for sum in &mut sums {
                    *sum = s.fma(x, factor, *sum);
                }
            }
            for sum in sums {
                all = s.add(all, sum);
            }
        }
        s.reduce_add(all)
    }
}

/// Operations (a product and its addition are two) that the team does in a second with bytes: the
/// best of some passes, about 150 ms, as others may be disturbed.
#[must_use]
pub fn int8_peak(isa: Isa, team: &Team) -> f64 {
    let quads: Box<[i32; QUADS]> = Box::new(std::array::from_fn(|n| 0x0102_0301 + n as i32));
    let codes = std::array::from_fn(|n| [n as u8 % 16 + 1; 64]);
    peak(team, 2 * 64 * CODES * QUADS * PASSES, || {
        let (quads, codes) = black_box((&*quads, &codes));
        isa.run(Products { quads, codes }) as u32
    })
}

/// Operations (a product and its addition are two) that the team does in a second with numbers of
/// single precision: the best of some passes, about 50 ms, as others may be disturbed.
#[must_use]
pub fn f32_peak(isa: Isa, team: &Team) -> f64 {
    let factors: Box<[f32; FACTORS]> = Box::new(std::array::from_fn(|n| n as f32));
    let sums = std::array::from_fn(|n| [n as f32; 16]);
    peak(team, 2 * 16 * SUMS * FACTORS * PASSES, || {
        let mut all = 0.0;
        for _ in 0..PASSES {
            let (factors, sums) = black_box((&*factors, &sums));
            all += isa.run(MultiplyAdds { factors, sums });
        }
        all.to_bits()
    })
}

/// Operations that the team does in a second, each unit so many.
fn peak(team: &Team, operations: usize, unit: impl Fn() -> u32 + Sync) -> f64 {
    let units = UNITS * team.threads();
    let sink = AtomicU32::new(0);
    let rate = best(operations * units, || {
        team.phase(units, (), |_, ()| {
            sink.fetch_xor(unit(), Ordering::Relaxed);
        });
    });
    black_box(sink);
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_product_is_summed_on_every_instruction_set() {
        let mut quads = [0x0000_0001; QUADS];
        quads[QUADS - 1] = 0x0100_0000;
        let codes = std::array::from_fn(|n| [n as u8; 64]);
        // Codes 0 to 23 in 16 lanes, once for each quad and pass.
        let expected = (276 * 16 * QUADS * PASSES) as i32;
        for isa in Isa::available() {
            assert_eq!(isa.run(Products { quads: &quads, codes: &codes }), expected, "{isa}");
        }
    }

    #[test]
    fn every_number_is_multiplied_and_added_on_every_instruction_set() {
        let mut factors = [0.0; FACTORS];
        (factors[0], factors[FACTORS - 1]) = (1.0, 2.0);
        let sums = std::array::from_fn(|n| [n as f32; 16]);
        // Sums 0 to 59, and 3 more each, in 16 lanes.
        let expected = ((59 * 60 / 2 + 3 * SUMS) * 16) as f32;
        for isa in Isa::available() {
            assert_eq!(isa.run(MultiplyAdds { factors: &factors, sums: &sums }), expected, "{isa}");
        }
    }
}
