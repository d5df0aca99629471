//! A draw allocates nothing in steady state.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use oss_sampler::{Dry, Mask, Options, Sampler, Scratch};
use oss_simd::Isa;
use oss_testing::Seeded;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> usize {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn a_draw_allocates_nothing_once_the_buffers_have_grown() {
    let n = 50_000;
    let isa = Isa::detect().unwrap();
    let mut seeded = Seeded::new(1);
    let fields: Vec<Vec<f32>> = (0..4).map(|_| seeded.normals(n, 2.5)).collect();
    let mut mask = Mask::all(n);
    mask.forbid(3);
    let penalties = Options {
        repetition_penalty: 1.1,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        repeat_last_n: 64,
        dry: Dry { multiplier: 0.5, ..Dry::default() },
        logit_bias: vec![(7, 1.0)],
        top_k: 40,
        top_p: 0.95,
        top_logprobs: 5,
        ..Options::default()
    };
    let all = [
        Options::greedy(),
        Options::default(),
        Options { top_k: 40, top_p: 0.95, ..Options::default() },
        Options { top_p: 0.95, ..Options::default() },
        Options { min_p: 0.01, ..Options::default() },
        Options { typical_p: 0.9, ..Options::default() },
        penalties,
    ];
    for options in all {
        let mut sampler = Sampler::new(options.clone(), n, 0).unwrap();
        // Long enough for the window to be full, and for the tokens to have room for more.
        sampler.prompt(&(0..300).collect::<Vec<_>>());
        let (mut logits, mut scratch) = (vec![0.0; n], Scratch::new(n));
        let mut step = |position: u64| {
            logits.copy_from_slice(&fields[position as usize % 4]);
            let draw = sampler.draw(isa, &mut logits, position, Some(&mask), &mut scratch);
            let token = draw.unwrap().token;
            sampler.accept(token);
        };
        (0..8).for_each(&mut step);
        let before = allocations();
        (8..200).for_each(&mut step);
        assert_eq!(allocations() - before, 0, "{options:?}");
    }
}

/// Where a hash table keeps a token is chance, and so is when it must clear itself.
#[test]
fn tokens_that_come_into_the_window_and_leave_it_allocate_nothing() {
    for window in [1, 13, 14, 28, 64, 1000] {
        for _ in 0..50 {
            let options =
                Options { presence_penalty: 0.1, repeat_last_n: window, ..Options::default() };
            let mut sampler = Sampler::new(options, 5000, 0).unwrap();
            sampler.prompt(&(0..2049).collect::<Vec<_>>());
            let before = allocations();
            (0..1900).for_each(|step| sampler.accept(2049 + step));
            assert_eq!(allocations() - before, 0, "window {window}");
        }
    }
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(allocations() - before, 1);
}
