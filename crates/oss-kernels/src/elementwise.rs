//! One number at a time: sums, activations, rotation.

use oss_simd::{Isa, Kernel, Simd, math};

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

/// The activation of sixteen gates and ups.
#[inline(always)]
pub(crate) fn gate_lanes<S: Simd>(s: S, activation: Gate, gate: S::F32, up: S::F32) -> S::F32 {
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
        let Self { head, cos, sin } = self;
        let (first, second) = head.split_at_mut(cos.len());
        let (first, first_rest) = first.as_chunks_mut::<16>();
        let (second, second_rest) = second.as_chunks_mut::<16>();
        let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks::<16>(), sin.as_chunks::<16>());
        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
            let (x, y) = rotated(s, s.load(a), s.load(b), s.load(cos), s.load(sin));
            s.store(x, a);
            s.store(y, b);
        }
        if !first_rest.is_empty() {
            let (x, y) = (s.load_partial(first_rest), s.load_partial(second_rest));
            let (x, y) = rotated(s, x, y, s.load_partial(cos_rest), s.load_partial(sin_rest));
            s.store_partial(x, first_rest);
            s.store_partial(y, second_rest);
        }
    }
}

#[inline(always)]
fn rotated<S: Simd>(s: S, x: S::F32, y: S::F32, cos: S::F32, sin: S::F32) -> (S::F32, S::F32) {
    (s.sub(s.mul(x, cos), s.mul(y, sin)), s.add(s.mul(y, cos), s.mul(x, sin)))
}
