//! The mathematics of inference, on every instruction set of `oss-simd`.
//!
//! Each operation is a function over slices that takes an [`Isa`](oss_simd::Isa): matrix products
//! ([`linear`]), [attention], [normalisation](prepare_weighed), [elementwise] work and expert
//! [routing](route). Kernels are written once, generic over instruction set and storage format; a
//! call covers some rows, so that the caller decides how work is spread over threads.
//!
//! ```
//! use oss_simd::Isa;
//!
//! let (mut x, mut y) = ([0.5; 20], [2.0; 20]);
//! oss_kernels::elementwise::scaled_add(Isa::scalar(), 3.0, &x, &mut y);
//! assert_eq!(y, [3.5; 20]);
//! oss_kernels::softmax(Isa::scalar(), &mut x);
//! assert!(x.iter().all(|share| (share - 0.05).abs() < 1e-6));
//! ```
//!
//! # Invariants
//! - Nothing is allocated but by [`InputBuffer`]: output and scratch are arguments.
//! - An output element is computed in one fixed order, whatever else the call computes, and with
//!   the same bits on every instruction set.
//!
//! # What it does not do
//! It knows no models, caches or files, and starts no threads.

pub mod attention;
pub mod elementwise;
mod input;
mod linear;
mod norm;
mod prefetch;
mod route;

pub use input::{
    Activation, CodeBlock, GateUpSums, Input, InputBuffer, InputRow, InputRowsMut, MAX_PLANES,
    ParseActivationError, Weighed, prepare, prepare_gated, prepare_weighed,
};
pub use linear::{Panel, Product, linear, linear_columns, linear_reading};
pub use norm::rms_factor;
pub use prefetch::{expect_columns, expect_rows, expect_soon};
pub use route::{route, softmax};
