//! What the processor's packages have used of energy, where the system counts it (RAPL).

use oss_memory::file;
use std::path::{Path, PathBuf};

/// The counters of a machine's packages.
pub struct Energy {
    zones: Vec<Zone>,
}

struct Zone {
    counter: PathBuf,
    /// The counter begins again after this many microjoules.
    range: u64,
}

/// What the counters showed at one time, in microjoules.
pub struct Reading(Vec<u64>);

impl Energy {
    /// Finds the counters; `None` where there are none, or this user may not read them.
    #[must_use]
    pub fn find() -> Option<Self> {
        Self::find_under(Path::new("/sys/class/powercap"))
    }

    fn find_under(root: &Path) -> Option<Self> {
        // Packages are called intel-rapl:0 (on all makes); intel-rapl:0:0 is a part of one.
        let package = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| {
                name.starts_with("intel-rapl:") && name.matches(':').count() == 1
            })
        };
        let zone = |path: PathBuf| {
            let range = number(&path.join("max_energy_range_uj"))?;
            let counter = path.join("energy_uj");
            number(&counter).map(|_| Zone { counter, range })
        };
        let paths = file::list(root).ok()?;
        let zones: Vec<Zone> = paths.into_iter().filter(package).filter_map(zone).collect();
        (!zones.is_empty()).then_some(Self { zones })
    }

    /// What the counters show.
    #[must_use]
    pub fn read(&self) -> Option<Reading> {
        self.zones.iter().map(|zone| number(&zone.counter)).collect::<Option<_>>().map(Reading)
    }

    /// Joules used since `before`.
    #[must_use]
    pub fn joules_since(&self, before: &Reading) -> Option<f64> {
        let now = self.read()?;
        let used = self.zones.iter().zip(now.0.iter().zip(&before.0)).map(|(zone, (now, then))| {
            now.checked_sub(*then).unwrap_or(now + zone.range.saturating_sub(*then))
        });
        Some(used.sum::<u64>() as f64 / 1e6)
    }
}

fn number(path: &Path) -> Option<u64> {
    let bytes = file::read(path, 4096).ok()?;
    String::from_utf8_lossy(&bytes).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_and_counters_may_begin_again() {
        let root = std::env::temp_dir().join(format!("oss-energy-{}", std::process::id()));
        let set = |zone: &str, value: u64| {
            let folder = root.join(zone);
            file::create_directory(&folder).expect("a directory");
            for (name, value) in [("energy_uj", value), ("max_energy_range_uj", 10_000_000)] {
                let mut writer = file::Writer::create(&folder.join(name)).expect("a file");
                writer.append(format!("{value}\n").as_bytes()).expect("room");
                writer.commit().expect("a file");
            }
        };
        set("intel-rapl:0", 1_000_000);
        set("intel-rapl:0:0", 5);
        set("intel-rapl:1", 9_000_000);
        let energy = Energy::find_under(&root).expect("two packages");
        let before = energy.read().expect("both counters");
        set("intel-rapl:0", 1_500_000);
        set("intel-rapl:1", 1_000_000);
        let joules = energy.joules_since(&before).expect("both counters");
        assert!((joules - 2.5).abs() < 1e-9, "{joules}");
        assert!(Energy::find_under(&root.join("nothing")).is_none());
        for zone in ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"] {
            for name in ["energy_uj", "max_energy_range_uj"] {
                file::remove(&root.join(zone).join(name)).expect("a file");
            }
        }
    }
}
