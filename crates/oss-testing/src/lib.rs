//! What the tests of this project share: seeded data, comparison of floats, naive f64 twins.
//!
//! A test here has three parts, and this crate has one module for each: make data that is the same
//! on every machine ([`Seeded`]), compute the answer slowly in double precision ([`twins`]), and
//! compare, naming the first element that is wrong ([`assert_close`] and the measures beside it).
//! What is measured several times is reported by its [`median`]; what needs its own process runs
//! [`again`] there.
//!
//! ```
//! use oss_testing::{Seeded, assert_close, relative_rms, twins};
//!
//! let mut seeded = Seeded::new(7);
//! let logits = seeded.normals(100, 2.0);
//! let fast: Vec<f32> = {
//!     let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
//!     let exps: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
//!     let sum: f32 = exps.iter().sum();
//!     exps.iter().map(|e| e / sum).collect()
//! };
//! let slow = twins::softmax(&twins::widen(&logits));
//! assert_close(&fast, &slow, 1e-7, 1e-5);
//! assert!(relative_rms(&fast, &slow) < 1e-6);
//! ```
//!
//! # Invariants
//! - The numbers of a seed never change: goldens and failure reports rely on them.
//! - No dependencies, and no knowledge of the other crates of the workspace.
//!
//! # What it does not do
//! It generates no random *structure* (proptest does that), and it is not published.

#![forbid(unsafe_code)]

mod again;
mod close;
mod middle;
mod seeded;
pub mod twins;

pub use again::{again, again_behind, passes};
pub use close::{Number, assert_close, kl_divergence, relative_rms};
pub use middle::median;
pub use seeded::{ADVERSARIAL, Seeded};
