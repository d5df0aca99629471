//! Where packed matrices lie: in memory of our own, or in a mapped file.

use super::layout::Layout;
use super::packed_file::{LAYOUT, MATRICES};
use crate::error::{Error, Result};
use oss_memory::Buffer;
use oss_weights::Container;
use oss_weights::packed::Section;

/// The sections of a model's layout.
pub(super) enum Storage {
    /// Packed when the model was loaded.
    Memory {
        buffer: Buffer,
        /// Where each section begins.
        starts: Vec<usize>,
    },
    /// The sections of the container, which is a packed file.
    Mapped(Vec<Section>),
}

impl Storage {
    /// The sections of a packed file, checked against the layout.
    pub(super) fn mapped(layout: &Layout<'_>) -> Result<Self> {
        let container = layout.container();
        let reader = container.packed().expect("only packed files are mapped");
        let mut sections = Vec::new();
        for expected in &layout.sections {
            let wrong = |got: String| Error::Field {
                path: container.path().to_owned(),
                field: format!("section {}", expected.name),
                got,
                expected: format!("{} bytes of {MATRICES} in layout {LAYOUT}", expected.bytes),
            };
            let Some(section) = reader.find(&expected.name) else {
                return Err(wrong("nothing".to_owned()));
            };
            let (length, kind, format) = (section.length, &section.kind, &section.format);
            if length != expected.bytes as u64 || kind != MATRICES || format != LAYOUT {
                return Err(wrong(format!("{length} bytes of {kind} in layout {format}")));
            }
            sections.push(section.clone());
        }
        Ok(Self::Mapped(sections))
    }

    /// The bytes of a section.
    pub(super) fn section<'a>(&'a self, container: &'a Container, number: usize) -> &'a [u8] {
        match self {
            Self::Memory { buffer, starts } => &buffer[starts[number]..],
            Self::Mapped(sections) => {
                let reader = container.packed().expect("a mapped storage has a packed file");
                reader.bytes_of(&sections[number])
            }
        }
    }

    /// Bytes of all sections.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Memory { buffer, .. } => buffer.len(),
            Self::Mapped(sections) => sections.iter().map(|section| section.length as usize).sum(),
        }
    }
}
