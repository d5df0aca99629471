//! The scratch of the forward page, by role, allocated once.

use crate::batch::Row;
use crate::block::attention::most_shared;
use crate::block::foresee;
use crate::block::norm::Normed;
use crate::config::Config;
use crate::error::Result;
use crate::model::Model;
use crate::tiling::Tiling;
use crate::weights::FEW_INPUTS;
use oss_kernels::{Activation, InputBuffer, Panel, Product, attention, linear};
use oss_memory::{Buffer, Pages, lengthen, zeros};
use oss_quant::GROUP_ROWS;
use oss_simd::Isa;
use std::ops::Range;

/// Where the rows of a step go among the experts.
#[derive(Default)]
pub(crate) struct Routing {
    /// `[rows, n_experts]`.
    pub(crate) logits: Vec<f32>,
    /// `[rows, top]`: chosen experts, the best first.
    pub(crate) experts: Vec<u32>,
    /// `[rows, top]`: their shares.
    pub(crate) shares: Vec<f32>,
    /// The experts that have rows, in the order in which they are computed.
    pub(crate) active: Vec<u32>,
    /// Where each active expert's slots begin, and the end of the last.
    pub(crate) splits: Vec<usize>,
    /// `[rows · top]`: the row of each slot, slots ordered by expert as in `active`, then by row.
    pub(crate) row_of_slot: Vec<u32>,
    /// `[rows · top]`: the factor of each slot's row.
    pub(crate) factor_of_slot: Vec<f32>,
    /// `[rows, top]`: the slot of each choice.
    pub(crate) slot_of_choice: Vec<u32>,
}

impl Routing {
    /// Lists the experts that some of `rows` rows chose.
    pub(crate) fn list_active(&mut self, rows: usize, top: usize, n_experts: usize) {
        let choices = &self.experts[..rows * top];
        self.active.clear();
        self.active.extend((0..n_experts as u32).filter(|expert| choices.contains(expert)));
    }

    fn bytes(&self) -> usize {
        let numbers = [self.logits.len(), self.shares.len(), self.factor_of_slot.capacity()];
        let indices = [self.experts.len(), self.slot_of_choice.len(), self.row_of_slot.capacity()];
        4 * numbers.into_iter().chain(indices).sum::<usize>()
    }

    /// Orders the choices of all rows by expert, experts as `active` has them; `factors` are the
    /// rows'.
    pub(crate) fn sort(&mut self, factors: &[f32], top: usize) {
        let rows = factors.len();
        self.splits.clear();
        self.row_of_slot.clear();
        self.factor_of_slot.clear();
        let choices = &self.experts[..rows * top];
        for expert in &self.active {
            self.splits.push(self.row_of_slot.len());
            for (choice, chosen) in choices.iter().enumerate() {
                if chosen == expert {
                    self.slot_of_choice[choice] = self.row_of_slot.len() as u32;
                    self.row_of_slot.push((choice / top) as u32);
                    self.factor_of_slot.push(factors[choice / top]);
                }
            }
        }
        self.splits.push(self.row_of_slot.len());
    }
}

/// One write of keys and values: some rows of one page, for one head.
#[derive(Clone, Debug)]
pub(crate) struct KvWrite {
    pub(crate) rows: Range<usize>,
    pub(crate) head: usize,
}

/// What one worker computes in.
pub(crate) struct WorkerScratch {
    pub(crate) numbers: Vec<f32>,
    /// `[QUERIES, n_heads / n_kv_heads, head_dim]`, or as many keys as a page holds: heads that are
    /// turned by their positions.
    pub(crate) turned: Vec<f32>,
    /// `[QUERIES, columns of a unit of attention]`: what their attention gives.
    pub(crate) attended: Vec<f32>,
    panel: Panel,
}

impl WorkerScratch {
    fn new(config: &Config, numbers: usize) -> Result<Self> {
        let heads = attention::QUERIES * config.group();
        let attended = heads * config.head_dim * config.kv_heads_per_unit();
        Ok(Self {
            numbers: zeros(numbers)?,
            turned: zeros(heads.max(attention::PAGE) * config.head_dim)?,
            attended: zeros(attended)?,
            panel: Panel::ZERO,
        })
    }

    const fn bytes(&self) -> usize {
        4 * (self.numbers.len() + self.turned.len() + self.attended.len()) + size_of::<Panel>()
    }

    /// Multiplies some rows with some groups, see [`linear`].
    pub(crate) fn multiply(
        &mut self,
        isa: Isa,
        product: Product<'_>,
        rows: &[u32],
        groups: Range<usize>,
    ) -> &mut [f32] {
        let sums = &mut self.numbers[..rows.len() * GROUP_ROWS * groups.len()];
        linear(isa, product, (rows, groups), &mut self.panel, sums);
        sums
    }
}

/// From so many rows on, scratch grows evenly.
const MANY_ROWS: usize = 256;

/// Scratch for batches of up to `max_rows` rows.
pub struct State {
    pub(crate) max_rows: usize,
    pub(crate) tiling: Tiling,
    /// `[rows, hidden_dim]`: the residual stream.
    pub(crate) x: Vec<f32>,
    /// The stream as the next matrices take it.
    pub(crate) normed: Normed,
    /// `[rows, qkv_dim]`.
    pub(crate) qkv: Vec<f32>,
    /// `[rows, q_dim]`: what attention gives.
    pub(crate) attended: InputBuffer,
    /// `[rows, head_dim / 2]`: cosines and sines of the rows' positions.
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
    pub(crate) routing: Routing,
    /// Guesses at the next layer's routing; made where they are of use.
    pub(crate) foresee: Option<Box<foresee::Scratch>>,
    /// `[slots, inner_dim]`: between the feed-forward matrices.
    pub(crate) inner: InputBuffer,
    /// `[slots, hidden_dim]`: what the experts give.
    pub(crate) outer: Vec<f32>,
    /// 0, 1, 2, …
    pub(crate) identity: Vec<u32>,
    /// Where runs of neighbouring rows begin that attend together.
    pub(crate) run_starts: Vec<usize>,
    /// The blocks that rows of long contexts chose, for each key/value head: as long as was needed
    /// yet.
    pub(crate) blocks: Vec<u32>,
    /// What attention finds in splits of positions that workers share: as long as was needed yet.
    pub(crate) partials: Vec<f32>,
    /// How long that becomes within the model's context.
    pub(crate) most_partials: usize,
    pub(crate) writes: Vec<KvWrite>,
    pub(crate) write_ranges: Vec<Range<usize>>,
    pub(crate) write_order: Vec<(Range<usize>, KvWrite)>,
    /// One per worker.
    pub(crate) scratch: Vec<WorkerScratch>,
    /// The rows that the last forward pass was asked for: the first of `x` after its last layer.
    pub(crate) wanted_rows: Vec<Row>,
    pub(crate) logits: Vec<f32>,
    /// Called with what passes through the page, for tests and measurements.
    pub(crate) probe: Option<Probe>,
}

/// The most products of a unit: one expert may get all rows.
fn sums_len(rows: usize, tiling: Tiling) -> usize {
    (rows * tiling.matrix_rows).max(rows.min(FEW_INPUTS) * tiling.wide_rows)
}

/// Memory for an input. What makes it ends the process where that is refused, so as much is asked
/// for before.
fn input(
    make: fn(usize, usize, Activation) -> InputBuffer,
    rows: usize,
    cols: usize,
    activation: Activation,
) -> Result<InputBuffer> {
    let row_bytes = make(1, cols, activation).bytes();
    drop(Buffer::new(rows.saturating_mul(row_bytes), Pages::Ordinary)?);
    Ok(make(rows, cols, activation))
}

/// Something on its way through the forward page.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The residual stream (`[rows, hidden_dim]`) of all rows before layer `layer`, or of the
    /// wanted ones after the last.
    Residual {
        /// How many layers have run.
        layer: usize,
        /// The numbers.
        rows: &'a [f32],
    },
    /// The experts of all rows (`[rows, top]`), in the last layer of the wanted ones, and their
    /// shares.
    Routing {
        /// The layer.
        layer: usize,
        /// Chosen experts, the best first.
        experts: &'a [u32],
        /// Their shares.
        shares: &'a [f32],
    },
}

/// Sees every [`Event`] of a forward pass.
pub type Probe = Box<dyn FnMut(Event<'_>) + Send>;

impl State {
    /// Scratch for `threads` workers and up to `max_rows` rows a step.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn new(model: &Model, max_rows: usize, threads: usize) -> Result<Self> {
        let Model { config, activation, .. } = model;
        let (hidden, rows) = (config.hidden_dim, max_rows);
        let slots = rows * config.max_top();
        let inner = config.max_inner_dim();
        let make = match model.weights.has_float_matrices() {
            true => InputBuffer::new,
            false => InputBuffer::for_codes,
        };
        let input = |rows, cols| input(make, rows, cols, *activation);
        let shape = attention::Shape {
            format: oss_quant::kv::KvFormat::F32,
            head_dim: config.head_dim,
            scale: 1.0,
        };
        let tiling = Tiling::default();
        let scratch = shape.scratch_len(attention::QUERIES * config.group());
        let scratch = scratch.max(sums_len(rows, tiling));
        Ok(Self {
            max_rows,
            tiling,
            x: zeros(rows * hidden)?,
            normed: Normed::new(config, rows, input(rows, hidden)?)?,
            qkv: zeros(rows * config.qkv_dim())?,
            attended: input(rows, config.q_dim())?,
            cos: zeros(rows * config.head_dim / 2)?,
            sin: zeros(rows * config.head_dim / 2)?,
            routing: Routing {
                logits: zeros(rows * config.max_experts())?,
                experts: zeros(slots)?,
                shares: zeros(slots)?,
                active: Vec::with_capacity(config.max_experts()),
                splits: Vec::with_capacity(config.max_experts() + 1),
                row_of_slot: Vec::with_capacity(slots),
                factor_of_slot: Vec::with_capacity(slots),
                slot_of_choice: zeros(slots)?,
            },
            foresee: None,
            inner: input(slots, inner)?,
            outer: zeros(slots * hidden)?,
            identity: (0..slots as u32).collect(),
            run_starts: Vec::with_capacity(rows + 1),
            blocks: Vec::new(),
            partials: Vec::new(),
            most_partials: most_shared(config, shape, threads),
            writes: Vec::new(),
            write_ranges: Vec::new(),
            write_order: Vec::new(),
            scratch: (0..threads)
                .map(|_| WorkerScratch::new(config, scratch))
                .collect::<Result<_>>()?,
            wanted_rows: Vec::with_capacity(rows),
            logits: Vec::new(),
            probe: None,
        })
    }

    /// Bytes that scratch takes for each further row of large steps, about.
    ///
    /// # Errors
    /// When memory is refused: such scratch is made for it.
    pub fn row_bytes(model: &Model) -> Result<usize> {
        let bytes = |rows| Self::new(model, rows, 1).map(|state| state.bytes());
        Ok((bytes(2 * MANY_ROWS)? - bytes(MANY_ROWS)?) / MANY_ROWS)
    }

    /// Cuts products otherwise from now on; results stay the same. Workers' scratch grows where
    /// units are larger.
    ///
    /// # Errors
    /// When memory is refused: then they are cut as before.
    ///
    /// # Panics
    /// When the tiling is not possible.
    pub fn set_tiling(&mut self, tiling: Tiling) -> Result<()> {
        assert!(tiling.is_possible(), "{tiling:?}");
        let sums = sums_len(self.max_rows, tiling);
        for WorkerScratch { numbers, .. } in &mut self.scratch {
            lengthen(numbers, sums)?;
        }
        self.tiling = tiling;
        Ok(())
    }

    /// Makes room for the logits of so many rows, so that [`head`](crate::head) takes no memory.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn reserve_logits(&mut self, model: &Model, rows: usize) -> Result<()> {
        Ok(lengthen(&mut self.logits, rows * model.config.vocabulary)?)
    }

    /// How many hidden rows the last forward pass left for the head.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted_rows.len()
    }

    /// The residual stream of the first rows (`[rows, hidden_dim]`): what a call of
    /// [`forward`](crate::forward) over some layers has left, and what one over later layers begins
    /// with.
    ///
    /// # Panics
    /// When the state has not so many rows.
    pub fn residual(&mut self, rows: usize) -> &mut [f32] {
        let hidden = self.x.len() / self.max_rows;
        &mut self.x[..rows * hidden]
    }

    /// Shows what passes through the page to `probe`.
    pub fn set_probe(&mut self, probe: Option<Probe>) {
        self.probe = probe;
    }

    /// Bytes of all buffers, of what grows with the context the most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inputs = [&self.attended, &self.inner];
        let vectors = [&self.x, &self.qkv, &self.outer, &self.logits, &self.cos, &self.sin];
        let plain: usize = vectors.into_iter().map(Vec::len).sum();
        let partials = self.most_partials.max(self.partials.len());
        4 * (plain + partials + self.blocks.len() + self.identity.len())
            + self.routing.bytes()
            + self.normed.bytes()
            + self.scratch.iter().map(WorkerScratch::bytes).sum::<usize>()
            + inputs.into_iter().map(InputBuffer::bytes).sum::<usize>()
    }
}
