//! What can go wrong while files are read and written.

use std::path::{Path, PathBuf};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a file could not be read or written.
///
/// Every message starts with the file. Names that come from a file are escaped and cut before
/// they enter a message, so a hostile name cannot fill a terminal or a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened, mapped, read or written.
    #[error(transparent)]
    File(#[from] oss_memory::Error),
    /// The path holds none of the formats that this crate reads.
    #[error("{file}: not a model: got {got}, expected {expected}")]
    NotAModel {
        /// The path that was given.
        file: PathBuf,
        /// What is there.
        got: String,
        /// What could have been there.
        expected: String,
    },
    /// The file ends inside a field.
    #[error("{file}: {what} at byte {offset} ends early: got {got} bytes, expected {expected}")]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The field.
        what: String,
        /// Where the field starts in the file.
        offset: u64,
        /// How many bytes are left in the file.
        got: u64,
        /// How many bytes the field needs.
        expected: u64,
    },
    /// A field of the file's header has a value that cannot be.
    #[error("{file}: {what}: got {got}, expected {expected}")]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The field.
        what: String,
        /// Its value.
        got: String,
        /// The values that it may have.
        expected: String,
    },
    /// A tensor's description cannot be, or contradicts another's.
    #[error("{file}: tensor {tensor}: {what}: got {got}, expected {expected}")]
    InvalidTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which part of its description.
        what: Box<str>,
        /// Its value.
        got: Box<str>,
        /// The values that it may have.
        expected: Box<str>,
    },
    /// The file is sound, but this tensor's element type is not among those supported.
    #[error("{file}: tensor {tensor}: element type {got} is not supported")]
    UnsupportedType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element type, by number and name where it has one.
        got: String,
    },
    /// No tensor of that name is in the file.
    #[error("{file}: no tensor {tensor} among {count}")]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor that was asked for.
        tensor: String,
        /// How many tensors the file has.
        count: usize,
    },
    /// A metadata value is absent or of another type than was asked for.
    #[error("{file}: metadata {key}: got {got}, expected {expected}")]
    Metadata {
        /// The file.
        file: PathBuf,
        /// The metadata key.
        key: String,
        /// What is there.
        got: String,
        /// What was asked for.
        expected: String,
    },
    /// A section of a packed file is damaged, cannot be, or lacks bytes.
    #[error("{file}: section {section}: {what}: got {got}, expected {expected}")]
    InvalidSection {
        /// The file.
        file: PathBuf,
        /// The section.
        section: String,
        /// Which part of it.
        what: Box<str>,
        /// Its value.
        got: Box<str>,
        /// The values that it may have.
        expected: Box<str>,
    },
    /// No section of that name is in the packed file.
    #[error("{file}: no section {section} among {count}")]
    MissingSection {
        /// The file.
        file: PathBuf,
        /// The section that was asked for.
        section: String,
        /// How many sections the file has.
        count: usize,
    },
    /// Another process is writing the same packed file.
    #[error("{file}: another process is writing this file")]
    Busy {
        /// The partial file.
        file: PathBuf,
    },
}

impl Error {
    /// An [`Error::Invalid`] with everything rendered.
    #[expect(clippy::needless_pass_by_value, reason = "callers read better without `&`")]
    pub(crate) fn invalid(
        file: &Path,
        what: impl ToString,
        got: impl ToString,
        expected: impl ToString,
    ) -> Error {
        Error::Invalid {
            file: file.to_path_buf(),
            what: what.to_string(),
            got: got.to_string(),
            expected: expected.to_string(),
        }
    }

    /// An [`Error::InvalidTensor`] with everything rendered.
    #[expect(clippy::needless_pass_by_value, reason = "callers read better without `&`")]
    pub(crate) fn tensor(
        file: &Path,
        tensor: &str,
        what: impl ToString,
        got: impl ToString,
        expected: impl ToString,
    ) -> Error {
        Error::InvalidTensor {
            file: file.to_path_buf(),
            tensor: shown(tensor),
            what: what.to_string().into(),
            got: got.to_string().into(),
            expected: expected.to_string().into(),
        }
    }

    /// An [`Error::InvalidSection`] with everything rendered.
    #[expect(clippy::needless_pass_by_value, reason = "callers read better without `&`")]
    pub(crate) fn section(
        file: &Path,
        section: &str,
        what: impl ToString,
        got: impl ToString,
        expected: impl ToString,
    ) -> Error {
        Error::InvalidSection {
            file: file.to_path_buf(),
            section: shown(section),
            what: what.to_string().into(),
            got: got.to_string().into(),
            expected: expected.to_string().into(),
        }
    }
}

/// Text out of a file as it may stand in a message: control characters escaped, at most 100
/// characters.
#[must_use]
pub fn shown(name: &str) -> String {
    const LIMIT: usize = 100;
    let mut text: String = name.escape_debug().take(LIMIT).collect();
    if name.escape_debug().nth(LIMIT).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn an_ordinary_name_is_shown_as_it_is() {
        assert_eq!(shown("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
    }

    #[test]
    fn a_hostile_name_is_escaped_and_cut() {
        assert_eq!(shown("a\u{1b}[2J"), "a\\u{1b}[2J");
        assert_eq!(shown(&"x".repeat(101)), format!("{}…", "x".repeat(100)));
    }
}
