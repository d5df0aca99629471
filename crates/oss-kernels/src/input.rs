//! What a matrix multiplies: rows of activations, as numbers or as 8-bit codes.

mod activation;
mod buffer;

use crate::elementwise::{Gate, gate_lanes};
use oss_simd::{Isa, Kernel, Simd, array_of};

pub use activation::{Activation, ParseActivationError};
pub use buffer::InputBuffer;

/// The most planes of codes, see [`Activation::planes`].
pub const MAX_PLANES: usize = 2;

/// Bits by which a code of the coarse plane is above one of the fine plane.
pub(crate) const FINE_BITS: u32 = 8;

/// 32 columns of a row of activations as 8-bit codes: number = code × scale. Where there are two
/// planes, the number is the sum of both, and the coarse scale 256 times the fine one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(align(64))]
pub struct CodeBlock {
    /// In -127..=127.
    pub codes: [i8; 32],
    /// The scale.
    pub scale: f32,
    /// The sums of codes 0..16, of codes 16..32 and of all: in each half of a sum's bits that of
    /// two out of four neighbours, as [`Simd::dot_start`] takes them.
    pub sums: [i32; 3],
    /// What minima of weights are multiplied with: minus the sums of the numbers 0..16, 16..32,
    /// and of all. Those of the fine plane are of both planes together.
    pub neg_sums: [f32; 3],
    /// Minus 128 times the sum of all codes, as [`Simd::dot_zero_point_128`] takes it.
    pub zero_point_sum: i32,
}

impl CodeBlock {
    /// The codes, those of columns `4 i..4 i + 4` together.
    #[inline(always)]
    pub(crate) fn quads(&self) -> &[[u8; 4]; 8] {
        bytemuck::cast_ref(&self.codes)
    }
}

/// Rows of activations in the forms that matrices take. All rows are `stride` columns long, a
/// multiple of 32, zero beyond the matrix's own columns.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Columns of a row.
    pub stride: usize,
    /// `[rows, stride]`: the numbers; empty where only codes are read.
    pub values: &'a [f32],
    /// `[rows, stride / 16]`: the sums of the numbers; empty as they are.
    pub value_sums: &'a [f32],
    /// Of each plane `[rows, stride / 32]`: the numbers as codes, see [`Activation::planes`].
    pub codes: [&'a [CodeBlock]; MAX_PLANES],
}

impl<'a> Input<'a> {
    /// One plane of a row's codes.
    #[inline(always)]
    pub(crate) fn plane(&self, row: usize, plane: usize) -> &'a [CodeBlock] {
        let n_blocks = self.stride / 32;
        &self.codes[plane][row * n_blocks..][..n_blocks]
    }
}

/// One row of an [`Input`], or some whole blocks of 32 columns of it, to be written by [`prepare`].
#[derive(Debug)]
pub struct InputRow<'a> {
    /// `[columns]`, or empty where only codes are read.
    pub values: &'a mut [f32],
    /// `[columns / 16]`, or empty as the numbers are.
    pub value_sums: &'a mut [f32],
    /// Of each plane that is written `[columns / 32]`.
    pub codes: [&'a mut [CodeBlock]; MAX_PLANES],
    /// `[columns / 32]`: the sums of the squares of what gains multiply, or empty.
    pub squares: &'a mut [f32],
}

/// Rows to be written, form by form: see [`InputRow`].
pub trait InputRowsMut {
    /// The numbers of a row.
    fn values(&mut self, row: usize) -> &mut [f32];
    /// Their sums.
    fn value_sums(&mut self, row: usize) -> &mut [f32];
    /// One plane of its codes.
    fn codes(&mut self, row: usize, plane: usize) -> &mut [CodeBlock];
    /// Its sums of squares.
    fn squares(&mut self, row: usize) -> &mut [f32];
}

impl InputRowsMut for InputRow<'_> {
    #[inline(always)]
    fn values(&mut self, row: usize) -> &mut [f32] {
        assert_eq!(row, 0, "a row of one");
        self.values
    }

    #[inline(always)]
    fn value_sums(&mut self, row: usize) -> &mut [f32] {
        assert_eq!(row, 0, "a row of one");
        self.value_sums
    }

    #[inline(always)]
    fn codes(&mut self, row: usize, plane: usize) -> &mut [CodeBlock] {
        assert_eq!(row, 0, "a row of one");
        self.codes[plane]
    }

    #[inline(always)]
    fn squares(&mut self, row: usize) -> &mut [f32] {
        assert_eq!(row, 0, "a row of one");
        self.squares
    }
}

/// Writes `x` (at most as many numbers as there are columns) into a row, in the forms that
/// `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even. A second plane has those of
/// what the first leaves, in 256ths of its step and within -127..=127. Blocks of nothing larger
/// than 1e-30 are zero.
///
/// # Panics
/// When the forms differ in columns, or have fewer than `x` has numbers.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], mut row: InputRow<'_>) {
    let columns = columns(&mut row, activation);
    assert!(x.len() <= columns, "{} numbers for {columns} columns", x.len());
    let (n_rows, n_blocks) = (1, columns / 32);
    isa.run(Prepare { activation, numbers: Given(x), rows: &mut row, n_rows, n_blocks });
}

/// Some columns of rows that are to be normalised.
#[derive(Clone, Copy, Debug)]
pub struct GainedRows<'a> {
    /// `[rows, width]`, the columns first in each row; the last one may end after them.
    pub x: &'a [f32],
    /// At least as many as there are gains.
    pub width: usize,
    /// What each of the columns is multiplied by.
    pub gain: &'a [f32],
}

/// Writes `x · gain` of each row into a row as [`prepare`] does, and, where the row has room for
/// them, the sums of the squares of `x`.
///
/// # Panics
/// When the rows' forms differ in columns, or these are fewer than the gains; when a row of `x` is
/// shorter than the gains.
pub fn prepare_with_gain(
    isa: Isa,
    activation: Activation,
    numbers: GainedRows<'_>,
    rows: &mut impl InputRowsMut,
) {
    let GainedRows { x, width, gain } = numbers;
    assert!(gain.len() <= width, "{} gains for rows of {width}", gain.len());
    let n_rows = x.len().div_ceil(width.max(1));
    let last = x.len() - width * n_rows.saturating_sub(1);
    assert!(n_rows == 0 || gain.len() <= last, "{} gains for a row of {last}", gain.len());
    let Some(columns) = (n_rows > 0).then(|| columns(rows, activation)) else { return };
    assert!(gain.len() <= columns, "{} gains for {columns} columns", gain.len());
    isa.run(Prepare { activation, numbers, rows, n_rows, n_blocks: columns / 32 });
}

/// Products with a gate and up matrix, in which sixteen gates and sixteen ups alternate.
#[derive(Clone, Copy, Debug)]
pub struct GateUpSums<'a> {
    /// What becomes of a gate and an up.
    pub gate: Gate,
    /// `[rows, width]`.
    pub sums: &'a [f32],
    /// A multiple of 32.
    pub width: usize,
    /// How many numbers of a row are gates and ups, a multiple of 32; the others are padding.
    pub n: usize,
    /// What the rows' numbers are multiplied by first, one factor a row; none for empty.
    pub factors: &'a [f32],
    /// Numbers for all `n`, to be added then.
    pub bias: Option<&'a [f32]>,
}

/// Writes `gate(gate, up)` of each row's gates and ups into a row as [`prepare`] does.
///
/// # Panics
/// When the rows' forms differ in columns, or these are fewer than the gates; when `n` or the width
/// is no multiple of 32; when width, sums, factors or bias are not as long as they say.
pub fn prepare_gated(
    isa: Isa,
    activation: Activation,
    numbers: GateUpSums<'_>,
    rows: &mut impl InputRowsMut,
) {
    let GateUpSums { gate, sums, width, n, factors, bias } = numbers;
    assert!(width.is_multiple_of(32) && n <= width, "{n} gates and ups in rows of {width}");
    assert!(n.is_multiple_of(32), "{n} gates and ups, expected a multiple of 32");
    assert!(sums.len().is_multiple_of(width.max(1)), "{} sums in rows of {width}", sums.len());
    assert!(bias.is_none_or(|bias| bias.len() == n), "a bias for each of {n} sums");
    let n_rows = sums.len() / width.max(1);
    assert!(factors.is_empty() || factors.len() == n_rows, "a factor for each of {n_rows} rows");
    let Some(columns) = (n_rows > 0).then(|| columns(rows, activation)) else { return };
    assert!(n <= 2 * columns, "{n} gates and ups for {columns} columns");
    let (sums, bias) = (sums.as_chunks().0, bias.map_or(&[][..], |bias| bias.as_chunks().0));
    let numbers = Gated { gate, sums, width: width / 16, n: n / 16, factors, bias };
    isa.run(Prepare { activation, numbers, rows, n_rows, n_blocks: columns / 32 });
}

/// How many columns rows have, by the first.
fn columns(rows: &mut impl InputRowsMut, activation: Activation) -> usize {
    let planes = activation.planes();
    let (values, value_sums) = (rows.values(0).len(), rows.value_sums(0).len());
    let columns = if planes > 0 { 32 * rows.codes(0, 0).len() } else { values };
    assert!(columns.is_multiple_of(32), "{columns} columns");
    for plane in 0..planes {
        assert_eq!(rows.codes(0, plane).len(), columns / 32, "blocks of codes");
    }
    if planes == 0 || values > 0 {
        assert_eq!(values, columns, "numbers");
        assert_eq!(value_sums, columns / 16, "sums of numbers");
    }
    let squares = rows.squares(0).len();
    assert!(squares == 0 || squares == columns / 32, "{squares} sums of squares");
    columns
}

/// Where the numbers of rows come from.
trait Numbers {
    /// Whether they are to be multiplied by gains.
    const HAS_GAINS: bool = false;

    /// Columns `16 i..16 i + 16` of a row.
    fn lanes<S: Simd>(&self, s: S, row: usize, i: usize) -> S::F32;

    /// The gains of columns `16 i..16 i + 16`.
    #[inline(always)]
    fn gains<S: Simd>(&self, s: S, _: usize) -> S::F32 {
        s.splat(1.0)
    }
}

/// Numbers of one row from memory, zeros after them.
struct Given<'a>(&'a [f32]);

/// Columns `16 i..16 i + 16` of a row, zeros after its end.
#[inline(always)]
fn given<S: Simd>(s: S, row: &[f32], i: usize) -> S::F32 {
    let (all, rest) = row.as_chunks();
    match all.get(i) {
        Some(x) => s.load(x),
        None if i == all.len() => s.load_partial(rest),
        None => s.zero(),
    }
}

impl Numbers for Given<'_> {
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, _: usize, i: usize) -> S::F32 {
        given(s, self.0, i)
    }
}

impl Numbers for GainedRows<'_> {
    const HAS_GAINS: bool = true;

    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, row: usize, i: usize) -> S::F32 {
        given(s, &self.x[row * self.width..][..self.gain.len()], i)
    }

    #[inline(always)]
    fn gains<S: Simd>(&self, s: S, i: usize) -> S::F32 {
        given(s, self.gain, i)
    }
}

/// A [`GateUpSums`], its lengths in vectors.
struct Gated<'a> {
    gate: Gate,
    sums: &'a [[f32; 16]],
    width: usize,
    n: usize,
    factors: &'a [f32],
    bias: &'a [[f32; 16]],
}

impl Numbers for Gated<'_> {
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, row: usize, i: usize) -> S::F32 {
        let sums = &self.sums[row * self.width..][..self.n];
        let Some([gate, up]) = sums.get(2 * i..2 * i + 2) else { return s.zero() };
        let (mut gate, mut up) = (s.load(gate), s.load(up));
        if let Some(factor) = self.factors.get(row) {
            (gate, up) = (s.mul(gate, s.splat(*factor)), s.mul(up, s.splat(*factor)));
        }
        if let Some([for_gate, for_up]) = self.bias.get(2 * i..2 * i + 2) {
            (gate, up) = (s.add(gate, s.load(for_gate)), s.add(up, s.load(for_up)));
        }
        gate_lanes(s, self.gate, gate, up)
    }
}

struct Prepare<'a, N, R> {
    activation: Activation,
    numbers: N,
    /// Where they are: moving a row would wait for its parts, which were written just before.
    rows: &'a mut R,
    n_rows: usize,
    n_blocks: usize,
}

impl<N: Numbers, R: InputRowsMut> Kernel for Prepare<'_, N, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Alone, a block is done sooner without lanes for three others.
        if self.n_rows * self.n_blocks < 4 { self.by::<S, 1>(s) } else { self.by::<S, 4>(s) }
    }
}

impl<N: Numbers, R: InputRowsMut> Prepare<'_, N, R> {
    /// Some blocks at a time.
    #[inline(always)]
    fn by<S: Simd, const TOGETHER: usize>(self, s: S) {
        let Self { activation, numbers, rows, n_rows, n_blocks } = self;
        let (planes, has_values) = (activation.planes(), !rows.values(0).is_empty());
        let has_squares = N::HAS_GAINS && !rows.squares(0).is_empty();
        let mut next = (0, 0);
        let all = n_rows * n_blocks;
        for first in (0..all).step_by(TOGETHER) {
            let n = TOGETHER.min(all - first);
            let mut places = [(0, 0); TOGETHER];
            let mut x = [[s.zero(); 2]; TOGETHER];
            for (place, x) in places.iter_mut().zip(&mut x).take(n) {
                let (row, block) = next;
                *place = next;
                next = if block + 1 < n_blocks { (row, block + 1) } else { (row + 1, 0) };
                *x = [numbers.lanes(s, row, 2 * block), numbers.lanes(s, row, 2 * block + 1)];
                if has_squares {
                    let squares = s.reduce_add(s.fma(x[1], x[1], s.mul(x[0], x[0])));
                    rows.squares(row)[block] = squares;
                }
                if N::HAS_GAINS {
                    x[0] = s.mul(x[0], numbers.gains(s, 2 * block));
                    x[1] = s.mul(x[1], numbers.gains(s, 2 * block + 1));
                }
                if has_values {
                    for (half, &x) in x.iter().enumerate() {
                        let v = match activation {
                            Activation::F32 => x,
                            _ => s.i32_as_f32(s.round_bf16_flushed(x)),
                        };
                        let at = 2 * block + half;
                        s.store(v, &mut rows.values(row).as_chunks_mut().0[at]);
                        rows.value_sums(row)[at] = s.reduce_add(v);
                    }
                }
            }
            if planes > 0 {
                let coarse = Encoded::coarse(s, &mut x);
                for (i, (row, block)) in places.into_iter().enumerate().take(n) {
                    coarse.store(s, i, &mut rows.codes(row, 0)[block]);
                }
                if planes > 1 {
                    let fine = coarse.fine(s, &mut x);
                    for (i, (row, block)) in places.into_iter().enumerate().take(n) {
                        fine.store(s, i, &mut rows.codes(row, 1)[block]);
                    }
                }
            }
        }
    }
}

/// Columns whose sum is in bits 0..16 of a row's: 0 and 1 of each four. That of 2 and 3 is above.
const LOW: [i32; 16] = {
    let mut low = [0; 16];
    let mut column = 0;
    while column < 16 {
        low[column] = if column % 4 < 2 { -1 } else { 0 };
        column += 1;
    }
    low
};

/// The largest number of a block that is taken for zero: below, 127 divided by it is too large.
const NOTHING: f32 = 1e-30;

/// One block as codes or four of them: what each block has once is a lane.
struct Encoded<S: Simd, const N: usize> {
    codes: [[S::I32; 2]; N],
    scale: S::F32,
    inverse: S::F32,
    /// The sums of all planes so far, in units of this one: as in [`CodeBlock::neg_sums`].
    totals: [S::I32; 3],
    scales: [f32; 16],
    sums: [[i32; 16]; 3],
    neg_sums: [[f32; 16]; 3],
    zero_point_sums: [i32; 16],
}

impl<S: Simd, const N: usize> Encoded<S, N> {
    /// Makes codes of numbers, and leaves of these what the codes do.
    #[inline(always)]
    fn coarse(s: S, x: &mut [[S::F32; 2]; N]) -> Self {
        const { assert!(N == 1 || N == 4, "one block or four") };
        let mut magnitudes = [s.zero(); N];
        for ([low, high], largest) in x.iter().zip(&mut magnitudes) {
            *largest = s.max(magnitude(s, *low), magnitude(s, *high));
        }
        let largest = match magnitudes[..] {
            [a, b, c, d] => s.max_each([a, b, c, d]),
            _ => s.splat(s.reduce_max(magnitudes[0])),
        };
        let scale = s.div(largest, s.splat(127.0));
        let scale = s.select_lt(largest, s.splat(f32::INFINITY), scale, s.splat(f32::NAN));
        let inverse = s.div(s.splat(127.0), largest);
        let inverse = s.select_lt(s.splat(NOTHING), largest, inverse, s.zero());
        Self::new::<false>(s, x, (scale, inverse), [s.zero_i32(); 3])
    }

    /// The same of what the coarse codes have left, by a fine scale.
    #[inline(always)]
    fn fine(&self, s: S, x: &mut [[S::F32; 2]; N]) -> Self {
        let steps = (1 << FINE_BITS) as f32;
        let scale = s.mul(self.scale, s.splat(1.0 / steps));
        let inverse = s.mul(self.inverse, s.splat(steps));
        let above = array_of(|row| s.shl_i32::<FINE_BITS>(self.totals[row]));
        Self::new::<true>(s, x, (scale, inverse), above)
    }

    #[inline(always)]
    fn new<const FINE: bool>(
        s: S,
        x: &mut [[S::F32; 2]; N],
        (scale, inverse): (S::F32, S::F32),
        above: [S::I32; 3],
    ) -> Self {
        let (mut scales, mut inverses) = ([0.0; 16], [0.0; 16]);
        s.store(scale, &mut scales);
        s.store(inverse, &mut inverses);

        let low = s.load_i32(&LOW);
        let high = s.sub_i32(s.splat_i32(-1), low);
        let (least, most) = (s.splat(-127.0), s.splat(127.0));
        let mut codes = [[s.splat_i32(0); 2]; N];
        let mut placed = [[s.splat_i32(0); N]; 2];
        for block in 0..N {
            let (inverse, back) = (s.splat(inverses[block]), s.splat(-scales[block]));
            for half in 0..2 {
                let numbers = x[block][half];
                let mut code = s.mul(numbers, inverse);
                // Half a coarse step is 128 fine ones.
                if FINE {
                    code = s.min(s.max(code, least), most);
                }
                let code = s.round_i32(code);
                codes[block][half] = code;
                let above = s.and_i32(s.shl_i32::<16>(code), high);
                placed[half][block] = s.or_i32(s.and_i32(code, low), above);
                x[block][half] = s.fma(s.i32_to_f32(code), back, numbers);
            }
        }

        let [low, high] = [two_sums(s, placed[0]), two_sums(s, placed[1])];
        let all = [s.add_i32(low[0], high[0]), s.add_i32(low[1], high[1])];
        let (mut sums, mut neg_sums) = ([[0; 16]; 3], [[0.0; 16]; 3]);
        let mut zero_point_sums = [0; 16];
        let zero_point_sum = s.shl_i32::<7>(s.add_i32(all[0], all[1]));
        s.store_i32(s.sub_i32(s.zero_i32(), zero_point_sum), &mut zero_point_sums);
        let mut totals = above;
        let back = s.sub(s.zero(), scale);
        for (i, [first, second]) in [low, high, all].into_iter().enumerate() {
            let first_bits = s.and_i32(first, s.splat_i32(0xffff));
            s.store_i32(s.or_i32(s.shl_i32::<16>(second), first_bits), &mut sums[i]);
            totals[i] = s.add_i32(totals[i], s.add_i32(first, second));
            s.store(s.mul(back, s.i32_to_f32(totals[i])), &mut neg_sums[i]);
        }
        Self { codes, scale, inverse, totals, scales, sums, neg_sums, zero_point_sums }
    }

    /// Writes the `i`-th block.
    #[inline(always)]
    fn store(&self, s: S, i: usize, out: &mut CodeBlock) {
        let (codes, _) = out.codes.as_chunks_mut::<16>();
        s.store_i8(self.codes[i][0], &mut codes[0]);
        s.store_i8(self.codes[i][1], &mut codes[1]);
        out.scale = self.scales[i];
        out.sums = [self.sums[0][i], self.sums[1][i], self.sums[2][i]];
        out.neg_sums = [self.neg_sums[0][i], self.neg_sums[1][i], self.neg_sums[2][i]];
        out.zero_point_sum = self.zero_point_sums[i];
    }
}

/// How far from zero numbers are. What is none counts as infinite, and makes a block's scale none
/// either.
#[inline(always)]
fn magnitude<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let (x, infinity) = (s.abs(x), s.splat(f32::INFINITY));
    s.select_lt(x, infinity, x, infinity)
}

/// Both sums of each row of codes: of columns 0 and 1 of each four, and of 2 and 3, which are in
/// the upper halves.
#[inline(always)]
fn two_sums<S: Simd, const N: usize>(s: S, rows: [S::I32; N]) -> [S::I32; 2] {
    let both = match rows[..] {
        [a, b, c, d] => s.sum_each([a, b, c, d]),
        _ => s.splat_i32(s.reduce_add_i32(rows[0])),
    };
    let first = s.low_i16(both);
    [first, s.low_i16(s.shr_i32::<16>(s.sub_i32(both, first)))]
}
