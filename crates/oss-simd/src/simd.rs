//! The vector vocabulary: what a kernel may say, whatever the instruction set.

use crate::Kernel;

/// Numbers below it count as zero where products of bf16 are added: then nothing is denormal, see
/// [`Simd::add_bf16`].
pub const LEAST_BF16: f32 = 1.0 / (1u64 << 50) as f32;

/// Sixteen pairs of bf16 numbers, made ready for [`Simd::add_bf16`].
#[derive(Clone, Copy, Debug)]
pub struct Bf16Pairs<V>(pub(crate) [V; 2]);

/// Sixteen 32-bit lanes (or 64 bytes) at a time, on every instruction set.
///
/// A value of an implementing type is the proof that the processor has the instruction set: it is
/// only handed out by [`Isa::run`](crate::Isa::run). Every operation is elementwise IEEE 754 with
/// one rounding (fused multiply-add included) and every reduction is the same fixed tree, so a
/// kernel that is written with them alone gives the same bits on every instruction set.
///
/// Code that uses these operations must be inlined into [`Kernel::run`](crate::Kernel::run): mark
/// its functions `#[inline(always)]`.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen `f32`.
    type F32: Copy;
    /// Sixteen `i32`.
    type I32: Copy;
    /// Sixty-four `u8`; byte `4 r + b` is byte `b` of 32-bit lane `r`.
    type U8: Copy;
    /// A running sum of products of bytes, see [`Simd::dot`].
    type Dot: Copy;
    /// Signed bytes made ready for [`Simd::dot_signed`].
    type Signed: Copy;

    /// The instruction set's name.
    const NAME: &'static str;
    /// How many 64-byte registers a kernel may keep alive without spilling.
    const REGISTERS: usize;

    /// Whether [`Simd::dot`] is exact for any number of calls and any codes.
    const DOT_IS_EXACT: bool;

    /// Whether [`Simd::dot_wide`] multiplies codes of 8 bits faster than [`Simd::dot_signed`].
    const DOT_WIDE_IS_FASTER: bool = false;

    /// Whether [`Simd::nibble_lut`] takes no longer than masking the nibbles.
    const LUT_IS_AS_FAST_AS_MASKS: bool = false;

    /// How many calls of [`Simd::add_bf16`] add the products of pairs.
    const BF16_STEPS: usize = 2;

    /// Runs a part of a kernel as a function of its own, compiled for the same instruction set: the
    /// compiler takes much longer for one long function than for its parts.
    fn outline<K: Kernel>(self, part: K) -> K::Output;

    // ---- f32 ------------------------------------------------------------------------------

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F32;
    /// Sixteen numbers from memory.
    fn load(self, from: &[f32; 16]) -> Self::F32;
    /// Sixteen numbers to memory.
    fn store(self, x: Self::F32, to: &mut [f32; 16]);
    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a b + c`, rounded once.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The larger; `b` where either is not a number.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller; `b` where either is not a number.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a < b { x } else { y }` per lane.
    fn select_lt(self, a: Self::F32, b: Self::F32, x: Self::F32, y: Self::F32) -> Self::F32;
    /// The nearest integers, ties to even; lanes must be within ±2³¹.
    fn round_i32(self, x: Self::F32) -> Self::I32;
    /// Integers as numbers, rounded to nearest.
    fn i32_to_f32(self, x: Self::I32) -> Self::F32;
    /// The bits of the numbers.
    fn f32_as_i32(self, x: Self::F32) -> Self::I32;
    /// The numbers of the bits.
    fn i32_as_f32(self, x: Self::I32) -> Self::F32;
    /// The sum of the lanes: lanes `i` and `i + 8`, then `i` and `i + 4`, and so on.
    fn reduce_add(self, x: Self::F32) -> f32;
    /// The largest lane; no lane may be a NaN, and which zero it is is open.
    fn reduce_max(self, x: Self::F32) -> f32;
    /// Sixteen IEEE half-precision numbers.
    fn load_f16(self, from: &[u16; 16]) -> Self::F32;
    /// Rounds to half precision, ties to even.
    fn store_f16(self, x: Self::F32, to: &mut [u16; 16]);
    /// Four numbers of each place: those of place `q` become lanes `4 q .. 4 q + 4`.
    fn load_quads(self, from: [&[f32; 4]; 4]) -> Self::F32;
    /// Transposes quads of lanes: lane `4 q + i` of row `j` becomes lane `4 q + j` of row `i`.
    fn transpose_quads(self, rows: [Self::F32; 4]) -> [Self::F32; 4];

    // ---- i32 ------------------------------------------------------------------------------

    /// All lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I32;
    /// Sixteen integers from memory.
    fn load_i32(self, from: &[i32; 16]) -> Self::I32;
    /// Sixteen integers to memory.
    fn store_i32(self, x: Self::I32, to: &mut [i32; 16]);
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a - b`, wrapping.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a b`, the low half.
    fn mul_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise and.
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise or.
    fn or_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Shifts left by a constant, zeros in.
    fn shl_i32<const N: u32>(self, x: Self::I32) -> Self::I32;
    /// Shifts right by a constant, zeros in.
    fn shr_i32<const N: u32>(self, x: Self::I32) -> Self::I32;
    /// `if a > b { x } else { y }` per lane.
    fn select_gt_i32(self, ab: (Self::I32, Self::I32), x: Self::I32, y: Self::I32) -> Self::I32;
    /// The sum of the lanes, wrapping.
    fn reduce_add_i32(self, x: Self::I32) -> i32;
    /// Sixteen bytes, zero-extended.
    fn load_u8_i32(self, from: &[u8; 16]) -> Self::I32;
    /// Sixteen signed bytes, sign-extended.
    fn load_i8_i32(self, from: &[i8; 16]) -> Self::I32;
    /// Sixteen 16-bit integers, zero-extended.
    fn load_u16_i32(self, from: &[u16; 16]) -> Self::I32;
    /// The lanes as signed bytes; they must fit.
    fn store_i8(self, x: Self::I32, to: &mut [i8; 16]);
    /// The lanes as 16-bit integers; they must be in `0..65536`.
    fn store_u16(self, x: Self::I32, to: &mut [u16; 16]);

    // ---- bytes ----------------------------------------------------------------------------

    /// Sixty-four bytes from memory.
    fn load_u8(self, from: &[u8; 64]) -> Self::U8;
    /// Sixty-four bytes to memory.
    fn store_u8(self, x: Self::U8, to: &mut [u8; 64]);
    /// The bytes seen as 32-bit lanes.
    fn u8_as_i32(self, x: Self::U8) -> Self::I32;
    /// 32-bit lanes seen as bytes.
    fn i32_as_u8(self, x: Self::I32) -> Self::U8;
    /// A table of sixteen bytes for [`Simd::nibble_lut`].
    fn table(self, entries: &[u8; 16]) -> Self::U8;
    /// The table's entries for the low and for the high nibbles of each byte.
    fn nibble_lut(self, table: Self::U8, x: Self::U8) -> (Self::U8, Self::U8);

    // ---- dot products of bytes --------------------------------------------------------------

    /// An empty [`Simd::dot`] for codes that count from `zero`: starts at `-zero` times the two
    /// 16-bit halves of `sums`, which are the sums over the quads to come of their bytes 0 and 1,
    /// and 2 and 3. So the finished sum is that of `(code - zero) * byte`.
    fn dot_start(self, zero: u8, sums: i32) -> Self::Dot;
    /// The same for codes whose zero point is 128, by `zero_point_sum`, minus 128 times the sum of
    /// all bytes to come. Only where [`Simd::DOT_IS_EXACT`].
    fn dot_zero_point_128(self, zero_point_sum: i32) -> Self::Dot;
    /// Adds `codes[4 r + b] * quad[b]` over `b` to lane `r`; `quad` is four bytes in -127..=127 in
    /// memory order, the codes are unsigned.
    ///
    /// Exact where codes are at most 127 and no `code - zero` is beyond `32,767 / (254 calls)`
    /// (16 for 8 calls, 32 for 4): then 16 bits hold the sum of each half of a quad.
    fn dot(self, sum: Self::Dot, codes: Self::U8, quad: i32) -> Self::Dot;
    /// [`Simd::dot`] of several sums with the same quad, the I-th of eight. They are added in the
    /// order of the calls where the compiler would reorder a tile's sums and lay half of them on
    /// the stack.
    #[inline(always)]
    fn dot_each<const N: usize, const I: usize>(
        self,
        mut sums: [Self::Dot; N],
        codes: [Self::U8; N],
        quads: &[[u8; 4]; 8],
    ) -> [Self::Dot; N] {
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = self.dot(*sum, codes, i32::from_le_bytes(quads[I]));
        }
        sums
    }
    /// The finished sum.
    fn dot_sum(self, sum: Self::Dot) -> Self::I32;
    /// The bytes `code - zero`, which must be in -128..=127.
    fn signed(self, codes: Self::U8, zero: u8) -> Self::Signed;
    /// As [`Simd::dot`] for signed bytes and a quad within -127..=127: exact always, slower
    /// without byte-dot instructions.
    fn dot_signed(self, sum: Self::I32, bytes: Self::Signed, quad: i32) -> Self::I32;

    /// Adds the products of the signed 16-bit halves of lanes with those of `pair`, wrapping.
    #[inline(always)]
    fn dot_wide(self, sum: Self::I32, codes: Self::I32, pair: i32) -> Self::I32 {
        let low = self.low_i16(codes);
        let high = self.low_i16(self.shr_i32::<16>(codes));
        let low = self.mul_i32(low, self.splat_i32(i32::from(pair as i16)));
        let high = self.mul_i32(high, self.splat_i32(pair >> 16));
        self.add_i32(self.add_i32(sum, low), high)
    }

    // ---- products of bf16 -------------------------------------------------------------------
    //
    // How pairs lie in memory and in vectors is the instruction set's own business: they stay in
    // one kernel, whose `Kernel::EXTENSION` is `Bf16` where it stores factors or adds products.
    //
    // A pair adds `lower lower + (upper upper + sum)`, each product and sum rounded once, as two
    // fused multiply-adds do, and as `vpdpbf16ps` does where nothing is denormal. So that nothing
    // is, factors below 2^-50 count as zero (see `round_bf16_flushed`), and sums begin at zero or
    // as `scale_bf16` gives them: then each is a multiple of 2^-123.

    /// The pairs of bf16 numbers in the lower and the upper halves of the lanes, which are as
    /// [`Simd::round_bf16_flushed`] gives them.
    #[inline(always)]
    fn bf16_pairs(self, x: Self::I32) -> Bf16Pairs<Self::F32> {
        Bf16Pairs(self.bf16_halves(x))
    }

    /// The numbers of pairs: the first of each, and the second of each.
    #[inline(always)]
    fn bf16_numbers(self, pairs: Bf16Pairs<Self::F32>) -> [Self::F32; 2] {
        pairs.0
    }

    /// Stores sixteen numbers, as [`Simd::round_bf16_flushed`] rounds them, as eight pairs for
    /// [`Simd::splat_bf16`].
    #[inline(always)]
    fn store_bf16_factors(self, x: Self::F32, to: &mut [f32; 16]) {
        self.store(self.i32_as_f32(self.round_bf16_flushed(x)), to);
    }

    /// All lanes a pair of [`Simd::store_bf16_factors`], for one of [`Simd::BF16_STEPS`].
    #[inline(always)]
    fn splat_bf16(self, pair: &[f32; 2], step: usize) -> Self::F32 {
        self.splat(pair[1 - step])
    }

    /// One of [`Simd::BF16_STEPS`] that add the products of pairs to a sum, in ascending order.
    #[inline(always)]
    fn add_bf16(
        self,
        step: usize,
        pair: Self::F32,
        pairs: Bf16Pairs<Self::F32>,
        sum: Self::F32,
    ) -> Self::F32 {
        self.fma(pair, pairs.0[1 - step], sum)
    }

    /// Adds the products of the first (0) or the second numbers (1) of pairs alone; the pair's
    /// other number is zero.
    #[inline(always)]
    fn add_half_bf16(
        self,
        half: usize,
        pair: &[f32; 2],
        pairs: Bf16Pairs<Self::F32>,
        sum: Self::F32,
    ) -> Self::F32 {
        self.fma(self.splat(pair[half]), pairs.0[half], sum)
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Prefetches the line at `offset` bytes after the start of `base`; any offset is allowed.
    fn prefetch(self, base: &[u8], offset: usize);
    /// The same for a line that is read once and takes no other's place but in the first cache,
    /// where the processor knows how.
    fn prefetch_once(self, base: &[u8], offset: usize);
    /// Prefetches a line as [`Simd::prefetch`] does, but to the second-level cache alone.
    fn prefetch_second(self, base: &[u8], offset: usize);

    // ---- composed, the same everywhere ------------------------------------------------------

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::F32 {
        self.splat(0.0)
    }

    /// All lanes zero.
    #[inline(always)]
    fn zero_i32(self) -> Self::I32 {
        self.splat_i32(0)
    }

    /// The lower halves of the lanes as signed numbers.
    #[inline(always)]
    fn low_i16(self, x: Self::I32) -> Self::I32 {
        let moved = self.and_i32(self.add_i32(x, self.splat_i32(0x8000)), self.splat_i32(0xffff));
        self.sub_i32(moved, self.splat_i32(0x8000))
    }

    /// Up to sixteen numbers, the rest zero.
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::F32 {
        let mut all = [0.0; 16];
        all[..from.len()].copy_from_slice(from);
        self.load(&all)
    }

    /// The first `to.len()` (at most sixteen) lanes to memory.
    #[inline(always)]
    fn store_partial(self, x: Self::F32, to: &mut [f32]) {
        let mut all = [0.0; 16];
        self.store(x, &mut all);
        to.copy_from_slice(&all[..to.len()]);
    }

    /// The largest number of each row: lane `i` is that of row `i % 4`; none may be a NaN, and
    /// which zero it is is open.
    #[inline(always)]
    fn max_each(self, [a, b, c, d]: [Self::F32; 4]) -> Self::F32 {
        let (a, b) = (self.reduce_max(a), self.reduce_max(b));
        self.load(&repeated([a, b, self.reduce_max(c), self.reduce_max(d)]))
    }

    /// The sum of each row, wrapping: lane `i` is that of row `i % 4`.
    #[inline(always)]
    fn sum_each(self, [a, b, c, d]: [Self::I32; 4]) -> Self::I32 {
        let (a, b) = (self.reduce_add_i32(a), self.reduce_add_i32(b));
        self.load_i32(&repeated([a, b, self.reduce_add_i32(c), self.reduce_add_i32(d)]))
    }

    /// `|x|`.
    #[inline(always)]
    fn abs(self, x: Self::F32) -> Self::F32 {
        self.i32_as_f32(self.and_i32(self.f32_as_i32(x), self.splat_i32(0x7fff_ffff)))
    }

    /// The bf16 numbers in the lower and in the upper halves of the lanes.
    #[inline(always)]
    fn bf16_halves(self, x: Self::I32) -> [Self::F32; 2] {
        let upper = self.and_i32(x, self.splat_i32(0xffff_0000_u32 as i32));
        [self.i32_as_f32(self.shl_i32::<16>(x)), self.i32_as_f32(upper)]
    }

    /// The nearest bf16 bits, ties to even, in the upper half of each lane; NaNs stay NaNs.
    #[inline(always)]
    fn bf16_bits(self, x: Self::F32) -> Self::I32 {
        let bits = self.f32_as_i32(x);
        let odd = self.and_i32(self.shr_i32::<16>(bits), self.splat_i32(1));
        let rounded = self.add_i32(bits, self.add_i32(odd, self.splat_i32(0x7fff)));
        let magnitude = self.and_i32(bits, self.splat_i32(0x7fff_ffff));
        let quiet = self.or_i32(bits, self.splat_i32(0x0040_0000));
        let chosen = self.select_gt_i32((magnitude, self.splat_i32(0x7f80_0000)), quiet, rounded);
        self.and_i32(chosen, self.splat_i32(0xffff_0000_u32 as i32))
    }

    /// [`Simd::bf16_bits`], but zero where the number is below 2^-50.
    #[inline(always)]
    fn round_bf16_flushed(self, x: Self::F32) -> Self::I32 {
        self.bf16_bits(self.flush_tiny(x))
    }

    /// Zero where a number is below 2^-50.
    #[inline(always)]
    fn flush_tiny(self, x: Self::F32) -> Self::F32 {
        self.select_lt(self.abs(x), self.splat(LEAST_BF16), self.zero(), x)
    }

    /// A sum of [`Simd::add_bf16`] times a number, but zero where that is below 2^-100.
    #[inline(always)]
    fn scale_bf16(self, sum: Self::F32, by: Self::F32) -> Self::F32 {
        const LEAST: f32 = 1.0 / (1u128 << 100) as f32;
        let sum = self.mul(sum, by);
        self.select_lt(self.abs(sum), self.splat(LEAST), self.zero(), sum)
    }

    /// Rounds to the nearest bf16, ties to even.
    #[inline(always)]
    fn round_bf16(self, x: Self::F32) -> Self::F32 {
        self.i32_as_f32(self.bf16_bits(x))
    }

    /// Sixteen bf16 numbers.
    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::F32 {
        self.i32_as_f32(self.shl_i32::<16>(self.load_u16_i32(from)))
    }
}

/// Four numbers, four times.
#[inline(always)]
const fn repeated<T: Copy>([a, b, c, d]: [T; 4]) -> [T; 16] {
    [a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d]
}
