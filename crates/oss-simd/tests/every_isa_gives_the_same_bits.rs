//! Every operation, on every instruction set of this machine, against the scalar one.

use oss_simd::{Extension, Isa, Kernel, Simd, math};

/// Numbers that find mistakes: signs, zeros, extremes of size, halves between integers.
fn floats(seed: u32) -> [f32; 16] {
    let special = [
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.25, -127.4, 1e-40, -1e-42, 65504.0, 1e-6,
        88.5, -88.5,
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    std::array::from_fn(|i| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        if (seed as usize + i).is_multiple_of(5) {
            special[(seed as usize / 5 + i) % 16]
        } else {
            (state as i32 as f32) * 2f32.powi((state % 24) as i32 - 44)
        }
    })
}

fn bytes(seed: u32) -> [u8; 64] {
    std::array::from_fn(|i| (seed.wrapping_mul(31).wrapping_add(i as u32 * 97) >> 1) as u8)
}

struct Everything {
    seed: u32,
    max_code: u8,
    /// What codes count from.
    zero: u8,
}

impl Kernel for Everything {
    type Output = Vec<u32>;
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let mut out = Vec::new();
        let (a, b, c) = (floats(self.seed), floats(self.seed + 1), floats(self.seed + 2));
        let (a, b, c) = (s.load(&a), s.load(&b), s.load(&c));
        let mut push = |x: S::F32| {
            let mut all = [0.0; 16];
            s.store(x, &mut all);
            out.extend(all.map(f32::to_bits));
        };
        for x in [s.add(a, b), s.sub(a, b), s.mul(a, b), s.fma(a, b, c), s.max(a, b), s.min(a, b)] {
            push(x);
        }
        push(s.select_lt(a, b, c, a));
        push(s.div(a, s.add(s.abs(b), s.splat(1.0))));
        push(math::exp(s, a));
        push(math::sigmoid(s, b));
        push(s.round_bf16(a));
        push(s.load_partial(&floats(self.seed)[..7]));
        push(s.max_each([a, b, s.add(a, b), s.abs(a)]));
        for row in s.transpose_quads([a, b, c, s.abs(a)]) {
            push(row);
        }
        let numbers = floats(self.seed);
        let [first, second, third, fourth] = numbers.as_chunks().0 else { unreachable!() };
        push(s.load_quads([third, first, fourth, second]));
        let bits = [s.f32_as_i32(a), s.f32_as_i32(b)];
        push(s.i32_as_f32(s.sum_each([bits[0], bits[1], s.shl_i32::<3>(bits[0]), bits[0]])));
        push(s.i32_to_f32(s.round_i32(s.mul(a, s.splat(1e-3)))));
        let mut half = [0; 16];
        s.store_f16(a, &mut half);
        push(s.load_f16(&half));
        s.store_u16(s.shr_i32::<16>(s.bf16_bits(b)), &mut half);
        push(s.load_bf16(&half));
        let [lower, upper] = s.bf16_halves(s.f32_as_i32(a));
        push(lower);
        push(upper);
        out.extend(half.map(u32::from));
        out.push(s.reduce_add(a).to_bits());
        out.push(s.reduce_max(a).to_bits());

        let codes = bytes(self.seed).map(|x| (u16::from(x) % (u16::from(self.max_code) + 1)) as u8);
        let u = s.load_u8(&codes);
        let i = s.u8_as_i32(s.load_u8(&bytes(self.seed + 9)));
        let mut push = |x: S::I32| {
            let mut all = [0; 16];
            s.store_i32(x, &mut all);
            out.extend(all.map(|x| x as u32));
        };
        let ci = s.u8_as_i32(u);
        for x in [
            s.add_i32(i, ci),
            s.sub_i32(i, ci),
            s.mul_i32(i, ci),
            s.and_i32(i, ci),
            s.or_i32(i, ci),
            s.shl_i32::<7>(i),
            s.shr_i32::<9>(i),
            s.select_gt_i32((i, ci), ci, i),
            s.load_u8_i32(codes[..16].try_into().unwrap()),
            s.load_i8_i32(&std::array::from_fn(|j| codes[j].wrapping_mul(5) as i8)),
            s.load_u16_i32(&std::array::from_fn(|j| u16::from(codes[j]) * 257)),
            s.round_i32(s.mul(a, s.splat(1e-3))),
        ] {
            push(x);
        }
        let table: [u8; 16] = std::array::from_fn(|j| (j * 7 + 3) as u8);
        let (low, high) = s.nibble_lut(s.table(&table), s.load_u8(&bytes(self.seed + 3)));
        push(s.u8_as_i32(low));
        push(s.u8_as_i32(high));
        let mut wide = s.splat_i32(7);
        let zero = if self.max_code < 128 { self.zero } else { 128 };
        let reach = zero.max(self.max_code - zero);
        let calls = (32_767 / (254 * u32::from(reach))).clamp(1, 8);
        let quads = (0..calls).map(|n| match (self.seed + n) % 3 {
            0 => [127_i8, 127, -127, -127],
            1 => [-127, -127, 127, 127],
            _ => [127, -127, ((self.seed + 37 * n) as u8 as i8).max(-127), 1],
        });
        let pairs = quads
            .clone()
            .map(|q| q.map(i32::from))
            .fold([0; 2], |[low, high], q| [low + q[0] + q[1], high + q[2] + q[3]]);
        let mut sum = s.dot_start(zero, pairs[1] << 16 | pairs[0] & 0xffff);
        for quad in quads {
            let quad = i32::from_le_bytes(quad.map(|byte| byte as u8));
            if self.max_code < 128 {
                sum = s.dot(sum, u, quad);
            }
            wide = s.dot_signed(wide, s.signed(u, zero), quad);
        }
        push(s.dot_sum(sum));
        push(wide);
        let quad = [127_i8, -127, 1, (self.seed as u8 as i8).max(-127)];
        let zero_point_sum = -128 * quad.map(i32::from).iter().sum::<i32>();
        let quad = i32::from_le_bytes(quad.map(|byte| byte as u8));
        push(if S::DOT_IS_EXACT {
            s.dot_sum(s.dot(s.dot_zero_point_128(zero_point_sum), u, quad))
        } else {
            s.dot_signed(s.zero_i32(), s.signed(u, 128), quad)
        });
        push(s.dot_wide(i, s.u8_as_i32(u), (self.seed as i32).wrapping_mul(0x1234_5677)));
        let mut small = [0; 16];
        let byte = s.sub_i32(s.and_i32(i, s.splat_i32(255)), s.splat_i32(128));
        s.store_i8(byte, &mut small);
        out.extend(small.map(|x| x as u32));
        out.push(s.reduce_add_i32(i) as u32);
        s.prefetch(&codes, 1 << 20);
        s.prefetch_once(&codes, 1 << 20);
        out
    }
}

#[test]
fn every_operation_gives_the_scalar_bits_on_every_instruction_set() {
    for isa in Isa::available() {
        for max_code in [1, 15, 24, 31, 63, 127, 255] {
            for zero in [0, max_code / 2 + 1] {
                for seed in 0..200 {
                    let got = isa.run(Everything { seed, max_code, zero });
                    let expected = Isa::scalar().run(Everything { seed, max_code, zero });
                    assert_eq!(
                        got, expected,
                        "{isa}, codes to {max_code} from {zero}, seed {seed}"
                    );
                }
            }
        }
    }
}

/// A kernel gives the same on every instruction set.
fn assert_alike<K: Kernel<Output: PartialEq>>(kernel: impl Fn() -> K) {
    let expected = Isa::scalar().run(kernel());
    for isa in Isa::available() {
        assert!(isa.run(kernel()) == expected, "{isa}");
    }
}

/// What the trait says of NaNs, zeros and ties, as bits.
struct Special;

impl Kernel for Special {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let special = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45];
        let mut out = Vec::new();
        for a in special {
            for b in special {
                let (a, b, one) = (s.splat(a), s.splat(b), s.splat(1.0));
                for x in [s.max(a, b), s.min(a, b), s.select_lt(a, b, one, s.zero()), s.abs(a)] {
                    let mut all = [0.0; 16];
                    s.store(x, &mut all);
                    out.extend(all.map(f32::to_bits));
                }
            }
        }
        out
    }
}

#[test]
fn numbers_that_are_none_and_zeros_are_treated_alike() {
    assert_alike(|| Special);
}

/// Four dimensions of sixteen rows, transposed.
struct Transpose([[f32; 4]; 16]);

impl Kernel for Transpose {
    type Output = [[f32; 16]; 4];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [[f32; 16]; 4] {
        let mut rows = [s.zero(); 4];
        for (j, row) in rows.iter_mut().enumerate() {
            *row = s.load_quads([&self.0[j], &self.0[4 + j], &self.0[8 + j], &self.0[12 + j]]);
        }
        let mut out = [[0.0; 16]; 4];
        for (row, out) in s.transpose_quads(rows).into_iter().zip(&mut out) {
            s.store(row, out);
        }
        out
    }
}

/// Sums of products of bf16, of numbers that leave nothing denormal and of some that would, were
/// they not taken for zero.
struct Bf16Sums {
    factors: [f32; 16],
    numbers: [f32; 32],
    sum: [f32; 16],
}

impl Kernel for Bf16Sums {
    type Output = [Vec<f32>; 4];
    const EXTENSION: Extension = Extension::Bf16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let [lower, upper] = self.numbers.as_chunks().0 else { unreachable!() };
        let (lower, upper) =
            (s.round_bf16_flushed(s.load(lower)), s.round_bf16_flushed(s.load(upper)));
        let pairs = s.bf16_pairs(s.or_i32(upper, s.shr_i32::<16>(lower)));
        let mut factors = [0.0; 16];
        s.store_bf16_factors(s.load(&self.factors), &mut factors);
        let start = s.scale_bf16(s.load(&self.sum), s.splat(self.factors[0].abs()));
        let (mut whole, mut halves) = (start, start);
        for pair in factors.as_chunks::<2>().0 {
            for step in 0..S::BF16_STEPS {
                whole = s.add_bf16(step, s.splat_bf16(pair, step), pairs, whole);
            }
        }
        let stored = |x: S::F32| {
            let mut to = [0.0; 16];
            s.store(x, &mut to);
            to.to_vec()
        };
        for (i, half) in [0, 1, 1, 0].into_iter().enumerate() {
            let mut alone = self.factors;
            alone.iter_mut().skip(1 - half).step_by(2).for_each(|x| *x = 0.0);
            s.store_bf16_factors(s.load(&alone), &mut alone);
            halves = s.add_half_bf16(half, &alone.as_chunks().0[i], pairs, halves);
        }
        let [first, second] = s.bf16_numbers(pairs);
        [stored(whole), stored(halves), stored(first), stored(second)]
    }
}

#[test]
fn products_of_bf16_are_two_multiplications_the_upper_one_first() {
    let least = 2f32.powi(-50);
    let rounded = |x: f32| {
        let bits = x.to_bits();
        let nearest = f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
        if x.abs() < least { 0.0 } else { nearest }
    };
    for seed in 0..2_000 {
        let all = |n: u32, low: i32, high: i32| {
            let mut state = (seed * 8 + n).wrapping_mul(0x9e37_79b9) | 1;
            std::array::from_fn::<f32, 32, _>(|_| {
                let mut next = || {
                    state ^= state << 13;
                    state ^= state >> 17;
                    state ^= state << 5;
                    state
                };
                let exponent = low + (next() % (high - low) as u32) as i32;
                (next() as i32 as f32 / 2f32.powi(31)) * 2f32.powi(exponent)
            })
        };
        // Every other time so small that some numbers are taken for zero.
        let low = if seed % 2 == 0 { -20 } else { -70 };
        let numbers = all(0, low, 20);
        let factors: [f32; 16] = *all(1, low, 1).first_chunk().unwrap();
        let sum: [f32; 16] = *all(2, 2 * low, 10).first_chunk().unwrap();
        let mut want = sum.map(|sum| {
            let sum = sum * factors[0].abs();
            if sum.abs() < 2f32.powi(-100) { 0.0 } else { sum }
        });
        for pair in factors.as_chunks::<2>().0 {
            for (lane, sum) in want.iter_mut().enumerate() {
                *sum = rounded(pair[1]).mul_add(rounded(numbers[16 + lane]), *sum);
                *sum = rounded(pair[0]).mul_add(rounded(numbers[lane]), *sum);
            }
        }
        let scalar = Isa::scalar().run(Bf16Sums { factors, numbers, sum });
        assert_eq!(scalar[0], want, "seed {seed}");
        for isa in Isa::available() {
            let bits = |all: &[Vec<f32>; 4]| all.concat().iter().map(|x| x.to_bits()).collect();
            let (got, want): (Vec<u32>, Vec<u32>) =
                (bits(&isa.run(Bf16Sums { factors, numbers, sum })), bits(&scalar));
            assert_eq!(got, want, "{isa}, seed {seed}");
        }
    }
}

#[test]
fn lanes_and_rows_change_places() {
    let rows: [[f32; 4]; 16] =
        std::array::from_fn(|row| std::array::from_fn(|lane| (4 * row + lane) as f32));
    for isa in Isa::available() {
        let out = isa.run(Transpose(rows));
        for (row, lane) in (0..16).flat_map(|row| (0..4).map(move |lane| (row, lane))) {
            assert_eq!(out[lane][row], rows[row][lane], "{isa}: row {row}, lane {lane}");
        }
    }
}

/// Every half-precision number, and what lies between it and the next, there and back.
struct Halves;

impl Kernel for Halves {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let mut out = Vec::new();
        for first in (0..=u16::MAX).step_by(16) {
            let x = s.load_f16(&std::array::from_fn(|i| first + i as u16));
            let mut all = [0.0; 16];
            s.store(x, &mut all);
            out.extend(all.map(f32::to_bits));
            // A tie, and the numbers on both sides of it.
            for between in [0x0fff, 0x1000, 0x1001] {
                let bits = s.or_i32(s.f32_as_i32(x), s.splat_i32(between));
                let mut halves = [0; 16];
                s.store_f16(s.i32_as_f32(bits), &mut halves);
                out.extend(halves.map(u32::from));
            }
        }
        out
    }
}

#[test]
fn every_half_is_read_and_rounded_to_alike() {
    assert_alike(|| Halves);
}

struct Exp(f32);

impl Kernel for Exp {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut out = [0.0; 16];
        s.store(math::exp(s, s.splat(self.0)), &mut out);
        out[3]
    }
}

#[test]
fn exp_is_accurate_over_its_range() {
    for i in -86_000..88_000 {
        let x = i as f32 / 1000.0;
        let (got, want) = (f64::from(Isa::scalar().run(Exp(x))), f64::from(x).exp());
        assert!(((got - want) / want).abs() < 2e-7, "exp({x}): got {got}, want {want}");
    }
    assert_eq!(Isa::scalar().run(Exp(f32::NEG_INFINITY)), 0.0);
    for isa in Isa::available() {
        assert!(isa.run(Exp(f32::NAN)).is_nan(), "{isa}");
    }
    assert_eq!(Isa::scalar().run(Exp(0.0)), 1.0);
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    let error = Isa::from_name("mmx").unwrap_err().to_string();
    assert!(error.contains("mmx") && error.contains("scalar"), "{error}");
}

#[test]
fn required_instruction_sets_are_here() {
    for name in std::env::var("OSS_REQUIRE_ISA").unwrap_or_default().split(',') {
        if !name.is_empty() {
            assert_eq!(Isa::from_name(name).unwrap().name(), name);
        }
    }
}
