//! From a model's logits to a token: penalties, filters, reproducible draws.
//!
//! A [`Sampler`] belongs to one sequence, a [`Scratch`] to the thread that draws for many. Each
//! step the sampler gets the logits of the next token and draws one ([`Sampler::draw`]), and then
//! gets the token that was accepted ([`Sampler::accept`]). [`Options`] say how, in the fixed order
//! [`ORDER`]; a [`Mask`] says which tokens a grammar allows.
//!
//! ```
//! use oss_sampler::{Mask, Options, Sampler, Scratch};
//! use oss_simd::Isa;
//!
//! let isa = Isa::detect().unwrap();
//! let options = Options { temperature: 0.8, top_k: 2, top_logprobs: 1, ..Options::default() };
//! let mut sampler = Sampler::new(options, 4, 0)?;
//! sampler.prompt(&[3, 0]);
//!
//! let mut scratch = Scratch::new(4);
//! let draw = sampler.draw(isa, &mut [0.0, 2.0, 1.0, -5.0], 2, None, &mut scratch)?;
//! assert!(draw.token == 1 || draw.token == 2);
//! assert_eq!(draw.top[0].0, 1);
//! let token = draw.token;
//! sampler.accept(token);
//!
//! let mut mask = Mask::new(4);
//! mask.allow(3);
//! let draw = sampler.draw(isa, &mut [0.0, 2.0, 1.0, -5.0], 3, Some(&mask), &mut scratch)?;
//! assert_eq!(draw.token, 3);
//! # Ok::<(), oss_sampler::Error>(())
//! ```
//!
//! # How a draw is made
//! One vector pass finds NaNs and the largest logit of each block of 64. Penalties and bias touch
//! single logits; filters then select among the few blocks that matter, in linear time, and never
//! sort the vocabulary. Of the tokens that are left, the one with the largest
//! `logit / temperature + noise` is taken, with Gumbel noise from (seed, choice, position, id):
//! that draws from the softmax (the Gumbel-max identity).
//!
//! # Invariants
//! - **A draw is a function of the logits, the options, the history, the choice and the position.**
//!   Neither threads nor batches nor the order of draws matter, nor does the instruction set: the
//!   bits are the same on all.
//! - A token's noise is its own: a token that was drawn is drawn again under any stricter filter
//!   that keeps it.
//! - Ties go to the lowest id.
//! - Options in their range make no error of finite logits: penalties and biases that overflow give
//!   the largest number there is.
//! - Drawing allocates nothing once [`Scratch`] has seen as many best log-probabilities, changed
//!   logits and tokens of DRY's window.
//!
//! # What it does not do
//! It knows no text (a sequence breaker is a token id), no stop conditions and no grammar; beam
//! search and mirostat are not here.

#![forbid(unsafe_code)]

mod candidates;
mod error;
mod filter;
mod history;
mod logprobs;
mod mask;
mod noise;
mod options;
mod report;
mod sampler;
mod scan;
mod scratch;

pub use error::Error;
pub use filter::ORDER;
pub use mask::Mask;
pub use options::{Dry, Options};
pub use report::Report;
pub use sampler::{Draw, Sampler};
pub use scratch::Scratch;
