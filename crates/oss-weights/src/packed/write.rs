//! Writing a packed file, in any order, from any thread, in as many goes as it takes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use oss_memory::file::{self, RandomAccess};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::packed::format::{CHECKSUM_AT, HEADER_BYTES, Header, Layout, seal, section_error};
use crate::packed::{HUGE_ALIGNMENT, Section, SectionPlan};

/// How many bytes are read at once while sections of an earlier go are checked.
const STEP: u64 = 1 << 20;

/// How often a file is tried that somebody has locked.
const LOCK_TRIES: usize = 20;

/// How far one section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    Open,
    Complete,
}

/// Writes a packed file beside its goal (`model.oss.partial`) and renames it when it is whole.
///
/// Dropping the writer, or killing the process, keeps what is complete: the next
/// [`Writer::create`] with the same plan and source continues there, after comparing every
/// section that claims to be complete with its checksum. A partial file of another plan, or older
/// than its source, is started over.
#[derive(Debug)]
pub struct Writer {
    goal: PathBuf,
    partial: PathBuf,
    file: RandomAccess,
    source: Fingerprint,
    layout: Layout,
    index: HashMap<String, usize>,
    /// State and checksum of each section.
    states: Mutex<Vec<(State, u64)>>,
}

impl Writer {
    /// Begins the file that will be called `path`, or continues it; `modified` is when its source
    /// was last written, where that is known.
    ///
    /// # Errors
    /// When the plan cannot be (a name twice, an empty name), the system refuses, or another
    /// process is writing the same file ([`Error::Busy`]).
    pub fn create(
        path: &Path,
        source: Fingerprint,
        plans: &[SectionPlan],
        modified: Option<SystemTime>,
    ) -> Result<Writer> {
        let layout = Layout::new(path, source, plans)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let index = layout.sections.iter().enumerate();
        let index = index.map(|(number, section)| (section.name.clone(), number)).collect();
        let states = Mutex::new(vec![(State::Missing, 0); layout.sections.len()]);
        let goal = path.to_path_buf();
        let file = open_locked(&partial)?;
        let mut writer = Writer { goal, partial, file, source, layout, index, states };
        let begun = writer.partial.metadata().and_then(|about| about.modified()).ok();
        let is_newer = modified.is_none() || begun >= modified;
        match read_header(&writer.file)? {
            Some(header) if is_newer && header.plan_checksum == writer.layout.plan_checksum => {
                writer.recover(header.partial)?;
            }
            Some(header) if !header.partial => writer.replace()?,
            _ => writer.start()?,
        }
        Ok(writer)
    }

    /// Leaves the file alone that has the partial name and takes the name for a new one.
    ///
    /// A finished file under the partial name comes from a process that died before it could
    /// rename it, or it was renamed between our opening and our locking and is the goal by now: it
    /// must never be written to, unless with the same bytes.
    fn replace(&mut self) -> Result<()> {
        if self.file.has_its_name()? {
            file::remove(&self.partial)?;
        }
        self.file = open_locked(&self.partial)?;
        self.start()
    }

    /// Empties the partial file and writes what is known at the beginning.
    fn start(&self) -> Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(self.layout.file_bytes)?;
        self.file.write_at(&self.layout.table, HEADER_BYTES as u64)?;
        self.file.write_at(&self.header(true, 0).encode(), 0)?;
        Ok(())
    }

    fn header(&self, partial: bool, table_checksum: u64) -> Header {
        Header {
            partial,
            file_bytes: self.layout.file_bytes,
            table_bytes: self.layout.table.len() as u64,
            source: self.source,
            table_checksum,
            plan_checksum: self.layout.plan_checksum,
        }
    }

    /// Finds out which sections of an earlier go are complete, and repairs everything else.
    fn recover(&mut self, partial: bool) -> Result<()> {
        let mut found = self.layout.table.clone();
        let known = self.file.len()? == self.layout.file_bytes;
        if known {
            self.file.read_at(&mut found, HEADER_BYTES as u64)?;
        }
        let mut states = Vec::with_capacity(self.layout.sections.len());
        for number in 0..self.layout.sections.len() {
            states.push(match self.claimed_checksum(&found, number) {
                Some(checksum) if self.checksum_in_file(number)? == checksum => {
                    (State::Complete, checksum)
                }
                _ => (State::Missing, 0),
            });
        }
        let whole = states.iter().all(|(state, _)| *state == State::Complete);
        *self.states() = states;
        let table = self.table();
        if partial {
            self.file.set_len(self.layout.file_bytes)?;
            self.file.write_at(&table, HEADER_BYTES as u64)?;
        } else if !(known && whole && table == found) {
            *self.states() = vec![(State::Missing, 0); self.layout.sections.len()];
            self.replace()?;
        }
        Ok(())
    }

    /// The checksum in a record of the table `found`, when its seal says that it is complete.
    fn claimed_checksum(&self, found: &[u8], number: usize) -> Option<u64> {
        let at = (self.layout.records[number] + CHECKSUM_AT) as usize - HEADER_BYTES;
        let (words, _) = found[at..at + 16].as_chunks();
        let [checksum, sealed] = [words[0], words[1]].map(u64::from_le_bytes);
        (self.seal(number, checksum) == sealed).then_some(checksum)
    }

    fn seal(&self, number: usize, checksum: u64) -> u64 {
        let section = Section { checksum, ..self.layout.sections[number].clone() };
        seal(&section, self.layout.plan_checksum)
    }

    /// The table with what is complete by now.
    fn table(&self) -> Vec<u8> {
        let mut table = self.layout.table.clone();
        for (number, (state, checksum)) in self.states().iter().enumerate() {
            if *state == State::Complete {
                let at = (self.layout.records[number] + CHECKSUM_AT) as usize - HEADER_BYTES;
                table[at..at + 16].copy_from_slice(&self.words(number, *checksum));
            }
        }
        table
    }

    /// Checksum and seal of a complete section, as they stand in its record.
    fn words(&self, number: usize, checksum: u64) -> [u8; 16] {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&checksum.to_le_bytes());
        words[8..].copy_from_slice(&self.seal(number, checksum).to_le_bytes());
        words
    }

    fn checksum_in_file(&self, number: usize) -> Result<u64> {
        let section = &self.layout.sections[number];
        let mut hash = Xxh3::new();
        let mut bytes = vec![0; STEP.min(section.length) as usize];
        let mut done = 0;
        while done < section.length {
            let step = STEP.min(section.length - done) as usize;
            self.file.read_at(&mut bytes[..step], section.offset + done)?;
            hash.update(&bytes[..step]);
            done += step as u64;
        }
        Ok(hash.digest())
    }

    /// The lock guards plain words that are valid after every statement.
    fn states(&self) -> MutexGuard<'_, Vec<(State, u64)>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, number: usize, checksum: u64) -> Result<()> {
        let at = self.layout.records[number] + CHECKSUM_AT;
        self.file.write_at(&self.words(number, checksum), at)?;
        self.states()[number] = (State::Complete, checksum);
        Ok(())
    }

    fn number(&self, name: &str) -> usize {
        let known = self.index.get(name);
        *known.unwrap_or_else(|| panic!("section {name:?}: got a name that is not in the plan"))
    }

    /// Whether the section has its bytes, from this go or an earlier one.
    ///
    /// # Panics
    /// When the section is not in the plan.
    pub fn is_complete(&self, name: &str) -> bool {
        self.states()[self.number(name)].0 == State::Complete
    }

    /// Writes a whole section.
    ///
    /// # Errors
    /// When the length is not the planned one, or the system refuses.
    ///
    /// # Panics
    /// When the section is not in the plan, complete, or being written.
    pub fn section(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut section = self.begin(name);
        section.append(bytes)?;
        section.finish()
    }

    /// Begins a section that is written piece by piece. Sections may be written side by side.
    ///
    /// # Panics
    /// When the section is not in the plan, complete, or being written.
    pub fn begin(&self, name: &str) -> SectionWriter<'_> {
        let number = self.number(name);
        let state = std::mem::replace(&mut self.states()[number].0, State::Open);
        assert_eq!(state, State::Missing, "section {name:?} cannot be begun");
        SectionWriter { writer: self, number, appended: 0, pending: Vec::new(), hash: Xxh3::new() }
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// When a section is missing, or the system refuses; the partial file then stays for another
    /// go.
    pub fn finish(self) -> Result<()> {
        let missing = self.states().iter().position(|(state, _)| *state != State::Complete);
        if let Some(number) = missing {
            let name = &self.layout.sections[number].name;
            let expected = "all its bytes before the file is finished";
            return Err(section_error(&self.goal, name, "state", "a missing section", expected));
        }
        let table = self.table();
        self.file.write_at(&table, HEADER_BYTES as u64)?;
        self.file.sync()?;
        self.file.write_at(&self.header(false, xxh3_64(&table)).encode(), 0)?;
        self.file.sync()?;
        // Another process, which had our complete file before we locked it, may have renamed it,
        // and a third one may have begun a file under the partial name since.
        if !self.file.has_its_name()? {
            if self.is_goal()? {
                return Ok(());
            }
            if self.partial.exists() {
                return Err(Error::Busy { file: self.partial });
            }
        }
        Ok(file::rename(&self.partial, &self.goal)?)
    }

    /// Whether the goal is what we have written.
    fn is_goal(&self) -> Result<bool> {
        if !self.goal.exists() {
            return Ok(false);
        }
        let header = read_header(&RandomAccess::open_read_only(&self.goal)?)?;
        let ours = self.layout.plan_checksum;
        Ok(header.is_some_and(|header| !header.partial && header.plan_checksum == ours))
    }
}

/// One section that is being written. Dropped before [`SectionWriter::finish`], it counts as
/// missing.
///
/// Bytes go to the file in whole pieces of [`HUGE_ALIGNMENT`]: then the system's cache can keep
/// what was written in huge pages, and those who map the file get them.
pub struct SectionWriter<'a> {
    writer: &'a Writer,
    number: usize,
    appended: u64,
    /// The last of the appended bytes, which are not in the file yet.
    pending: Vec<u8>,
    hash: Xxh3,
}

impl SectionWriter<'_> {
    fn section(&self) -> &Section {
        &self.writer.layout.sections[self.number]
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When there are more than planned, or the system refuses.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        let left = self.section().length - self.appended;
        if bytes.len() as u64 > left {
            let what = format!("writing after {} bytes", self.appended);
            let expected = format!("at most {left}");
            let file = &self.writer.goal;
            return Err(section_error(file, &self.section().name, &what, bytes.len(), expected));
        }
        self.hash.update(bytes);
        while !bytes.is_empty() {
            let at = self.section().offset + self.appended;
            let to_next_piece = HUGE_ALIGNMENT - at % HUGE_ALIGNMENT;
            let whole = bytes.len() as u64 / HUGE_ALIGNMENT * HUGE_ALIGNMENT;
            let straight = self.pending.is_empty() && to_next_piece == HUGE_ALIGNMENT && whole > 0;
            let step = if straight { whole } else { to_next_piece.min(bytes.len() as u64) };
            let (now, later) = bytes.split_at(step as usize);
            if straight {
                self.writer.file.write_at(now, at)?;
            } else {
                self.pending.extend_from_slice(now);
            }
            (bytes, self.appended) = (later, self.appended + step);
            if !straight && step == to_next_piece {
                self.write_pending()?;
            }
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<()> {
        let end = self.section().offset + self.appended;
        self.writer.file.write_at(&self.pending, end - self.pending.len() as u64)?;
        self.pending.clear();
        Ok(())
    }

    /// Marks the section complete.
    ///
    /// # Errors
    /// When bytes are missing, or the system refuses.
    pub fn finish(mut self) -> Result<()> {
        let section = self.section();
        if self.appended != section.length {
            let (got, expected) = (self.appended, section.length);
            return Err(section_error(
                &self.writer.goal,
                &section.name,
                "bytes written",
                got,
                expected,
            ));
        }
        self.write_pending()?;
        self.writer.complete(self.number, self.hash.digest())
    }
}

impl std::fmt::Debug for SectionWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "section {} after {} bytes", self.section().name, self.appended)
    }
}

impl Drop for SectionWriter<'_> {
    fn drop(&mut self) {
        let state = &mut self.writer.states()[self.number].0;
        if *state == State::Open {
            *state = State::Missing;
        }
    }
}

/// Opens a partial file and keeps other processes out of it.
fn open_locked(path: &Path) -> Result<RandomAccess> {
    let file = RandomAccess::open(path)?;
    // A process that another thread is just starting holds our files, and our locks, for a moment.
    for _ in 0..LOCK_TRIES {
        if file.try_lock()? {
            return Ok(file);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(Error::Busy { file: path.to_path_buf() })
}

/// The header of a partial file, when it has a sound one.
fn read_header(file: &RandomAccess) -> Result<Option<Header>> {
    if file.len()? < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(&mut bytes, 0)?;
    Ok(Header::decode(file.path(), &bytes).ok())
}
