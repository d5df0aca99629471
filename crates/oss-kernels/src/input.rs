//! What a matrix multiplies: rows of activations, as numbers or as 8-bit codes.

mod buffer;

use crate::elementwise::{Gate, gate_lanes};
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
}

/// Writes `x` (at most as many numbers as there are columns) into a row, in the forms that
/// `activation` needs.
///
/// Codes are `round(x · 127 / max |x|)` per block of 32, ties to even; a second plane has those of
/// what the first leaves.
///
/// # Panics
/// When the forms differ in columns, or have fewer than `x` has numbers.
pub fn prepare(isa: Isa, activation: Activation, x: &[f32], mut row: InputRow<'_>) {
    let columns = row.check(activation);
    assert!(x.len() <= columns, "{} numbers for {columns} columns", x.len());
    isa.run(Prepare { activation, numbers: Given(x), row: &mut row });
}

/// What follows a gate and up matrix: adds `bias` to a row of its products, in which sixteen gates
/// and sixteen ups alternate, and writes `gate(gate, up)` into a row as [`prepare`] does.
///
/// # Panics
/// When sums and bias differ in length, or the forms in columns, or these are fewer than the gates.
pub fn prepare_gated(
    isa: Isa,
    activation: Activation,
    gate: Gate,
    (sums, bias): (&[f32], Option<&[f32]>),
    mut row: InputRow<'_>,
) {
    let columns = row.check(activation);
    assert!(sums.len() <= 2 * columns, "{} gates and ups for {columns} columns", sums.len());
    assert!(bias.is_none_or(|bias| bias.len() == sums.len()), "a bias for each sum");
    let (sums, bias) = (sums.as_chunks().0, bias.map_or(&[][..], |bias| bias.as_chunks().0));
    isa.run(Prepare { activation, numbers: Gated { gate, sums, bias }, row: &mut row });
}

impl InputRow<'_> {
    /// How many columns it has.
    fn check(&self, activation: Activation) -> usize {
        let planes = &self.codes[..activation.planes()];
        let columns = planes.first().map_or(self.values.len(), |plane| 32 * plane.len());
        assert!(columns.is_multiple_of(32), "{columns} columns");
        for plane in planes {
            assert_eq!(plane.len(), columns / 32, "blocks of codes");
        }
        if planes.is_empty() || !self.values.is_empty() {
            assert_eq!(self.values.len(), columns, "numbers");
            assert_eq!(self.value_sums.len(), columns / 16, "sums of numbers");
        }
        columns
    }
}

/// Where the numbers of a row come from.
trait Numbers {
    /// Columns `16 i..16 i + 16`.
    fn lanes<S: Simd>(&self, s: S, i: usize) -> S::F32;
}

/// Numbers from memory, zeros after them.
struct Given<'a>(&'a [f32]);

impl Numbers for Given<'_> {
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, i: usize) -> S::F32 {
        let (all, rest) = self.0.as_chunks();
        match all.get(i) {
            Some(x) => s.load(x),
            None if i == all.len() => s.load_partial(rest),
            None => s.zero(),
        }
    }
}

/// Gates and ups as products left them.
struct Gated<'a> {
    gate: Gate,
    /// Gates and ups in turn.
    sums: &'a [[f32; 16]],
    /// As many, or none.
    bias: &'a [[f32; 16]],
}

impl Numbers for Gated<'_> {
    #[inline(always)]
    fn lanes<S: Simd>(&self, s: S, i: usize) -> S::F32 {
        let Some([gate, up]) = self.sums.get(2 * i..2 * i + 2) else { return s.zero() };
        let (mut gate, mut up) = (s.load(gate), s.load(up));
        if let Some([for_gate, for_up]) = self.bias.get(2 * i..2 * i + 2) {
            (gate, up) = (s.add(gate, s.load(for_gate)), s.add(up, s.load(for_up)));
        }
        gate_lanes(s, self.gate, gate, up)
    }
}

struct Prepare<'a, 'b, N> {
    activation: Activation,
    numbers: N,
    /// Where it is: moving it would wait for its parts, which were written just before.
    row: &'a mut InputRow<'b>,
}

impl<N: Numbers> Kernel for Prepare<'_, '_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { activation, numbers, row } = self;
        let InputRow { values, value_sums, codes } = row;
        let planes = activation.planes();
        let n_blocks = if planes > 0 { codes[0].len() } else { values.len() / 32 };
        let (values, _) = values.as_chunks_mut::<16>();
        for block in 0..n_blocks {
            let x = [numbers.lanes(s, 2 * block), numbers.lanes(s, 2 * block + 1)];
            for half in 0..if values.is_empty() { 0 } else { 2 } {
                let v = if activation == Activation::F32 { x[half] } else { s.round_bf16(x[half]) };
                s.store(v, &mut values[2 * block + half]);
                value_sums[2 * block + half] = s.reduce_add(v);
            }
            let mut rest = x;
            for plane in &mut codes[..planes] {
                rest = encode(s, rest, &mut plane[block]);
            }
        }
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
