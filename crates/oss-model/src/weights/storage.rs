//! Where packed matrices lie: in memory of our own, in a mapped file, or experts in slots.

use super::experts::ExpertCache;
use super::layout::Layout;
use super::load_pool::on_load_pool;
use super::packed_file::{LAYOUT, MATRICES};
use crate::error::{Error, Result};
use oss_memory::file::{self, DIRECT_ALIGNMENT, RandomAccess};
use oss_memory::placement::{MemoryPolicy, Replicas};
use oss_memory::{Buffer, Pages};
use oss_weights::packed::{Reader, Section};
use oss_weights::{Container, shown};
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of one read or copy of a thread.
const PART: usize = 4 << 20;
/// Bytes of a section that lie in memory twice while it is placed.
const TWICE: usize = 64 << 20;

/// The packed file that sections are mapped from.
pub(super) fn packed(container: &Container) -> &Reader {
    container.packed().expect("a mapped storage has a packed file")
}

/// The sections of a model's layout.
pub(super) enum Storage {
    /// Packed when the model was loaded, or read then to be placed.
    Memory(Vec<Replicas>),
    /// The sections of the container, which is a packed file, and copies of some in huge pages.
    Mapped { sections: Vec<Section>, copies: Vec<OnceLock<Buffer>> },
    /// The first section in memory, of which so many bytes are locked there, and experts in slots.
    Slots { dense: Buffer, locked: usize, experts: ExpertCache, packed_bytes: usize },
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
                let (kind, format) = (shown(kind), shown(format));
                return Err(wrong(format!("{length} bytes of {kind} in layout {format}")));
            }
            reader.advise_huge_pages(&section.name);
            sections.push(section.clone());
        }
        let copies = sections.iter().map(|_| OnceLock::new()).collect();
        Ok(Self::Mapped { sections, copies })
    }

    /// The bytes of a section.
    pub(super) fn section<'a>(&'a self, container: &'a Container, number: usize) -> &'a [u8] {
        match self {
            Self::Memory(sections) => sections[number].near(),
            Self::Mapped { sections, copies } => match copies[number].get() {
                Some(copy) => copy,
                None => packed(container).bytes_of(&sections[number]),
            },
            Self::Slots { dense, .. } => {
                assert!(number == 0, "section {number}, expected 0: experts are in slots");
                dense
            }
        }
    }

    /// The sections that lie in memory as a whole, in order.
    pub(super) fn sections<'a>(&'a self, container: &'a Container) -> Vec<&'a [u8]> {
        match self {
            Self::Memory(sections) => sections.iter().map(Replicas::near).collect(),
            Self::Mapped { sections, .. } => {
                (0..sections.len()).map(|number| self.section(container, number)).collect()
            }
            Self::Slots { dense, .. } => vec![dense],
        }
    }

    /// Bytes of all sections.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Memory(sections) => sections.iter().map(Replicas::bytes).sum(),
            Self::Mapped { sections, .. } => {
                sections.iter().map(|section| section.length as usize).sum()
            }
            Self::Slots { packed_bytes, .. } => *packed_bytes,
        }
    }

    /// The checksums of the sections of matrices: those that the packed file states, else of what
    /// lies in memory.
    pub(super) fn checksums(&self, container: &Container) -> Vec<u64> {
        match (container.packed(), self) {
            (Some(file), _) => {
                let matrices = file.sections().filter(|section| section.kind == MATRICES);
                matrices.map(|section| section.checksum).collect()
            }
            (None, Self::Memory(sections)) => {
                let checksum = |section: &Replicas| xxh3_64(section.near());
                let at_once = on_load_pool(|| Ok(sections.par_iter().map(checksum).collect()));
                // Without threads, one after another.
                at_once.unwrap_or_else(|_| sections.iter().map(checksum).collect())
            }
            (None, _) => panic!("sections that are not in memory, expected a packed file"),
        }
    }

    /// Bytes of memory that the sections take when all has been used once.
    pub(super) fn resident_bytes(&self) -> usize {
        match self {
            Self::Memory(sections) => sections.iter().map(Replicas::resident_bytes).sum(),
            Self::Mapped { .. } => self.bytes(),
            Self::Slots { dense, experts, .. } => dense.len() + experts.bytes(),
        }
    }

    /// Bytes that the system may not take back.
    pub(super) const fn locked_bytes(&self) -> usize {
        match self {
            Self::Memory(_) | Self::Mapped { .. } => 0,
            Self::Slots { locked, .. } => *locked,
        }
    }

    /// Bytes on pages that were set aside.
    pub(super) fn reserved_bytes(&self) -> usize {
        let of = |buffer: &Buffer| match buffer.pages() {
            Pages::Reserved => buffer.len(),
            Pages::Ordinary | Pages::Transparent => 0,
        };
        match self {
            Self::Memory(sections) => sections.iter().flat_map(Replicas::copies).map(of).sum(),
            Self::Mapped { .. } => 0,
            Self::Slots { dense, experts, .. } => of(dense) + experts.reserved_bytes(),
        }
    }

    /// The slots of experts, where they are in slots.
    pub(super) const fn slots(&self) -> Option<&ExpertCache> {
        match self {
            Self::Memory(_) | Self::Mapped { .. } => None,
            Self::Slots { experts, .. } => Some(experts),
        }
    }

    /// See [`super::Weights::place`]; `matrices` are those of each section.
    pub(super) fn place(
        &mut self,
        container: &Container,
        (policy, pages): (&MemoryPolicy, Pages),
        matrices: &[Vec<Range<usize>>],
    ) -> Result<()> {
        on_load_pool(|| match self {
            Self::Memory(sections) => {
                for (section, matrices) in sections.iter_mut().zip(matrices) {
                    let mut to = Replicas::new(section.bytes(), pages, policy, matrices)?;
                    for begin in (0..to.bytes()).step_by(TWICE) {
                        let range = begin..to.bytes().min(begin + TWICE);
                        copy(section.near(), &mut to, range.clone());
                        // What is not given back now goes with the section.
                        let _hint = section.copies_mut()[0].release(range);
                    }
                    *section = to;
                }
                Ok(())
            }
            Self::Mapped { sections, .. } => {
                let file = packed(container);
                let read = |(section, matrices): (&Section, &Vec<_>)| {
                    let bytes = file.bytes_of(section);
                    let mut to = Replicas::new(bytes.len(), pages, policy, matrices)?;
                    copy(bytes, &mut to, 0..bytes.len());
                    file.release(&section.name);
                    Ok(to)
                };
                let read: Result<_> = sections.iter().zip(matrices).map(read).collect();
                *self = Self::Memory(read?);
                Ok(())
            }
            Self::Slots { .. } => panic!("experts are in slots, expected all in sections"),
        })
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
            let file = packed(container);
            match file.promote(&section.name, &mut go_on) {
                Some(true) => continue,
                Some(false) => {}
                None => break,
            }
            let bytes = file.bytes_of(section);
            let mut buffer = Buffer::new(bytes.len(), Pages::Transparent)?;
            for (to, from) in buffer.chunks_mut(PART).zip(bytes.chunks(PART)) {
                if !go_on(to.len()) {
                    return Ok(());
                }
                to.copy_from_slice(from);
            }
            // Whoever came first has copied the same bytes.
            let _first = copy.set(buffer);
            file.release(&section.name);
        }
        Ok(())
    }

    /// See [`super::Weights::verify`].
    pub(super) fn verify(
        &self,
        container: &Container,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> oss_weights::Result<()> {
        let Self::Mapped { sections, .. } = self else { return Ok(()) };
        let file = packed(container);
        for section in file.sections() {
            let bytes = match sections.iter().position(|matrices| matrices == section) {
                Some(number) => self.section(container, number),
                None => file.bytes_of(section),
            };
            if !file.verify_section(section, bytes, &mut go_on)? {
                break;
            }
        }
        Ok(())
    }
}

/// Writes some of the bytes of a section to its copies.
fn copy(from: &[u8], to: &mut Replicas, range: Range<usize>) {
    for to in to.copies_mut() {
        let parts = to[range.clone()].par_chunks_mut(PART);
        parts.zip(from[range.clone()].par_chunks(PART)).for_each(|(to, from)| {
            to.copy_from_slice(from);
        });
    }
}

/// Reads a section, in which `matrices` lie, into memory of its own, which stays resident where the
/// process may say so: the bytes for which it may.
pub(super) fn read(
    file: &RandomAccess,
    section: &Section,
    (policy, pages): (&MemoryPolicy, Pages),
    matrices: &[Range<usize>],
) -> Result<(Buffer, usize)> {
    let length = section.length as usize;
    let mut buffer = Buffer::new(length.next_multiple_of(DIRECT_ALIGNMENT), pages)?;
    policy.place(&mut buffer, matrices)?;
    let read = |(number, part): (usize, &mut [u8])| {
        let begin = number * PART;
        let got = file.read_to_end_at(part, section.offset + begin as u64)?;
        let expected = part.len().min(length - begin);
        if got >= expected {
            return Ok(());
        }
        Err(Error::Field {
            path: file.path().to_owned(),
            field: format!("section {} from byte {begin}", section.name),
            got: format!("{got} bytes"),
            expected: format!("{expected} bytes"),
        })
    };
    on_load_pool(|| buffer.par_chunks_mut(PART).enumerate().try_for_each(read))?;
    let locked = match buffer.lock() {
        Ok(()) => buffer.len(),
        Err(refused) => {
            tracing::warn!(
                %refused,
                limit = lock_limit(),
                "the dense weights may be swapped out: RLIMIT_MEMLOCK (`ulimit -l`) is too low"
            );
            0
        }
    };
    Ok((buffer, locked))
}

/// What the process may lock in memory, in the system's own words.
fn lock_limit() -> String {
    let limits = file::read(Path::new("/proc/self/limits"), 1 << 16).unwrap_or_default();
    let limits = String::from_utf8_lossy(&limits);
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    soft.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes} bytes"))
}
