//! Where packed matrices lie: in memory of our own, or in a mapped file.

use super::layout::Layout;
use super::packed_file::{LAYOUT, MATRICES};
use crate::error::{Error, Result};
use oss_memory::{Buffer, Pages};
use oss_weights::Container;
use oss_weights::packed::{Reader, Section};
use std::sync::OnceLock;

/// The packed file that sections are mapped from.
fn packed(container: &Container) -> &Reader {
    container.packed().expect("a mapped storage has a packed file")
}

/// The sections of a model's layout.
pub(super) enum Storage {
    /// Packed when the model was loaded.
    Memory {
        buffer: Buffer,
        /// Where each section begins.
        starts: Vec<usize>,
    },
    /// The sections of the container, which is a packed file, and copies of some in huge pages.
    Mapped { sections: Vec<Section>, copies: Vec<OnceLock<Buffer>> },
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
        let copies = sections.iter().map(|_| OnceLock::new()).collect();
        Ok(Self::Mapped { sections, copies })
    }

    /// The bytes of a section.
    pub(super) fn section<'a>(&'a self, container: &'a Container, number: usize) -> &'a [u8] {
        match self {
            Self::Memory { buffer, starts } => &buffer[starts[number]..],
            Self::Mapped { sections, copies } => match copies[number].get() {
                Some(copy) => copy,
                None => packed(container).bytes_of(&sections[number]),
            },
        }
    }

    /// Bytes of all sections.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Memory { buffer, .. } => buffer.len(),
            Self::Mapped { sections, .. } => {
                sections.iter().map(|section| section.length as usize).sum()
            }
        }
    }

    /// See [`super::Weights::promote`].
    pub(super) fn promote(
        &self,
        container: &Container,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<()> {
        let Self::Mapped { sections, copies } = self else { return Ok(()) };
        let left = sections.iter().zip(copies).filter(|(_, copy)| copy.get().is_none());
        for (section, copy) in left {
            if !go_on(section.length as usize) {
                break;
            }
            let bytes = packed(container).bytes_of(section);
            let mut buffer = Buffer::new(bytes.len(), Pages::Huge)?;
            buffer.copy_from_slice(bytes);
            // Whoever came first has copied the same bytes.
            let _first = copy.set(buffer);
            packed(container).release(&section.name);
        }
        Ok(())
    }
}
