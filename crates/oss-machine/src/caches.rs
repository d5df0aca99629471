//! How much the caches of the machine hold together.

use oss_memory::file;
use oss_threads::topology::Topology;
use std::collections::BTreeMap;
use std::path::Path;

/// The most of a file of the system that is read: a line.
const LINE: u64 = 64 << 10;

/// Bytes that the last caches of all CPUs that are online hold together, on the machine whose
/// `/sys` lies under `root`; 0 where the system does not tell. Each counts once, however many CPUs
/// share it.
pub(crate) fn cache_bytes(root: &Path) -> usize {
    let Ok(topology) = Topology::read_under(root) else { return 0 };
    let cpus = root.join("sys/devices/system/cpu");
    // By the CPUs that share them.
    let mut caches = BTreeMap::new();
    for cpu in topology.nodes.iter().flat_map(|node| &node.cpus) {
        let folder = cpus.join(format!("cpu{cpu}/cache"));
        let last = (0..8).filter_map(|index| Cache::read(&folder.join(format!("index{index}"))));
        if let Some(Cache { level, shared, bytes }) = last.max_by_key(|cache| cache.level) {
            caches.insert((level, shared), bytes);
        }
    }
    caches.values().sum()
}

/// A cache, as one of the CPUs that reach it tells.
struct Cache {
    level: u8,
    /// Which CPUs share it, as the system writes them; nothing where it does not tell.
    shared: String,
    bytes: usize,
}

impl Cache {
    fn read(folder: &Path) -> Option<Self> {
        let level = line(&folder.join("level"))?.parse().ok()?;
        let shared = line(&folder.join("shared_cpu_list")).unwrap_or_default();
        let size = line(&folder.join("size"))?;
        let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
        let unit = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        Some(Self { level, shared, bytes: number.parse::<usize>().ok()?.checked_mul(unit)? })
    }
}

/// A file's only line.
fn line(path: &Path) -> Option<String> {
    let text = String::from_utf8(file::read(path, LINE).ok()?).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    const MIB: usize = 1 << 20;

    /// A machine with so many CPUs, each with caches `(level, size, CPUs that share it)`.
    fn machine(online: &str, caches: impl Fn(usize) -> Vec<(u8, &'static str, String)>) -> TempDir {
        let root = tempfile::tempdir().expect("folder");
        let cpus = root.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&cpus).expect("folder");
        fs::write(cpus.join("online"), format!("{online}\n")).expect("file");
        for cpu in 0..64 {
            for (index, (level, size, shared)) in caches(cpu).into_iter().enumerate() {
                let folder = cpus.join(format!("cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&folder).expect("folder");
                for (name, text) in [("level", level.to_string()), ("size", size.into())] {
                    fs::write(folder.join(name), text + "\n").expect("file");
                }
                fs::write(folder.join("shared_cpu_list"), shared + "\n").expect("file");
            }
        }
        root
    }

    #[test]
    fn last_caches_that_several_cpus_share_count_once_each() {
        // An EPYC 9184X: 16 cores, 96 MiB for each two; their siblings are 16 CPUs further on.
        let epyc = |cpu: usize| {
            let core = cpu % 16;
            let two = core / 2 * 2;
            let own = format!("{core},{}", core + 16);
            let shared = format!("{}-{},{}-{}", two, two + 1, two + 16, two + 17);
            vec![(1, "32K", own.clone()), (2, "1024K", own), (3, "98304K", shared)]
        };
        assert_eq!(cache_bytes(machine("0-31", epyc).path()), 8 * 96 * MIB);
        assert_eq!(cache_bytes(machine("0-3,8", epyc).path()), 3 * 96 * MIB, "five are online");
        // Performance cores with a third cache, efficiency cores with a second one for each four.
        let mixed = |cpu: usize| match cpu {
            0..4 => vec![(2, "2M", cpu.to_string()), (3, "24M", "0-3".into())],
            _ => vec![(2, "4M", format!("{}-{}", cpu / 4 * 4, cpu / 4 * 4 + 3))],
        };
        assert_eq!(cache_bytes(machine("0-11", mixed).path()), (24 + 4 + 4) * MIB);
    }

    #[test]
    fn a_machine_that_does_not_tell_has_no_caches() {
        assert_eq!(cache_bytes(machine("0-3", |_| Vec::new()).path()), 0);
        assert_eq!(cache_bytes(machine("", |_| vec![(3, "8M", "0".into())]).path()), 0);
        assert_eq!(cache_bytes(machine("0", |_| vec![(3, "some", "0".into())]).path()), 0);
        assert_eq!(cache_bytes(Path::new("/nowhere")), 0);
    }
}
