//! How short of memory the machine is, so that caches shrink before the kernel kills the process.
//!
//! Read from the control groups (version 2, or 1 where that has the memory), the pressure stall
//! information and `/proc/meminfo`, all under a root path. Reading takes a few system calls; once a
//! second is often enough.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

mod groups;

use groups::Groups;
pub(crate) use groups::room_of_huge_pages;

/// Room below this share of the limit is tight, where it is also below [`TIGHT_BYTES`].
pub const TIGHT_SHARE: f64 = 0.10;
/// So many bytes of room are never tight, however large the limit is.
pub const TIGHT_BYTES: u64 = 4 << 30;
/// Room below this share of the limit is critical, where it is also below [`CRITICAL_BYTES`].
pub const CRITICAL_SHARE: f64 = 0.03;
/// So many bytes of room are never critical, however large the limit is.
pub const CRITICAL_BYTES: u64 = 1 << 30;
/// Some task waited for memory this share of the last ten seconds, in percent: tight.
pub const TIGHT_STALL: f64 = 10.0;
/// All tasks waited for memory this share of the last ten seconds, in percent: critical.
pub const CRITICAL_STALL: f64 = 5.0;

/// How urgently memory is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
    #[default]
    Calm,
    /// Caches should shrink: see [`Pressure::shed_bytes`].
    Tight,
    /// Everything that can be spared should go now.
    Critical,
}

/// What the system says. Each part is none where the system does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Bytes that this process can have in all: the limit of that of its control groups which has
    /// the least room, or the machine's memory where that has less.
    pub limit: Option<u64>,
    /// Bytes below that limit that can still be had before the system has to swap, stall or kill.
    /// Files that nobody has read twice count as room.
    pub room: Option<u64>,
    /// Percent of the last ten seconds in which some task waited for memory.
    pub some_stalled: Option<f64>,
    /// Percent of the last ten seconds in which all tasks did.
    pub all_stalled: Option<f64>,
    /// How urgent the most urgent of all limits is, which need not be the one with the least room.
    most_urgent: Level,
    /// The most bytes that any of them lacks of what is not tight.
    lacking: u64,
    /// The least bytes that any of them has beyond twice that.
    spare: Option<u64>,
}

impl Pressure {
    /// Reads this machine.
    ///
    /// # Errors
    /// When the system describes itself in an unknown way.
    pub fn read() -> Result<Self> {
        Self::read_under(Path::new("/"))
    }

    /// Reads the machine whose `/proc` and `/sys` lie under `root`.
    ///
    /// # Errors
    /// When a file is not written as Linux documents it.
    pub fn read_under(root: &Path) -> Result<Self> {
        let mut pressure = Self::default();
        if let Some(info) = Lines::read(root.join("proc/meminfo")) {
            pressure.restrict(info.kilobytes("MemTotal:")?, info.kilobytes("MemAvailable:")?);
        }
        let groups = Groups::of(root, "memory");
        for group in groups.memory()? {
            pressure.restrict(Some(group.limit), Some(group.room));
        }
        // The group's own stalls say more than the machine's.
        let machine = || Lines::read(root.join("proc/pressure/memory"));
        if let Some(stalls) = groups.stalls().or_else(machine) {
            pressure.some_stalled = stalls.stalled("some")?;
            pressure.all_stalled = stalls.stalled("full")?;
        }
        Ok(pressure)
    }

    /// How urgently memory is needed. Without any word from the system there is room.
    pub fn level(&self) -> Level {
        let some = self.some_stalled.unwrap_or(0.0);
        let all = self.all_stalled.unwrap_or(0.0);
        let stalled = if all > CRITICAL_STALL {
            Level::Critical
        } else if some > TIGHT_STALL {
            Level::Tight
        } else {
            Level::Calm
        };
        self.most_urgent.max(stalled)
    }

    /// Bytes that caches should give back so that the room below each limit is no longer tight:
    /// [`TIGHT_SHARE`] of it, or [`TIGHT_BYTES`] where that is less.
    pub fn shed_bytes(&self) -> u64 {
        self.lacking
    }

    /// Bytes that can be taken while twice as much room stays below each limit as is no longer
    /// tight, so that who takes them need not give them back at once. None where the system does
    /// not say.
    pub fn spare_bytes(&self) -> Option<u64> {
        self.spare
    }

    /// Takes in one more limit and the room below it.
    fn restrict(&mut self, limit: Option<u64>, room: Option<u64>) {
        if let (Some(limit), Some(room)) = (limit, room) {
            let part = |share: f64, most: u64| ((limit as f64 * share) as u64).min(most);
            let tight = part(TIGHT_SHARE, TIGHT_BYTES);
            let critical = part(CRITICAL_SHARE, CRITICAL_BYTES);
            // A limit of nothing leaves nothing.
            self.most_urgent = self.most_urgent.max(if room < critical.max(1) {
                Level::Critical
            } else if room < tight {
                Level::Tight
            } else {
                Level::Calm
            });
            self.lacking = self.lacking.max(tight.saturating_sub(room));
            let spare = room.saturating_sub(2 * tight);
            self.spare = Some(self.spare.map_or(spare, |least| least.min(spare)));
        }
        // Where no room is told, any that is told counts as less.
        let bytes = |room: Option<u64>| room.unwrap_or(u64::MAX);
        if self.limit.is_none() || bytes(room) < bytes(self.room) {
            (self.limit, self.room) = (limit, room);
        }
    }
}

/// A file of the system.
struct Lines {
    path: PathBuf,
    text: String,
}

impl Lines {
    /// None where the system has no such file, or lets nobody read it.
    fn read(path: PathBuf) -> Option<Self> {
        let text = fs::read_to_string(&path).ok()?;
        Some(Self { path, text })
    }

    fn malformed(&self, got: &str, expected: &'static str) -> Error {
        Error::Malformed { path: self.path.clone(), got: got.trim().to_owned(), expected }
    }

    /// The file as one number.
    fn whole(&self) -> Result<u64> {
        let number = self.text.trim().parse();
        number.map_err(|_| self.malformed(&self.text, "a number of bytes"))
    }

    /// What follows `name` on its line.
    fn after(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with(' ')))
    }

    /// From a line such as `inactive_file 4096`.
    fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(rest) = self.after(name) else { return Ok(None) };
        let number = rest.trim().parse();
        number.map(Some).map_err(|_| self.malformed(rest, "a number of bytes"))
    }

    /// From a line such as `MemTotal: 16384 kB`, in bytes.
    fn kilobytes(&self, name: &str) -> Result<Option<u64>> {
        let Some(rest) = self.after(name) else { return Ok(None) };
        let number = rest.trim().strip_suffix("kB").and_then(|text| text.trim().parse().ok());
        let bytes = number.and_then(|kilobytes: u64| kilobytes.checked_mul(1024));
        bytes.map(Some).ok_or_else(|| self.malformed(rest, "a number of kB"))
    }

    /// The ten-second mean of a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    fn stalled(&self, name: &str) -> Result<Option<f64>> {
        let Some(rest) = self.after(name) else { return Ok(None) };
        let mut fields = rest.split_whitespace();
        let percent = fields.find_map(|field| field.strip_prefix("avg10=")?.parse::<f64>().ok());
        percent.map(Some).ok_or_else(|| self.malformed(rest, "avg10= and a percentage"))
    }
}

#[cfg(test)]
mod tests;
