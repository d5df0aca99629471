//! Keeps dated results in `benches/record/`, with the machine and the commit they come from.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde_json::{Value as Json, json};

use crate::shell;
use crate::tidy::root;

/// A record of a run that has begun: where it lies, and where its figures come from. A run may take
/// hours, in which the day and the commit change.
pub(crate) struct Record {
    path: PathBuf,
    origin: [(&'static str, Json); 3],
}

impl Record {
    /// A record in `benches/record/DATE-NAME.json`, or `DATE-NAME-2.json` and so on where there is
    /// one already.
    pub(crate) fn begin(name: &str) -> Result<Self> {
        let date = date();
        let path = reserve(&root().join("benches/record"), &format!("{date}-{name}"))?;
        let origin = [("date", json!(date)), ("commit", json!(commit())), ("machine", machine())];
        Ok(Self { path, origin })
    }

    /// Writes the fields of `found`, and where they come from, over what this record had before.
    pub(crate) fn write(&self, mut found: Json) -> Result<()> {
        for (key, value) in &self.origin {
            found[*key] = value.clone();
        }
        fs::write(&self.path, serde_json::to_string_pretty(&found)? + "\n")?;
        println!("recorded in {}", self.path.display());
        Ok(())
    }
}

/// A run that has found nothing leaves nothing.
impl Drop for Record {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|file| file.len() == 0) {
            // It is empty: nothing is lost with it, and nothing by it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The first path of a name that no file had, which is an empty one now: another run that begins
/// meanwhile takes the next.
fn reserve(folder: &Path, stem: &str) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut path = folder.join(format!("{stem}.json"));
    let mut number = 2;
    loop {
        match File::create_new(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_left(&path) => {
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                path = folder.join(format!("{stem}-{number}.json"));
                number += 1;
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
}

/// Whether a record is empty and a day old: its run was killed.
fn is_left(path: &Path) -> bool {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let is_old = |begun: SystemTime| begun.elapsed().is_ok_and(|age| age > DAY);
    fs::metadata(path).is_ok_and(|file| file.len() == 0 && file.modified().is_ok_and(is_old))
}

/// The commit that is checked out, marked when files differ from it.
fn commit() -> String {
    let arguments = ["describe", "--always", "--dirty", "--abbrev=12"];
    let described = shell::output(&mut shell::command("git", &arguments));
    described.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Processor, cores and memory.
fn machine() -> Json {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": field(&cpu, "model name"),
        "threads": threads,
        "memory": field(&memory, "MemTotal"),
    })
}

/// What the first line that begins with `name` says behind its colon, as in the files of `/proc`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// Today in UTC, as year-month-day.
fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The date of a day counted from 1970-01-01.
fn civil(mut days: u64) -> (u64, usize, u64) {
    let mut year = 1970;
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_454), (2026, 1, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }

    #[test]
    fn a_record_never_takes_the_place_of_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["day-a.json", "day-a-2.json", "day-a-3.json"];
        for name in names {
            let path = reserve(folder.path(), "day-a").expect("a file");
            assert_eq!(path, folder.path().join(name));
        }
        let other = reserve(folder.path(), "day-b").expect("a file");
        assert_eq!(other, folder.path().join("day-b.json"));
        // But for one that a killed run has left.
        let file = File::options().write(true).open(folder.path().join(names[1])).expect("a file");
        file.set_modified(SystemTime::now() - Duration::from_secs(100_000)).expect("a time");
        let path = reserve(folder.path(), "day-a").expect("a file");
        assert_eq!(path, folder.path().join(names[1]));
    }

    #[test]
    fn a_record_says_where_it_comes_from_and_keeps_the_last_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = reserve(&folder.path().join("new"), "day-a").expect("a file");
        let origin = [("date", json!("day")), ("commit", json!("c")), ("machine", json!({}))];
        let record = Record { path: path.clone(), origin };
        for figure in [1, 2] {
            record.write(json!({ "figure": figure })).expect("written");
        }
        let text = fs::read_to_string(&path).expect("a file");
        let read: Json = serde_json::from_str(&text).expect("JSON");
        let expected = json!({ "figure": 2, "date": "day", "commit": "c", "machine": {} });
        assert_eq!(read, expected);
        drop(record);
        assert!(path.exists(), "what was found stays");

        let path = reserve(folder.path(), "day-b").expect("a file");
        let origin = [("date", json!("day")), ("commit", json!("c")), ("machine", json!({}))];
        drop(Record { path: path.clone(), origin });
        assert!(!path.exists(), "a run that found nothing leaves nothing");
    }
}
