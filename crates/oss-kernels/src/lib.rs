//! The mathematics of inference, on every instruction set of `oss-simd`.
//!
//! Each operation is a function over slices that takes an [`Isa`](oss_simd::Isa): matrix products
//! ([`linear`]), [attention], [normalisation](prepare_with_gain), [elementwise] work and expert
//! [routing](route). Kernels are written once, generic over instruction set and storage format; a
//! call covers some rows, so that the caller decides how work is spread over threads.
//!
//! ```
//! use oss_simd::Isa;
//!
//! let (x, mut y) = ([0.5; 20], [2.0; 20]);
//! oss_kernels::elementwise::scaled_add(Isa::scalar(), 3.0, &x, &mut y);
//! assert_eq!(y, [3.5; 20]);
//! let (mut experts, mut shares) = ([0; 2], [0.0; 2]);
//! oss_kernels::route(Isa::scalar(), &[1.0, -2.0, 1.0], &mut experts, &mut shares);
//! assert_eq!((experts, shares), ([0, 2], [0.5; 2]));
//! ```
//!
//! # Invariants
//! - Only [`InputBuffer`] allocates: output and scratch are arguments.
//! - An output element is computed in one fixed order, whatever else the call computes, and with
//!   the same bits on every instruction set.
//!
//! # What it does not do
//! It knows no models, caches or files, and starts no threads.

#![forbid(unsafe_code)]

pub mod attention;
pub mod elementwise;
mod input;
mod linear;
mod norm;
mod prefetch;
mod route;

pub use input::{
    Activation, CodeBlock, GainedRows, GateUpSums, Input, InputBuffer, InputRow, InputRowsMut,
    MAX_PLANES, ParseActivationError, prepare, prepare_gated, prepare_with_gain,
};
pub use linear::{Panel, Product, linear, linear_columns, linear_with_prefetch};
pub use norm::rms_factor;
pub use prefetch::{prefetch_columns, prefetch_f32, prefetch_rows};
pub use route::{route, softmax};
