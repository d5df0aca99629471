//! Memory, where it lies, and files: the engine's interface to the operating system for these.
//!
//! Weights are read through maps ([`file::Map`]), results are written so that a crash cannot leave
//! half a file ([`file::Writer`]), and large working memory comes straight from the OS
//! ([`Buffer`]) and is handed out in extents ([`BuddyAllocator`]) or slices with owners of their
//! own ([`OwnedSlice`]). Vectors that grow with a model or a context are made by [`try_zeroed`],
//! [`try_grow_zeroed`] and [`try_to_vec`]: refusing them is an error, not the end of the process.
//! [`pressure`] reports when the machine itself runs short, and [`placement`] distributes memory
//! over the nodes of a large machine.
//!
//! ```
//! use oss_memory::{Buffer, Pages, file};
//!
//! let directory = std::env::temp_dir().join(format!("oss-memory-{}", std::process::id()));
//! std::fs::create_dir_all(&directory)?;
//! let path = directory.join("weights");
//!
//! let mut writer = file::Writer::create(&path)?;
//! writer.append(&[1, 2, 3])?;
//! writer.commit()?;
//!
//! let map = file::Map::open(&path)?;
//! assert_eq!(map.bytes(), [1, 2, 3]);
//!
//! let mut memory = Buffer::new(1 << 20, Pages::Transparent)?;
//! memory[7] = 5;
//! # drop(map);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants:
//! - System calls occur only in the `os` module, each with a plain fallback.
//! - Errors name the path, what was got and what was expected.
//! - A path that [`file::Writer`] writes holds the old file or the new one, never a part.
//! - Extents of one [`BuddyAllocator`] never overlap.
//!
//! It knows no arithmetic and no file format.

mod buddy;
mod buffer;
mod error;
pub mod file;
mod os;
mod owned_slice;
pub mod placement;
pub mod pressure;
mod vector;

pub use buddy::{BuddyAllocator, Extent, Move};
pub use buffer::{Buffer, Pages};
pub use error::{Error, Result};
pub use os::{HUGE_PAGE, page_size};
pub use owned_slice::OwnedSlice;
pub use vector::{try_grow_zeroed, try_to_vec, try_zeroed};
