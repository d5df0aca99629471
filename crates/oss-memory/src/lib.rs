//! Memory and files: the one door between the engine and the operating system.
//!
//! Weights are read through maps ([`file::Map`]), results are written so that a crash cannot leave
//! half a file ([`file::Writer`]), and large working memory comes straight from the system
//! ([`Buffer`]) and is handed out in extents ([`Extents`]) or pieces with owners of their own
//! ([`Piece`]). Vectors that grow with a model or a context are [`zeros`], [`lengthen`]ed: refusing
//! them is an error, not the end of the process. [`pressure`] tells when the system itself runs
//! short, and [`placement`] lays memory over the nodes of a large machine.
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
//! - [`Extents`] never overlap.
//!
//! It knows no arithmetic and no file format.

mod buffer;
mod error;
mod extents;
pub mod file;
mod os;
mod piece;
pub mod placement;
pub mod pressure;
mod vector;

pub use buffer::{Buffer, Pages};
pub use error::{Error, Result};
pub use extents::{Extent, Extents, Move};
pub use os::{HUGE_PAGE, page_size};
pub use piece::Piece;
pub use vector::{copy, lengthen, zeros};
