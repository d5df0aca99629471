//! The scratch of the forward pass, by role, allocated once.

use crate::batch::Row;
use crate::block::attention::most_shared;
use crate::block::norm::Normed;
use crate::block::predict;
use crate::config::Config;
use crate::error::Result;
use crate::model::Model;
use crate::tiling::Tiling;
use crate::weights::FEW_INPUTS;
use oss_cache::SequenceId;
use oss_kernels::{Activation, InputBuffer, Panel, Product, attention, linear_with_prefetch};
use oss_memory::{Buffer, Pages, try_grow_zeroed, try_zeroed};
use oss_quant::GROUP_ROWS;
use oss_simd::{Isa, PrefetchPolicy};
use std::ops::Range;

/// Where the rows of a step go among the experts.
#[derive(Default)]
pub(crate) struct Routing {
    /// `[rows, n_experts]`.
    pub(crate) logits: Vec<f32>,
    /// `[rows, top_k]`: chosen experts, the best first.
    pub(crate) experts: Vec<u32>,
    /// `[rows, top_k]`: what the outputs of these are multiplied by.
    pub(crate) routing_weights: Vec<f32>,
    /// The experts that have rows, in the order in which they are computed.
    pub(crate) active: Vec<u32>,
    /// Where each active expert's slots begin, and the end of the last.
    pub(crate) splits: Vec<usize>,
    /// `[n_experts]`: how many rows chose each, and then where its next slot is.
    next_slot: Vec<usize>,
    /// `[rows · top_k]`: the row of each slot, slots ordered by expert as in `active`, then by row.
    pub(crate) row_of_slot: Vec<u32>,
    /// `[rows · top_k]`: the factor of each slot's row.
    pub(crate) factor_of_slot: Vec<f32>,
    /// `[rows, top_k]`: the slot of each choice.
    pub(crate) slot_of_choice: Vec<u32>,
}

impl Routing {
    /// Counts the rows of each expert, of `rows` rows, and lists the experts that have some.
    pub(crate) fn list_active(&mut self, rows: usize, top_k: usize, n_experts: usize) {
        self.next_slot.clear();
        self.next_slot.resize(n_experts, 0);
        for expert in &self.experts[..rows * top_k] {
            self.next_slot[*expert as usize] += 1;
        }
        let chosen = (0..).zip(&self.next_slot).filter(|(_, rows)| **rows > 0);
        self.active.clear();
        self.active.extend(chosen.map(|(expert, _)| expert));
    }

    fn bytes(&self) -> usize {
        let numbers =
            [self.logits.len(), self.routing_weights.len(), self.factor_of_slot.capacity()];
        let indices = [self.experts.len(), self.slot_of_choice.len(), self.row_of_slot.capacity()];
        4 * numbers.into_iter().chain(indices).sum::<usize>()
    }

    /// Orders the choices of all rows by expert, experts as `active` has them since they were
    /// listed; `factors` are the rows'.
    pub(crate) fn sort(&mut self, factors: &[f32], top_k: usize) {
        let choices = &self.experts[..factors.len() * top_k];
        let mut end = 0;
        self.splits.clear();
        self.splits.push(end);
        for expert in &self.active {
            let slot = &mut self.next_slot[*expert as usize];
            (*slot, end) = (end, end + *slot);
            self.splits.push(end);
        }
        assert!(end == choices.len(), "{end} choices are listed, expected {}", choices.len());
        self.row_of_slot.resize(end, 0);
        self.factor_of_slot.resize(end, 0.0);
        for (choice, expert) in choices.iter().enumerate() {
            let next = &mut self.next_slot[*expert as usize];
            let slot = *next;
            *next += 1;
            self.slot_of_choice[choice] = slot as u32;
            self.row_of_slot[slot] = (choice / top_k) as u32;
            self.factor_of_slot[slot] = factors[choice / top_k];
        }
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
    /// How weights are prefetched.
    prefetch: PrefetchPolicy,
}

impl WorkerScratch {
    fn new(config: &Config, numbers: usize) -> Result<Self> {
        let heads = attention::QUERIES * config.group();
        let attended = heads * config.head_dim * config.kv_heads_per_unit();
        Ok(Self {
            numbers: try_zeroed(numbers)?,
            turned: try_zeroed(heads.max(attention::PAGE) * config.head_dim)?,
            attended: try_zeroed(attended)?,
            panel: Panel::ZERO,
            prefetch: PrefetchPolicy::detect(),
        })
    }

    const fn bytes(&self) -> usize {
        4 * (self.numbers.len() + self.turned.len() + self.attended.len()) + size_of::<Panel>()
    }

    /// Multiplies some rows with some groups, see [`linear`](oss_kernels::linear).
    pub(crate) fn multiply(
        &mut self,
        isa: Isa,
        product: Product<'_>,
        rows: &[u32],
        groups: Range<usize>,
    ) -> &mut [f32] {
        let sums = &mut self.numbers[..rows.len() * GROUP_ROWS * groups.len()];
        let (call, panel) = ((rows, groups), &mut self.panel);
        linear_with_prefetch(isa, self.prefetch, product, call, panel, sums);
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
    /// Predictions of the next layer's routing; made where they are of use.
    pub(crate) predictions: Option<Box<predict::Scratch>>,
    /// `[slots, intermediate_dim]`: between the feed-forward matrices.
    pub(crate) inner: InputBuffer,
    /// `[slots, hidden_dim]`: what the experts give.
    pub(crate) expert_outputs: Vec<f32>,
    /// The sequences of a batch, in order.
    pub(crate) sequences: Vec<SequenceId>,
    /// 0, 1, 2, …
    pub(crate) identity: Vec<u32>,
    /// Where runs of neighbouring rows begin that attend together.
    pub(crate) run_starts: Vec<usize>,
    /// How many splits of positions the runs before each one see, and all.
    pub(crate) split_starts: Vec<usize>,
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
    /// Called with what goes through the forward pass, for tests and measurements.
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

/// Something on its way through the forward pass.
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
    /// The experts of all rows (`[rows, top_k]`), in the last layer of the wanted ones, and their
    /// weights.
    Routing {
        /// The layer.
        layer: usize,
        /// Chosen experts, the best first.
        experts: &'a [u32],
        /// What their outputs are multiplied by.
        routing_weights: &'a [f32],
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
        let slots = rows * config.max_top_k();
        let inner = config.max_intermediate_dim();
        let make = match model.weights.has_float_matrices() {
            true => InputBuffer::new,
            false => InputBuffer::for_codes,
        };
        let input = |rows, cols, activation| input(make, rows, cols, activation);
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
            x: try_zeroed(rows * hidden)?,
            // Room for either activation that the stream is taken in.
            normed: Normed::new(config, rows, input(rows, hidden, model.qkv_activation())?)?,
            qkv: try_zeroed(rows * config.qkv_dim())?,
            attended: input(rows, config.q_dim(), *activation)?,
            cos: try_zeroed(rows * config.head_dim / 2)?,
            sin: try_zeroed(rows * config.head_dim / 2)?,
            routing: Routing {
                logits: try_zeroed(rows * config.max_experts())?,
                experts: try_zeroed(slots)?,
                routing_weights: try_zeroed(slots)?,
                active: Vec::with_capacity(config.max_experts()),
                splits: Vec::with_capacity(config.max_experts() + 1),
                next_slot: Vec::with_capacity(config.max_experts()),
                row_of_slot: Vec::with_capacity(slots),
                factor_of_slot: Vec::with_capacity(slots),
                slot_of_choice: try_zeroed(slots)?,
            },
            predictions: None,
            inner: input(slots, inner, *activation)?,
            expert_outputs: try_zeroed(slots * hidden)?,
            identity: (0..slots as u32).collect(),
            run_starts: Vec::with_capacity(rows + 1),
            split_starts: Vec::with_capacity(rows + 1),
            sequences: Vec::with_capacity(rows),
            blocks: Vec::new(),
            partials: Vec::new(),
            most_partials: most_shared(config, shape, (rows, threads)),
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
            try_grow_zeroed(numbers, sums)?;
        }
        self.tiling = tiling;
        Ok(())
    }

    /// Prefetches weights so from now on, rather than as [`PrefetchPolicy::detect`] says; results
    /// stay the same.
    pub fn set_prefetch(&mut self, policy: PrefetchPolicy) {
        for WorkerScratch { prefetch, .. } in &mut self.scratch {
            *prefetch = policy;
        }
    }

    /// Makes room for the logits of so many rows, so that [`head`](crate::head) takes no memory.
    ///
    /// # Errors
    /// When memory is refused.
    pub fn reserve_logits(&mut self, model: &Model, rows: usize) -> Result<()> {
        Ok(try_grow_zeroed(&mut self.logits, rows * model.config.vocabulary)?)
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

    /// Moves some rows of the residual stream to where row `to` is, so that other rows can go
    /// through layers meanwhile.
    ///
    /// # Panics
    /// When the state has not so many rows.
    pub fn move_residual(&mut self, rows: Range<usize>, to: usize) {
        let hidden = self.x.len() / self.max_rows;
        self.x.copy_within(rows.start * hidden..rows.end * hidden, to * hidden);
    }

    /// How many rows a batch may have.
    #[must_use]
    pub const fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Shows what goes through the forward pass to `probe`.
    pub fn set_probe(&mut self, probe: Option<Probe>) {
        self.probe = probe;
    }

    /// Bytes of all buffers, of what grows with the context the most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inputs = [&self.attended, &self.inner];
        let vectors =
            [&self.x, &self.qkv, &self.expert_outputs, &self.logits, &self.cos, &self.sin];
        let plain: usize = vectors.into_iter().map(Vec::len).sum();
        let partials = self.most_partials.max(self.partials.len());
        4 * (plain + partials + self.blocks.len() + self.identity.len())
            + self.routing.bytes()
            + self.normed.bytes()
            + self.scratch.iter().map(WorkerScratch::bytes).sum::<usize>()
            + inputs.into_iter().map(InputBuffer::bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::Routing;
    use oss_testing::Seeded;

    #[test]
    fn slots_are_in_the_order_of_the_active_experts_then_of_their_rows() {
        let (n_experts, mut seeded, mut routing) = (13, Seeded::new(5), Routing::default());
        for (rows, top_k) in [(1, 1), (1, 4), (7, 2), (300, 4), (40, 3), (0, 2)] {
            // One expert is never chosen; a row may choose another one twice.
            routing.experts =
                (0..rows * top_k).map(|_| seeded.below(n_experts - 1) as u32).collect();
            routing.slot_of_choice = vec![u32::MAX; rows * top_k];
            routing.list_active(rows, top_k, n_experts);
            let mut chosen = routing.experts.clone();
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(routing.active, chosen);
            routing.active.sort_by_key(|expert| (expert % 3, *expert));
            let factors: Vec<f32> = (0..rows).map(|row| row as f32 + 0.5).collect();
            routing.sort(&factors, top_k);

            let mut row_of_slot = Vec::new();
            let mut slot_of_choice = vec![0; rows * top_k];
            let mut splits = vec![0];
            for expert in &routing.active {
                for choice in (0..rows * top_k).filter(|choice| routing.experts[*choice] == *expert)
                {
                    slot_of_choice[choice] = row_of_slot.len() as u32;
                    row_of_slot.push((choice / top_k) as u32);
                }
                splits.push(row_of_slot.len());
            }
            let factor_of_slot: Vec<f32> =
                row_of_slot.iter().map(|row| factors[*row as usize]).collect();
            assert_eq!((&routing.splits, &routing.row_of_slot), (&splits, &row_of_slot));
            assert_eq!(routing.slot_of_choice, slot_of_choice);
            assert_eq!(routing.factor_of_slot, factor_of_slot);
        }
    }
}
