//! What a model is, in numbers: everything the forward pass needs to know.

use oss_kernels::Activation;
use oss_kernels::elementwise::Gate;

/// One model's numbers, all of them from its own files.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The architecture's name, as its row in `arch.rs` has it.
    pub architecture: &'static str,
    /// Tokens in the vocabulary: logits per position.
    pub vocabulary: usize,
    /// Numbers in the residual stream.
    pub hidden_dim: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// What is added to the mean square in every normalisation.
    pub norm_epsilon: f32,
    /// How positions turn queries and keys.
    pub rope: RopeConfig,
    /// The longest sequence the model was made for.
    pub context_len: usize,
    /// The layers, in order.
    pub layers: Vec<LayerConfig>,
}

/// What one layer does.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// How many positions a token sees, itself included; `None`: all.
    pub window: Option<usize>,
    /// The second half of the layer.
    pub feed_forward: FeedForward,
    /// The activation between its two matrices.
    pub gate: Gate,
}

/// The second half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One network for all tokens.
    Dense {
        /// Numbers between its matrices.
        intermediate_dim: usize,
    },
    /// A router sends each token to a few of many networks.
    Experts {
        /// Numbers between an expert's matrices.
        intermediate_dim: usize,
        /// How many experts there are.
        n_experts: usize,
        /// How many of them a token goes to.
        top_k: usize,
    },
}

impl FeedForward {
    /// Numbers between the two matrices.
    #[must_use]
    pub const fn intermediate_dim(self) -> usize {
        match self {
            Self::Dense { intermediate_dim } | Self::Experts { intermediate_dim, .. } => {
                intermediate_dim
            }
        }
    }

    /// How many networks a token goes to.
    pub(crate) const fn top_k(self) -> usize {
        match self {
            Self::Dense { .. } => 1,
            Self::Experts { top_k, .. } => top_k,
        }
    }
}

/// Rotary positions: base, width and stretching.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How the wavelengths are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// How wavelengths are stretched for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by one factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Each by its own divisor of the frequency (GGUF's `rope_freqs.weight`).
    FrequencyFactors(Vec<f32>),
    /// By bands of wavelengths, as Llama 3.1 does.
    FrequencyBands {
        /// The factor for long wavelengths.
        factor: f64,
        /// Wavelengths beyond `original / low` are stretched in full.
        low: f64,
        /// Wavelengths below `original / high` are left alone.
        high: f64,
        /// The context the model was first trained with.
        original: f64,
    },
    /// YaRN (Peng et al., 2023).
    Yarn {
        /// The factor for long wavelengths.
        factor: f64,
        /// Rotations over the original context above which nothing is stretched.
        beta_fast: f64,
        /// Rotations over the original context below which all is stretched.
        beta_slow: f64,
        /// The context the model was first trained with.
        original: f64,
        /// Whether the band's edges are rounded outwards to whole pairs.
        truncate: bool,
        /// What queries and keys are multiplied with; `None`: `0.1 ln factor + 1`.
        attention_factor: Option<f64>,
    },
}

/// In models narrower than this, some inputs are codes of 16 bits where others have 8.
const NARROW: usize = 1024;

impl Config {
    /// How the inputs of queries, keys and values, and of the head, meet weights where all others
    /// do so as `activation` says: the same way, but with 16-bit codes instead of 8-bit ones in
    /// narrow models. Rounding to 8 bits evens out over many columns only, and these inputs feel it
    /// most (SmolLM2, 576 columns: 0.0015 nats off with 8 bits everywhere, 0.0006 with 16 here; see
    /// `docs/numerics.md`).
    #[must_use]
    pub const fn qkv_activation(&self, activation: Activation) -> Activation {
        match activation {
            Activation::Int8 if self.hidden_dim < NARROW => Activation::Int16,
            other => other,
        }
    }

    /// Rows of the fused query, key and value matrix.
    #[must_use]
    pub const fn qkv_dim(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Numbers of all query heads together.
    #[must_use]
    pub const fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Numbers of all key heads together.
    #[must_use]
    pub const fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// How many query heads share a key/value head.
    pub(crate) const fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// How many key/value heads a unit of attention takes: as few as fill whole blocks of 32
    /// columns of what comes out.
    pub(crate) const fn kv_heads_per_unit(&self) -> usize {
        let columns = self.group() * self.head_dim;
        let mut heads = 1;
        while heads < self.n_kv_heads && !(heads * columns).is_multiple_of(32) {
            heads += 1;
        }
        heads
    }

    /// The widest feed-forward layer.
    #[must_use]
    pub fn max_intermediate_dim(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.intermediate_dim()).max().unwrap_or(0)
    }

    /// The most experts that a token goes to in any layer; 1 where there are none.
    #[must_use]
    pub fn max_top_k(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.top_k()).max().unwrap_or(1)
    }

    /// The most experts of any layer; 0 where there are none.
    #[must_use]
    pub fn max_experts(&self) -> usize {
        let n = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Dense { .. } => 0,
            FeedForward::Experts { n_experts, .. } => n_experts,
        };
        self.layers.iter().map(n).max().unwrap_or(0)
    }
}
