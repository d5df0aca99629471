//! Loading the demo and edge models, and running token ids through them.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part")]

use oss_cache::KvCache;
use oss_kernels::Activation;
use oss_kernels::attention::SparseAttention;
use oss_memory::Pages;
use oss_memory::placement::MemoryPolicy;
use oss_model::{Batch, LoadOptions, Model, Row, State, forward, head, team_options};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_threads::Team;
use oss_weights::Container;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../oss-demo/data").join(name)
}

pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Some tokens, others for another seed.
pub fn prompt(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 31 + i * seed + seed) % 300).collect()
}

/// What two results that are the same have in common, zeros of either sign told apart.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// All numbers of a float tensor in a reference file.
pub fn tensor(file: &Container, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let oss_weights::Encoded::Plain(bytes) = tensor.data else { panic!("{name} is split") };
    let mut out = vec![0.0; tensor.info.shape.iter().product()];
    tensor.info.dtype.dequantise_row(Isa::scalar(), bytes, &mut out).unwrap();
    out
}

pub struct Runner {
    pub model: Model,
    pub team: Team,
    pub state: State,
    pub cache: KvCache,
}

/// How to run a model.
#[derive(Clone, Copy)]
pub struct Setting {
    pub isa: Isa,
    pub activation: Activation,
    pub kv_format: KvFormat,
    pub sparse_attention: Option<SparseAttention>,
    pub threads: usize,
}

impl Setting {
    pub fn exact() -> Self {
        Self {
            isa: Isa::detect().unwrap(),
            activation: Activation::F32,
            kv_format: KvFormat::F32,
            sparse_attention: None,
            threads: 1,
        }
    }

    pub fn fast() -> Self {
        Self { activation: Activation::Int8, kv_format: KvFormat::Bf16, ..Self::exact() }
    }
}

impl Runner {
    pub fn new(path: &Path, setting: Setting) -> Self {
        Self::load(path, setting, None, &MemoryPolicy::default())
    }

    /// A runner of a packed model whose experts stay in the file, but for so many.
    pub fn with_slots(path: &Path, setting: Setting, slots: usize) -> Self {
        Self::load(path, setting, Some(slots), &MemoryPolicy::default())
    }

    /// A runner whose weights, keys and values are placed.
    pub fn load(
        path: &Path,
        setting: Setting,
        slots: Option<usize>,
        policy: &MemoryPolicy,
    ) -> Self {
        let container = Arc::new(Container::open(path).unwrap());
        let Setting { isa, activation, kv_format, sparse_attention, threads } = setting;
        let (pages, progress) = (Pages::Transparent, None);
        let options = LoadOptions { isa, activation, kv_format, pages, sparse_attention, progress };
        let mut model = Model::load(container, options).unwrap();
        match slots {
            Some(slots) => model.weights.keep_experts_in_slots(slots, policy, &[]).unwrap(),
            None => model.weights.place(policy).unwrap(),
        }
        let team = Team::with_options(&team_options(threads, false, policy)).unwrap();
        let state = State::new(&model, 256, team.threads()).unwrap();
        let options = oss_cache::Options {
            capacity_bytes: 64 << 20,
            memory: policy.clone(),
            ..Default::default()
        };
        let cache = KvCache::with_options(model.cache_shape(), &options).unwrap();
        Self { model, team, state, cache }
    }

    /// The logits of all positions, the ids given in chunks of `chunk`.
    pub fn logits(&mut self, ids: &[u32], chunk: usize) -> Vec<f32> {
        let sequence = self.cache.create();
        let mut out = Vec::new();
        for (n, part) in ids.chunks(chunk).enumerate() {
            let rows: Vec<Row> = part
                .iter()
                .enumerate()
                .map(|(i, token)| Row {
                    sequence,
                    position: n * chunk + i,
                    token: *token,
                    wanted: true,
                    draft: false,
                })
                .collect();
            self.step(&rows);
            out.extend_from_slice(self.head(part.len()));
        }
        self.cache.remove(sequence);
        out
    }

    pub fn step(&mut self, rows: &[Row]) {
        let Self { model, team, state, cache } = self;
        let layers = 0..model.config.layers.len();
        forward(model, team, state, cache, Batch { rows }, layers).unwrap();
    }

    pub fn head(&mut self, rows: usize) -> &[f32] {
        head(&self.model, &self.team, &mut self.state, 0..rows)
    }
}
