//! How many products of bytes the processor can sum up in a second.

use oss_engine::{Isa, Team};
use oss_simd::{Kernel, Simd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

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

/// Operations (a product and its addition are two) that the team does in a second with bytes: the
/// best of some passes, about 150 ms, as others may be disturbed.
#[must_use]
pub fn int8_peak(isa: Isa, team: &Team) -> f64 {
    const UNITS: usize = 24;
    let quads: Box<[i32; QUADS]> = Box::new(std::array::from_fn(|n| 0x0102_0301 + n as i32));
    let codes = std::array::from_fn(|n| [n as u8 % 16 + 1; 64]);
    let units = UNITS * team.threads();
    let operations = 2 * 64 * CODES * QUADS * PASSES * units;
    let sink = AtomicI32::new(0);
    let pass = |_| {
        let start = Instant::now();
        team.phase(units, (), |_, ()| {
            let (quads, codes) = std::hint::black_box((&*quads, &codes));
            sink.fetch_xor(isa.run(Products { quads, codes }), Ordering::Relaxed);
        });
        operations as f64 / start.elapsed().as_secs_f64()
    };
    let best = (0..12).map(pass).fold(0.0, f64::max);
    std::hint::black_box(sink);
    best
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
}
