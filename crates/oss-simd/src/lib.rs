//! Instruction sets, their detection, and the vector vocabulary that kernels are written in.
//!
//! A kernel is written once, generic over [`Simd`], and compiled once per instruction set;
//! [`Isa::run`] picks the compiled one. Detection happens once ([`Isa::detect`]); the token that it
//! returns is passed down. Dispatch costs a match and a call, so it belongs around loops, never
//! around single vectors.
//!
//! ```
//! use oss_simd::{Isa, Kernel, Simd};
//!
//! /// The sum of squares of sixteen numbers.
//! struct SumOfSquares<'a>(&'a [f32; 16]);
//!
//! impl Kernel for SumOfSquares<'_> {
//!     type Output = f32;
//!     #[inline(always)]
//!     fn run<S: Simd>(self, s: S) -> f32 {
//!         let x = s.load(self.0);
//!         s.reduce_add(s.mul(x, x))
//!     }
//! }
//!
//! let numbers = [0.1; 16];
//! let results: Vec<f32> =
//!     Isa::available().into_iter().map(|isa| isa.run(SumOfSquares(&numbers))).collect();
//! assert!(results.iter().all(|r| r.to_bits() == results[0].to_bits()));
//! ```
//!
//! # Invariants
//! - The same kernel gives the same bits on every instruction set: all operations are elementwise
//!   with IEEE rounding, reductions are one fixed tree.
//! - An [`Isa`] exists only for what the processor has, so `Isa::run` is safe.
//!
//! # What it does not do
//! It knows no tensors, formats or threads.

mod array;
mod isa;
pub mod math;
mod simd;

pub use array::array_of;
pub use isa::{CacheLevel, Error, Isa, PrefetchPolicy};
pub use simd::{Bf16Pairs, LEAST_BF16, Simd};

/// What some instruction sets have more of than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Nothing.
    None,
    /// Dot products and look-ups of bytes ([`Simd::dot`], [`Simd::nibble_lut`]).
    Bytes,
    /// Products of bf16 ([`Simd::add_bf16`]).
    Bf16,
}

/// Something to compute, written once for all instruction sets.
pub trait Kernel {
    /// What it returns.
    type Output;

    /// What it uses beside vectors of numbers. Sets that differ by other extensions alone share
    /// what is compiled of it.
    const EXTENSION: Extension = Extension::None;

    /// The computation; implementations are `#[inline(always)]`, and so is all that they call with
    /// vectors.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}
