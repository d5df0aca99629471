//! The shapes that can be written: one row each.

use anyhow::{Result, bail};

/// Which published layout a checkpoint follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Experts, sinks, alternating windows.
    GptOss,
    /// Dense.
    Llama,
}

/// Which kind of vocabulary a shape's files bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// Byte-level BPE with merges.
    ByteLevel,
    /// Pieces with scores and byte fallback.
    SentencePiece,
}

/// The numbers of a model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) words: Words,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Width of the feed-forward part, or of one expert.
    pub(crate) inner: usize,
    /// 0 when dense.
    pub(crate) experts: usize,
    /// Experts per token.
    pub(crate) top: usize,
    pub(crate) vocabulary: usize,
    pub(crate) window: usize,
    pub(crate) context: usize,
    pub(crate) theta: f32,
    pub(crate) tied: bool,
}

const GPT_OSS_20B: Shape = Shape {
    name: "gpt-oss-20b",
    family: Family::GptOss,
    words: Words::ByteLevel,
    layers: 24,
    hidden: 2880,
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    inner: 2880,
    experts: 32,
    top: 4,
    vocabulary: 201_088,
    window: 128,
    context: 131_072,
    theta: 150_000.0,
    tied: false,
};

const TINYLLAMA: Shape = Shape {
    name: "tinyllama",
    family: Family::Llama,
    words: Words::SentencePiece,
    layers: 22,
    hidden: 2048,
    heads: 32,
    kv_heads: 4,
    head_dim: 64,
    inner: 5632,
    experts: 0,
    top: 0,
    vocabulary: 32_000,
    window: 0,
    context: 2048,
    theta: 10_000.0,
    tied: false,
};

/// Every shape that `--shape` knows.
pub(crate) const SHAPES: [Shape; 8] = [
    GPT_OSS_20B,
    Shape { name: "gpt-oss-120b", layers: 36, experts: 128, ..GPT_OSS_20B },
    Shape {
        name: "tiny",
        layers: 2,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        inner: 96,
        experts: 4,
        top: 2,
        vocabulary: 2304,
        ..GPT_OSS_20B
    },
    // As many experts as gpt-oss-20b, in a file of 100 MB.
    Shape {
        name: "small",
        layers: 6,
        hidden: 512,
        heads: 8,
        kv_heads: 2,
        inner: 512,
        vocabulary: 2304,
        ..GPT_OSS_20B
    },
    TINYLLAMA,
    Shape {
        name: "smollm2",
        words: Words::ByteLevel,
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        inner: 1536,
        vocabulary: 49_152,
        context: 8192,
        theta: 100_000.0,
        tied: true,
        ..TINYLLAMA
    },
    Shape {
        name: "llama3-8b",
        words: Words::ByteLevel,
        layers: 32,
        hidden: 4096,
        kv_heads: 8,
        head_dim: 128,
        inner: 14_336,
        vocabulary: 128_256,
        context: 8192,
        theta: 500_000.0,
        ..TINYLLAMA
    },
    Shape {
        name: "tiny-llama",
        layers: 2,
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        inner: 512,
        vocabulary: 2560,
        ..TINYLLAMA
    },
];

impl Shape {
    /// The shape of this name.
    pub(crate) fn named(name: &str) -> Result<Shape> {
        let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
            let known: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            bail!("no shape `{name}`; there are {}", known.join(", "));
        };
        Ok(shape.clone())
    }
}
