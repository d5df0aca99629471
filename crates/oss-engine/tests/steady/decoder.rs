//! Decoding as the engine does it, without the engine: forward, head and draw.

use oss_cache::{KvCache, SequenceId};
use oss_engine::model::{Batch, HeadRequest, LoadOptions, Model, Row, State, forward, head};
use oss_engine::{Activation, Isa, KvFormat, Pages, Team};
use oss_sampler::{Options, Sampler};
use oss_weights::Container;
use std::path::Path;
use std::sync::Arc;

/// The demo model, ready to decode.
pub(crate) struct Decoder {
    model: Model,
    team: Team,
    state: State,
    cache: KvCache,
    sequence: SequenceId,
    sampler: Sampler,
    token: u32,
    position: usize,
}

impl Decoder {
    pub(crate) fn new(threads: usize) -> Self {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oss-demo/data/demo.gguf");
        let container = Arc::new(Container::open(&demo).unwrap());
        let (isa, kv_format) = (Isa::detect().unwrap(), KvFormat::Bf16);
        let activation = Some(Activation::Int8);
        let options =
            LoadOptions { isa, activation, kv_format, pages: Pages::Huge, progress: None };
        let model = Model::load(container, options).unwrap();
        let team = Team::new(threads).unwrap();
        let state = State::new(&model, 16, team.threads());
        let mut cache = KvCache::new(model.cache_shape(), 16 << 20).unwrap();
        let sequence = cache.create();
        let options = Options { temperature: 0.8, top_k: 40, top_p: 0.95, ..Options::default() };
        let mut sampler = Sampler::new(options, model.config.vocabulary, 0).unwrap();
        sampler.reserve(200);
        Self { model, team, state, cache, sequence, sampler, token: 1, position: 0 }
    }

    pub(crate) fn step(&mut self) {
        let Self { model, team, state, cache, .. } = self;
        let (sequence, position, token) = (self.sequence, self.position, self.token);
        let rows = [Row { sequence, position, token, wanted: true, draft: false }];
        let layers = 0..model.config.layers.len();
        forward(model, team, state, cache, Batch { rows: &rows }, layers).unwrap();
        let logits = head(model, team, state, 0..1, HeadRequest::Full);
        let draw = self.sampler.draw(model.isa, logits, position as u64 + 1, None);
        self.token = draw.unwrap().token;
        self.sampler.accept(self.token);
        self.position += 1;
    }
}
