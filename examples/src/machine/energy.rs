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
        // Zones lie in intel-rapl:0 and so on (on all makes); intel-rapl:0:0 is a part of one. Some
        // are no packages: psys has packages in it.
        let package = |path: &PathBuf| {
            let folder = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let is_whole = folder.is_some_and(|folder| {
                folder.starts_with("intel-rapl:") && folder.matches(':').count() == 1
            });
            is_whole && text(&path.join("name")).is_some_and(|name| name.starts_with("package"))
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

fn text(path: &Path) -> Option<String> {
    let bytes = file::read(path, 4096).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_and_counters_may_begin_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = scratch.path();
        let zones = ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl:2"];
        let names = ["package-0", "core", "package-1", "psys"];
        let write = |zone: &str, file: &str, text: &str| {
            let path = root.join(zone).join(file);
            file::write(&path, format!("{text}\n").as_bytes()).expect("a file");
        };
        let set = |zone: &str, value: u64| write(zone, "energy_uj", &value.to_string());
        for (zone, name) in zones.into_iter().zip(names) {
            file::create_directory(&root.join(zone)).expect("a directory");
            write(zone, "name", name);
            write(zone, "max_energy_range_uj", "10000000");
            set(zone, 5);
        }
        set("intel-rapl:0", 1_000_000);
        set("intel-rapl:1", 9_000_000);
        let energy = Energy::find_under(root).expect("two packages");
        let before = energy.read().expect("both counters");
        set("intel-rapl:0", 1_500_000);
        set("intel-rapl:1", 1_000_000);
        set("intel-rapl:2", 2_500_005);
        let joules = energy.joules_since(&before).expect("both counters");
        assert!((joules - 2.5).abs() < 1e-9, "{joules}");
        assert!(Energy::find_under(&root.join("nothing")).is_none());
    }
}
