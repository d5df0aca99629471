//! The steady state of decoding: forward, head and draw, token after token.

#[path = "steady/decoder.rs"]
mod decoder;

use decoder::{Case, Decoder, LONG, SPARSE};
use oss_engine::{Engine, EngineOptions, Event, Request, SparseAttention, Speculation, Tune};
use oss_kernels::attention::PAGE;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tokens of an answer, the last two pages of which leave blocks out where attention is sparse.
const TOKENS: usize = LONG + 2 * PAGE;

/// One test, since both halves count what the whole process does.
#[test]
fn a_token_allocates_nothing_unless_it_completes_or_begins_a_page() {
    for case in Case::all() {
        let mut decoder = Decoder::new(case, 2);
        let mut counted = Vec::new();
        for _ in 0..TOKENS {
            let region = Region::new(ALLOCATOR);
            decoder.step();
            let change = region.change();
            counted.push(change.allocations + change.reallocations);
        }

        let inside = |position: &usize| (1..PAGE - 1).contains(&(position % PAGE));
        for position in (PAGE..TOKENS).filter(inside) {
            assert_eq!(counted[position], 0, "{case:?}, position {position} of {counted:?}");
        }
    }
    for sparse_attention in [None, Some(SPARSE)] {
        an_engines_token_allocates_only_what_its_consumer_gets(sparse_attention);
    }
}

/// Between forward, head and draw, a step of the engine makes its list of rows and the token's
/// text: a few small blocks, whatever the model and however long the answer.
fn an_engines_token_allocates_only_what_its_consumer_gets(
    sparse_attention: Option<SparseAttention>,
) {
    let options = EngineOptions {
        threads: Some(1),
        sparse_attention,
        tune: Tune::Off,
        speculation: Speculation::Off,
        system_root: "/no/such/folder".into(),
        ..EngineOptions::default()
    };
    let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
    let request = || {
        let request = Request::text("Once").max_tokens(TOKENS).greedy();
        Request { ignore_eos: true, ..request }
    };
    engine.generate(request()).unwrap();
    let mut stream = engine.submit(request()).unwrap();
    let mut tokens = stream.by_ref().filter(|event| matches!(event, Ok(Event::Token(_))));
    assert!(tokens.next().is_some());
    let region = Region::new(ALLOCATOR);
    let n = tokens.count();
    assert_eq!(n, TOKENS - 1);
    let change = region.change();
    let blocks = change.allocations + change.reallocations;
    // Seven blocks of some 800 bytes together; logits alone have ten times as many.
    assert!(blocks < 12 * n && change.bytes_allocated < 2000 * n, "{n} tokens: {change:?}");
}
