//! Reading a packed file.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use oss_memory::file::{Advice, DIRECT_ALIGNMENT, Map, RandomAccess};
use oss_memory::{Buffer, Pages};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, Result, shown};
use crate::fingerprint::Fingerprint;
use crate::packed::format::{HEADER_BYTES, Header, decode_table};
use crate::packed::{HUGE_ALIGNMENT, Section};
use crate::source::Source;

/// How long the system has to put free memory together after it had no huge page.
const PAUSE: Duration = Duration::from_millis(20);

/// How many bytes are hashed, or brought into memory, at once: in memory a millisecond, from a disk
/// some ten.
const STEP: usize = 8 << 20;

/// A packed file, opened: header and table checked, sections mapped and untouched.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    header: Header,
    sections: Vec<Section>,
    index: HashMap<String, usize>,
}

impl Reader {
    /// Opens a packed file and checks its header and its table, checksums included. The sections'
    /// own checksums are left to [`Reader::verify`].
    ///
    /// # Errors
    /// When the file cannot be mapped, was not finished, has another version, or is not sound.
    pub fn open(path: &Path) -> Result<Reader> {
        Reader::new(Source::open(path)?)
    }

    /// Opens bytes in memory; `name` takes the place of the path in errors. Sections are then
    /// aligned only as far as the bytes are.
    ///
    /// # Errors
    /// As for [`Reader::open`].
    pub fn from_bytes(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Reader> {
        Reader::new(Source::memory(name, bytes.into()))
    }

    pub(crate) fn new(source: Source) -> Result<Reader> {
        let (file, bytes) = (source.path(), source.bytes());
        let header = Header::decode(file, bytes)?;
        if header.partial {
            let (got, expected) = ("a file that was not finished", "a finished one");
            return Err(Error::invalid(file, "packed file", got, expected));
        }
        if header.file_bytes != bytes.len() as u64 {
            let expected = format!("{}, as the header says", header.file_bytes);
            return Err(Error::invalid(file, "file length", bytes.len(), expected));
        }
        let mut cursor = crate::cursor::Cursor::new(file, bytes, HEADER_BYTES);
        let table = cursor.take(header.table_bytes, "section table")?;
        let computed = xxh3_64(table);
        if computed != header.table_checksum {
            let expected = format!("{:016x}, as the header says", header.table_checksum);
            return Err(Error::invalid(
                file,
                "table checksum",
                format!("{computed:016x}"),
                expected,
            ));
        }
        let sections = decode_table(file, table, &header)?;
        let index = index(file, &sections)?;
        Ok(Reader { header, sections, index, source })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// The fingerprint of the files that this one was packed from.
    pub fn source(&self) -> Fingerprint {
        self.header.source
    }

    /// The bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.header.file_bytes
    }

    /// Opens the file anew, for large reads past the system's cache of files.
    ///
    /// # Errors
    /// When the system refuses, or another file has the name by now.
    pub fn open_direct(&self) -> Result<RandomAccess> {
        let file = RandomAccess::open_direct(self.path())?;
        let head = &self.source.bytes()[..self.header_bytes()];
        // Reads past the cache go to whole pages.
        let mut found =
            Buffer::new(head.len().next_multiple_of(DIRECT_ALIGNMENT), Pages::Ordinary)?;
        let read = file.read_to_end_at(&mut found, 0)?;
        // They hold the checksums of everything else.
        if read < head.len() || found[..head.len()] != *head {
            let (got, expected) = ("another one under its name", "the file that was opened");
            return Err(Error::invalid(self.path(), "packed file", got, expected));
        }
        Ok(file)
    }

    /// Where the table ends.
    pub(crate) fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.header.table_bytes as usize
    }

    /// All sections in the order of the table.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter()
    }

    /// What the table says about a section, when there is one of that name.
    pub fn find(&self, name: &str) -> Option<&Section> {
        self.index.get(name).map(|&number| &self.sections[number])
    }

    /// A section's bytes, in the map.
    ///
    /// # Errors
    /// [`Error::MissingSection`] when there is none of that name.
    pub fn section(&self, name: &str) -> Result<&[u8]> {
        let section = self.find(name).ok_or_else(|| Error::MissingSection {
            file: self.path().to_path_buf(),
            section: shown(name),
            count: self.sections.len(),
        })?;
        Ok(self.bytes_of(section))
    }

    /// The bytes of one of this file's sections, in the map: its range was checked against the file
    /// when the table was read.
    ///
    /// # Panics
    /// When the section is another file's and lies outside of this one.
    pub fn bytes_of(&self, section: &Section) -> &[u8] {
        &self.source.bytes()[section.offset as usize..(section.offset + section.length) as usize]
    }

    /// Reads every section and compares it with its checksum. `progress` is told how many bytes
    /// of how many are done.
    ///
    /// # Errors
    /// Names the first section that is damaged.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let total = self.sections.iter().map(|section| section.length).sum();
        let mut done = 0;
        for section in &self.sections {
            self.verify_section(section, self.bytes_of(section), |bytes| {
                progress(done, total);
                done += bytes as u64;
                true
            })?;
        }
        progress(done, total);
        Ok(())
    }

    /// Compares a section's bytes, wherever a copy of them lies, with its checksum: a piece of
    /// [`Reader::verify`] for idle times. `go_on` is asked before each few megabytes, with how many
    /// they are; false when it said no.
    ///
    /// # Errors
    /// When the bytes are not those that were written.
    pub fn verify_section(
        &self,
        section: &Section,
        bytes: &[u8],
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<bool> {
        let mut hash = Xxh3::new();
        for step in bytes.chunks(STEP) {
            if !go_on(step.len()) {
                return Ok(false);
            }
            hash.update(step);
        }
        let computed = hash.digest();
        if computed != section.checksum {
            let got = format!("{computed:016x}");
            let expected = format!("{:016x}, as the table says", section.checksum);
            return Err(Error::section(self.path(), &section.name, "checksum", got, expected));
        }
        Ok(true)
    }

    /// Tells the system that a section's pages are not needed any more.
    pub fn release(&self, name: &str) {
        self.advise(name, Advice::DontNeed);
    }

    /// Asks the system to read a section into huge pages, where it is not in memory yet.
    pub fn advise_huge_pages(&self, name: &str) {
        self.advise(name, Advice::HugePage);
    }

    /// Brings a section into memory, and onto huge pages where the system can keep files there:
    /// what lies on small pages is read again, a huge page at a time. Others may read the section
    /// meanwhile. `go_on` is asked before each few megabytes, with how many they are.
    ///
    /// Tells whether it lies on huge pages then, all but a sixteenth (no where the system does not
    /// say, and of what is not there); `None` when `go_on` said no.
    pub fn promote(&self, name: &str, mut go_on: impl FnMut(usize) -> bool) -> Option<bool> {
        let (Some(map), Some(section)) = (self.source.map(), self.range(name)) else {
            return Some(false);
        };
        if map.huge_bytes(section.clone()).is_err() {
            return Some(false);
        }
        let (mut small, mut left) = (0, VecDeque::new());
        for begin in section.clone().step_by(STEP) {
            let step = begin..section.end.min(begin + STEP);
            if !go_on(step.len()) {
                return None;
            }
            let small_here = self.on_small_pages(map, step.clone());
            small += small_here;
            if small_here > 0 {
                let pieces = pieces(step);
                left.extend(pieces.filter(|piece| self.on_small_pages(map, piece.clone()) > 0));
            }
        }
        let mut failed = 0;
        while let Some(piece) = left.pop_front() {
            // Where some lies on huge pages, others fail for want of free ones just then.
            let tries = if small < section.len() { 64 } else { 4 };
            if failed == tries {
                break;
            }
            if !go_on(piece.len()) {
                return None;
            }
            let _hint = map.evict(piece.clone());
            if self.on_small_pages(map, piece.clone()) == 0 {
                small = small.saturating_sub(piece.len());
            } else {
                failed += 1;
                left.push_back(piece);
                thread::sleep(PAUSE);
            }
        }
        Some(small <= section.len() / 16)
    }

    /// Brings a part of the file into memory; the bytes of it that are not known to lie on huge
    /// pages.
    fn on_small_pages(&self, map: &Map, range: Range<usize>) -> usize {
        let _hint = map.advise(range.clone(), Advice::PopulateRead);
        range.len().saturating_sub(map.huge_bytes(range).unwrap_or(0))
    }

    /// Advice is a hint: a system that refuses it changes speed, not results.
    fn advise(&self, name: &str, advice: Advice) {
        let Some(range) = self.range(name) else { return };
        let _hint = self.source.advise(range, advice);
    }

    /// Where a section lies in the file.
    fn range(&self, name: &str) -> Option<Range<usize>> {
        let section = self.find(name)?;
        Some(section.offset as usize..(section.offset + section.length) as usize)
    }
}

/// The huge pages that lie in a range of a file as a whole.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let piece = HUGE_ALIGNMENT as usize;
    let whole = range.start.next_multiple_of(piece)..range.end - range.end % piece;
    whole.step_by(piece).map(move |begin| begin..begin + piece)
}

/// Numbers by name; names twice and overlaps are errors.
fn index(file: &Path, sections: &[Section]) -> Result<HashMap<String, usize>> {
    let mut index = HashMap::new();
    for (number, section) in sections.iter().enumerate() {
        if index.insert(section.name.clone(), number).is_some() {
            let (got, expected) = ("a second one", "every name once");
            return Err(Error::section(file, &section.name, "name", got, expected));
        }
    }
    let mut order: Vec<&Section> = sections.iter().filter(|s| s.length > 0).collect();
    order.sort_unstable_by_key(|section| section.offset);
    for pair in order.windows(2) {
        let [before, section] = pair else { continue };
        if section.offset < before.offset + before.length {
            let expected = format!("no overlap with {}", shown(&before.name));
            return Err(Error::section(file, &section.name, "offset", section.offset, expected));
        }
    }
    Ok(index)
}
