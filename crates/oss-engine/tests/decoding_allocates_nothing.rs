//! The steady state of decoding: forward, head and draw, token after token.

use oss_cache::KvCache;
use oss_engine::model::{Batch, HeadRequest, LoadOptions, Model, Row, State, forward, head};
use oss_engine::{Activation, Isa, KvFormat, Team};
use oss_kernels::attention::PAGE;
use oss_sampler::{Options, Sampler};
use oss_weights::Container;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_token_allocates_nothing_unless_it_completes_or_begins_a_page() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oss-demo/data/demo.gguf");
    let container = Arc::new(Container::open(&demo).unwrap());
    let (isa, kv_format) = (Isa::detect().unwrap(), KvFormat::Bf16);
    let activation = Some(Activation::Int8);
    let options = LoadOptions { isa, activation, kv_format, progress: None };
    let model = Model::load(container, options).unwrap();
    let team = Team::new(2).unwrap();
    let mut state = State::new(&model, 16, team.threads());
    let mut cache = KvCache::new(model.cache_shape(), 16 << 20).unwrap();
    let sequence = cache.create();
    let vocabulary = model.config.vocabulary;
    let options = Options { temperature: 0.8, top_k: 40, top_p: 0.95, ..Options::default() };
    let mut sampler = Sampler::new(options, vocabulary, 0).unwrap();
    sampler.reserve(200);

    let mut token = 1;
    let mut counted = Vec::new();
    for position in 0..160 {
        let region = Region::new(ALLOCATOR);
        let rows = [Row { sequence, position, token, wanted: true }];
        let layers = 0..model.config.layers.len();
        forward(&model, &team, &mut state, &mut cache, Batch { rows: &rows }, layers).unwrap();
        let logits = head(&model, &team, &mut state, 0..1, HeadRequest::Full);
        token = sampler.draw(isa, logits, position as u64 + 1, None).unwrap().token;
        sampler.accept(token);
        let change = region.change();
        counted.push(change.allocations + change.reallocations);
    }

    let inside = |position: &usize| (1..PAGE - 1).contains(&(position % PAGE));
    for position in (PAGE..160).filter(inside) {
        assert_eq!(counted[position], 0, "position {position} of {counted:?}");
    }
}
