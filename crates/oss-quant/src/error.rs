use crate::Dtype;

/// What can go wrong with bytes and values that come from outside.
///
/// File and tensor names are added by the caller, who knows them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no row of the table bears.
    #[error("unknown element type {got:?}, expected one of {}", known())]
    UnknownName {
        /// The name.
        got: String,
    },
    /// An element type that never holds weights (integers, bools, doubles).
    #[error("element type {got} cannot hold weights")]
    NotAWeight {
        /// The type.
        got: Dtype,
    },
    /// A row whose length the format's blocks do not divide.
    #[error("a row of {got} columns is not whole {dtype} blocks of {expected}")]
    Columns {
        /// The type.
        dtype: Dtype,
        /// Columns in the row.
        got: usize,
        /// Columns in a block.
        expected: usize,
    },
    /// A byte slice of the wrong length.
    #[error("{what} has {got} bytes, expected {expected}")]
    Bytes {
        /// Which slice.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
    },
    /// A shape whose size in bytes does not fit in `usize`.
    #[error("a {got_rows} x {got_cols} matrix of {dtype} is too large for this machine")]
    TooLarge {
        /// The type.
        dtype: Dtype,
        /// Rows of the matrix.
        got_rows: usize,
        /// Columns of the matrix.
        got_cols: usize,
    },
    /// Separate code and scale planes for a type that has none.
    #[error("element type {got} has no separate scale plane, expected {expected}")]
    NotSplit {
        /// The type.
        got: Dtype,
        /// The type that may be split.
        expected: Dtype,
    },
    /// A block's scale or minimum that is infinite or no number: the weights are damaged.
    #[error("a scale of block {block} in row {row} is {got:#x}, expected a finite number's bits")]
    ScaleNotFinite {
        /// Row of the matrix.
        row: usize,
        /// Block within the row.
        block: usize,
        /// The scale's bits.
        got: u16,
    },
    /// A value that no block format can hold.
    #[error("value {index} to be quantised is {got}, expected a finite number")]
    NotFinite {
        /// Index within the row.
        index: usize,
        /// The value.
        got: f32,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The names of all types.
fn known() -> String {
    Dtype::all().map(Dtype::name).collect::<Vec<_>>().join(", ")
}
