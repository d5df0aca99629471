//! The seam through which the forward pass reaches experts, wherever they are.

use super::experts::{
    ExpertCache, ExpertUse, Pinned, Place, Popularity, Predictions, Slot, slot_bytes,
};
use super::storage::{self, Storage};
use super::{ExpertWeights, FeedForwardWeights, LayerWeights, MatrixLocation, Network, Weights};
use crate::error::Result;
use oss_memory::placement::MemoryPolicy;
use oss_quant::Matrix;
use oss_weights::packed::Section;
use std::ops::Range;

/// What the weights take when experts stay in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRoom {
    /// Bytes of everything but experts: always in memory.
    pub dense_bytes: usize,
    /// Bytes of the memory of one expert.
    pub slot_bytes: usize,
    /// Experts of all layers.
    pub experts: usize,
}

/// The experts of a layer in the order and the portions in which they can be computed.
pub(crate) struct Rounds<'a> {
    weights: &'a Weights,
    layer: usize,
    /// All experts of the layer.
    networks: &'a [Network],
    /// How many of the active experts were handed out.
    done: usize,
}

/// Some active experts of a layer, all at hand and pinned while this lives.
pub(crate) struct Round<'a> {
    weights: &'a Weights,
    networks: &'a [Network],
    /// Which of the active experts.
    pub(crate) range: Range<usize>,
    /// Their slots; none where all experts are in memory.
    pinned: Option<Pinned<'a>>,
}

/// An expert's matrices, kept where they are while this lives.
pub(crate) struct ExpertView<'a> {
    weights: &'a Weights,
    network: &'a Network,
    slot: Option<&'a Slot>,
}

impl Weights {
    /// What it takes to leave experts in the file; none where the model has none, or is not mapped
    /// from a packed file.
    #[must_use]
    pub fn expert_room(&self) -> Option<ExpertRoom> {
        let Storage::Mapped { sections, .. } = &self.storage else { return None };
        if !self.container.is_in_files() {
            return None;
        }
        let layers = self.expert_places(sections);
        let experts = layers.iter().map(Vec::len).sum();
        let dense_bytes = sections.first()?.length as usize;
        (experts > 0).then(|| ExpertRoom { dense_bytes, slot_bytes: slot_bytes(&layers), experts })
    }

    /// Leaves experts in the packed file, but for as many as there are slots (at least 1), and
    /// reads everything else into memory; both lie on nodes as the policy says. Results are the
    /// same, to the bit.
    ///
    /// `popularity` is that of each layer's experts in an earlier run ([`Weights::popularity`]), or
    /// nothing. It counts half as much as it did then, and slots that nobody asks for are given to
    /// the most popular ones in the background.
    ///
    /// # Errors
    /// When memory, threads or a node are refused, or the file cannot be read.
    ///
    /// # Panics
    /// When [`Weights::expert_room`] has none, `slots` is 0, the policy asks for copies, or the
    /// popularity is not of these experts ([`Weights::may_have`]).
    pub fn keep_experts_in_slots(
        &mut self,
        slots: usize,
        policy: &MemoryPolicy,
        popularity: &[Popularity],
    ) -> Result<()> {
        assert!(policy.copies() == 1, "{} copies of experts in slots", policy.copies());
        let is_known = popularity.is_empty() || self.may_have(popularity);
        assert!(is_known, "{} layers' popularity, expected these experts'", popularity.len());
        let Storage::Mapped { sections, .. } = &self.storage else {
            panic!("experts stay in packed files alone, expected `expert_room` to have some");
        };
        let (file, packed_bytes) = (storage::packed(&self.container), self.storage.bytes());
        let places = self.expert_places(sections);
        let memory = (policy, self.pages);
        // Before there are slots, which begin to read popular experts.
        let (dense, locked) =
            storage::read(&file.open_direct()?, &sections[0], memory, &self.section_matrices()[0])?;
        let experts = ExpertCache::open(
            file.open_direct()?,
            &places,
            slots,
            memory,
            &self.expert_matrices(),
            popularity,
        )?;
        self.storage = Storage::Slots { dense, locked, experts, packed_bytes };
        Ok(())
    }

    /// Bytes of memory that packed matrices take at most: all of them, or everything but experts
    /// and the slots.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.storage.resident_bytes()
    }

    /// Those of them that are locked in memory: everything but experts, where these are in slots
    /// and the process may lock so much (`RLIMIT_MEMLOCK`).
    #[must_use]
    pub fn locked_bytes(&self) -> usize {
        self.storage.locked_bytes()
    }

    /// How experts were found; none where all are in memory.
    #[must_use]
    pub fn expert_use(&self) -> Option<ExpertUse> {
        self.storage.slots().map(ExpertCache::counts)
    }

    /// How often rows were sent to each layer's experts, for a later run: in this one, and in the
    /// earlier ones that it began with. None where experts are not in slots, or none was needed.
    #[must_use]
    pub fn popularity(&self) -> Option<Vec<Popularity>> {
        self.storage.slots().and_then(ExpertCache::popularity)
    }

    /// Whether a popularity may be that of these experts: as many layers, as many in each, and
    /// numbers that rows can have given.
    #[must_use]
    pub fn may_have(&self, popularity: &[Popularity]) -> bool {
        let experts = |layer: &LayerWeights| match &layer.feed_forward {
            FeedForwardWeights::Experts(weights) => weights.experts.len(),
            FeedForwardWeights::Dense(_) => 0,
        };
        let mut pairs = self.layers.iter().zip(popularity);
        self.layers.len() == popularity.len()
            && pairs.all(|(layer, popularity)| popularity.is_sound(experts(layer)))
    }

    /// Whether any expert would have to be read, so that predictions of what is needed next are of
    /// use.
    pub(crate) fn lacks_experts(&self) -> bool {
        self.storage.slots().is_some_and(ExpertCache::lacks_any)
    }

    /// Sees to it that the `active` experts of a layer come into memory, and puts those that are
    /// there first. `choices` are the experts that each of the rows was sent to (`[rows, top_k]`).
    pub(crate) fn rounds<'a>(
        &'a self,
        (layer, experts): (usize, &'a ExpertWeights),
        active: &mut [u32],
        (choices, rows): (&[u32], usize),
    ) -> Rounds<'a> {
        if let Some(slots) = self.storage.slots() {
            slots.begin(layer, active, choices, rows);
        }
        Rounds { weights: self, layer, networks: &experts.experts, done: 0 }
    }

    /// Tells which experts the next layers will probably need, while the `active` ones of a layer
    /// are computed.
    pub(crate) fn prefetch_experts<'a>(
        &self,
        before: (usize, &[u32]),
        predictions: impl Iterator<Item = Predictions<'a>> + Clone,
    ) {
        if let Some(slots) = self.storage.slots() {
            slots.prefetch(before, predictions);
        }
    }

    /// Where the experts of each layer lie in the file.
    fn expert_places(&self, sections: &[Section]) -> Vec<Vec<Place>> {
        let place = |network: &Network| {
            let (first, last) = (&network.gate_up.parts[0].1, network.down.parts.last());
            let last = last.map_or(first, |(_, last)| last);
            let bytes = last.start + last.packing.bytes() - first.start;
            Place { offset: sections[first.section].offset + first.start as u64, bytes }
        };
        let layers = self.layers.iter().map(|layer| match &layer.feed_forward {
            FeedForwardWeights::Experts(weights) => weights.experts.iter().map(place).collect(),
            FeedForwardWeights::Dense(_) => Vec::new(),
        });
        layers.collect()
    }

    /// Where the matrices of an expert lie in its slot, about: as in the first layer that has some.
    fn expert_matrices(&self) -> Vec<Range<usize>> {
        let first = self.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardWeights::Experts(weights) => weights.experts.first(),
            FeedForwardWeights::Dense(_) => None,
        });
        let parts = first.into_iter().flat_map(|network| {
            let start = network.gate_up.parts[0].1.start;
            let parts = network.gate_up.parts.iter().chain(&network.down.parts);
            parts.map(move |(_, part)| part.bytes().start - start..part.bytes().end - start)
        });
        parts.collect()
    }
}

impl<'a> Rounds<'a> {
    /// The next of the `active` experts, which are those that the rounds were begun with; waits for
    /// the first of them. None when all were handed out.
    ///
    /// # Errors
    /// When the expert cannot be read.
    pub(crate) fn next(&mut self, active: &[u32]) -> Result<Option<Round<'a>>> {
        let (begin, weights) = (self.done, self.weights);
        if begin == active.len() {
            return Ok(None);
        }
        let slots = weights.storage.slots();
        let pinned = slots.map(|slots| slots.round(self.layer, &active[begin..])).transpose()?;
        self.done = pinned.as_ref().map_or(active.len(), |pinned| begin + pinned.len());
        let networks = self.networks;
        Ok(Some(Round { weights, networks, range: begin..self.done, pinned }))
    }
}

impl Round<'_> {
    /// The expert that stands at `index` among the active ones.
    ///
    /// # Panics
    /// When it is not of this round.
    pub(crate) fn expert(&self, index: usize, active: &[u32]) -> ExpertView<'_> {
        let range = &self.range;
        assert!(range.contains(&index), "expert {index}, expected one of {range:?}");
        ExpertView {
            weights: self.weights,
            network: &self.networks[active[index] as usize],
            slot: self.pinned.as_ref().map(|pinned| pinned.slot(index - range.start)),
        }
    }
}

impl<'a> ExpertView<'a> {
    /// The expert's matrices.
    pub(crate) const fn network(&self) -> &'a Network {
        self.network
    }

    /// The bytes of one of them.
    pub(crate) fn matrix(&self, location: &MatrixLocation) -> Matrix<'a> {
        let Some(slot) = self.slot else { return self.weights.matrix(location) };
        let begin = location.start - self.network.gate_up.parts[0].1.start;
        let bytes = &slot.bytes()[begin..][..location.packing.bytes()];
        Matrix { packing: location.packing, bytes }
    }
}
