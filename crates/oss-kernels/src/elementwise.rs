//! One number at a time: sums, activations, rotation.

use crate::linear::ask;
use oss_simd::{Isa, Kernel, Simd, math};

/// Asks for numbers that will be read a while later.
pub fn expect_soon(isa: Isa, numbers: &[f32]) {
    isa.run(ExpectSoon(bytemuck::cast_slice(numbers)));
}

struct ExpectSoon<'a>(&'a [u8]);

impl Kernel for ExpectSoon<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        ask(s, self.0, 0, self.0.len());
    }
}

/// `to[i] += x[i]`.
///
/// # Panics
/// When the lengths differ.
pub fn add(isa: Isa, x: &[f32], to: &mut [f32]) {
    scaled_add(isa, 1.0, x, to);
}

/// `to[i] = factor · x[i] + to[i]`, rounded once.
///
/// # Panics
/// When the lengths differ.
pub fn scaled_add(isa: Isa, factor: f32, x: &[f32], to: &mut [f32]) {
    assert_eq!(x.len(), to.len(), "numbers and output");
    isa.run(ScaledAdd { factor, x, to });
}

struct ScaledAdd<'a> {
    factor: f32,
    x: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for ScaledAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        let (x, x_rest) = self.x.as_chunks::<16>();
        let (to, to_rest) = self.to.as_chunks_mut::<16>();
        for (x, to) in x.iter().zip(to) {
            s.store(s.fma(s.load(x), factor, s.load(to)), to);
        }
        let rest = s.fma(s.load_partial(x_rest), factor, s.load_partial(to_rest));
        s.store_partial(rest, to_rest);
    }
}

/// The activation between the two halves of a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `silu(gate) · up` with `silu(x) = x sigmoid(x)`.
    Silu,
    /// `(up + 1) · g sigmoid(alpha g)` with `g = min(gate, limit)` and `up` clamped to ±limit.
    Clamped {
        /// The factor inside the sigmoid.
        alpha: f32,
        /// Where gate and up are cut off.
        limit: f32,
    },
}

/// `out[i] = activation(gate[i], up[i])`.
///
/// # Panics
/// When the lengths differ.
pub fn gated(isa: Isa, activation: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), up.len(), "gates and ups");
    assert_eq!(gate.len(), out.len(), "gates and output");
    isa.run(Gated { activation, gate, up, out });
}

struct Gated<'a> {
    activation: Gate,
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gate, gate_rest) = self.gate.as_chunks::<16>();
        let (up, up_rest) = self.up.as_chunks::<16>();
        let (out, out_rest) = self.out.as_chunks_mut::<16>();
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            s.store(gate_lanes(s, self.activation, s.load(gate), s.load(up)), out);
        }
        let (gate, up) = (s.load_partial(gate_rest), s.load_partial(up_rest));
        s.store_partial(gate_lanes(s, self.activation, gate, up), out_rest);
    }
}

#[inline(always)]
fn gate_lanes<S: Simd>(s: S, activation: Gate, gate: S::F32, up: S::F32) -> S::F32 {
    match activation {
        Gate::Silu => s.mul(s.mul(gate, math::sigmoid(s, gate)), up),
        Gate::Clamped { alpha, limit } => {
            let gate = s.min(s.splat(limit), gate);
            let up = s.max(s.splat(-limit), s.min(s.splat(limit), up));
            let glu = s.mul(gate, math::sigmoid(s, s.mul(gate, s.splat(alpha))));
            s.mul(s.add(up, s.splat(1.0)), glu)
        }
    }
}

/// Rotates a head in place (Su et al., 2021): pairs are element i and element i + d/2; `cos` and
/// `sin` hold d/2 numbers for the position.
///
/// # Panics
/// When the lengths do not fit.
pub fn rotate(isa: Isa, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    assert_eq!(head.len(), 2 * cos.len(), "head and cosines");
    assert_eq!(cos.len(), sin.len(), "cosines and sines");
    isa.run(Rotate { head, cos, sin });
}

struct Rotate<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.cos.len();
        let (first, second) = self.head.split_at_mut(half);
        let blocks = (first.chunks_mut(16).zip(second.chunks_mut(16)))
            .zip(self.cos.chunks(16).zip(self.sin.chunks(16)));
        for ((a, b), (cos, sin)) in blocks {
            let (x, y) = (s.load_partial(a), s.load_partial(b));
            let (cos, sin) = (s.load_partial(cos), s.load_partial(sin));
            s.store_partial(s.sub(s.mul(x, cos), s.mul(y, sin)), a);
            s.store_partial(s.add(s.mul(y, cos), s.mul(x, sin)), b);
        }
    }
}
