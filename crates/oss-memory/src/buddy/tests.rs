//! The allocator against a plain list of what is in use.

use proptest::prelude::*;

use super::{BuddyAllocator, Extent};

fn overlap(a: Extent, b: Extent) -> bool {
    a.first < b.first + b.len && b.first < a.first + a.len
}

/// The free extents of `len` units, found by trying all.
fn free_of(units: usize, len: usize, used: &[Extent]) -> impl Iterator<Item = Extent> + '_ {
    let all = (0..units / len).map(move |index| Extent { first: index * len, len });
    all.filter(|&at| !used.iter().any(|&extent| overlap(at, extent)))
}

/// The largest free extent, the lowest of these.
fn largest_free(units: usize, used: &[Extent]) -> Option<Extent> {
    let lens = (0..usize::BITS).map(|order| 1 << order).take_while(|&len| len <= units);
    lens.filter_map(|len| free_of(units, len, used).next()).last()
}

/// Checks the books against the extents in use.
fn check(extents: &BuddyAllocator, used: &[Extent]) {
    let mut sorted = used.to_vec();
    sorted.sort_unstable();
    assert!(extents.allocated().eq(sorted.iter().copied()));
    for pair in sorted.windows(2) {
        assert!(!overlap(pair[0], pair[1]), "{pair:?} overlap");
    }
    let taken: usize = used.iter().map(|extent| extent.len).sum();
    assert_eq!(extents.used(), taken);
    let available = extents.units() - taken;
    let pieces: Vec<Extent> = free_of(extents.units(), extents.piece(), used).collect();
    assert!(extents.free_pieces().eq(pieces.iter().copied()));
    let partly = (available - pieces.len() * extents.piece()) as f64;
    assert_eq!(extents.fragmentation(), partly / available.max(1) as f64);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    AllocateWithRoom,
    Follow(usize),
    Free(usize),
    Compact(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u32..11, any::<prop::sample::Index>()).prop_map(|(order, odd)| {
            Step::Allocate((1 << order) - odd.index((1 << order) / 2 + 1).min((1 << order) - 1))
        }),
        3 => Just(Step::AllocateWithRoom),
        3 => any::<usize>().prop_map(Step::Follow),
        5 => any::<usize>().prop_map(Step::Free),
        1 => (0usize..5).prop_map(Step::Compact),
    ];
    prop::collection::vec(step, 1..400)
}

/// Runs steps on an allocator and on a list.
fn run(units: usize, piece: usize, steps: &[Step]) {
    let mut extents = BuddyAllocator::new(units, piece);
    let mut used: Vec<Extent> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate(len) => {
                let expected = len.next_power_of_two();
                let fits = largest_free(units, &used).is_some_and(|most| most.len >= expected);
                let got = extents.allocate(len);
                assert_eq!(got.map(|extent| extent.len), fits.then_some(expected));
                used.extend(got);
            }
            Step::AllocateWithRoom => {
                let got = extents.allocate_with_room();
                assert_eq!(got, largest_free(units, &used).map(|most| Extent::unit(most.first)));
                used.extend(got);
            }
            Step::Follow(which) if !used.is_empty() => {
                let before = used[which % used.len()];
                let next = Extent { first: before.first + before.len, len: before.len };
                let next = if which % 2 == 0 { Extent::unit(next.first) } else { next };
                if next.first % next.len == 0 {
                    let is_free = free_of(units, next.len, &used).any(|free| free == next);
                    assert_eq!(extents.allocate_at(next), is_free, "{next:?}");
                    used.extend(is_free.then_some(next));
                }
            }
            Step::Free(which) if !used.is_empty() => {
                extents.free(used.swap_remove(which % used.len()));
            }
            Step::Follow(_) | Step::Free(_) => {}
            Step::Compact(most) => compact(&mut extents, &mut used, most),
        }
        check(&extents, &used);
        let largest = largest_free(units, &used).map_or(0, |most| most.len);
        assert_eq!(extents.largest_free(), largest);
    }
    used.drain(..).for_each(|extent| extents.free(extent));
    assert_eq!(format!("{extents:?}"), format!("{:?}", BuddyAllocator::new(units, piece)));
}

fn compact(extents: &mut BuddyAllocator, used: &mut [Extent], most: usize) {
    let before = extents.free_pieces().count();
    let moves = extents.plan_compaction(most);
    // Backwards, since any order must do.
    for step in moves.iter().rev() {
        assert!(extents.apply(*step), "{step:?} of {moves:?}");
        let moved = used.iter_mut().find(|extent| **extent == step.from).expect("in use");
        *moved = step.to;
    }
    let freed = extents.free_pieces().count() - before;
    assert!(freed <= most, "{freed} by {moves:?}");
    assert_eq!(freed == 0, moves.is_empty(), "{freed} by {moves:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sequence_agrees_with_a_plain_list(
        units in 0usize..3000,
        piece in 0u32..10,
        steps in steps(),
    ) {
        run(units, 1 << piece, &steps);
    }
}

#[test]
fn compaction_empties_the_least_used_pieces_into_gaps() {
    let mut extents = BuddyAllocator::new(4 * 512, 512);
    let used: Vec<Extent> = (0..8).map(|_| extents.allocate(256).expect("room")).collect();
    // One half of each piece stays: two pieces can be emptied into the two others.
    used.iter().skip(1).step_by(2).for_each(|&extent| extents.free(extent));
    assert_eq!((extents.free_pieces().count(), extents.fragmentation()), (0, 1.0));
    let moves = extents.plan_compaction(4);
    assert_eq!(moves.len(), 2);
    assert!(moves.iter().all(|&step| extents.apply(step)));
    assert_eq!((extents.free_pieces().count(), extents.fragmentation()), (2, 0.0));
    assert_eq!(extents.plan_compaction(4), []);
}

#[test]
fn a_move_whose_target_was_taken_meanwhile_changes_nothing() {
    let mut extents = BuddyAllocator::new(2 * 512, 512);
    let used: Vec<Extent> = (0..4).map(|_| extents.allocate(256).expect("room")).collect();
    extents.free(used[1]);
    extents.free(used[3]);
    let moves = extents.plan_compaction(1);
    let taken = [extents.allocate(1), extents.allocate(256)];
    assert!(taken.iter().all(Option::is_some));
    assert!(!extents.apply(moves[0]));
    check(&extents, &[used[0], used[2], taken[0].expect("some"), taken[1].expect("some")]);
}

#[test]
#[should_panic(expected = "is freed, expected an allocated extent")]
fn freeing_twice_panics() {
    let mut extents = BuddyAllocator::new(512, 512);
    let extent = extents.allocate(1).expect("room");
    extents.free(extent);
    extents.free(extent);
}
