//! Keeps dated results in `benches/record/`, with the machine and the commit they come from.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::{Value as Json, json};

use crate::shell;
use crate::tidy::root;

/// Writes `benches/record/DATE-NAME.json`: the fields of `found`, and where they come from.
pub(crate) fn write(name: &str, mut found: Json) -> Result<()> {
    let date = date();
    let origin = [("date", json!(date)), ("commit", json!(commit())), ("machine", machine())];
    for (key, value) in origin {
        found[key] = value;
    }
    let folder = root().join("benches/record");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{date}-{name}.json"));
    fs::write(&path, serde_json::to_string_pretty(&found)? + "\n")?;
    println!("recorded in {}", path.display());
    Ok(())
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
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": field(&cpu, "model name"),
        "threads": threads,
        "memory": field(&memory, "MemTotal"),
    })
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
}
