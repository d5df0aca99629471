//! How short of memory the system is, so that caches shrink before the kernel kills the process.
//!
//! Read from the control group (version 2), the pressure stall information and `/proc/meminfo`, all
//! under a root path. Reading takes a few system calls; once a second is often enough.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Room below this share of the limit is tight.
pub const TIGHT_SHARE: f64 = 0.10;
/// Room below this share of the limit is critical.
pub const CRITICAL_SHARE: f64 = 0.03;
/// Some task waited for memory this share of the last ten seconds, in percent: tight.
pub const TIGHT_STALL: f64 = 10.0;
/// All tasks waited for memory this share of the last ten seconds, in percent: critical.
pub const CRITICAL_STALL: f64 = 5.0;

/// How urgently memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
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
    /// The least room as a share of its limit, of all limits: of a large one little may be left.
    least_share: Option<f64>,
    /// The most bytes that any of them lacks of [`TIGHT_SHARE`].
    lacking: u64,
    /// The least bytes that any of them has beyond twice [`TIGHT_SHARE`].
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
        let groups = groups(root);
        for group in &groups {
            // Above `high` the kernel stalls the group, above `max` it kills.
            let limits = [limit(group.join("memory.max"))?, limit(group.join("memory.high"))?];
            let Some(limit) = limits.into_iter().flatten().min() else { continue };
            let current = number(group.join("memory.current"))?.unwrap_or(0);
            let stat = Lines::read(group.join("memory.stat"));
            let unused = stat.map(|stat| stat.number("inactive_file")).transpose()?.flatten();
            let used = current.saturating_sub(unused.unwrap_or(0));
            pressure.restrict(Some(limit), Some(limit.saturating_sub(used)));
        }
        // The group's own stalls say more than the machine's.
        let own = groups.first().map(|group| group.join("memory.pressure"));
        let machine = root.join("proc/pressure/memory");
        if let Some(stalls) = own.and_then(Lines::read).or_else(|| Lines::read(machine)) {
            pressure.some_stalled = stalls.stalled("some")?;
            pressure.all_stalled = stalls.stalled("full")?;
        }
        Ok(pressure)
    }

    /// How urgently memory is needed. Without any word from the system there is room.
    pub fn level(&self) -> Level {
        let share = self.least_share.unwrap_or(1.0);
        let some = self.some_stalled.unwrap_or(0.0);
        let all = self.all_stalled.unwrap_or(0.0);
        if share < CRITICAL_SHARE || all > CRITICAL_STALL {
            Level::Critical
        } else if share < TIGHT_SHARE || some > TIGHT_STALL {
            Level::Tight
        } else {
            Level::Calm
        }
    }

    /// Bytes that caches should give back to have [`TIGHT_SHARE`] of each limit as room again.
    pub fn shed_bytes(&self) -> u64 {
        self.lacking
    }

    /// Bytes that can be taken while twice [`TIGHT_SHARE`] of each limit stays as room, so that who
    /// takes them need not give them back at once. None where the system does not say.
    pub fn spare_bytes(&self) -> Option<u64> {
        self.spare
    }

    /// Takes in one more limit and the room below it.
    fn restrict(&mut self, limit: Option<u64>, room: Option<u64>) {
        if let (Some(limit), Some(room)) = (limit, room) {
            let share = if limit == 0 { 0.0 } else { room as f64 / limit as f64 };
            self.least_share = Some(self.least_share.map_or(share, |least| least.min(share)));
            let wanted = (limit as f64 * TIGHT_SHARE) as u64;
            self.lacking = self.lacking.max(wanted.saturating_sub(room));
            let spare = room.saturating_sub((limit as f64 * 2.0 * TIGHT_SHARE) as u64);
            self.spare = Some(self.spare.map_or(spare, |least| least.min(spare)));
        }
        // Where no room is told, any that is told counts as less.
        let bytes = |room: Option<u64>| room.unwrap_or(u64::MAX);
        if self.limit.is_none() || bytes(room) < bytes(self.room) {
            (self.limit, self.room) = (limit, room);
        }
    }
}

/// The folders of this process's control groups of version 2, the innermost first.
fn groups(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(group) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    // Outside of its namespace a group is called /.., and its limits cannot be seen.
    let inside = if group.starts_with("..") { "" } else { group };
    let mounted = root.join("sys/fs/cgroup");
    let inner = mounted.join(inside);
    let up = inner.ancestors().take_while(|folder| folder.starts_with(&mounted));
    up.map(Path::to_path_buf).collect()
}

/// A limit, none for `max` or a missing file.
fn limit(path: PathBuf) -> Result<Option<u64>> {
    let Some(file) = Lines::read(path) else { return Ok(None) };
    if file.text.trim() == "max" { Ok(None) } else { file.whole().map(Some) }
}

fn number(path: PathBuf) -> Result<Option<u64>> {
    Lines::read(path).map(|file| file.whole()).transpose()
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
