//! Processes that die while they write the file of cold pages, and disks that are full.
//!
//! `OSS_CACHE_KILL_ROUNDS` sets how many processes are killed; a few are enough to find a gross
//! mistake, a hundred belong into a thorough check.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
#[cfg(unix)]
use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oss_cache::{ColdOptions, Error, KvCache, Options};
use oss_testing::{Seeded, again};
#[cfg(unix)]
use oss_testing::{again_behind, passes};
use plain::{BYTES, PAGE, Run, WINDOWED, adopt, check, compute, shape};

#[path = "support/plain.rs"]
mod plain;

/// Names the file that a child process is to write.
const FILE: &str = "OSS_CACHE_KILL_FILE";
const CHILD: &str = "a_writer_that_nobody_kills_leaves_everything_in_order";
/// Bytes of a slot: those of a page and its header, up to a whole sector.
const SLOT: u64 = 4096;
/// Room for the pages of all prompts.
const ENOUGH: u64 = 225;
/// Room for about half of them, so that slots are written over and over.
const FEW: u64 = 80;
const PROMPTS: u32 = 8;
/// How a process ends that is killed: by a signal, which is no code; elsewhere with this one.
const KILLED: Option<i32> = if cfg!(unix) { None } else { Some(1) };
/// A process that has written nothing after so long never will.
const LONG: Duration = Duration::from_secs(60);

fn open(path: &Path, slots: u64) -> KvCache {
    let path = path.to_path_buf();
    let cold = ColdOptions { path, bytes: 4096 + slots * SLOT, queue: 16, content_key: 1 };
    let capacity_bytes = 60 * PAGE * BYTES;
    let options = Options { capacity_bytes, cold: Some(cold), ..Options::default() };
    // A child that is just being made by another test holds a copy of every open file, locks
    // included, until it runs its own program.
    for _ in 0..20 {
        match KvCache::with_options(shape(WINDOWED), &options) {
            // It has waited for a tenth of a second.
            Err(Error::InUse { .. }) => {}
            cache => return cache.expect("a sound shape and file"),
        }
    }
    panic!("the file stayed locked");
}

fn prompt(kind: u32) -> Vec<u32> {
    (0..60 + kind).map(|index| kind * 1000 + index).collect()
}

/// Takes over what is known of a prompt, checks it, computes the rest.
fn visit(cache: &mut KvCache, tokens: &[u32]) -> usize {
    let (id, len) = {
        let found = cache.lookup(tokens);
        let id = cache.create();
        (id, cache.adopt(id, &found, usize::MAX).expect("a living sequence"))
    };
    check(cache, id, &tokens[..len]);
    compute(cache, id, tokens).expect("room for one sequence");
    check(cache, id, tokens);
    cache.remove(id);
    cache.validate().expect("books in order");
    len
}

/// Visits random prompts while `goes_on` says so of how many there were. Also returns the last one.
fn write(path: &Path, slots: u64, goes_on: impl Fn(usize) -> bool) -> (KvCache, Vec<u32>) {
    let mut cache = open(path, slots);
    let mut seeded = Seeded::new(u64::from(std::process::id()));
    let mut tokens = Vec::new();
    for _ in (0..).take_while(|visits| goes_on(*visits)) {
        tokens = prompt(seeded.below(PROMPTS as usize) as u32);
        visit(&mut cache, &tokens);
    }
    (cache, tokens)
}

/// The test's own program once more, which writes.
fn child(path: &Path) -> Child {
    let mut command = again(CHILD);
    command.env(FILE, path).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a child process")
}

#[test]
fn a_writer_that_nobody_kills_leaves_everything_in_order() {
    if let Some(path) = std::env::var_os(FILE) {
        // Where the test fails, nobody kills it.
        let begin = Instant::now();
        write(&PathBuf::from(path), FEW, |_| begin.elapsed() < 2 * LONG);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let (mut cache, last) = write(&path, ENOUGH, |visits| visits < 40);
    cache.persist().unwrap();
    drop(cache);
    let mut cache = open(&path, ENOUGH);
    let (id, _) = adopt(&mut cache, &last);
    check(&cache, id, &last);
    cache.remove(id);
    let found: usize = (0..PROMPTS).map(|kind| visit(&mut cache, &prompt(kind))).sum();
    assert!(found > last.len(), "only the last prompt of 40 was found");
    assert_eq!(cache.stats().cold.bad_slots, 0);
}

#[test]
fn a_killed_writer_leaves_a_file_that_is_useless_at_worst() {
    let rounds = std::env::var("OSS_CACHE_KILL_ROUNDS").ok();
    let rounds: usize = rounds.map_or(6, |rounds| rounds.parse().expect("a number of rounds"));
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("cold"), directory.path().join("copy"));
    let mut seeded = Seeded::new(5);
    let (mut restored, mut found, mut bad) = (0, 0, 0);
    for round in 0..rounds {
        let before = fs::read(&path).unwrap_or_default();
        let mut child = child(&path);
        let begin = Instant::now();
        while fs::read(&path).unwrap_or_default() == before {
            assert!(child.try_wait().unwrap().is_none(), "round {round}: the child has ended");
            assert!(begin.elapsed() < LONG, "round {round}: the child has written nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(seeded.below(120) as u64));
        child.kill().expect("a child that can be killed");
        let status = child.wait().expect("a dead child");
        assert_eq!(status.code(), KILLED, "round {round}: the child has ended by itself");
        // On a copy: the next child finds what killed ones have left, and nothing else.
        fs::copy(&path, &copy).unwrap();
        let mut cache = open(&copy, FEW);
        cache.validate().expect("books in order");
        restored += cache.stats().cold.restored_slots;
        found += (0..PROMPTS).map(|kind| visit(&mut cache, &prompt(kind))).sum::<usize>();
        bad += cache.stats().cold.bad_slots;
    }
    println!("figure: cache, rounds = {rounds}");
    println!("figure: cache, pages restored = {restored}");
    println!("figure: cache, positions found = {found}");
    println!("figure: cache, bad slots = {bad}");
    assert!(rounds < 3 || restored > 0 && found > 0, "nothing survived in {rounds} rounds");
}

/// Runs a test of this program anew, with the name of a file in `key`, where the shell has done
/// `limit` first: a full disk refuses to let files grow as this does.
#[cfg(unix)]
fn run_limited(limit: &str, test: &str, key: &str, path: &Path) {
    passes(again_behind(&format!("trap '' XFSZ; {limit};"), test).env(key, path));
}

/// Counts the warnings of the cache.
#[cfg(unix)]
struct Warnings(Arc<AtomicU64>);

#[cfg(unix)]
impl tracing::Subscriber for Warnings {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() == tracing::Level::WARN && about.target().starts_with("oss_cache")
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, _event: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

/// The system refuses to let the file grow beyond 128 KiB, 31 slots.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_only_the_pages_it_does_not_take() {
    const SMALL: &str = "OSS_CACHE_SMALL_FILE";
    if let Some(path) = std::env::var_os(SMALL) {
        let warned = Arc::new(AtomicU64::new(0));
        tracing::subscriber::set_global_default(Warnings(warned.clone())).expect("the first one");
        let path = PathBuf::from(path);
        let (mut cache, _) = write(&path, ENOUGH, |visits| visits < 30);
        // A new prompt goes where older ones were.
        let newest = prompt(PROMPTS);
        assert_eq!(visit(&mut cache, &newest), 0);
        while cache.wait_for_tiers() {
            cache.poll();
        }
        cache.persist().expect("what has been written can be made durable");
        let (pages, stats) = (cache.cold_pages() as u64, cache.stats().cold);
        assert!(stats.failed_writes > 0 && stats.written_pages > 31, "{stats:?}");
        let warned = warned.load(Ordering::Relaxed);
        assert!(warned > 0 && warned <= stats.failed_writes, "{warned} warnings, {stats:?}");
        drop(cache);
        let cache = open(&path, ENOUGH);
        // All but what has left memory before the pages that it follows.
        let restored = cache.stats().cold.restored_slots;
        assert!(restored <= pages && restored > pages / 2, "{restored} of {pages} pages");
        assert_eq!(cache.lookup(&newest).len(), newest.len());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let test = "a_full_disk_costs_only_the_pages_it_does_not_take";
    run_limited("ulimit -f 256", test, SMALL, &path);
}

/// The system lets the file have no bytes at all, and then as many as it likes.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_was_full_at_first_has_what_was_written_later() {
    const NOTHING: &str = "OSS_CACHE_NO_FILE";
    if let Some(path) = std::env::var_os(NOTHING) {
        let mut cache = open(&PathBuf::from(path), ENOUGH);
        assert_eq!(cache.stats().cold.failed_writes, 1, "the header");
        let own = std::process::id().to_string();
        let raise = std::process::Command::new("prlimit")
            .args(["--pid", &own, "--fsize=unlimited"])
            .status();
        assert!(raise.expect("prlimit (util-linux)").success());
        visit(&mut cache, &prompt(0));
        while cache.wait_for_tiers() {
            cache.poll();
        }
        assert_eq!(cache.stats().cold.failed_writes, 1);
        return;
    }
    if std::process::Command::new("prlimit").arg("--version").output().is_err() {
        // Past the harness, which shows what a test prints only when it fails.
        let what = "NOT TESTED: a disk that was full at first, without prlimit (util-linux)";
        let _told = writeln!(std::io::stderr(), "{what}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let test = "a_disk_that_was_full_at_first_has_what_was_written_later";
    run_limited("ulimit -S -f 0", test, NOTHING, &path);
    let found = open(&path, ENOUGH).lookup(&prompt(0)).len();
    assert_eq!(found, prompt(0).len());
}

#[test]
fn a_file_serves_one_process_after_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    for seed in 0..3 {
        let cache = open(&path, ENOUGH);
        let seeded = Seeded::new(seed);
        let mut run = Run { cache, plain: Vec::new(), seeded, reused: 0, refused: 0 };
        let restored = run.cache.stats().cold.restored_slots;
        assert_eq!(restored > 0, seed > 0, "{restored} pages found by process {seed}");
        (0..300).for_each(|_| run.step());
        run.cache.validate().expect("books in order");
        let cold = run.cache.stats().cold;
        assert!(cold.bad_slots == 0 && cold.written_pages > 0, "{cold:?}");
    }
}
