//! Keys and values of many sequences, in pages.
//!
//! Attention reads the keys and values of all earlier positions. This crate decides where they
//! live; it knows neither attention nor models, and what the bytes of a slot mean is `oss-quant`'s
//! affair. Positions are kept in pages of [`Shape::page_tokens`]; a sequence is a table of pages
//! per [`Group`] of layers. Sequences share pages after a [`KvCache::fork`] and copy them when they
//! write. A page of a sliding-window group is let go when the last position that it holds falls
//! behind the window. Pages that follow each other lie next to each other, head by head, while
//! there is room for that, and move together when memory is taken away.
//!
//! One forward pass over `n` new positions is: [`KvCache::reserve`], write phases over
//! [`KvCache::slot_range`]s of [`KvCache::arena_mut`], reads through [`KvCache::slot`] (the new
//! positions included), [`KvCache::commit`].
//!
//! ```
//! use oss_cache::{Group, KvCache, Shape};
//!
//! # fn main() -> Result<(), oss_cache::Error> {
//! let groups = vec![
//!     Group { layers: vec![0, 2], window: Some(128) },
//!     Group { layers: vec![1, 3], window: None },
//! ];
//! let shape = Shape { page_tokens: 16, n_kv_heads: 2, head_dim: 8, slot_bytes: 1024, groups };
//! let mut cache = KvCache::new(shape, 1 << 20)?;
//! let sequence = cache.create();
//! cache.reserve(sequence, 20)?;
//! let range = cache.slot_range(3, sequence, 1, 0); // layer 3, positions 16..32, head 0
//! cache.arena_mut(3)[range].fill(7);
//! cache.commit(sequence, 20);
//! assert_eq!(cache.slot(3, sequence, 1, 0)[0], 7);
//!
//! let branch = cache.fork(sequence)?;
//! cache.reserve(branch, 1)?; // copies the half-full last page
//! assert_ne!(cache.slot_range(3, sequence, 1, 0), cache.slot_range(3, branch, 1, 0));
//! # Ok(())
//! # }
//! ```
//!
//! Prefixes are computed once. With [`KvCache::commit_tokens`] the complete pages of a sequence
//! enter a prefix tree, those of its windows included; [`KvCache::lookup`] finds the longest prefix
//! of a prompt whose pages are cached, and [`KvCache::adopt`] lets a new sequence begin with it.
//! Tokens that may yet be taken back are [`KvCache::commit_drafts`]: pages with them wait outside.
//!
//! ```
//! # use oss_cache::{Group, KvCache, Shape};
//! # fn main() -> Result<(), oss_cache::Error> {
//! # let groups = vec![Group { layers: vec![0], window: None }];
//! # let shape = Shape { page_tokens: 16, n_kv_heads: 2, head_dim: 8, slot_bytes: 1024, groups };
//! # let mut cache = KvCache::new(shape, 1 << 20)?;
//! let prompt: Vec<u32> = (0..100).collect();
//! let first = cache.create();
//! cache.reserve(first, 100)?;
//! cache.commit_tokens(first, prompt.iter().copied());
//! cache.mark(first); // the end of a message: findable to the last token
//!
//! let found = cache.lookup(&prompt);
//! let second = cache.create();
//! let known = cache.adopt(second, &found, 99)?; // leaves one position to compute
//! assert_eq!((found.len(), known), (100, 99));
//! # Ok(())
//! # }
//! ```
//!
//! Pages that only the tree owns are idle: they are evicted when pages run out. Window pages are
//! evicted first, except before message ends and before every 64th page, then whole blocks, in the
//! order of [`EvictionPolicy`]. What leaves memory may pass to lower tiers ([`tier`]): compressed,
//! or in a file that the next process finds again; these evict in the same way. A page comes back
//! bit for bit or counts as never computed.
//!
//! Invariants
//! - A page that a sequence may write has one owner; a page with two owners is never written.
//! - A fresh page is zero, so what it held before can never show.
//! - `reserve` reserves all that is requested or leaves the sequence as it was.
//! - A prefix is looked up by its hash and verified by its tokens; in the file, a page's parent is
//!   verified by its hash alone, of 63 bits and with a seed of the file's own.
//! - No page with a draft is found, or leaves memory, before the draft is accepted.
//! - Every position that is taken over was computed from the same tokens, by the same content key.
//! - `commit` and `slot` allocate nothing, nor does `reserve` while there are free pages, except
//!   for the tables of a sequence longer than 16,384 positions, which double; `commit_tokens` only
//!   when the tree outgrows the pages. What passes between the tiers is allocated: when `reserve`
//!   makes room, and where `commit_tokens` finds none of the file's buffers to use again.
//!
//! What it does not do: it starts no threads for attention (two for the file of cold pages, some
//! more while it is opened, one that compresses), interprets no bytes, and takes no locks; one step
//! thread owns a cache. It does not make a second request wait for a first one that is computing
//! the same prefix: that is the scheduler's part.
#![forbid(unsafe_code)]

mod arena;
mod cache;
mod error;
pub mod policy;
mod pool;
mod reuse;
mod room;
mod sequence;
mod shape;
pub mod simulate;
mod stats;
pub mod tier;
mod tree;

pub use cache::{KvCache, Options, PageCount};
pub use error::{Error, Result};
pub use policy::EvictionPolicy;
pub use reuse::Match;
pub use sequence::SequenceId;
pub use shape::{Group, Shape};
pub use stats::{ColdStats, Stats};
pub use tier::ColdOptions;
