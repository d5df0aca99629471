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

/// 32 columns of a row of activations as 8-bit codes: number = code × scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodeBlock {
    /// In -127..=127.
    pub codes: [i8; 32],
    /// The scale.
    pub scale: f32,
    /// The sums of codes 0..16 and 16..32.
    pub sums: [i32; 2],
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
    /// `[rows, row_blocks]`, of a row `[planes, stride / 32]`: the numbers as codes, see
    /// [`Activation::planes`].
    pub codes: &'a [CodeBlock],
    /// Blocks of codes of a row.
    pub row_blocks: usize,
}

impl<'a> Input<'a> {
    /// One plane of a row's codes.
    #[inline(always)]
    pub(crate) fn plane(&self, row: usize, plane: usize) -> &'a [CodeBlock] {
        let n_blocks = self.stride / 32;
        &self.codes[row * self.row_blocks + plane * n_blocks..][..n_blocks]
    }
}

/// One row of an [`Input`], to be written by [`prepare`]; the same lengths as there, with one row.
#[derive(Debug)]
pub struct InputRow<'a> {
    /// `[stride]`.
    pub values: &'a mut [f32],
    /// `[stride / 16]`.
    pub value_sums: &'a mut [f32],
    /// `[planes, stride / 32]`, of at least as many planes as are written.
    pub codes: &'a mut [CodeBlock],
}

/// Writes `x` (at most `stride` numbers) into a row, in the forms that `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even; a second plane has those of
/// what the first leaves.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], row: InputRow<'_>) {
    let stride = row.values.len();
    assert!(x.len() <= stride && stride.is_multiple_of(32), "got {} of {stride}", x.len());
    assert_eq!(row.value_sums.len(), stride / 16, "sums of values");
    assert!(row.codes.len() >= activation.planes() * stride / 32, "blocks of codes");
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
        let n_blocks = row.values.len() / 32;
        for block in 0..if activation.planes() > 0 { n_blocks } else { 0 } {
            let from = &x[(32 * block).min(x.len())..(32 * block + 32).min(x.len())];
            let mut all = [0.0; 32];
            all[..from.len()].copy_from_slice(from);
            let (halves, _) = all.as_chunks::<16>();
            let mut rest = [s.load(&halves[0]), s.load(&halves[1])];
            for plane in 0..activation.planes() {
                rest = encode(s, rest, &mut row.codes[plane * n_blocks + block]);
            }
        }
    }
}

/// Writes 32 numbers as codes; returns what the codes leave of them.
#[inline(always)]
fn encode<S: Simd>(s: S, x: [S::F32; 2], out: &mut CodeBlock) -> [S::F32; 2] {
    let largest = s.reduce_max(s.max(s.abs(x[0]), s.abs(x[1])));
    let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    out.scale = largest / 127.0;
    let back = s.splat(-out.scale);
    let (codes, _) = out.codes.as_chunks_mut::<16>();
    let mut rest = x;
    for half in 0..2 {
        let code = s.round_i32(s.mul(x[half], inverse));
        s.store_i8(code, &mut codes[half]);
        out.sums[half] = s.reduce_add_i32(code);
        rest[half] = s.fma(s.i32_to_f32(code), back, x[half]);
    }
    let [low, high] = out.sums;
    out.minus = [low, high, low + high].map(|sum| -out.scale * sum as f32);
    rest
}
