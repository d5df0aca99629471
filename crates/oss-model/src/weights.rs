//! A model's weights, packed for the kernels.
//!
//! Loading has two steps: the plan becomes a layout (which matrix lies where), then all matrices
//! are packed in parallel, slab by slab, and the pages of the source are handed back, so that no
//! more than a slab is resident twice. The same layout describes a packed file,
//! which is mapped instead: nothing is read before it is used. Where memory is short, its experts
//! stay in the file, except as many as there are slots.

mod content;
mod experts;
mod layout;
mod load_pool;
mod pack;
mod packed_file;
mod placement;
mod repack;
mod rounds;
mod storage;
mod vectors;
mod verify;

pub(crate) use experts::Predictions;
pub use experts::{ExpertUse, Popularity};
pub use placement::{memory_policy, team_options};
pub use repack::site_bytes;
pub use rounds::ExpertRoom;
pub(crate) use rounds::{Round, Rounds};
pub(crate) use vectors::numbers;
pub use verify::InUse;

use crate::config::{Config, FeedForward, LayerConfig};
use crate::error::{Error, Result};
use crate::plan::{FeedForwardPlan, LayerPlan, MatrixPlan, ModelPlan};
use crate::precision::Precision;
use crate::tiling::Tiling;
use layout::Layout;
use oss_memory::Pages;
use oss_quant::{GROUP_ROWS, Matrix, Packing};
use oss_simd::Isa;
use oss_weights::{Container, Kind};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use storage::Storage;

/// What loading reports: bytes packed so far, of how many. A break ends it
/// ([`Error::Cancelled`](crate::Error::Cancelled)).
pub type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

/// Where one packed matrix lies.
#[derive(Clone, Debug)]
pub(crate) struct MatrixLocation {
    /// Its format and size.
    pub(crate) packing: Packing,
    /// The section of the layout.
    section: usize,
    /// Where it begins there.
    start: usize,
}

impl MatrixLocation {
    /// Its bytes of the section.
    fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.packing.bytes()
    }
}

/// A matrix whose parts may have different formats: its rows are those of the parts, in order.
#[derive(Clone, Debug)]
pub(crate) struct PackedMatrix {
    /// The parts, each with the first of its rows.
    pub(crate) parts: Vec<(usize, MatrixLocation)>,
    /// Rows of all parts.
    pub(crate) rows: usize,
    /// Parts begin at multiples of so many rows: 64, or 16.
    pub(crate) parts_begin_at: usize,
}

/// Rows that a unit of work computes at least, if it can.
pub(crate) const UNIT_ROWS: usize = 64;
/// Matrices of fewer rows are cut finer, so that every worker gets its share,
const COARSE_ROWS: usize = 2048;
/// but for so many input rows, which are cut too.
const MANY_INPUTS: usize = 32;
/// So many inputs are few: units may then have more rows, since no weights are read from one unit
/// to the next,
pub(crate) const FEW_INPUTS: usize = 16;
/// as long as each worker has so many units, so that all end at about the same time.
const UNITS: usize = 16;
/// Rows that a unit computes where these would be fewer than so many units for each worker of a
/// large matrix: sums of squares are those of so many columns.
pub(crate) const FINE_ROWS: usize = 32;
/// As of [`FINE_ROWS`].
const LEAST_UNITS: usize = 3;

impl PackedMatrix {
    /// Bytes of its packed parts.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, location)| location.packing.bytes()).sum()
    }

    /// Rows that a unit of work computes for so many input rows where several such matrices are
    /// shared out to `threads`: what the tiling says, or 16 of small matrices and where a part
    /// begins elsewhere. Of large ones not fewer than `least`, which is 64 or 32.
    pub(crate) fn unit_rows(
        &self,
        tiling: Tiling,
        (inputs, matrices): (usize, usize),
        (threads, least): (usize, usize),
    ) -> usize {
        let coarse = self.rows >= COARSE_ROWS || inputs >= MANY_INPUTS;
        if !coarse {
            return GROUP_ROWS;
        }
        if self.parts_begin_at < UNIT_ROWS {
            return self.parts_begin_at;
        }
        let rows = self.coarse_unit_rows(tiling, (inputs, matrices), threads);
        let units = matrices * self.rows / UNIT_ROWS * inputs.div_ceil(tiling.input_rows);
        let is_large = self.rows >= COARSE_ROWS && rows == UNIT_ROWS;
        if is_large && units < LEAST_UNITS * threads { least } else { rows }
    }

    /// The same for matrices whose units are never cut finer than 64 rows.
    pub(crate) fn coarse_unit_rows(
        &self,
        tiling: Tiling,
        (inputs, matrices): (usize, usize),
        threads: usize,
    ) -> usize {
        let begins = |rows: &usize| self.parts.iter().all(|(first, _)| first.is_multiple_of(*rows));
        let serves = |rows: &usize| matrices * self.rows / rows >= UNITS * threads;
        if inputs > FEW_INPUTS {
            return Some(tiling.matrix_rows).filter(begins).unwrap_or(UNIT_ROWS);
        }
        let halves = |rows: &usize| (*rows > UNIT_ROWS).then_some(rows / 2);
        let mut wide = std::iter::successors(Some(tiling.wide_rows), halves);
        wide.find(|rows| begins(rows) && serves(rows)).unwrap_or(UNIT_ROWS)
    }

    /// The part that a unit of `unit_rows` lies in, the unit's groups of 16 rows there, and how
    /// many of those rows are no padding.
    pub(crate) fn unit(
        &self,
        unit: usize,
        unit_rows: usize,
    ) -> (&MatrixLocation, Range<usize>, usize) {
        let row = unit * unit_rows;
        let index = self.parts.partition_point(|(first, _)| *first <= row) - 1;
        let (first, location) = &self.parts[index];
        let local = row - first;
        let rows = unit_rows.min(location.packing.rows - local);
        (location, local / GROUP_ROWS..(local + rows).div_ceil(GROUP_ROWS), rows)
    }
}

/// The weights of a model.
pub struct Weights {
    container: Arc<Container>,
    storage: Storage,
    /// The pages that memory of the weights' own is to lie on.
    pages: Pages,
    /// As many as use the weights, and one.
    users: Arc<()>,
    /// What was found wrong with the packed file.
    damage: OnceLock<Arc<oss_weights::Error>>,
    pub(crate) embedding: Embedding,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: PackedMatrix,
    pub(crate) layers: Vec<LayerWeights>,
}

/// Where tokens are looked up.
pub(crate) enum Embedding {
    /// In the head's matrix.
    Tied,
    /// In the file's own tensor.
    Tensor(String),
}

pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) qkv: PackedMatrix,
    pub(crate) qkv_bias: Option<Vec<f32>>,
    pub(crate) output: PackedMatrix,
    pub(crate) output_bias: Option<Vec<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) feed_forward: FeedForwardWeights,
    /// `[networks, 2 intermediate_dim]`, paired as the matrices are.
    pub(crate) gate_up_bias: Option<Vec<f32>>,
    /// `[networks, hidden_dim]`.
    pub(crate) down_bias: Option<Vec<f32>>,
}

pub(crate) enum FeedForwardWeights {
    Dense(Network),
    Experts(ExpertWeights),
}

impl FeedForwardWeights {
    pub(crate) const fn has_router(&self) -> bool {
        matches!(self, Self::Experts(_))
    }
}

pub(crate) struct ExpertWeights {
    /// How many of them a row goes to.
    pub(crate) top_k: usize,
    /// Numbers between an expert's matrices.
    pub(crate) intermediate_dim: usize,
    pub(crate) router: PackedMatrix,
    pub(crate) router_bias: Option<Vec<f32>>,
    pub(crate) experts: Vec<Network>,
}

/// The two matrices of a gated network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Sixteen gate rows, sixteen up rows, and so on.
    pub(crate) gate_up: PackedMatrix,
    /// `[hidden_dim, intermediate_dim]`.
    pub(crate) down: PackedMatrix,
}

impl Network {
    /// Bytes of both.
    pub(crate) fn bytes(&self) -> usize {
        self.gate_up.bytes() + self.down.bytes()
    }
}

impl Weights {
    /// Packs what the plan lists, or maps it where the container is a packed file.
    ///
    /// # Errors
    /// When a tensor is missing, has another shape or an unusable type, or memory is refused.
    pub fn load(
        container: Arc<Container>,
        (config, plan): (&Config, &ModelPlan),
        pages: Pages,
        progress: Option<Progress<'_>>,
    ) -> Result<Self> {
        let (layout, parts) = arrange(&container, config, plan, &Precision::default())?;
        let storage = match container.kind() {
            Kind::Packed => Storage::mapped(&layout)?,
            Kind::Gguf | Kind::Safetensors => {
                Storage::Memory(pack::to_memory(&layout, pages, progress)?)
            }
        };
        drop(layout);
        let Parts { embedding, norm, head, layers } = parts;
        let (users, damage) = Default::default();
        Ok(Self { container, storage, pages, users, damage, embedding, norm, head, layers })
    }

    /// A packed matrix.
    pub(crate) fn matrix(&self, location: &MatrixLocation) -> Matrix<'_> {
        let section = self.storage.section(&self.container, location.section);
        Matrix { packing: location.packing, bytes: &section[location.bytes()] }
    }

    /// All matrices but for routers.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let in_layers = self.layers.iter().flat_map(|layer| {
            let networks = match &layer.feed_forward {
                FeedForwardWeights::Dense(network) => std::slice::from_ref(network),
                FeedForwardWeights::Experts(weights) => &weights.experts,
            };
            let networks = networks.iter().flat_map(|network| [&network.gate_up, &network.down]);
            [&layer.qkv, &layer.output].into_iter().chain(networks)
        });
        in_layers.chain([&self.head])
    }

    /// All packed parts of matrices, those of routers too.
    fn locations(&self) -> impl Iterator<Item = &MatrixLocation> {
        let routers = self.layers.iter().filter_map(|layer| match &layer.feed_forward {
            FeedForwardWeights::Experts(weights) => Some(&weights.router),
            FeedForwardWeights::Dense(_) => None,
        });
        self.matrices()
            .chain(routers)
            .flat_map(|matrix| &matrix.parts)
            .map(|(_, location)| location)
    }

    /// Whether some matrices, but for routers, are of floating-point numbers.
    pub(crate) fn has_float_matrices(&self) -> bool {
        let mut all = self.matrices().flat_map(|matrix| &matrix.parts);
        all.any(|(_, location)| location.packing.format.is_float())
    }

    /// Brings the matrices of a packed file into memory, section by section, and sees to it that
    /// they lie on huge pages: addresses are then translated sooner. Where the system can keep the
    /// file itself on huge pages, what lies on small ones is read again; elsewhere sections are
    /// copied, to memory of this process's own. Others may compute meanwhile. `go_on` is asked
    /// before each section, with its bytes, and before each few megabytes of it. Where the weights
    /// are not mapped there is nothing to do.
    ///
    /// # Errors
    /// When memory is refused; what has been copied stays.
    pub fn promote(&self, go_on: impl FnMut(usize) -> bool) -> Result<()> {
        self.storage.promote(&self.container, go_on)
    }

    /// Whether matrices lie in a mapped file, those that were promoted too.
    #[must_use]
    pub const fn are_mapped(&self) -> bool {
        matches!(self.storage, Storage::Mapped { .. })
    }

    /// The packed matrices as they lie in memory, to measure it: those that every token needs, then
    /// each layer's experts, unless these are in slots.
    #[must_use]
    pub fn sections(&self) -> Vec<&[u8]> {
        self.storage.sections(&self.container)
    }

    /// Bytes of packed matrices on huge pages that the administrator has set aside, where
    /// [`LoadOptions::pages`](crate::LoadOptions::pages) asks for them and there are enough.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.storage.reserved_bytes()
    }

    /// Bytes of all packed matrices, wherever they are.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Bytes that one token's forward pass and head read: all dense matrices once, and `top_k`
    /// experts of each layer.
    #[must_use]
    pub fn bytes_per_token(&self, config: &Config) -> usize {
        let experts = |(layer, config): (usize, &LayerConfig)| match config.feed_forward {
            FeedForward::Experts { top_k, .. } => top_k * self.expert_bytes(layer),
            FeedForward::Dense { .. } => 0,
        };
        self.dense_bytes() + config.layers.iter().enumerate().map(experts).sum::<usize>()
    }

    /// Bytes that every step reads: all matrices but the experts.
    #[must_use]
    pub fn dense_bytes(&self) -> usize {
        let layer = |layer: &LayerWeights| {
            let rest = match &layer.feed_forward {
                FeedForwardWeights::Experts(experts) => experts.router.bytes(),
                FeedForwardWeights::Dense(dense) => dense.bytes(),
            };
            layer.qkv.bytes() + layer.output.bytes() + rest
        };
        self.head.bytes() + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Bytes of one expert of a layer, which are all of one size; 0 where there are none.
    #[must_use]
    pub fn expert_bytes(&self, layer: usize) -> usize {
        match &self.layers[layer].feed_forward {
            FeedForwardWeights::Experts(experts) => {
                experts.experts.first().map_or(0, Network::bytes)
            }
            FeedForwardWeights::Dense(_) => 0,
        }
    }

    /// Writes a token's embedding to `out` (`[hidden_dim]`).
    pub(crate) fn embed(&self, isa: Isa, token: usize, out: &mut [f32]) -> Result<()> {
        match &self.embedding {
            Embedding::Tied => {
                let index = self.head.parts.partition_point(|(first, _)| *first <= token) - 1;
                let (first, location) = &self.head.parts[index];
                location.packing.unpack_row(isa, self.matrix(location).bytes, token - first, out);
                Ok(())
            }
            Embedding::Tensor(name) => {
                vectors::embedding_row(isa, &self.container, (name, token), out)
            }
        }
    }
}

/// What a layout is for: everything but the packed bytes.
struct Parts {
    embedding: Embedding,
    norm: Vec<f32>,
    head: PackedMatrix,
    layers: Vec<LayerWeights>,
}

/// Gives every matrix its place: first what every token needs, then the experts layer by layer.
fn arrange<'a>(
    container: &'a Container,
    config: &Config,
    plan: &ModelPlan,
    precision: &Precision,
) -> Result<(Layout<'a>, Parts)> {
    let mut layout = Layout::new(container, precision)?;
    let hidden = config.hidden_dim;
    layout.begin("dense".to_owned());
    let mut layers = Vec::with_capacity(plan.layers.len());
    for (plan, layer) in plan.layers.iter().zip(&config.layers) {
        layers.push(dense_weights(&mut layout, config, plan, layer.feed_forward)?);
    }
    let head = plan.head.as_ref().unwrap_or(&plan.embedding);
    let head = layout.matrix(&MatrixPlan::one(head.clone(), config.vocabulary), hidden)?;
    for (index, (plan, layer)) in plan.layers.iter().zip(&mut layers).enumerate() {
        let FeedForwardPlan::Experts(plan) = &plan.feed_forward else { continue };
        let FeedForwardWeights::Experts(weights) = &mut layer.feed_forward else { continue };
        let inner = config.layers[index].feed_forward.intermediate_dim();
        layout.begin(format!("experts.{index}"));
        for network in &plan.experts {
            let gate_up = layout.matrix(&network.gate_up, hidden)?;
            let down = layout.matrix(&network.down, inner)?;
            weights.experts.push(Network { gate_up, down });
        }
    }
    layout.check_precision()?;
    let norm = vectors::read(container, &plan.norm)?;
    let embedding = match plan.head {
        None => Embedding::Tied,
        Some(_) => {
            vectors::check_embedding(container, &plan.embedding, (config.vocabulary, hidden))?;
            Embedding::Tensor(plan.embedding.clone())
        }
    };
    Ok((layout, Parts { embedding, norm, head, layers }))
}

/// Bytes that the packed matrices of a container's model take, whether it is packed or not.
///
/// # Errors
/// When the model is not supported, or a tensor is missing or wrong.
pub fn packed_bytes(container: &Container) -> Result<usize> {
    let (config, plan) = crate::arch::describe(container)?;
    let (layout, _) = arrange(container, &config, &plan, &Precision::default())?;
    Ok(layout.sections.iter().map(|section| section.bytes).sum())
}

/// Bytes that the matrices of each type take in a file, and packed; see [`packed_bytes`].
///
/// # Errors
/// As [`packed_bytes`].
pub fn packed_bytes_by_type(container: &Container) -> Result<BTreeMap<&'static str, [usize; 2]>> {
    let (config, plan) = crate::arch::describe(container)?;
    let (layout, _) = arrange(container, &config, &plan, &Precision::default())?;
    let mut types = BTreeMap::new();
    for job in layout.sections.iter().flat_map(|section| &section.jobs) {
        let Packing { rows, cols, .. } = job.location.packing;
        let row_bytes = job.dtype.row_bytes(cols).expect("the layout has checked the columns");
        let [file, packed] = types.entry(job.dtype.name()).or_insert([0, 0]);
        *file += rows * row_bytes;
        *packed += job.location.packing.bytes();
    }
    Ok(types)
}

/// Whether a container's model is a mixture of experts.
///
/// # Errors
/// When the model is not supported.
pub fn has_experts(container: &Container) -> Result<bool> {
    let (config, _) = crate::arch::describe(container)?;
    let is_mixture =
        |layer: &LayerConfig| matches!(layer.feed_forward, FeedForward::Experts { .. });
    Ok(config.layers.iter().any(is_mixture))
}

/// The name of a container's packed file in a folder of such files: another one for other weights,
/// another configuration or tokenizer, another layout, and whenever a file has been written again.
///
/// # Errors
/// When it is a packed file, or a file beside the weights cannot be read.
pub fn packed_name(container: &Container) -> Result<String> {
    Ok(format!("{:032x}-{}.oss", packed_file::written(container)?, packed_file::LAYOUT))
}

/// Writes a container's model as a packed file, whole or not at all, its matrices in the types that
/// `precision` names; a call that was interrupted is continued by the next.
///
/// # Errors
/// When the model is not supported, a tensor is missing or wrong, or the file cannot be written;
/// when `precision` names what is no matrix of the model, or a type that cannot hold it.
pub fn pack_to_file(
    container: &Container,
    precision: &Precision,
    path: &Path,
    progress: Option<Progress<'_>>,
) -> Result<()> {
    if container.has_file(path) {
        let (what, got) = ("writing over the model", path.display().to_string());
        let expected = "another file".to_owned();
        return Err(Error::Unsupported { path: container.path().into(), what, got, expected });
    }
    let (config, plan) = crate::arch::describe(container)?;
    let (layout, _) = arrange(container, &config, &plan, precision)?;
    pack::to_file(&layout, path, progress)
}

/// A layer without its experts' matrices.
fn dense_weights(
    layout: &mut Layout<'_>,
    config: &Config,
    plan: &LayerPlan,
    feed_forward: FeedForward,
) -> Result<LayerWeights> {
    let (hidden, intermediate_dim) = (config.hidden_dim, feed_forward.intermediate_dim());
    let container = layout.container();
    let optional =
        |plan: &Option<_>| plan.as_ref().map(|p| vectors::read(container, p)).transpose();
    Ok(LayerWeights {
        attention_norm: vectors::read(container, &plan.attention_norm)?,
        qkv_bias: optional(&plan.qkv_bias)?,
        output_bias: optional(&plan.output_bias)?,
        sinks: optional(&plan.sinks)?,
        gate_up_bias: optional(&plan.gate_up_bias)?,
        down_bias: optional(&plan.down_bias)?,
        feed_forward_norm: vectors::read(container, &plan.feed_forward_norm)?,
        qkv: layout.matrix(&plan.qkv, hidden)?,
        output: layout.matrix(&plan.output, config.q_dim())?,
        feed_forward: match &plan.feed_forward {
            FeedForwardPlan::Dense(network) => FeedForwardWeights::Dense(Network {
                gate_up: layout.matrix(&network.gate_up, hidden)?,
                down: layout.matrix(&network.down, intermediate_dim)?,
            }),
            FeedForwardPlan::Experts(plan) => FeedForwardWeights::Experts(ExpertWeights {
                top_k: feed_forward.top_k(),
                intermediate_dim,
                router_bias: optional(&plan.router_bias)?,
                router: layout.matrix(&plan.router, hidden)?,
                experts: Vec::with_capacity(plan.experts.len()),
            }),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{FINE_ROWS, MatrixLocation, PackedMatrix, Packing, Tiling, UNIT_ROWS};
    use oss_quant::Dtype;

    #[test]
    fn large_matrices_are_cut_finer_where_threads_would_have_few_units() {
        let unit_rows = |rows, inputs, (threads, least)| {
            let packing = Packing::for_dtype(Dtype::Q8_0, rows, 64).unwrap();
            let parts = vec![(0, MatrixLocation { packing, section: 0, start: 0 })];
            let matrix = PackedMatrix { parts, rows, parts_begin_at: 64 };
            matrix.unit_rows(Tiling::DEFAULT, (inputs, 1), (threads, least))
        };
        for inputs in [1, 17, 100] {
            assert_eq!(unit_rows(2880, inputs, (15, FINE_ROWS)), 64, "45 units for 15 threads");
            assert_eq!(unit_rows(2880, inputs, (16, FINE_ROWS)), 32, "45 units for 16");
            assert_eq!(unit_rows(2880, inputs, (16, UNIT_ROWS)), 64, "with a router");
            assert_eq!(unit_rows(4096, inputs, (16, FINE_ROWS)), 64);
            assert_eq!(unit_rows(4096, inputs, (24, FINE_ROWS)), 32);
        }
        assert_eq!(unit_rows(4096, 512, (24, FINE_ROWS)), 64, "inputs are cut too");
        // As ever: small matrices, and two threads.
        assert_eq!(
            (unit_rows(1024, 1, (64, FINE_ROWS)), unit_rows(1024, 64, (64, FINE_ROWS))),
            (16, 64)
        );
        for rows in [2048, 2880, 4096, 65_536] {
            for inputs in [1, 16, 17, 31, 32, 512] {
                let least = [FINE_ROWS, UNIT_ROWS];
                let [fine, coarse] = least.map(|least| unit_rows(rows, inputs, (2, least)));
                assert_eq!(fine, coarse, "{rows} rows, {inputs} inputs");
            }
        }
    }
}
