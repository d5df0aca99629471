//! What a matrix multiplies: rows of activations, as numbers or as 8-bit codes.

mod buffer;

use oss_simd::{Isa, Kernel, Simd};

pub use buffer::InputBuffer;

/// How activations meet weights, one choice for a whole engine.
///
/// Matrices of floating-point weights take [`Activation::Bf16`] where the choice is codes: they
/// have none to multiply them with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Single precision.
    F32,
    /// Rounded to bf16, multiplied and added in single precision.
    Bf16,
    /// 8-bit codes with one scale per 32 columns; products are added as integers.
    Int8,
    /// 8-bit codes, and as many again for what these leave: twice the products, next to no loss.
    Int16,
}

impl Activation {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::Int16];

    /// The name, as on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
        }
    }

    /// How many planes of 8-bit codes a row has; their products add up.
    #[must_use]
    pub const fn planes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Int8 => 1,
            Self::Int16 => 2,
        }
    }
}

/// The most planes of codes, see [`Activation::planes`].
pub const MAX_PLANES: usize = 2;

/// 32 columns of a row of activations as 8-bit codes: number = code × scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodeBlock {
    /// In -127..=127.
    pub codes: [i8; 32],
    /// The scale.
    pub scale: f32,
    /// The sums of codes 0..16, of codes 16..32 and of all: in each half of a sum's bits that of
    /// two out of four neighbours, as [`Simd::dot_start`] takes them.
    pub sums: [i32; 3],
    /// What minima of weights are multiplied with: minus the sums of the numbers 0..16, 16..32,
    /// and of all.
    pub minus: [f32; 3],
}

impl CodeBlock {
    /// The codes of columns `4 i..4 i + 4` in memory order.
    #[inline(always)]
    pub(crate) fn quad(&self, i: usize) -> i32 {
        let quads: &[[u8; 4]; 8] = bytemuck::cast_ref(&self.codes);
        i32::from_le_bytes(quads[i])
    }
}

/// Rows of activations in the forms that matrices take. All rows are `stride` columns long, a
/// multiple of 32, zero beyond the matrix's own columns.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Columns of a row.
    pub stride: usize,
    /// `[rows, stride]`: the numbers.
    pub values: &'a [f32],
    /// `[rows, stride / 16]`: the sums of the numbers.
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
    /// `[columns]`.
    pub values: &'a mut [f32],
    /// `[columns / 16]`.
    pub value_sums: &'a mut [f32],
    /// Of each plane that is written `[columns / 32]`.
    pub codes: [&'a mut [CodeBlock]; MAX_PLANES],
}

/// Writes `x` (at most as many numbers as there are columns) into a row, in the forms that
/// `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even; a second plane has those of
/// what the first leaves.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], row: InputRow<'_>) {
    let cols = row.values.len();
    assert!(x.len() <= cols && cols.is_multiple_of(32), "got {} of {cols}", x.len());
    assert_eq!(row.value_sums.len(), cols / 16, "sums of values");
    for plane in &row.codes[..activation.planes()] {
        assert_eq!(plane.len(), cols / 32, "blocks of codes");
    }
    isa.run(Prepare { activation, x, row });
}

struct Prepare<'a> {
    activation: Activation,
    x: &'a [f32],
    row: InputRow<'a>,
}

impl Kernel for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { activation, x, row } = self;
        let InputRow { values, value_sums, mut codes } = row;
        let (values, _) = values.as_chunks_mut::<16>();
        for block in 0..values.len() / 2 {
            let from = &x[(32 * block).min(x.len())..(32 * block + 32).min(x.len())];
            let (low, high) = from.split_at(from.len().min(16));
            let x = [load(s, low), load(s, high)];
            for half in 0..2 {
                let v = if activation == Activation::F32 { x[half] } else { s.round_bf16(x[half]) };
                s.store(v, &mut values[2 * block + half]);
                value_sums[2 * block + half] = s.reduce_add(v);
            }
            let mut rest = x;
            for plane in &mut codes[..activation.planes()] {
                rest = encode(s, rest, &mut plane[block]);
            }
        }
    }
}

/// Up to 16 numbers, zeros after them.
#[inline(always)]
fn load<S: Simd>(s: S, from: &[f32]) -> S::F32 {
    match from.try_into() {
        Ok(all) => s.load(all),
        Err(_) => s.load_partial(from),
    }
}

/// Adds up two sums at once: of columns 0 and 1 of each four in bits 0..16, of 2 and 3 above.
const PLACES: [i32; 16] = {
    let mut places = [0; 16];
    let mut column = 0;
    while column < 16 {
        places[column] = if column % 4 < 2 { 1 } else { 1 << 16 };
        column += 1;
    }
    places
};

/// Writes 32 numbers as codes; returns what the codes leave of them.
#[inline(always)]
fn encode<S: Simd>(s: S, x: [S::F32; 2], out: &mut CodeBlock) -> [S::F32; 2] {
    let largest = s.reduce_max(s.max(s.abs(x[0]), s.abs(x[1])));
    let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    out.scale = largest / 127.0;
    let back = s.splat(-out.scale);
    let (codes, _) = out.codes.as_chunks_mut::<16>();
    let mut rest = x;
    let mut sums = [[0; 2]; 2];
    for half in 0..2 {
        let code = s.round_i32(s.mul(x[half], inverse));
        s.store_i8(code, &mut codes[half]);
        let both = s.reduce_add_i32(s.mul_i32(code, s.load_i32(&PLACES)));
        let first = i32::from(both as i16);
        sums[half] = [first, (both - first) >> 16];
        rest[half] = s.fma(s.i32_to_f32(code), back, x[half]);
    }
    let [low, high] = sums;
    let sums = [low, high, [low[0] + high[0], low[1] + high[1]]];
    out.sums = sums.map(|[first, second]| second << 16 | first & 0xffff);
    out.minus = sums.map(|[first, second]| -out.scale * (first + second) as f32);
    rest
}
