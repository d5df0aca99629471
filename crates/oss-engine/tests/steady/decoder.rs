//! Decoding as the engine does it, without the engine: forward, head and draw.

#[path = "../../../oss-model/tests/support/random.rs"]
mod random;

use oss_cache::{KvCache, SequenceId};
use oss_engine::{Activation, Dtype, Isa, KvFormat, SparseAttention, Team};
use oss_model::{Batch, LoadOptions, Model, Row, State, forward, head};
use oss_sampler::{Options, Sampler, Scratch};
use oss_weights::{Container, TensorPlan};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first block, the last one or two, and one of those between.
pub(crate) const SPARSE: SparseAttention = SparseAttention { first: 64, window: 16, blocks: 1 };
/// From this position on, tokens leave blocks out where attention is sparse: there are two between.
pub(crate) const LONG: usize = 3 * 64 + 16 - 1;
const _: () = assert!(SPARSE.n_blocks(LONG).is_none() && SPARSE.n_blocks(LONG + 1).is_some());

/// What is decoded, and how its keys and values are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weights {
    /// The demo model, bf16.
    Demo,
    /// A mixture of MXFP4 experts of unusual sizes, 8 bits.
    Mixture,
    /// A Llama of one network a layer, its sizes no multiples of anything, bf16.
    Dense,
}

/// What is decoded, and what its tokens see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    weights: Weights,
    sparse_attention: Option<SparseAttention>,
}

impl Case {
    /// Each model, with everything seen and without.
    pub(crate) fn all() -> Vec<Self> {
        let weights = [Weights::Demo, Weights::Mixture, Weights::Dense];
        let with = |sparse_attention| weights.map(|weights| Self { weights, sparse_attention });
        [None, Some(SPARSE)].into_iter().flat_map(with).collect()
    }
}

impl Weights {
    /// The model's file, which is written to `folder` where there is none.
    fn file(self, folder: &Path) -> PathBuf {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oss-demo/data");
        match self {
            Self::Demo => data.join("demo.gguf"),
            Self::Mixture => data.join("edge/edge.gguf"),
            Self::Dense => {
                let path = folder.join("dense.gguf");
                write_dense(&path);
                path
            }
        }
    }

    const fn kv_format(self) -> KvFormat {
        match self {
            Self::Mixture => KvFormat::Int8,
            Self::Demo | Self::Dense => KvFormat::Bf16,
        }
    }
}

/// A Llama of random weights: 3 heads of 16 on 1 of keys and values.
fn write_dense(path: &Path) {
    const HIDDEN: usize = 96;
    const INNER: usize = 160;
    const VOCABULARY: usize = 331;
    const LAYERS: usize = 2;
    let counts = [
        ("block_count", LAYERS),
        ("context_length", 4096),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", INNER),
        ("attention.head_count", 3),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
    ];
    let key = |name: &str| format!("llama.{name}");
    let mut metadata = vec![
        ("general.architecture".to_owned(), "llama".into()),
        (key("attention.layer_norm_rms_epsilon"), 1e-5f32.into()),
        (key("rope.freq_base"), 10_000.0f32.into()),
    ];
    metadata.extend(counts.map(|(name, n)| (key(name), (n as u32).into())));
    let layer: [(&str, &[usize]); 9] = [
        ("attn_norm", &[HIDDEN]),
        ("attn_q", &[48, HIDDEN]),
        ("attn_k", &[16, HIDDEN]),
        ("attn_v", &[16, HIDDEN]),
        ("attn_output", &[HIDDEN, 48]),
        ("ffn_norm", &[HIDDEN]),
        ("ffn_gate", &[INNER, HIDDEN]),
        ("ffn_up", &[INNER, HIDDEN]),
        ("ffn_down", &[HIDDEN, INNER]),
    ];
    let plan = |name: String, shape: &[usize]| {
        // Rows of 48 hold no whole blocks.
        let is_float = shape.len() == 1 || shape[1] == 48;
        let dtype = if is_float { Dtype::F32 } else { Dtype::Q8_0 };
        TensorPlan { name: format!("{name}.weight"), dtype, shape: shape.to_vec() }
    };
    let mut plans = vec![
        plan("token_embd".to_owned(), &[VOCABULARY, HIDDEN]),
        plan("output_norm".to_owned(), &[HIDDEN]),
    ];
    for index in 0..LAYERS {
        plans.extend(layer.iter().map(|(name, shape)| plan(format!("blk.{index}.{name}"), shape)));
    }
    random::write_gguf(path, &metadata, &plans, 17);
}

/// A model, ready to decode.
pub(crate) struct Decoder {
    model: Model,
    team: Team,
    state: State,
    cache: KvCache,
    sequence: SequenceId,
    sampler: Sampler,
    draw_scratch: Scratch,
    token: u32,
    position: usize,
}

impl Decoder {
    pub(crate) fn new(case: Case, threads: usize) -> Self {
        let Case { weights, sparse_attention } = case;
        let folder = tempfile::tempdir().unwrap();
        let container = Arc::new(Container::open(&weights.file(folder.path())).unwrap());
        let (isa, kv_format) = (Isa::detect().unwrap(), weights.kv_format());
        let activation = Activation::Int8;
        let options =
            LoadOptions { activation, kv_format, sparse_attention, ..LoadOptions::new(isa) };
        let model = Model::load(container, options).unwrap();
        let team = Team::new(threads).unwrap();
        let state = State::new(&model, 16, team.threads()).unwrap();
        let mut cache = KvCache::new(model.cache_shape(), 16 << 20).unwrap();
        let sequence = cache.create();
        let options = Options { temperature: 0.8, top_k: 40, top_p: 0.95, ..Options::default() };
        let mut sampler = Sampler::new(options, model.config.vocabulary, 0).unwrap();
        // Not a power of two: there is room for 400 more before the next allocation.
        sampler.prompt(&[1; 600]);
        let draw_scratch = Scratch::new(model.config.vocabulary);
        Self { model, team, state, cache, sequence, sampler, draw_scratch, token: 1, position: 0 }
    }

    pub(crate) fn step(&mut self) {
        let Self { model, team, state, cache, .. } = self;
        let (sequence, position, token) = (self.sequence, self.position, self.token);
        let rows = [Row { sequence, position, token, wanted: true, draft: false }];
        let layers = 0..model.config.layers.len();
        forward(model, team, state, cache, Batch { rows: &rows }, layers).unwrap();
        let logits = head(model, team, state, 0..1);
        let draw = {
            let scratch = &mut self.draw_scratch;
            self.sampler.draw(model.isa, logits, position as u64 + 1, None, scratch)
        };
        self.token = draw.unwrap().token;
        self.sampler.accept(self.token);
        self.position += 1;
    }
}
