//! Profiles on disk, one file a machine, build and kind of weights.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use oss_memory::file;
use oss_model::NUMERICS_VERSION;
use oss_quant::Dtype;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::tuning::{Profile, StepProfile, Subject};

/// Counts up when what is measured changes, or how it is written.
const VERSION: u32 = 3;
/// No profile is longer.
const LONGEST: u64 = 1 << 20;

/// A profile with what it was measured for.
#[derive(Serialize, Deserialize)]
struct Stored {
    key: String,
    profile: Profile,
}

/// What a profile holds for: this version, this build, this processor, these weights.
pub(crate) fn key(subject: &Subject, dtype: Dtype, pin: bool) -> String {
    let Subject { isa, activation, needs, .. } = subject;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let bound = if pin { ", one for each thread" } else { "" };
    let program = std::env::current_exe().unwrap_or_default();
    format!(
        "profile {VERSION}; oss-engine {}, numerics {NUMERICS_VERSION}, {}; {} {}; {cpus} \
         CPUs{bound}; {isa}; {} activations; {} bytes of weights, mostly {}",
        env!("CARGO_PKG_VERSION"),
        build(&program),
        std::env::consts::ARCH,
        processor(),
        activation.name(),
        needs.all_bytes,
        dtype.name()
    )
}

/// What tells a build from others of the same version: the size of the program's file, and when it
/// was written. A library that another program loads is known by that program's file alone.
fn build(program: &Path) -> String {
    let Ok(about) = program.metadata() else { return String::new() };
    let age = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} bytes of {} ns", about.len(), age.unwrap_or_default().as_nanos())
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let Ok(bytes) = file::read(Path::new("/proc/cpuinfo"), 64 << 20) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or(String::new(), |line| line.trim_matches([' ', '\t', ':']).to_owned())
}

fn path(directory: &Path, key: &str) -> PathBuf {
    // Another hash, in another build, only means to measure anew.
    let mut hash = DefaultHasher::new();
    key.hash(&mut hash);
    directory.join(format!("profile-{:016x}.json", hash.finish()))
}

/// The profile of a key. One that is missing, damaged or of another key is measured anew.
pub(crate) fn read(directory: &Path, key: &str) -> Option<(PathBuf, Profile)> {
    let path = path(directory, key);
    let bytes = file::read(&path, LONGEST).ok()?;
    let stored: Stored = serde_json::from_slice(&bytes).ok()?;
    let sound = |number: &f64| number.is_finite() && *number > 0.0;
    let profile = stored.profile;
    let steps = profile.steps.as_ref().is_none_or(StepProfile::is_sound);
    let whole = steps
        && profile.threads.iter().all(|threads| {
            [threads.read_bytes_per_s, threads.products_per_s, threads.phase_s].iter().all(sound)
        });
    (stored.key == key && whole).then_some((path, profile))
}

/// Keeps a profile: the whole file or none.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(directory: &Path, key: &str, profile: &Profile) -> Result<()> {
    file::create_directory(directory)?;
    let stored = Stored { key: key.to_owned(), profile: profile.clone() };
    let text = serde_json::to_vec_pretty(&stored).expect("numbers and names are JSON");
    Ok(file::write(&path(directory, key), &text)?)
}

#[cfg(test)]
mod tests {
    use oss_kernels::Activation;
    use oss_simd::{Isa, PrefetchPolicy};

    use super::*;
    use crate::tuning::choose::Needs;
    use crate::tuning::steps::{self, TiledStep};
    use crate::tuning::{ThreadProfile, Tiling};

    fn profile() -> Profile {
        let (read_bytes_per_s, products_per_s) = (2.15e10, 1.5e11);
        let one = ThreadProfile { threads: 1, read_bytes_per_s, products_per_s, phase_s: 1e-6 };
        let steps = |tilings: &[Tiling]| {
            let step = |tiling: &Tiling| TiledStep { tiling: *tiling, seconds: 0.75 };
            tilings.iter().map(step).collect()
        };
        let (prompts, answers) = (steps(&steps::FOR_PROMPTS), steps(&steps::FOR_ANSWERS));
        let prefetches = PrefetchPolicy::ALL.map(|(name, _)| (name.to_owned(), 0.625)).to_vec();
        Profile {
            threads: vec![one],
            peaks: vec![("f32".to_owned(), 3e10)],
            steps: Some(StepProfile { threads: 1, rows: 96, prompts, answers, prefetches }),
            seconds: 0.1,
        }
    }

    fn subject(activation: Activation, all_bytes: f64) -> Subject {
        let needs = Needs { all_bytes, token_bytes: 1e6, products_per_byte: 2.0, phases: 264.0 };
        Subject {
            isa: Isa::scalar(),
            activation,
            common: None,
            needs,
            has_experts: false,
            row_bytes: 1,
            others_bytes: 0,
        }
    }

    #[test]
    fn a_profile_is_found_again_under_its_own_key_alone() {
        let directory = tempfile::tempdir().unwrap();
        let within = directory.path().join("not/yet/there");
        assert_eq!(read(&within, "a"), None);
        write(&within, "a", &profile()).unwrap();
        let (path, found) = read(&within, "a").unwrap();
        assert_eq!(found, profile());
        assert!(path.starts_with(&within));
        assert_eq!(read(&within, "b"), None);
    }

    #[test]
    fn damaged_and_foreign_profiles_are_no_profiles() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "a", &profile()).unwrap();
        let (path, _) = read(directory.path(), "a").unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        for damaged in [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"a\"", "\"b\""),
            whole.replace("21500000000.0", "0.0"),
            whole.replace("21500000000.0", "-1.0"),
            whole.replacen("0.75", "-0.75", 1),
            whole.replacen("0.625", "-0.625", 1),
            whole.replacen("\"two streams\"", "\"no streams\"", 1),
            whole.replacen("\"matrix_rows\": 64", "\"matrix_rows\": 65", 1),
            whole.replacen("\"wide_rows\"", "\"other_rows\"", 1),
        ] {
            assert_ne!(damaged, whole);
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(read(directory.path(), "a"), None, "{damaged}");
        }
    }

    #[test]
    fn a_profile_of_an_older_version_is_measured_anew() {
        let directory = tempfile::tempdir().unwrap();
        let key = key(&subject(Activation::Int8, 1e9), Dtype::Q4_1, false);
        let older = key.replace(&format!("profile {VERSION};"), "profile 1;");
        assert_ne!(older, key);
        write(directory.path(), &older, &profile()).unwrap();
        assert_eq!(read(directory.path(), &key), None);
        // Even where its file has the newer one's name.
        let [from, to] = [&older, &key].map(|key| path(directory.path(), key));
        std::fs::rename(from, to).unwrap();
        assert_eq!(read(directory.path(), &key), None);
        write(directory.path(), &key, &profile()).unwrap();
        assert_eq!(read(directory.path(), &key).unwrap().1, profile());
    }

    #[test]
    fn a_program_that_was_built_anew_is_another_build() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let write = |bytes: &[u8], seconds| {
            std::fs::write(&program, bytes).unwrap();
            let written = UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&program).unwrap().set_modified(written)
        };
        let mut builds = Vec::new();
        for (bytes, seconds) in [(&b"a program"[..], 1), (b"a program", 2), (b"another one", 2)] {
            write(bytes, seconds).unwrap();
            assert_eq!(build(&program), build(&program));
            builds.push(build(&program));
        }
        assert!(builds[0] != builds[1] && builds[1] != builds[2], "{builds:?}");
        let own = build(&std::env::current_exe().unwrap());
        let key = key(&subject(Activation::F32, 1e9), Dtype::F32, false);
        assert!(key.contains(&own) && !own.is_empty());
    }

    #[test]
    fn a_key_names_what_decides_speed() {
        let [bound, unbound] =
            [true, false].map(|pin| key(&subject(Activation::Int8, 5e6), Dtype::F32, pin));
        assert_ne!(bound, unbound);
        let key = |activation, bytes| key(&subject(activation, bytes), Dtype::F32, false);
        assert_ne!(key(Activation::Int8, 5e6), key(Activation::F32, 5e6));
        assert_ne!(key(Activation::Int8, 5e6), key(Activation::Int8, 6e6));
        let version = env!("CARGO_PKG_VERSION");
        for part in [version, std::env::consts::ARCH, "scalar", "CPUs", "5000000 bytes"] {
            assert!(key(Activation::Int8, 5e6).contains(part), "{part}");
        }
    }
}
