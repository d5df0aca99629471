//! What a matrix multiplies: rows of activations, as numbers or as 8-bit codes.

use oss_simd::{Isa, Kernel, Simd};

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
    /// `[rows, stride]`: codes in -127..=127. Empty unless the choice is [`Activation::Int8`].
    pub codes: &'a [i8],
    /// `[rows, stride / 32]`: number = code × scale.
    pub scales: &'a [f32],
    /// `[rows, stride / 16]`: the sums of the codes.
    pub sums: &'a [i32],
}

/// One row of an [`Input`], to be written by [`prepare`]; the same lengths as there, with one row.
#[derive(Debug)]
pub struct InputRow<'a> {
    /// `[stride]`.
    pub values: &'a mut [f32],
    /// `[stride / 16]`.
    pub value_sums: &'a mut [f32],
    /// `[stride]`, or empty.
    pub codes: &'a mut [i8],
    /// `[stride / 32]`, or empty.
    pub scales: &'a mut [f32],
    /// `[stride / 16]`, or empty.
    pub sums: &'a mut [i32],
}

/// Writes `x` (at most `stride` numbers) into a row, in the forms that `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], row: InputRow<'_>) {
    let stride = row.values.len();
    assert!(x.len() <= stride && stride.is_multiple_of(32), "got {} of {stride}", x.len());
    assert_eq!(row.value_sums.len(), stride / 16, "sums of values");
    if activation == Activation::Int8 {
        assert_eq!(row.codes.len(), stride, "codes");
        assert_eq!(row.scales.len(), stride / 32, "scales");
        assert_eq!(row.sums.len(), stride / 16, "sums of codes");
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
            let (codes, _) = row.codes.as_chunks_mut::<16>();
            for (block, codes) in codes.chunks_exact_mut(2).enumerate() {
                let from = &x[(32 * block).min(x.len())..(32 * block + 32).min(x.len())];
                let mut all = [0.0; 32];
                all[..from.len()].copy_from_slice(from);
                let (halves, _) = all.as_chunks::<16>();
                let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
                let largest = s.reduce_max(s.max(s.abs(low), s.abs(high)));
                let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
                row.scales[block] = largest / 127.0;
                for (half, v) in [low, high].into_iter().enumerate() {
                    let code = s.round_i32(s.mul(v, inverse));
                    s.store_i8(code, &mut codes[half]);
                    row.sums[2 * block + half] = s.reduce_add_i32(code);
                }
            }
        }
    }
}
