//! What a matrix multiplies: rows of activations, as numbers or as 8-bit codes.

mod buffer;

use oss_simd::{Isa, Kernel, Simd};

pub use buffer::InputBuffer;

/// How activations meet weights, one choice for a whole engine.
///
/// Matrices of floating-point weights take [`Activation::Bf16`] where the choice is
/// [`Activation::Int8`]: they have no codes to multiply codes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Single precision.
    F32,
    /// Rounded to bf16, multiplied and added in single precision.
    Bf16,
    /// 8-bit codes with one scale per 32 columns; products are added as integers.
    Int8,
}

impl Activation {
    /// The name, as on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// 32 columns of a row of activations as 8-bit codes: number = code × scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodeBlock {
    /// In -127..=127.
    pub codes: [i8; 32],
    /// The scale.
    pub scale: f32,
    /// The sums of codes 0..16 and 16..32.
    pub sums: [i32; 2],
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
    /// `[rows, stride / 32]`: the numbers as codes, if the choice is [`Activation::Int8`].
    pub codes: &'a [CodeBlock],
}

impl<'a> Input<'a> {
    /// One row as codes.
    #[inline(always)]
    pub(crate) fn code_row(&self, row: usize) -> &'a [CodeBlock] {
        let n_blocks = self.stride / 32;
        &self.codes[row * n_blocks..(row + 1) * n_blocks]
    }
}

/// One row of an [`Input`], to be written by [`prepare`]; the same lengths as there, with one row.
#[derive(Debug)]
pub struct InputRow<'a> {
    /// `[stride]`.
    pub values: &'a mut [f32],
    /// `[stride / 16]`.
    pub value_sums: &'a mut [f32],
    /// `[stride / 32]`, or empty.
    pub codes: &'a mut [CodeBlock],
}

/// Writes `x` (at most `stride` numbers) into a row, in the forms that `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], row: InputRow<'_>) {
    let stride = row.values.len();
    assert!(x.len() <= stride && stride.is_multiple_of(32), "got {} of {stride}", x.len());
    assert_eq!(row.value_sums.len(), stride / 16, "sums of values");
    if activation == Activation::Int8 {
        assert_eq!(row.codes.len(), stride / 32, "blocks of codes");
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
        let (values, _) = row.values.as_chunks_mut::<16>();
        for (i, out) in values.iter_mut().enumerate() {
            let from = &x[(16 * i).min(x.len())..(16 * i + 16).min(x.len())];
            let v = match <&[f32; 16]>::try_from(from) {
                Ok(all) => s.load(all),
                Err(_) => s.load_partial(from),
            };
            let v = if activation == Activation::F32 { v } else { s.round_bf16(v) };
            s.store(v, out);
            row.value_sums[i] = s.reduce_add(v);
        }
        if activation == Activation::Int8 {
            for (block, out) in row.codes.iter_mut().enumerate() {
                let from = &x[(32 * block).min(x.len())..(32 * block + 32).min(x.len())];
                let mut all = [0.0; 32];
                all[..from.len()].copy_from_slice(from);
                let (halves, _) = all.as_chunks::<16>();
                let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
                let largest = s.reduce_max(s.max(s.abs(low), s.abs(high)));
                let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
                out.scale = largest / 127.0;
                let (codes, _) = out.codes.as_chunks_mut::<16>();
                for (half, v) in [low, high].into_iter().enumerate() {
                    let code = s.round_i32(s.mul(v, inverse));
                    s.store_i8(code, &mut codes[half]);
                    out.sums[half] = s.reduce_add_i32(code);
                }
            }
        }
    }
}
