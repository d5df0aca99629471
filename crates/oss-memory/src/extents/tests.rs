//! The allocator against a plain list of what is in use.

use proptest::prelude::*;

use super::{Extent, Extents, SMALLEST};
use crate::HUGE_PAGE;

/// Checks the books against the extents in use.
fn check(extents: &Extents, used: &[Extent]) {
    let mut sorted = used.to_vec();
    sorted.sort_unstable();
    assert!(extents.allocated().eq(sorted.iter().copied()));
    for pair in sorted.windows(2) {
        assert!(pair[0].offset + pair[0].bytes <= pair[1].offset, "{pair:?} overlap");
    }
    let bytes: usize = used.iter().map(|extent| extent.bytes).sum();
    assert_eq!((extents.used_bytes(), extents.free_bytes()), (bytes, extents.capacity() - bytes));
    // The free huge pages, counted the plain way.
    let pieces = extents.capacity() / HUGE_PAGE;
    let touched = |piece: usize| {
        let (begin, end) = (piece * HUGE_PAGE, (piece + 1) * HUGE_PAGE);
        used.iter().any(|extent| extent.offset < end && extent.offset + extent.bytes > begin)
    };
    assert_eq!(extents.free_huge_pages(), (0..pieces).filter(|&piece| !touched(piece)).count());
}

/// The largest aligned power of two of free blocks, found by trying all.
fn largest_free(capacity: usize, used: &[Extent]) -> usize {
    let mut bytes = SMALLEST;
    let mut largest = 0;
    while bytes <= capacity {
        let is_free = |offset: usize| {
            let overlaps = |e: &Extent| e.offset < offset + bytes && e.offset + e.bytes > offset;
            !used.iter().any(overlaps)
        };
        if (0..=(capacity - bytes)).step_by(bytes).any(is_free) {
            largest = bytes;
        }
        bytes *= 2;
    }
    largest
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Free(usize),
    Compact(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u32..11, 1usize..=SMALLEST).prop_map(|(order, odd)| {
            Step::Allocate((SMALLEST << order) - SMALLEST + odd)
        }),
        5 => any::<usize>().prop_map(Step::Free),
        1 => (0usize..5).prop_map(Step::Compact),
    ];
    prop::collection::vec(step, 1..400)
}

/// Runs steps on an allocator and on a list.
fn run(blocks: usize, steps: &[Step]) {
    let mut extents = Extents::new(blocks * SMALLEST);
    let mut used: Vec<Extent> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate(bytes) => {
                let expected = bytes.next_multiple_of(SMALLEST).next_power_of_two();
                let fits = largest_free(extents.capacity(), &used) >= expected;
                let got = extents.allocate(bytes);
                assert_eq!(got.map(|extent| extent.bytes), fits.then_some(expected));
                used.extend(got);
            }
            Step::Free(which) if !used.is_empty() => {
                extents.free(used.swap_remove(which % used.len()));
            }
            Step::Free(_) => {}
            Step::Compact(huge_pages) => compact(&mut extents, &mut used, huge_pages),
        }
        check(&extents, &used);
        assert_eq!(extents.largest_free(), largest_free(extents.capacity(), &used));
    }
    used.drain(..).for_each(|extent| extents.free(extent));
    assert_eq!(format!("{extents:?}"), format!("{:?}", Extents::new(blocks * SMALLEST)));
}

fn compact(extents: &mut Extents, used: &mut [Extent], huge_pages: usize) {
    let before = extents.free_huge_pages();
    let moves = extents.plan_compaction(huge_pages);
    // Backwards, since any order must do.
    for step in moves.iter().rev() {
        assert!(extents.apply(*step), "{step:?} of {moves:?}");
        let moved = used.iter_mut().find(|extent| **extent == step.from).expect("in use");
        *moved = step.to;
    }
    let freed = extents.free_huge_pages() - before;
    assert!(freed <= huge_pages, "{freed} by {moves:?}");
    assert_eq!(freed == 0, moves.is_empty(), "{freed} by {moves:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sequence_agrees_with_a_plain_list(blocks in 0usize..3000, steps in steps()) {
        run(blocks, &steps);
    }
}

#[test]
fn compaction_empties_the_least_used_pieces_into_gaps() {
    let mut extents = Extents::new(4 * HUGE_PAGE);
    let half = HUGE_PAGE / 2;
    let used: Vec<Extent> = (0..8).map(|_| extents.allocate(half).expect("room")).collect();
    // One half of each piece stays: two pieces can be emptied into the two others.
    used.iter().skip(1).step_by(2).for_each(|&extent| extents.free(extent));
    assert_eq!((extents.free_huge_pages(), extents.fragmentation()), (0, 1.0));
    let moves = extents.plan_compaction(4);
    assert_eq!(moves.len(), 2);
    assert!(moves.iter().all(|&step| extents.apply(step)));
    assert_eq!((extents.free_huge_pages(), extents.fragmentation()), (2, 0.0));
    assert_eq!(extents.plan_compaction(4), []);
}

#[test]
fn a_move_whose_target_was_taken_meanwhile_changes_nothing() {
    let mut extents = Extents::new(2 * HUGE_PAGE);
    let used: Vec<Extent> =
        (0..4).map(|_| extents.allocate(HUGE_PAGE / 2).expect("room")).collect();
    extents.free(used[1]);
    extents.free(used[3]);
    let moves = extents.plan_compaction(1);
    let taken = [extents.allocate(SMALLEST), extents.allocate(HUGE_PAGE / 2)];
    assert!(taken.iter().all(Option::is_some));
    assert!(!extents.apply(moves[0]));
    check(&extents, &[used[0], used[2], taken[0].expect("some"), taken[1].expect("some")]);
}

#[test]
#[should_panic(expected = "is freed, expected an allocated extent")]
fn freeing_twice_panics() {
    let mut extents = Extents::new(HUGE_PAGE);
    let extent = extents.allocate(1).expect("room");
    extents.free(extent);
    extents.free(extent);
}
