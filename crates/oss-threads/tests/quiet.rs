//! What a team does not do: allocate in a phase, and burn time when idle.

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

/// One test, since both count what the whole process does.
#[test]
fn phases_allocate_nothing_and_an_idle_team_takes_no_time() {
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
}
