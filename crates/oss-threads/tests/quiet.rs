//! What a team does not do: allocate in a phase, burn time when idle, and wake workers for whom a
//! phase has nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use oss_threads::{Chunks, PerWorker, Team};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator.
#[expect(unsafe_code, reason = "an allocator that counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Ticks of processor time of this process, all threads together; none where it cannot be read.
fn ticks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// How often the thread of this name has gone to sleep; none where it cannot be read.
fn sleeps(name: &str) -> Option<u64> {
    let mut tasks = std::fs::read_dir("/proc/self/task").ok()?.flatten().map(|task| task.path());
    let is_it = |comm: String| comm.trim() == name;
    let task = tasks.find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(is_it))?;
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?
        .trim()
        .parse()
        .ok()
}

/// One test, since all of it is about what the whole process does.
#[test]
fn phases_allocate_nothing_and_idle_threads_sleep_on() {
    let team = Team::new(3).expect("threads");
    let (mut data, mut scratch) = (vec![0u64; 1000], vec![0u64; 3]);
    let mut run = |phases: usize| {
        for _ in 0..phases {
            let out = (Chunks::new(&mut data, 10), PerWorker::new(&mut scratch));
            team.phase(100, out, |unit, (part, sum)| {
                part.fill(unit.index as u64);
                *sum += 1;
            });
        }
    };
    run(100);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(1000);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);

    thread::sleep(Duration::from_millis(5));
    let before = ticks();
    thread::sleep(Duration::from_millis(1000));
    // A tick is 10 ms: at most one, which a neighbouring tick boundary may add, is 0.5 % of 2
    // cores.
    let after = ticks();
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after - before <= 1, "{} ticks in an idle second", after - before);
    }
    assert_eq!(scratch.iter().sum::<u64>(), 100 * 1100);

    // Two units are for two threads; the third one sleeps on, and is there when it is needed.
    let before = sleeps("oss-worker-2");
    for _ in 0..20 {
        team.phase(2, (), |_, ()| ());
        // Longer than one that was woken polls.
        thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(sleeps("oss-worker-2"), before);
    let mut runs = [0; 3];
    team.phase(3, Chunks::new(&mut runs, 1), |_, run| run[0] += 1);
    assert_eq!(runs, [1; 3]);
}
