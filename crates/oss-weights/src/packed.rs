//! The packed file (`.oss`): a table of named sections, ready to be mapped.
//!
//! This module knows names, lengths and checksums. What a section holds is said by strings that
//! only its writers and readers understand: `kind`, `format`, `shape`, `note`. Every byte is drawn
//! in `docs/formats/oss.md`.
//!
//! ```
//! use oss_weights::{Fingerprint, packed};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("model.oss");
//! let plans = [packed::SectionPlan::blob("config.json", 2), packed::SectionPlan {
//!     kind: "matrix".to_string(),
//!     format: "p16".to_string(),
//!     shape: vec![2, 3],
//!     ..packed::SectionPlan::blob("attention", 6)
//! }];
//! let writer = packed::Writer::create(&path, Fingerprint(7), &plans, None)?;
//! writer.section("attention", &[1, 2, 3, 4, 5, 6])?;
//! writer.section("config.json", b"{}")?;
//! writer.finish()?;
//!
//! let reader = packed::Reader::open(&path)?;
//! assert_eq!(reader.section("config.json")?, b"{}");
//! assert_eq!(reader.find("attention").map(|section| section.shape.as_slice()), Some(&[2, 3][..]));
//! reader.verify(|_done, _total| ())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod format;
mod read;
mod write;

pub use format::{BLOB, HUGE_ALIGNMENT, METADATA, SMALL_ALIGNMENT, TENSOR, VERSION};
pub use read::Reader;
pub use write::{SectionWriter, Writer};

pub(crate) use format::{MAGIC, PARTIAL_MAGIC};

/// A section that is going to be written. The strings are opaque to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionPlan {
    /// The name: unique in the file, not empty.
    pub name: String,
    /// What sort of thing it is, such as [`BLOB`].
    pub kind: String,
    /// How its bytes are to be understood.
    pub format: String,
    /// Its dimensions, where it has any.
    pub shape: Vec<u64>,
    /// Anything else.
    pub note: String,
    /// Its number of bytes.
    pub length: u64,
}

impl SectionPlan {
    /// A whole file kept as it is, such as `config.json`.
    pub fn blob(name: &str, length: u64) -> SectionPlan {
        SectionPlan {
            name: name.to_string(),
            kind: BLOB.to_string(),
            format: String::new(),
            shape: Vec::new(),
            note: String::new(),
            length,
        }
    }
}

/// A section of a file: what was planned, and where it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The name: unique in the file.
    pub name: String,
    /// What sort of thing it is, such as [`BLOB`].
    pub kind: String,
    /// How its bytes are to be understood.
    pub format: String,
    /// Its dimensions, where it has any.
    pub shape: Vec<u64>,
    /// Anything else.
    pub note: String,
    /// Where it starts in the file.
    pub offset: u64,
    /// Its number of bytes.
    pub length: u64,
    /// xxh3-64 of its bytes.
    pub checksum: u64,
}
