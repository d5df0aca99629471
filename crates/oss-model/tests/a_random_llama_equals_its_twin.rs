//! A Llama of random weights against a forward pass in double precision that shares no code with
//! the crate, and its safetensors against its GGUF, whose rotated heads are stored pair by pair.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting};
use oss_kernels::Activation;
use oss_quant::Dtype;
use oss_simd::Isa;
use oss_testing::{Seeded, assert_close, relative_rms, twins};
use oss_weights::{TensorPlan, gguf, safetensors};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

const INNER: usize = 160;
const VOCABULARY: usize = 77;
const THETA: f64 = 500_000.0;
const EPSILON: f64 = 1e-5;

/// What differs between the models of the test.
#[derive(Clone, Copy)]
struct Shape {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    tied: bool,
    dtype: Dtype,
    stretch: Stretch,
    /// Whether `config.json` says that in `rope_parameters`, as transformers 5 writes it.
    in_parameters: bool,
    biased: bool,
}

/// How wavelengths are stretched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stretch {
    Not,
    /// All four times.
    Linear,
    /// As Llama 3.1 does.
    Bands,
}

/// A matrix as the file holds it, and its numbers.
struct Matrix {
    rows: usize,
    cols: usize,
    dtype: Dtype,
    bytes: Vec<u8>,
    numbers: Vec<f64>,
}

impl Matrix {
    fn random(dtype: Dtype, rows: usize, cols: usize, seeded: &mut Seeded) -> Self {
        let row_bytes = dtype.row_bytes(cols).unwrap();
        let mut bytes = vec![0; rows * row_bytes];
        let mut numbers = vec![0.0; rows * cols];
        let all = bytes.chunks_exact_mut(row_bytes).zip(numbers.chunks_exact_mut(cols));
        for (bytes, numbers) in all {
            let values = if rows == 1 {
                seeded.uniforms(cols, 0.5, 1.5)
            } else {
                seeded.normals(cols, 1.5 / (cols as f32).sqrt())
            };
            dtype.quantise_row(&values, bytes).unwrap();
            let mut back = vec![0.0f32; cols];
            dtype.dequantise_row(Isa::scalar(), bytes, &mut back).unwrap();
            numbers.iter_mut().zip(back).for_each(|(to, x)| *to = f64::from(x));
        }
        Self { rows, cols, dtype, bytes, numbers }
    }

    /// Biases, one a row.
    fn biases(numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (rows, numbers) = (numbers.len(), twins::widen(numbers));
        Self { rows, cols: 1, dtype: Dtype::F32, bytes, numbers }
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.numbers.chunks_exact(self.cols).map(|row| twins::dot(row, x)).collect()
    }

    /// The rows in another order.
    fn permuted(&self, order: impl Fn(usize) -> usize) -> Vec<u8> {
        let row_bytes = self.bytes.len() / self.rows;
        (0..self.rows)
            .flat_map(|row| self.bytes[order(row) * row_bytes..][..row_bytes].to_vec())
            .collect()
    }
}

struct Llama {
    shape: Shape,
    matrices: HashMap<String, Matrix>,
    /// By the names of their matrices.
    biases: HashMap<String, Matrix>,
}

const PARTS: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Biases that GGUF files of the test do not have, and that are 0 elsewhere.
const WITHOUT_BIAS: [&str; 3] = [
    "model.layers.1.self_attn.k_proj",
    "model.layers.0.self_attn.o_proj",
    "model.layers.1.mlp.gate_proj",
];

impl Llama {
    fn random(shape: Shape, seeded: &mut Seeded) -> Self {
        let mut matrices = HashMap::new();
        let Shape { hidden, layers, .. } = shape;
        let (q, kv) = (shape.heads * shape.dim, shape.kv_heads * shape.dim);
        let mut add = |name: String, rows, cols| {
            let dtype = if rows == 1 { Dtype::F32 } else { shape.dtype };
            matrices.insert(name, Matrix::random(dtype, rows, cols, seeded));
        };
        add("model.embed_tokens".into(), VOCABULARY, hidden);
        add("model.norm".into(), 1, hidden);
        if !shape.tied {
            add("lm_head".into(), VOCABULARY, hidden);
        }
        for layer in 0..layers {
            for (part, _) in PARTS {
                let (rows, cols) = match part {
                    "self_attn.q_proj" => (q, hidden),
                    "self_attn.k_proj" | "self_attn.v_proj" => (kv, hidden),
                    "self_attn.o_proj" => (hidden, q),
                    "mlp.gate_proj" | "mlp.up_proj" => (INNER, hidden),
                    "mlp.down_proj" => (hidden, INNER),
                    _ => (1, hidden),
                };
                add(format!("model.layers.{layer}.{part}"), rows, cols);
            }
        }
        let mut biases = HashMap::new();
        let layers = if shape.biased { 0..layers } else { 0..0 };
        let projections = PARTS.map(|(part, _)| part).into_iter().filter(|p| p.ends_with("_proj"));
        for (layer, part) in layers.flat_map(|layer| projections.clone().map(move |p| (layer, p))) {
            let name = format!("model.layers.{layer}.{part}");
            let deviation = if WITHOUT_BIAS.contains(&name.as_str()) { 0.0 } else { 0.3 };
            let numbers = seeded.normals(matrices[&name].rows, deviation);
            biases.insert(name, Matrix::biases(&numbers));
        }
        Self { shape, matrices, biases }
    }

    fn plan(name: String, matrix: &Matrix) -> TensorPlan {
        let shape =
            if matrix.rows == 1 { vec![matrix.cols] } else { vec![matrix.rows, matrix.cols] };
        TensorPlan { name, dtype: matrix.dtype, shape }
    }

    fn bias_plan(name: String, bias: &Matrix) -> TensorPlan {
        TensorPlan { name, dtype: bias.dtype, shape: vec![bias.rows] }
    }

    fn write_safetensors(&self, folder: &Path) {
        let mut config = json!({
            "model_type": "llama", "hidden_size": self.shape.hidden, "intermediate_size": INNER,
            "num_attention_heads": self.shape.heads, "num_key_value_heads": self.shape.kv_heads,
            "head_dim": self.shape.dim, "num_hidden_layers": self.shape.layers,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": EPSILON, "max_position_embeddings": 4096,
            "hidden_act": "silu", "tie_word_embeddings": self.shape.tied,
            "attention_bias": self.shape.biased, "mlp_bias": self.shape.biased,
        });
        let mut stretch = match self.shape.stretch {
            Stretch::Not => json!({ "rope_type": "default" }),
            // Older files have the type under another name.
            Stretch::Linear => json!({ "type": "linear", "factor": 4.0 }),
            Stretch::Bands => json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            }),
        };
        if self.shape.in_parameters {
            stretch["rope_theta"] = THETA.into();
            config["rope_parameters"] = stretch;
        } else {
            config["rope_theta"] = THETA.into();
            config["rope_scaling"] = stretch;
        }
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let weights = self.matrices.iter().map(|(n, m)| Self::plan(format!("{n}.weight"), m));
        let biases = self.biases.iter().map(|(n, b)| Self::bias_plan(format!("{n}.bias"), b));
        let plans: Vec<TensorPlan> = weights.chain(biases).collect();
        let path = folder.join("model.safetensors");
        let mut writer = safetensors::Writer::create(&path, &[], &plans).unwrap();
        for matrix in self.matrices.values().chain(self.biases.values()) {
            writer.tensor_bytes(&matrix.bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    /// The published layout: other names, and the rows of rotated heads interleaved.
    fn write_gguf(&self, path: &Path) {
        let n = |value: usize| oss_weights::Value::from(value as u32);
        let mut metadata = vec![
            ("general.architecture".to_owned(), "llama".into()),
            ("llama.block_count".to_owned(), n(self.shape.layers)),
            ("llama.context_length".to_owned(), n(4096)),
            ("llama.embedding_length".to_owned(), n(self.shape.hidden)),
            ("llama.feed_forward_length".to_owned(), n(INNER)),
            ("llama.attention.head_count".to_owned(), n(self.shape.heads)),
            ("llama.attention.head_count_kv".to_owned(), n(self.shape.kv_heads)),
            ("llama.attention.key_length".to_owned(), n(self.shape.dim)),
            ("llama.attention.layer_norm_rms_epsilon".to_owned(), (EPSILON as f32).into()),
        ];
        metadata.push(("llama.rope.freq_base".to_owned(), (THETA as f32).into()));
        if self.shape.stretch == Stretch::Linear {
            metadata.push(("llama.rope.scaling.type".to_owned(), "linear".into()));
            metadata.push(("llama.rope.scaling.factor".to_owned(), 4f32.into()));
        }
        let gguf_name = |name: &str| {
            let name = name.replace("model.layers.", "blk.");
            PARTS.iter().fold(name, |name, (from, to)| name.replace(from, to))
        };
        let top = [
            ("model.embed_tokens", "token_embd"),
            ("model.norm", "output_norm"),
            ("lm_head", "output"),
        ];
        let rename = |name: &String| {
            let found = top.iter().find(|(from, _)| from == name);
            found.map_or_else(|| gguf_name(name), |(_, to)| (*to).to_owned())
        };
        let mut tensors: Vec<(TensorPlan, Vec<u8>)> = Vec::new();
        let half = self.shape.dim / 2;
        let interleaved = |row: usize| {
            let (head, i) = (row / self.shape.dim, row % self.shape.dim);
            head * self.shape.dim + i / 2 + (i % 2) * half
        };
        let bytes = |name: &str, matrix: &Matrix| {
            if name.contains("q_proj") || name.contains("k_proj") {
                matrix.permuted(interleaved)
            } else {
                matrix.bytes.clone()
            }
        };
        for (name, matrix) in &self.matrices {
            let plan = Self::plan(format!("{}.weight", rename(name)), matrix);
            tensors.push((plan, bytes(name, matrix)));
        }
        let written = self.biases.iter().filter(|(name, _)| !WITHOUT_BIAS.contains(&name.as_str()));
        for (name, bias) in written {
            let plan = Self::bias_plan(format!("{}.bias", rename(name)), bias);
            tensors.push((plan, bytes(name, bias)));
        }
        if self.shape.stretch == Stretch::Bands {
            let divisors: Vec<u8> = frequencies(self.shape)
                .iter()
                .enumerate()
                .flat_map(|(i, f)| ((plain(self.shape, i) / f) as f32).to_le_bytes())
                .collect();
            let shape = vec![self.shape.dim / 2];
            let name = "rope_freqs.weight".to_owned();
            tensors.push((TensorPlan { name, dtype: Dtype::F32, shape }, divisors));
        }
        let plans: Vec<TensorPlan> = tensors.iter().map(|(plan, _)| plan.clone()).collect();
        let mut writer = gguf::Writer::create(path, &metadata, &plans).unwrap();
        for (_, bytes) in &tensors {
            writer.tensor_bytes(bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    /// The logits of all positions, in double precision.
    fn twin(&self, ids: &[u32]) -> Vec<f64> {
        let Shape { hidden, layers, heads, kv_heads, dim, .. } = self.shape;
        let get =
            |layer: usize, part: &str| &self.matrices[&format!("model.layers.{layer}.{part}")];
        let project = |layer: usize, part: &str, x: &[f64]| {
            let mut out = get(layer, part).times(x);
            if let Some(bias) = self.biases.get(&format!("model.layers.{layer}.{part}")) {
                out.iter_mut().zip(&bias.numbers).for_each(|(out, bias)| *out += bias);
            }
            out
        };
        let embedding = &self.matrices["model.embed_tokens"];
        let mut x: Vec<Vec<f64>> = ids
            .iter()
            .map(|id| embedding.numbers[*id as usize * hidden..][..hidden].to_vec())
            .collect();
        for layer in 0..layers {
            let gain = |part| &get(layer, part).numbers;
            let normed: Vec<Vec<f64>> =
                x.iter().map(|x| norm(x, gain("input_layernorm"))).collect();
            let turned = |part: &str| -> Vec<Vec<f64>> {
                let rows = normed.iter().map(|x| project(layer, part, x)).enumerate();
                rows.map(|(position, row)| turn(self.shape, position, row)).collect()
            };
            let (q, k) = (turned("self_attn.q_proj"), turned("self_attn.k_proj"));
            let v: Vec<Vec<f64>> =
                normed.iter().map(|x| project(layer, "self_attn.v_proj", x)).collect();
            for position in 0..ids.len() {
                let mut out = Vec::new();
                for head in 0..heads {
                    let kv = head / (heads / kv_heads) * dim;
                    let query = &q[position][head * dim..][..dim];
                    let scores: Vec<f64> = (0..=position)
                        .map(|p| twins::dot(query, &k[p][kv..][..dim]))
                        .map(|score| score / (dim as f64).sqrt())
                        .collect();
                    let weights = twins::softmax(&scores);
                    out.extend(
                        (0..dim).map(|d| {
                            weights.iter().zip(&v).map(|(w, v)| w * v[kv + d]).sum::<f64>()
                        }),
                    );
                }
                let add = project(layer, "self_attn.o_proj", &out);
                x[position].iter_mut().zip(add).for_each(|(x, add)| *x += add);
            }
            for x in &mut x {
                let normed = norm(x, gain("post_attention_layernorm"));
                let gate = project(layer, "mlp.gate_proj", &normed);
                let up = project(layer, "mlp.up_proj", &normed);
                let inner: Vec<f64> =
                    gate.iter().zip(up).map(|(g, u)| twins::swish(*g, 1.0) * u).collect();
                let add = project(layer, "mlp.down_proj", &inner);
                x.iter_mut().zip(add).for_each(|(x, add)| *x += add);
            }
        }
        let head = self.matrices.get("lm_head").unwrap_or(embedding);
        let gain = &self.matrices["model.norm"].numbers;
        x.iter().flat_map(|x| head.times(&norm(x, gain))).collect()
    }
}

fn norm(x: &[f64], gain: &[f64]) -> Vec<f64> {
    twins::rms_norm(x, gain, EPSILON)
}

fn plain(shape: Shape, i: usize) -> f64 {
    THETA.powf(-2.0 * i as f64 / shape.dim as f64)
}

/// Llama 3.1's rule as its paper's code has it: factor 8, bands 1 and 4, 64 positions.
fn banded(f: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / f;
    if wavelength < 64.0 / 4.0 {
        f
    } else if wavelength > 64.0 {
        f / 8.0
    } else {
        let smooth = (64.0 / wavelength - 1.0) / 3.0;
        (1.0 - smooth) * f / 8.0 + smooth * f
    }
}

fn frequencies(shape: Shape) -> Vec<f64> {
    let stretched = |f: f64| match shape.stretch {
        Stretch::Not => f,
        Stretch::Linear => f / 4.0,
        Stretch::Bands => banded(f),
    };
    (0..shape.dim / 2).map(|i| stretched(plain(shape, i))).collect()
}

fn turn(shape: Shape, position: usize, mut row: Vec<f64>) -> Vec<f64> {
    let half = shape.dim / 2;
    for head in row.chunks_exact_mut(shape.dim) {
        for (i, f) in frequencies(shape).into_iter().enumerate() {
            let (sin, cos) = (f * position as f64).sin_cos();
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * cos - b * sin;
            head[i + half] = b * cos + a * sin;
        }
    }
    row
}

const NARROW: Shape = Shape {
    hidden: 96,
    layers: 2,
    heads: 6,
    kv_heads: 2,
    dim: 16,
    tied: true,
    dtype: Dtype::F32,
    stretch: Stretch::Not,
    in_parameters: false,
    biased: false,
};
const BANDED: Shape = Shape { tied: false, stretch: Stretch::Bands, ..NARROW };
const BIASED: Shape = Shape { biased: true, ..NARROW };
const SHAPES: [Shape; 6] = [
    NARROW,
    Shape { heads: 3, kv_heads: 3, dim: 20, dtype: Dtype::F16, ..BANDED },
    Shape { heads: 4, kv_heads: 1, dim: 40, dtype: Dtype::Bf16, in_parameters: true, ..BANDED },
    Shape { heads: 9, kv_heads: 3, dim: 32, dtype: Dtype::Q8_0, ..NARROW },
    Shape { stretch: Stretch::Linear, ..BIASED },
    Shape { dim: 24, dtype: Dtype::F16, in_parameters: true, ..BIASED },
];
/// So wide that norms ride on products of few rows too, and that one thread takes these in wider
/// units; the last block of columns is half as long.
const WIDE: Shape = Shape { hidden: 2080, layers: 1, dim: 32, dtype: Dtype::Q8_0, ..NARROW };

#[test]
fn logits_are_those_of_double_precision_from_either_file_format() {
    let mut seeded = Seeded::new(11);
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..90).map(|i| i * i * 7 % VOCABULARY as u32).collect();
    for shape in SHAPES {
        let llama = Llama::random(shape, &mut seeded);
        let path = folder.path().join("model.gguf");
        llama.write_gguf(&path);
        let from_gguf = Runner::new(&path, Setting::exact()).logits(&ids, 64);
        assert_close(&from_gguf, &llama.twin(&ids), 2e-4, 2e-4);
        if shape.dtype != Dtype::Q8_0 {
            llama.write_safetensors(folder.path());
            let from_safetensors = Runner::new(folder.path(), Setting::exact()).logits(&ids, 90);
            assert_close(&from_safetensors, &from_gguf, 2e-5, 2e-5);
        }
        let packed = folder.path().join("model.oss");
        let container = oss_weights::Container::open(&path).unwrap();
        oss_model::pack_to_file(&container, &oss_model::Precision::default(), &packed, None)
            .unwrap();
        let from_packed = Runner::new(&packed, Setting::exact()).logits(&ids, 7);
        assert!(from_packed == from_gguf, "{} heads", shape.heads);
        std::fs::remove_file(&packed).unwrap();
    }
}

#[test]
fn a_wide_prompt_gives_the_same_bits_in_chunks_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let ids: Vec<u32> = (0..48).map(|i| i * i * 7 % VOCABULARY as u32).collect();
    for (activation, biased, error) in
        [(Activation::F32, true, 1e-5), (Activation::Int8, false, 0.02)]
    {
        let llama = Llama::random(Shape { biased, ..WIDE }, &mut Seeded::new(12));
        llama.write_gguf(&path);
        let twin = llama.twin(&ids);
        let setting = |threads| Setting { activation, threads, ..Setting::exact() };
        let whole = Runner::new(&path, setting(2)).logits(&ids, 48);
        let off = relative_rms(&whole, &twin);
        assert!(off < error, "{activation:?}: {off}");
        for threads in [1, 2, 12] {
            let mut runner = Runner::new(&path, setting(threads));
            for chunk in [1, 7, 40] {
                let same = runner.logits(&ids, chunk) == whole;
                assert!(same, "{activation:?}, {threads} threads, chunks of {chunk}");
            }
        }
    }
}
