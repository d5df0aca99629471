//! The control groups that this process is in, and what they allow.

use std::fs;
use std::path::{Path, PathBuf};

use super::Lines;
use crate::{HUGE_PAGE, Result};

/// Limits from here on are none: so version 1 writes what version 2 calls `max`, the largest number
/// of whole pages.
const UNLIMITED: u64 = 1 << 62;

/// What one group says of memory.
pub(super) struct Memory {
    /// Bytes that it may have, where they are limited.
    pub(super) limit: u64,
    /// Bytes of these that can still be had. Files that nobody has read twice count as room.
    pub(super) room: u64,
}

/// How a version names a controller's files.
struct Names {
    /// Above some of these the kernel stalls the group, above others it kills.
    limits: &'static [&'static str],
    used: &'static str,
    /// The field of `memory.stat` that tells bytes of files that nobody has read twice.
    unused: &'static str,
}

const VERSION_1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    unused: "total_inactive_file",
};
const VERSION_2: Names = Names {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    unused: "inactive_file",
};

/// The groups of a process that count for one controller.
pub(super) struct Groups {
    /// Whether they are of version 1.
    is_first: bool,
    /// The innermost first. Not all need to exist: a container sees its own group as the outermost
    /// one, and is told a name that means something on the host alone.
    folders: Vec<PathBuf>,
}

impl Groups {
    /// The groups of `controller`: those of version 1 where it belongs to that, otherwise those of
    /// version 2, as far as they can be seen under `root`.
    pub(super) fn of(root: &Path, controller: &str) -> Self {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        // `4:memory:/group`, and `0::/group` of version 2.
        let lines = || {
            text.lines().filter_map(|line| {
                let (controllers, group) = line.split_once(':')?.1.split_once(":/")?;
                Some((controllers, group))
            })
        };
        let first =
            lines().find(|(controllers, _)| controllers.split(',').any(|c| c == controller));
        let second = || lines().find(|(controllers, _)| controllers.is_empty());
        let mut mounted = root.join("sys/fs/cgroup");
        if first.is_some() {
            mounted.push(controller);
        }
        let Some((_, group)) = first.or_else(second) else {
            return Self { is_first: false, folders: Vec::new() };
        };
        // Outside of its namespace a group is called /.., and its limits cannot be seen.
        let inside = if group.starts_with("..") { "" } else { group };
        let inner = mounted.join(inside);
        let up = inner.ancestors().take_while(|folder| folder.starts_with(&mounted));
        let folders = up.map(Path::to_path_buf).collect();
        Self { is_first: first.is_some(), folders }
    }

    /// What those of them say of memory that have a limit.
    ///
    /// # Errors
    /// When a file is not written as Linux documents it.
    pub(super) fn memory(&self) -> Result<Vec<Memory>> {
        let names = if self.is_first { VERSION_1 } else { VERSION_2 };
        let mut found = Vec::new();
        for folder in &self.folders {
            let mut least = None;
            for name in names.limits {
                least = limit(folder.join(name))?.into_iter().chain(least).min();
            }
            let Some(limit) = least else { continue };
            let current = number(folder.join(names.used))?.unwrap_or(0);
            let stat = Lines::read(folder.join("memory.stat"));
            let unused = stat.map(|stat| stat.number(names.unused)).transpose()?.flatten();
            let used = current.saturating_sub(unused.unwrap_or(0));
            found.push(Memory { limit, room: limit.saturating_sub(used) });
        }
        Ok(found)
    }

    /// How long the innermost group has stalled, where it says so: version 2 alone does.
    pub(super) fn stalls(&self) -> Option<Lines> {
        let own = self.folders.first().filter(|_| !self.is_first)?;
        Lines::read(own.join("memory.pressure"))
    }
}

/// Bytes of huge pages, of those that were set aside, that the groups of this process let it have
/// beside those that they have or have been promised; none where nothing is limited. The system
/// holds a group to that when pages are touched, and kills who touches too many.
///
/// # Errors
/// When a file is not written as Linux documents it.
pub(crate) fn room_of_huge_pages(root: &Path) -> Result<Option<u64>> {
    let groups = Groups::of(root, "hugetlb");
    let size = HUGE_PAGE >> 20;
    // What is promised is not told before Linux 5.7.
    let [most, used] =
        if groups.is_first { ["limit_in_bytes", "usage_in_bytes"] } else { ["max", "current"] };
    let mut least: Option<u64> = None;
    for folder in &groups.folders {
        let file = |name: &str| folder.join(format!("hugetlb.{size}MB.{name}"));
        let Some(limit) = limit(file(most))? else { continue };
        let (used, promised) = (number(file(used))?, number(file(&format!("rsvd.{used}")))?);
        let room = limit.saturating_sub(used.max(promised).unwrap_or(0));
        least = Some(least.map_or(room, |least| least.min(room)));
    }
    Ok(least)
}

/// A limit, none for `max`, a number beyond all memory, or a missing file.
fn limit(path: PathBuf) -> Result<Option<u64>> {
    let Some(file) = Lines::read(path) else { return Ok(None) };
    if file.text.trim() == "max" {
        return Ok(None);
    }
    Ok(Some(file.whole()?).filter(|limit| *limit < UNLIMITED))
}

fn number(path: PathBuf) -> Result<Option<u64>> {
    Lines::read(path).map(|file| file.whole()).transpose()
}
