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
use crate::packed::format::{CHECKSUM_AT, HEADER_BYTES, Header, Layout, seal};
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
    /// Its bytes are there, and have this checksum.
    Complete(u64),
}

impl State {
    fn checksum(self) -> Option<u64> {
        match self {
            State::Complete(checksum) => Some(checksum),
            State::Missing | State::Open => None,
        }
    }
}

/// Writes a packed file beside its target (`model.oss.partial`) and renames it when it is whole.
///
/// Dropping the writer, or killing the process, keeps what is complete: the next
/// [`Writer::create`] with the same plan and source continues there, after comparing every
/// section that claims to be complete with its checksum. A partial file of another plan is started
/// over, and so is one whose last write was before its source's.
///
/// Who holds the lock of the file that has the partial name, and nobody else, may take the name
/// from it. A file that has lost the name may be the target by now, and is never written to.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    partial: PathBuf,
    /// Locked.
    file: RandomAccess,
    /// Whether somebody else has finished the file, and only the name may be missing.
    finished: bool,
    source: Fingerprint,
    layout: Layout,
    index: HashMap<String, usize>,
    /// How far each section is.
    states: Mutex<Vec<State>>,
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
        let partial = partial_path(path);
        let file = RandomAccess::open(&partial)?;
        let mut writer = Writer::over(file, path, source, layout);
        loop {
            lock(&writer.file)?;
            if writer.take_up(modified)? {
                return Ok(writer);
            }
            writer.file = RandomAccess::open(&writer.partial)?;
        }
    }

    fn over(file: RandomAccess, target: &Path, source: Fingerprint, layout: Layout) -> Writer {
        let index = layout.sections.iter().enumerate();
        let index = index.map(|(number, section)| (section.name.clone(), number)).collect();
        let states = Mutex::new(vec![State::Missing; layout.sections.len()]);
        let (target, partial) = (target.to_path_buf(), partial_path(target));
        Writer { target, partial, file, finished: false, source, layout, index, states }
    }

    /// Continues the file, which is open and locked, or starts it over; false where it must be left
    /// alone and the partial name is free for another one, or has it already.
    ///
    /// Between our opening and our locking it may have been renamed, and is the target then.
    fn take_up(&mut self, modified: Option<SystemTime>) -> Result<bool> {
        // Of the file itself: its name may be gone, or another one's.
        let is_newer = modified.is_none() || self.file.modified().ok() >= modified;
        let header = read_header(&self.file)?;
        let finished = header.is_some_and(|header| !header.partial);
        let ours = header.filter(|header| header.plan_checksum == self.layout.plan_checksum);
        let has_its_name = self.file.has_its_name()?;
        if is_newer && ours.is_some() && (has_its_name || (finished && self.is_target()?)) {
            let is_whole = self.recover()?;
            if !finished {
                self.file.set_len(self.layout.file_bytes)?;
                self.file.write_at(&self.table(), HEADER_BYTES as u64)?;
                return Ok(true);
            }
            if is_whole && header == Some(self.header(false, xxh3_64(&self.table()))) {
                self.finished = true;
                return Ok(true);
            }
            *self.states() = vec![State::Missing; self.layout.sections.len()];
        }
        if !has_its_name {
            return Ok(false);
        }
        if finished {
            // Of a process that died before it could rename it. Somebody may have mapped it.
            file::remove(&self.partial)?;
            return Ok(false);
        }
        self.start()?;
        Ok(true)
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

    /// Finds out which sections of an earlier go are complete; whether all are, and the table too.
    fn recover(&self) -> Result<bool> {
        let mut found = self.layout.table.clone();
        let known = self.file.len()? == self.layout.file_bytes;
        if known {
            self.file.read_at(&mut found, HEADER_BYTES as u64)?;
        }
        let mut states = Vec::with_capacity(self.layout.sections.len());
        for number in 0..self.layout.sections.len() {
            states.push(match self.claimed_checksum(&found, number) {
                Some(checksum) if self.checksum_in_file(number)? == checksum => {
                    State::Complete(checksum)
                }
                _ => State::Missing,
            });
        }
        let whole = states.iter().all(|state| state.checksum().is_some());
        *self.states() = states;
        Ok(known && whole && self.table() == found)
    }

    /// The checksum in a record of the table `found`, when its seal says that it is complete.
    fn claimed_checksum(&self, found: &[u8], number: usize) -> Option<u64> {
        let at = (self.layout.records[number] + CHECKSUM_AT) as usize - HEADER_BYTES;
        let (words, _) = found[at..at + 16].as_chunks();
        let [checksum, sealed] = [words[0], words[1]].map(u64::from_le_bytes);
        (self.seal(number, checksum) == sealed).then_some(checksum)
    }

    fn seal(&self, number: usize, checksum: u64) -> u64 {
        let section = &self.layout.sections[number];
        seal(section.offset, section.length, checksum, self.layout.plan_checksum)
    }

    /// The table with what is complete by now.
    fn table(&self) -> Vec<u8> {
        let mut table = self.layout.table.clone();
        for (number, state) in self.states().iter().enumerate() {
            if let Some(checksum) = state.checksum() {
                let at = (self.layout.records[number] + CHECKSUM_AT) as usize - HEADER_BYTES;
                table[at..at + 16].copy_from_slice(&self.words(number, checksum));
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
    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, number: usize, checksum: u64) -> Result<()> {
        let at = self.layout.records[number] + CHECKSUM_AT;
        self.file.write_at(&self.words(number, checksum), at)?;
        self.states()[number] = State::Complete(checksum);
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
        self.states()[self.number(name)].checksum().is_some()
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
        let state = std::mem::replace(&mut self.states()[number], State::Open);
        assert_eq!(state, State::Missing, "section {name:?} cannot be begun");
        SectionWriter { writer: self, number, appended: 0, pending: Vec::new(), hash: Xxh3::new() }
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// When a section is missing, or the system refuses; the partial file then stays for another
    /// go.
    pub fn finish(self) -> Result<()> {
        let missing = self.states().iter().position(|state| state.checksum().is_none());
        if let Some(number) = missing {
            let name = &self.layout.sections[number].name;
            let expected = "all its bytes before the file is finished";
            return Err(Error::section(&self.target, name, "state", "a missing section", expected));
        }
        if !self.finished {
            let table = self.table();
            self.file.write_at(&table, HEADER_BYTES as u64)?;
            self.file.sync()?;
            self.file.write_at(&self.header(false, xxh3_64(&table)).encode(), 0)?;
        }
        self.file.sync()?;
        // Another process, which had our complete file before we locked it, may have renamed it,
        // and a third one may have begun a file under the partial name since.
        if !self.file.has_its_name()? {
            if self.is_target()? {
                return Ok(());
            }
            if self.finished || self.partial.exists() {
                return Err(Error::Busy { file: self.partial });
            }
        }
        Ok(file::rename(&self.partial, &self.target)?)
    }

    /// Whether the target is what we would write.
    fn is_target(&self) -> Result<bool> {
        if !self.target.exists() {
            return Ok(false);
        }
        let header = read_header(&RandomAccess::open_read_only(&self.target)?)?;
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
            let file = &self.writer.target;
            return Err(Error::section(file, &self.section().name, &what, bytes.len(), expected));
        }
        self.hash.update(bytes);
        while !bytes.is_empty() {
            let at = self.section().offset + self.appended;
            let (step, straight) = step(at, self.pending.len() as u64, bytes.len() as u64);
            let (now, later) = bytes.split_at(step as usize);
            if straight {
                self.writer.file.write_at(now, at)?;
            } else {
                self.pending.extend_from_slice(now);
            }
            (bytes, self.appended) = (later, self.appended + step);
            if !straight && (at + step).is_multiple_of(HUGE_ALIGNMENT) {
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
            return Err(Error::section(
                &self.writer.target,
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
        let state = &mut self.writer.states()[self.number];
        if *state == State::Open {
            *state = State::Missing;
        }
    }
}

/// How many of `left` bytes, which begin at `at` in the file behind `pending` ones that wait, are
/// taken at once: whole pieces of [`HUGE_ALIGNMENT`] where that is possible, else what the piece
/// lacks; and whether they go to the file at once.
fn step(at: u64, pending: u64, left: u64) -> (u64, bool) {
    let to_next_piece = HUGE_ALIGNMENT - at % HUGE_ALIGNMENT;
    let whole = left / HUGE_ALIGNMENT * HUGE_ALIGNMENT;
    let straight = pending == 0 && to_next_piece == HUGE_ALIGNMENT && whole > 0;
    (if straight { whole } else { to_next_piece.min(left) }, straight)
}

/// What the file at `path` is called while it is being written.
fn partial_path(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    PathBuf::from(partial)
}

/// Keeps other processes out of a partial file.
fn lock(file: &RandomAccess) -> Result<()> {
    // A process that another thread is just starting holds our files, and our locks, for a moment.
    for _ in 0..LOCK_TRIES {
        if file.try_lock()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(Error::Busy { file: file.path().to_path_buf() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::Reader;

    const SOURCE: Fingerprint = Fingerprint(7);
    const CONTENT: &[u8] = b"{}";

    fn plans(name: &str) -> [SectionPlan; 1] {
        [SectionPlan::blob(name, CONTENT.len() as u64)]
    }

    /// A writer that has opened the partial file, and has not locked it yet.
    fn opened(target: &Path, name: &str) -> Writer {
        let layout = Layout::new(target, SOURCE, &plans(name)).unwrap();
        let file = RandomAccess::open(&partial_path(target)).unwrap();
        Writer::over(file, target, SOURCE, layout)
    }

    fn create(target: &Path, name: &str) -> Writer {
        Writer::create(target, SOURCE, &plans(name), None).unwrap()
    }

    fn write(writer: Writer, name: &str) {
        writer.section(name, CONTENT).unwrap();
        writer.finish().unwrap();
    }

    fn names(target: &Path) -> Vec<String> {
        let reader = Reader::open(target).unwrap();
        reader.verify(|_, _| ()).unwrap();
        reader.sections().map(|section| section.name.clone()).collect()
    }

    #[test]
    fn who_waited_until_the_file_was_renamed_finds_it_whole() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model.oss");
        let first = create(&target, "a");
        let mut second = opened(&target, "a");
        write(first, "a");
        lock(&second.file).unwrap();
        assert!(second.take_up(Some(SystemTime::UNIX_EPOCH)).unwrap());
        assert!(second.is_complete("a"));
        let written = target.metadata().unwrap().modified().unwrap();
        second.finish().unwrap();
        assert_eq!(names(&target), ["a"]);
        assert_eq!(target.metadata().unwrap().modified().unwrap(), written);
        assert!(!partial_path(&target).exists());
    }

    #[test]
    fn who_waited_for_a_file_older_than_its_source_leaves_it_alone() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model.oss");
        let first = create(&target, "a");
        let mut second = opened(&target, "a");
        write(first, "a");
        let later = SystemTime::now() + Duration::from_secs(1);
        assert!(!second.take_up(Some(later)).unwrap());
        assert!(!second.is_complete("a"));
        assert_eq!(names(&target), ["a"]);
    }

    /// The third packer waits for the first, and then for the second.
    #[test]
    fn a_file_that_became_the_target_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model.oss");
        let first = create(&target, "a");
        let mut third = opened(&target, "c");
        write(first, "a");
        assert!(!third.take_up(None).unwrap());
        assert_eq!(names(&target), ["a"]);

        let second = create(&target, "b");
        let mut third = opened(&target, "c");
        let mut fourth = opened(&target, "b");
        write(second, "b");
        for waited in [&mut third, &mut fourth] {
            lock(&waited.file).unwrap();
            let same_plan = waited.layout.sections[0].name == "b";
            assert_eq!(waited.take_up(None).unwrap(), same_plan);
            assert_eq!(names(&target), ["b"]);
            waited.file = RandomAccess::open(&partial_path(&target)).unwrap();
        }
        // The third has the partial name now; its file is the next target.
        assert!(third.take_up(None).unwrap());
        assert_eq!(names(&target), ["b"]);
        write(third, "c");
        assert_eq!(names(&target), ["c"]);
    }

    /// What was whole under the target's name is not given it back when others have taken it since.
    #[test]
    fn a_target_that_others_replaced_stays_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model.oss");
        let first = create(&target, "a");
        let mut second = opened(&target, "a");
        write(first, "a");
        assert!(second.take_up(None).unwrap());
        write(create(&target, "b"), "b");
        let error = second.finish().unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert_eq!(names(&target), ["b"]);

        let first = create(&target, "a");
        let mut second = opened(&target, "a");
        write(first, "a");
        write(create(&target, "b"), "b");
        assert!(!second.take_up(None).unwrap(), "the file has no name any more");
    }

    /// Every write but a section's first and last begins and ends at a multiple of 2 MiB.
    #[test]
    fn bytes_are_written_in_whole_pieces() {
        const H: u64 = HUGE_ALIGNMENT;
        for begin in [4096, H, 3 * H, 5 * H - 4096] {
            for sizes in [vec![H], vec![1, H, H], vec![3 * H + 5, 7, 4 * H], vec![H / 3; 10]] {
                let (mut at, mut pending, mut writes) = (begin, 0, Vec::new());
                for size in sizes {
                    let mut left = size;
                    while left > 0 {
                        let (taken, straight) = step(at, pending, left);
                        assert_eq!(straight, pending == 0 && taken >= H, "{taken} at {at}");
                        assert!((1..=left).contains(&taken), "{taken} of {left} at {at}");
                        assert!(pending + taken <= H || pending == 0, "{pending} and {taken}");
                        (at, left, pending) = (at + taken, left - taken, pending + taken);
                        if at.is_multiple_of(H) {
                            writes.push((at - pending, at));
                            pending = 0;
                        }
                    }
                }
                writes.push((at - pending, at));
                assert!(writes.windows(2).all(|pair| pair[0].1 == pair[1].0), "{writes:?}");
                let inner = writes[1..].iter().map(|write| write.0);
                assert!(inner.into_iter().all(|at| at.is_multiple_of(H)), "{writes:?}");
                assert_eq!((writes[0].0, writes[writes.len() - 1].1), (begin, at));
            }
        }
    }
}
