//! Keeps dated results in `benches/record/`, with the machine and the commit they come from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
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
    pub(crate) fn begin(name: &str) -> Self {
        let date = date();
        let path = free(&root().join("benches/record"), &format!("{date}-{name}"));
        let origin = [("date", json!(date)), ("commit", json!(commit())), ("machine", machine())];
        Self { path, origin }
    }

    /// Writes the fields of `found`, and where they come from, over what this record had before.
    pub(crate) fn write(&self, mut found: Json) -> Result<()> {
        for (key, value) in &self.origin {
            found[*key] = value.clone();
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&self.path, serde_json::to_string_pretty(&found)? + "\n")?;
        println!("recorded in {}", self.path.display());
        Ok(())
    }
}

/// The first path of a name that no file has.
fn free(folder: &Path, stem: &str) -> PathBuf {
    let mut path = folder.join(format!("{stem}.json"));
    let mut number = 2;
    while path.exists() {
        path = folder.join(format!("{stem}-{number}.json"));
        number += 1;
    }
    path
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
            let path = free(folder.path(), "day-a");
            assert_eq!(path, folder.path().join(name));
            fs::write(path, "{}").expect("a file");
        }
        assert_eq!(free(folder.path(), "day-b"), folder.path().join("day-b.json"));
    }

    #[test]
    fn a_record_says_where_it_comes_from_and_keeps_the_last_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/day-a.json");
        let origin = [("date", json!("day")), ("commit", json!("c")), ("machine", json!({}))];
        let record = Record { path: path.clone(), origin };
        for figure in [1, 2] {
            record.write(json!({ "figure": figure })).expect("written");
        }
        let text = fs::read_to_string(path).expect("a file");
        let read: Json = serde_json::from_str(&text).expect("JSON");
        let expected = json!({ "figure": 2, "date": "day", "commit": "c", "machine": {} });
        assert_eq!(read, expected);
    }
}
