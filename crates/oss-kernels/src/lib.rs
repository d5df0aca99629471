//! The mathematics of inference, on every instruction set of `oss-simd`.
//!
//! Each operation is a function over slices that takes an [`Isa`](oss_simd::Isa): matrix products
//! ([`linear`]), [attention], [normalisation](rms_norm), [elementwise] work and expert
//! [routing](route). Kernels are written once, generic over instruction set and storage format; a
//! call covers some rows, so that the caller decides how work is spread over threads.
//!
//! ```
//! use oss_simd::Isa;
//!
//! let mut out = [0.0; 3];
//! oss_kernels::rms_norm(Isa::scalar(), &[3.0, 4.0, 0.0], &[1.0, 1.0, 1.0], 0.0, &mut out);
//! assert!((out[0] - 3.0 / (25.0f32 / 3.0).sqrt()).abs() < 1e-6);
//! ```
//!
//! # Invariants
//! - Nothing is allocated but by [`InputBuffer::new`]: output and scratch are arguments.
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
    prepare, prepare_gated,
};
pub use linear::{GROUP_ROWS, Panel, Product, linear};
pub use norm::rms_norm;
pub use prefetch::{expect_row, expect_soon};
pub use route::{route, softmax};
