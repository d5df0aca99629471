//! A model ready to run.

use crate::arch;
use crate::config::Config;
use crate::error::Result;
use crate::rope::Rope;
use crate::weights::{Progress, Weights};
use oss_cache::{Group, Shape};
use oss_kernels::Activation;
use oss_kernels::attention::{self, SparseAttention};
use oss_memory::Pages;
use oss_quant::kv::{KvFormat, mean_bytes};
use oss_simd::Isa;
use oss_weights::Container;
use std::sync::Arc;

/// How a model is to be run; one choice for a whole engine.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// The instruction set.
    pub isa: Isa,
    /// How activations meet weights, see [`Config::qkv_activation`].
    pub activation: Activation,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// The machine's pages that packed weights lie on, where they do not lie in a mapped file.
    pub pages: Pages,
    /// What rows of long contexts see in layers that would see everything; `None`: everything.
    pub sparse_attention: Option<SparseAttention>,
    /// Called as packing goes on, from several threads.
    pub progress: Option<Progress<'a>>,
}

impl LoadOptions<'_> {
    /// As models usually run: activations as 8-bit codes, keys and values in bf16, weights on huge
    /// pages where there are any.
    pub const fn new(isa: Isa) -> Self {
        Self {
            isa,
            activation: Activation::Int8,
            kv_format: KvFormat::Bf16,
            pages: Pages::Transparent,
            sparse_attention: None,
            progress: None,
        }
    }
}

/// Configuration, weights and the choices that decide the bits of the results.
pub struct Model {
    /// The model's numbers.
    pub config: Config,
    /// Its matrices and vectors.
    pub weights: Weights,
    /// The instruction set.
    pub isa: Isa,
    /// How activations meet weights, but for those that [`Self::qkv_activation`] is for.
    pub activation: Activation,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// What rows of long contexts see in layers that would see everything.
    pub sparse_attention: Option<SparseAttention>,
    pub(crate) rope: Rope,
}

impl Model {
    /// Reads a container's configuration and packs its weights.
    ///
    /// # Errors
    /// When the architecture or an option of it is not supported, a tensor is missing or has
    /// another shape, or memory is refused.
    pub fn load(container: Arc<Container>, options: LoadOptions<'_>) -> Result<Self> {
        let (config, plan) = arch::describe(&container)?;
        let (pages, progress) = (options.pages, options.progress);
        let weights = Weights::load(container, (&config, &plan), pages, progress)?;
        let rope = Rope::new(&config.rope, config.head_dim);
        let LoadOptions { isa, activation, kv_format, sparse_attention, .. } = options;
        Ok(Self { config, weights, isa, activation, kv_format, sparse_attention, rope })
    }

    /// How the inputs of queries, keys and values, and of the head, meet weights.
    #[must_use]
    pub const fn qkv_activation(&self) -> Activation {
        self.config.qkv_activation(self.activation)
    }

    /// What a cache for this model's keys and values has to hold: the layers with the same window
    /// are one group. Where rows choose among pages, the means of their keys lie behind the slots.
    #[must_use]
    pub fn cache_shape(&self) -> Shape {
        let mut groups: Vec<Group> = Vec::new();
        for (index, layer) in self.config.layers.iter().enumerate() {
            match groups.iter_mut().find(|group| group.window == layer.window) {
                Some(group) => group.layers.push(index),
                None => groups.push(Group { layers: vec![index], window: layer.window }),
            }
        }
        let mean = self.sparse_attention.map_or(0, |_| mean_bytes(self.config.head_dim));
        Shape {
            page_tokens: attention::PAGE,
            n_kv_heads: self.config.n_kv_heads,
            head_dim: self.config.head_dim,
            slot_bytes: self.kv_bytes() + mean,
            groups,
        }
    }

    /// Bytes of the keys and values of a slot.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.kv_format.slot_bytes(self.config.head_dim)
    }
}
