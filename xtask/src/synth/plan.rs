//! Which tensors a checkpoint has, in file order, and what each is filled with.
//!
//! Weights are scaled so that activations keep their size through any number of layers: with unit
//! input (every matrix follows a norm) a matrix of deviation `1 / sqrt(columns)` gives unit output,
//! and what is added to the residual stream, twice a layer, is divided by `sqrt(2 · layers)`, so
//! that the stream's variance no more than doubles from the embedding to the last norm.

use oss_quant::Dtype;
use oss_testing::Seeded;
use oss_weights::TensorPlan;

use crate::synth::shape::{Family, Shape};
use crate::synth::{Format, Options, Routing};

/// What a tensor holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fill {
    /// Independent numbers with mean 0 and this deviation.
    Random(f32),
    /// Norm weights: around 1.
    Norm,
    /// Exactly these numbers.
    Values(Vec<f32>),
    /// Bytes of packed e2m1 codes.
    Codes,
    /// e8m0 scales that give codes this deviation.
    Scales(f32),
}

/// One tensor to write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) plan: TensorPlan,
    pub(crate) fill: Fill,
}

/// Deviation of the router's logits over tokens: that of Gumbel noise, under which the bias
/// `ln p` gives expert popularity `p`.
const ROUTER_DEVIATION: f32 = 1.28;

/// Collects entries; knows how the two formats name and store things.
struct Planner<'a> {
    options: &'a Options,
    shape: &'a Shape,
    entries: Vec<Entry>,
}

/// The tensors of a checkpoint.
pub(crate) fn entries(options: &Options, shape: &Shape) -> Vec<Entry> {
    let mut planner = Planner { options, shape, entries: Vec::new() };
    planner.matrix("token_embd.weight", "model.embed_tokens.weight", &[shape.hidden], 1.0);
    for layer in 0..shape.layers {
        planner.attention(layer);
        match shape.family {
            Family::GptOss => planner.experts(layer),
            Family::Llama => planner.dense(layer),
        }
    }
    planner.norm("output_norm.weight", "model.norm.weight");
    if !shape.tied {
        planner.head();
    }
    planner.entries
}

impl Planner<'_> {
    fn add(&mut self, name: String, dtype: Dtype, shape: &[usize], fill: Fill) {
        let plan = TensorPlan { name, dtype, shape: shape.to_vec() };
        self.entries.push(Entry { plan, fill });
    }

    fn pick(&self, gguf: &str, json: &str) -> String {
        if self.options.format == Format::Gguf { gguf.to_owned() } else { json.to_owned() }
    }

    fn layer(&self, layer: usize, gguf: &str, json: &str) -> String {
        self.pick(&format!("blk.{layer}.{gguf}"), &format!("model.layers.{layer}.{json}"))
    }

    /// The type of vectors: 32 bits in GGUF, the weights' own in safetensors.
    fn vector_dtype(&self) -> Dtype {
        if self.options.format == Format::Gguf { Dtype::F32 } else { self.options.dense() }
    }

    /// A table of one row for each token.
    fn matrix(&mut self, gguf: &str, json: &str, columns: &[usize], deviation: f32) {
        let name = self.pick(gguf, json);
        let shape = [&[self.shape.vocabulary], columns].concat();
        self.add(name, self.options.dense(), &shape, Fill::Random(deviation));
    }

    fn head(&mut self) {
        let name = self.pick("output.weight", "lm_head.weight");
        let dtype = self.options.head.unwrap_or(self.options.dense());
        // Logits of deviation 3: neither flat nor certain.
        let deviation = 3.0 / (self.shape.hidden as f32).sqrt();
        let shape = [self.shape.vocabulary, self.shape.hidden];
        self.add(name, dtype, &shape, Fill::Random(deviation));
    }

    fn norm(&mut self, gguf: &str, json: &str) {
        let name = self.pick(gguf, json);
        self.add(name, self.vector_dtype(), &[self.shape.hidden], Fill::Norm);
    }

    fn vector(&mut self, name: String, shape: &[usize], deviation: f32) {
        self.add(name, self.vector_dtype(), shape, Fill::Random(deviation));
    }

    /// A matrix of a layer whose output has unit size, or, when `residual`, its share of the
    /// residual stream.
    fn projection(&mut self, name: String, rows: usize, columns: usize, residual: bool) {
        let fill = Fill::Random(self.deviation(columns, residual));
        self.add(name, self.options.dense(), &[rows, columns], fill);
    }

    fn deviation(&self, columns: usize, residual: bool) -> f32 {
        let share = if residual { (2 * self.shape.layers) as f32 } else { 1.0 };
        1.0 / (columns as f32 * share).sqrt()
    }

    fn attention(&mut self, layer: usize) {
        let Shape { hidden, heads, kv_heads, head_dim, family, .. } = *self.shape;
        let name = self.layer(layer, "attn_norm.weight", "input_layernorm.weight");
        self.norm(&name, &name);
        let parts =
            [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)];
        for (part, rows) in parts {
            let gguf = format!("attn_{part}");
            let json = format!("self_attn.{part}_proj");
            self.linear(layer, (&gguf, &json), rows, hidden, false);
        }
        let output = ("attn_output", "self_attn.o_proj");
        self.linear(layer, output, hidden, heads * head_dim, true);
        if family == Family::GptOss {
            let name = self.layer(layer, "attn_sinks.weight", "self_attn.sinks");
            self.vector(name, &[heads], 1.0);
        }
        let gguf =
            if family == Family::GptOss { "post_attention_norm.weight" } else { "ffn_norm.weight" };
        let name = self.layer(layer, gguf, "post_attention_layernorm.weight");
        self.norm(&name, &name);
    }

    /// A matrix, by its name in GGUF and in safetensors, and its bias where the family has one.
    fn linear(
        &mut self,
        layer: usize,
        (gguf, json): (&str, &str),
        rows: usize,
        columns: usize,
        residual: bool,
    ) {
        let name = self.layer(layer, &format!("{gguf}.weight"), &format!("{json}.weight"));
        self.projection(name, rows, columns, residual);
        if self.shape.family == Family::GptOss {
            let name = self.layer(layer, &format!("{gguf}.bias"), &format!("{json}.bias"));
            self.vector(name, &[rows], 0.02);
        }
    }

    fn dense(&mut self, layer: usize) {
        let Shape { hidden, inner, .. } = *self.shape;
        for part in ["gate", "up"] {
            let gguf = format!("ffn_{part}.weight");
            let name = self.layer(layer, &gguf, &format!("mlp.{part}_proj.weight"));
            self.projection(name, inner, hidden, false);
        }
        let name = self.layer(layer, "ffn_down.weight", "mlp.down_proj.weight");
        self.projection(name, hidden, inner, true);
    }

    fn experts(&mut self, layer: usize) {
        let Shape { hidden, inner, experts, .. } = *self.shape;
        let name = self.layer(layer, "ffn_gate_inp.weight", "mlp.router.weight");
        let fill = Fill::Random(ROUTER_DEVIATION / (hidden as f32).sqrt());
        self.add(name, self.vector_dtype(), &[experts, hidden], fill);
        let name = self.layer(layer, "ffn_gate_inp.bias", "mlp.router.bias");
        let biases = self.router_biases(layer);
        self.add(name, self.vector_dtype(), &[experts], Fill::Values(biases));
        if self.options.format == Format::Gguf {
            for (part, rows, columns) in
                [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)]
            {
                let deviation = self.deviation(columns, part == "down");
                let name = format!("blk.{layer}.ffn_{part}_exps");
                let shape = [experts, rows, columns];
                self.add(format!("{name}.weight"), Dtype::Mxfp4, &shape, Fill::Random(deviation));
                self.vector(format!("{name}.bias"), &[experts, rows], 0.02);
            }
        } else {
            for (part, rows, columns) in [("gate_up", 2 * inner, hidden), ("down", hidden, inner)] {
                let deviation = self.deviation(columns, part == "down");
                let name = format!("model.layers.{layer}.mlp.experts.{part}_proj");
                let blocks = [experts, rows, columns / 32, 16];
                self.vector(format!("{name}_bias"), &[experts, rows], 0.02);
                self.add(format!("{name}_blocks"), Dtype::U8, &blocks, Fill::Codes);
                let scales = Fill::Scales(deviation);
                self.add(format!("{name}_scales"), Dtype::U8, &blocks[..3], scales);
            }
        }
    }

    /// Zero, or the logarithm of a Zipf distribution over a seeded order of the experts.
    fn router_biases(&self, layer: usize) -> Vec<f32> {
        let experts = self.shape.experts;
        if self.options.routing == Routing::Uniform {
            return vec![0.0; experts];
        }
        let mut ranks: Vec<usize> = (0..experts).collect();
        Seeded::new(self.options.seed ^ (layer as u64 + 1) << 40).shuffle(&mut ranks);
        ranks.iter().map(|rank| -((rank + 1) as f32).ln()).collect()
    }
}
