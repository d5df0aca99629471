//! Experts that stay in the packed file: a fixed number of slots in memory holds those that are
//! needed most, and the others are read when a layer requests them.
//!
//! A layer requests the experts that its rows are routed to. Those in slots are computed at once,
//! while a few threads read the others; they follow in rounds, as they come. Any number of slots
//! works: a layer with more experts than slots takes more rounds. Which experts keep their slots,
//! and which are prefetched, changes how long a step takes and never what it gives.

mod frequency;
mod prediction_record;
mod readers;
mod table;

pub use frequency::Popularity;

use super::load_pool::on_load_pool;
use crate::error::{Error, Result};
use frequency::Frequency;
use oss_memory::file::{DIRECT_ALIGNMENT, RandomAccess};
use oss_memory::placement::MemoryPolicy;
use oss_memory::{Buffer, HUGE_PAGE, OwnedSlice, Pages, page_size};
use rayon::prelude::*;
use readers::Readers;
use std::ops::Range;
use std::sync::Arc;
use table::{Priority, Residency, Table};

/// Where an expert lies in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl Place {
    /// Bytes before the expert in its slot: reads begin at whole blocks.
    const fn lead(&self) -> usize {
        self.offset as usize % DIRECT_ALIGNMENT
    }

    /// Bytes of whole blocks that hold the expert.
    pub(super) const fn span(&self) -> usize {
        (self.lead() + self.bytes).next_multiple_of(DIRECT_ALIGNMENT)
    }
}

/// The experts that a layer will probably need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predictions<'a> {
    pub(crate) layer: usize,
    pub(crate) top_k: usize,
    /// `[rows, top_k]`, the most probable of each row first.
    pub(crate) experts: &'a [u32],
    /// `[rows, top_k]`: how much larger each one's logit is than that of the best expert that is
    /// not among the row's.
    pub(crate) margins: &'a [f32],
}

/// The memory of one expert.
#[derive(Debug)]
pub(super) struct Slot {
    piece: OwnedSlice,
    lead: usize,
}

/// Slots that keep their experts while this lives.
pub(super) struct Pinned<'a> {
    slots: Vec<Arc<Slot>>,
    readers: &'a Readers,
}

impl Pinned<'_> {
    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of the `index`-th of the experts that were asked for.
    pub(super) fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.slots.clear();
        // Another forward pass over these weights may wait for a slot.
        self.readers.tell_of_slots();
    }
}

impl Slot {
    /// The expert's bytes, and what the file has behind them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.piece[self.lead..]
    }
}

/// How the experts of a model that is larger than its memory were found; counted since it was
/// loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ExpertUse {
    /// Slots.
    pub slots: usize,
    /// Bytes of one.
    pub slot_bytes: usize,
    /// Experts of the model.
    pub experts: usize,
    /// Experts that a step needed and found in slots.
    pub hits: u64,
    /// Experts that a step needed and waited for.
    pub misses: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// Those of them that were read after loading, before anybody asked: experts that were popular
    /// in an earlier run.
    pub popular_bytes: u64,
    /// Bytes of the experts that steps needed and that had to be read for it, whether they were
    /// predicted or not. What was read beyond these, and was not popular, was read in vain.
    pub missed_bytes: u64,
    /// Experts that were read because a layer before predicted them.
    pub predicted: u64,
    /// Those of them that the layer then needed.
    pub predicted_used: u64,
    /// Those of them that left their slots before anybody needed them.
    pub predicted_wasted: u64,
    /// Seconds in which anything was being read.
    pub reading_seconds: f64,
}

impl ExpertUse {
    /// The share of the needed experts that were in slots; 0 where none was needed.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// The slots, the threads that fill them, and who decides.
pub(super) struct ExpertCache {
    readers: Readers,
    /// The number of each layer's first expert among all of them, and the end of the last.
    first: Vec<usize>,
    slots: usize,
    slot_bytes: usize,
    /// Bytes of slots on pages that were set aside: all or none.
    reserved: usize,
}

impl ExpertCache {
    /// So many slots for the experts of a file: `layers` are the places of each layer's experts,
    /// `matrices` where rows lie in a slot. The most popular ones of an earlier run, where there
    /// was one, are read at once, behind what is asked for.
    pub(super) fn open(
        file: RandomAccess,
        layers: &[Vec<Place>],
        slots: usize,
        (policy, pages): (&MemoryPolicy, Pages),
        matrices: &[Range<usize>],
        popularity: &[Popularity],
    ) -> Result<Self> {
        assert!(slots > 0, "0 slots, expected at least 1");
        let mut first = vec![0];
        for layer in layers {
            first.push(first.last().map_or(0, |first| first + layer.len()));
        }
        let places: Vec<Place> = layers.concat();
        let mut frequency = Frequency::new(places.len());
        for (ends, popularity) in first.windows(2).zip(popularity) {
            frequency.begin_with(ends[0]..ends[1], popularity);
        }
        let slots = slots.min(places.len());
        let slot_bytes = slot_bytes(layers);
        let mut memory = Buffer::new(slots * slot_bytes, pages)?;
        let reserved = if memory.pages() == Pages::Reserved { memory.len() } else { 0 };
        let in_slot =
            |start: usize| matrices.iter().map(move |bytes| start + bytes.start..start + bytes.end);
        let matrices: Vec<_> = (0..slots).flat_map(|slot| in_slot(slot * slot_bytes)).collect();
        policy.place(&mut memory, &matrices)?;
        touch(&mut memory)?;
        let mut rest = memory.into_owned_slice();
        let mut free = Vec::with_capacity(slots);
        for _ in 0..slots {
            let (slot, behind) = rest.split(slot_bytes);
            free.push(slot);
            rest = behind;
        }
        let readers = Readers::start(file, Table::new(places, free, frequency))?;
        Ok(Self { readers, first, slots, slot_bytes, reserved })
    }

    /// Bytes of all slots.
    pub(super) const fn bytes(&self) -> usize {
        self.slots * self.slot_bytes
    }

    /// Bytes of slots on pages that were set aside.
    pub(super) const fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    pub(super) fn counts(&self) -> ExpertUse {
        let counts = self.readers.lock().counts();
        let experts = self.first.last().copied().unwrap_or(0);
        ExpertUse { slots: self.slots, slot_bytes: self.slot_bytes, experts, ..counts }
    }

    /// How often rows were sent to each layer's experts, in earlier runs too; none where nobody has
    /// needed any in this one.
    pub(super) fn popularity(&self) -> Option<Vec<Popularity>> {
        let table = self.readers.lock();
        let ExpertUse { hits, misses, .. } = table.counts();
        let layers = self.first.windows(2);
        let popularity = layers.map(|ends| table.frequency.popularity(ends[0]..ends[1]));
        (hits + misses > 0).then(|| popularity.collect())
    }

    /// Takes note of the experts that `rows` rows of a layer were sent to, puts those in slots
    /// first among the `active` ones, and begins to read the others.
    pub(super) fn begin(&self, layer: usize, active: &mut [u32], choices: &[u32], rows: usize) {
        let mut table = self.readers.lock();
        let first = self.first[layer];
        table.frequency.observe(first..self.first[layer + 1], choices, rows);
        table.prediction_record.judge(layer, active);
        active.sort_by_key(|expert| (table.distance(first + *expert as usize), *expert));
        for expert in &*active {
            table.need(first + *expert as usize);
        }
        self.ask_all(&mut table, layer, active);
    }

    /// Waits until the first of the experts is in a slot; gives it and those behind it that are,
    /// too.
    pub(super) fn round(&self, layer: usize, active: &[u32]) -> Result<Pinned<'_>> {
        let id = |expert: u32| self.first[layer] + expert as usize;
        let mut table = self.readers.lock();
        loop {
            match table.state(id(active[0])) {
                Residency::Resident { .. } => break,
                Residency::Loading(_) => {}
                Residency::Failed(_) => {
                    let (place, cause) = table.take_failure(id(active[0]));
                    return Err(Error::Expert {
                        path: self.readers.path().to_owned(),
                        layer,
                        expert: active[0] as usize,
                        offset: place.offset,
                        expected: place.bytes,
                        cause,
                    });
                }
                Residency::OnDisk => {
                    // With few slots, those of experts that come later have to do.
                    if table.ask(id(active[0]), Priority::Needed, |other| other == id(active[0])) {
                        self.readers.wake();
                        continue;
                    }
                }
            }
            table = self.readers.wait(table);
        }
        let slots = active.iter().map_while(|expert| table.pin(id(*expert))).collect();
        self.ask_all(&mut table, layer, active);
        Ok(Pinned { slots, readers: &self.readers })
    }

    /// Begins to read what a layer needs, as far as slots can be had without giving up others that
    /// it needs.
    fn ask_all(&self, table: &mut Table, layer: usize, active: &[u32]) {
        let range = self.first[layer]..self.first[layer + 1];
        let is_kept =
            |id: usize| range.contains(&id) && active.contains(&((id - range.start) as u32));
        for expert in active {
            if !table.ask(range.start + *expert as usize, Priority::Needed, is_kept) {
                break;
            }
        }
        self.readers.wake();
    }

    /// Whether any expert would have to be read.
    pub(super) fn lacks_any(&self) -> bool {
        self.readers.lock().lacks_any()
    }

    /// Takes note of the experts that the next layers will probably need, the nearest layer first,
    /// and begins to read them where such predictions mostly come true. The `active` ones of the
    /// layer before keep their slots.
    pub(super) fn prefetch<'a>(
        &self,
        before: (usize, &[u32]),
        predictions: impl Iterator<Item = Predictions<'a>> + Clone,
    ) {
        let mut table = self.readers.lock();
        let id = |layer: usize, expert: u32| self.first[layer] + expert as usize;
        let mut kept: Vec<usize> = before.1.iter().map(|expert| id(before.0, *expert)).collect();
        for Predictions { layer, experts, .. } in predictions.clone() {
            kept.extend(experts.iter().map(|expert| id(layer, *expert)));
        }
        for Predictions { layer, top_k, experts, margins } in predictions {
            let ahead = layer - before.0;
            table.prediction_record.clear(layer, ahead);
            for rank in 0..top_k {
                for (expert, margin) in experts.iter().zip(margins).skip(rank).step_by(top_k) {
                    let id = id(layer, *expert);
                    if matches!(table.state(id), Residency::OnDisk)
                        && table.prediction_record.note((layer, *expert), (ahead, *margin))
                    {
                        table.ask(id, Priority::Predicted, |other| kept.contains(&other));
                    }
                }
            }
        }
        self.readers.wake();
    }
}

/// Has the system give memory now that it would give within the first read of each slot, where a
/// request would wait for it.
fn touch(memory: &mut Buffer) -> Result<()> {
    let page = page_size();
    let touch = |part: &mut [u8]| part.iter_mut().step_by(page).for_each(|byte| *byte = 0);
    on_load_pool(|| {
        memory.par_chunks_mut(HUGE_PAGE).for_each(touch);
        Ok(())
    })
}

/// Bytes of a slot that takes any of the experts.
pub(super) fn slot_bytes(layers: &[Vec<Place>]) -> usize {
    layers.iter().flatten().map(Place::span).max().unwrap_or(0)
}

/// Where the parts of a read begin and end, in the slot: all about as long, of whole blocks.
fn parts(span: usize) -> impl Iterator<Item = Range<usize>> {
    let len = span.div_ceil(span.div_ceil(readers::PART).max(1));
    let len = len.next_multiple_of(DIRECT_ALIGNMENT).max(DIRECT_ALIGNMENT);
    (0..span).step_by(len).map(move |begin| begin..span.min(begin + len))
}

#[cfg(test)]
mod tests;
