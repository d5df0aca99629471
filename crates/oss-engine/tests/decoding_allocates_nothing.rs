//! The steady state of decoding: forward, head and draw, token after token.

#[path = "steady/decoder.rs"]
mod decoder;

use decoder::Decoder;
use oss_kernels::attention::PAGE;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_token_allocates_nothing_unless_it_completes_or_begins_a_page() {
    let mut decoder = Decoder::new(2);
    let mut counted = Vec::new();
    for _ in 0..160 {
        let region = Region::new(ALLOCATOR);
        decoder.step();
        let change = region.change();
        counted.push(change.allocations + change.reallocations);
    }

    let inside = |position: &usize| (1..PAGE - 1).contains(&(position % PAGE));
    for position in (PAGE..160).filter(inside) {
        assert_eq!(counted[position], 0, "position {position} of {counted:?}");
    }
}
