//! How one matrix, or one page of keys and values, is packed: formats, layouts, and their errors.
//!
//! Files hold weights in many formats, row after row. Kernels want sixteen rows side by side, so
//! that one vector instruction works on sixteen outputs, and the scales out of the way of the
//! codes. This crate knows both: [`Dtype`] decodes and encodes what files hold, [`Packing`] turns
//! it into the packed layout *P16* without loss, and [`Packed::visit`] hands kernels the types that
//! unpack it into vectors. A kernel is written once for all formats of codes ([`CodeFormat`]) and
//! once for all formats of floats ([`FloatFormat`]).
//!
//! ```
//! use oss_quant::{Dtype, Encoded, Packing};
//! use oss_simd::Isa;
//!
//! // Three rows of 64 columns, as a file would hold them.
//! let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin()).collect();
//! let mut row = vec![0; Dtype::Q8_0.row_bytes(64).unwrap()];
//! Dtype::Q8_0.quantise_row(&values, &mut row)?;
//!
//! // Packed: one group of sixteen rows, thirteen of them padding.
//! let packing = Packing::for_dtype(Dtype::Q8_0, 3, 64)?;
//! let mut packed = vec![0; packing.bytes()];
//! packing.pack_group(0, |_| Encoded::Plain(&row), &mut packed)?;
//!
//! // Packing loses nothing.
//! let (mut from_file, mut from_packed) = ([0.0; 64], [0.0; 64]);
//! Dtype::Q8_0.dequantise_row(Isa::scalar(), &row, &mut from_file)?;
//! packing.unpack_row(Isa::scalar(), &packed, 2, &mut from_packed);
//! assert_eq!(from_file, from_packed);
//! # Ok::<(), oss_quant::Error>(())
//! ```
//!
//! # Invariants
//! - `unpack_row` of a packed row, the SIMD unpackers, and `dequantise_row` of the source row give
//!   the same bits, on every instruction set.
//! - Packed groups are multiples of 64 bytes; padding rows and columns are worth zero.
//! - A format is one file in `formats/` and one row in each of two tables (`dtype.rs`,
//!   `packed.rs`); its name occurs nowhere else, except MXFP4's, whose codes and scales may lie
//!   apart in a file.
//!
//! # What it does not do
//! It multiplies no matrices, opens no files, and knows no models. Block formats are read as
//! little-endian bytes, on little-endian machines only.

#![forbid(unsafe_code)]

mod bytes;
mod decode;
mod dtype;
mod error;
mod formats;
pub mod kv;
#[macro_use] // its macro names the type of a format
mod packed;
mod packing;
mod planes;
mod record;
mod unpack;

pub use dtype::Dtype;
pub use error::{Error, Result};
pub use packed::Packed;
pub use packing::{BLOCK_COLS, Encoded, GROUP_ROWS, Matrix, Packing};
pub use record::{RUN_BLOCKS, Record, RecordBytes};
pub use unpack::{Block, CodeFormat, FloatFormat, Visitor};

const _: () = assert!(cfg!(target_endian = "little"), "formats are little-endian, and so must we");
