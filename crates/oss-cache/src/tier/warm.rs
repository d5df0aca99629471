//! Compressed pages in memory.
//!
//! A separate thread compresses them: the owner of the cache copies a page that is evicted and
//! gets the compressed one later.

use super::codec;
use super::cold::Owner;
use super::moves::Cause;
use super::workers::{Job, Wait, Worker};
use crate::cache::KvCache;
use crate::error::same;
use crate::policy::{EvictionPolicy, Policy};
use crate::pool::NO_PAGE;
use crate::tree::{NO_SLOT, NodeId};
use crate::{Error, Result};

/// Pages that may wait to be compressed: so many are copied.
pub(crate) const PACK_QUEUE: usize = 64;
/// This part of the compressed pages goes where memory for another one is refused: whatever else
/// needs some shall find it.
const PART: usize = 8;

/// A page in this tier.
#[derive(Clone, Debug)]
pub(crate) enum Packed {
    /// Compressed.
    Ready(Box<[u8]>),
    /// Copied to the thread that compresses it, under this number.
    OnItsWay(u32),
}

/// The tier.
#[derive(Debug)]
pub(crate) struct Warm {
    limit: usize,
    /// Bytes of the compressed pages.
    bytes: usize,
    /// Orders the blocks with pages here.
    pub(super) order: Box<dyn Policy>,
    packer: Option<Worker>,
    /// The page restored last.
    page: Vec<u8>,
    /// Whose pages are being compressed; none where nobody wants them any more.
    senders: Vec<Option<Owner>>,
    /// Numbers of `senders` that are not in use.
    free: Vec<u32>,
}

impl Warm {
    /// A tier of at most `limit` bytes, ordered by `policy`; without any bytes there is no thread.
    pub(crate) fn new(limit: usize, policy: EvictionPolicy) -> Result<Warm> {
        let thread = |cause| Error::Thread { cause };
        let packer = (limit > 0).then(|| Worker::packer(PACK_QUEUE).map_err(thread)).transpose()?;
        let senders = vec![None; PACK_QUEUE];
        let free = (0..PACK_QUEUE as u32).collect();
        Ok(Warm { limit, bytes: 0, order: policy.build(), packer, page: Vec::new(), senders, free })
    }

    /// Restores a page of `bytes` bytes; none when that is not what was packed, or memory is
    /// refused.
    pub(crate) fn restore(&mut self, packed: &[u8], bytes: usize) -> Option<&[u8]> {
        oss_memory::try_grow_zeroed(&mut self.page, bytes).ok()?;
        let page = &mut self.page[..bytes];
        codec::restore(packed, page).then_some(&*page)
    }

    /// Whether another page could be taken without waiting.
    pub(crate) fn has_room_in_queue(&self) -> bool {
        self.limit > 0 && self.packer.as_ref().is_some_and(Worker::has_room)
    }
}

impl KvCache {
    /// Bytes of compressed pages.
    pub fn warm_bytes(&self) -> usize {
        self.tiers.warm.bytes
    }

    /// Changes how many bytes of compressed pages are kept; 0 keeps none. A cache that was made
    /// without any stays so. What goes is written to the file as far as its queue has room.
    pub fn set_warm_limit(&mut self, bytes: usize) {
        self.tiers.warm.limit = if self.tiers.warm.packer.is_some() { bytes } else { 0 };
        self.shed(KvCache::trim_warm);
    }

    /// Sends a copy of a resident page to be compressed. False when none are kept, when memory is
    /// refused, or when the queue is full and the file has the page: only for the sake of the last
    /// copy it waits.
    pub(crate) fn compress(&mut self, block: NodeId, group: usize) -> bool {
        let place = self.tree.places(block, group);
        let (page, in_file) = (place.hot, place.cold != NO_SLOT);
        let page_bytes = self.layout.groups[group].page_bytes;
        if self.tiers.warm.limit == 0 {
            return false;
        }
        while !self.tiers.warm.has_room_in_queue() {
            if in_file || !self.note_packed(Wait::Forever) {
                return false;
            }
        }
        let Warm { packer: Some(packer), senders, free, order, .. } = &mut self.tiers.warm else {
            return false;
        };
        let Some(mut bytes) = packer.buffer(page_bytes) else { return false };
        let Some(number) = free.pop() else { return false };
        self.pool.bytes(&self.layout, group, page).append_to(&mut bytes);
        if !packer.send(Job { slot: number, bytes, ..Job::default() }) {
            free.push(number);
            return false;
        }
        senders[number as usize] = Some(Owner { block, group });
        if self.tree.all_places(block).iter().all(|place| place.warm.is_none()) {
            let node = self.tree.node(block);
            order.insert(block, node.hash, node.uses);
        }
        self.tree.places_mut(block, group).warm = Some(Packed::OnItsWay(number));
        true
    }

    /// Takes one page from the thread that compresses, waiting for it if asked to; false when
    /// there was none.
    pub(crate) fn note_packed(&mut self, wait: Wait) -> bool {
        let warm = &mut self.tiers.warm;
        let Some(job) = warm.packer.as_mut().and_then(|packer| packer.answer(wait)) else {
            return false;
        };
        let sender = warm.senders[job.slot as usize].take();
        warm.free.push(job.slot);
        let Job { bytes, packed, refused, .. } = job;
        if let Some(Owner { block, group }) = sender {
            self.pinned(block, |cache| match packed {
                Some(packed) => {
                    cache.stats.compressed_pages += 1;
                    cache.stats.compressed_bytes += bytes.len() as u64;
                    cache.tiers.warm.bytes += packed.len();
                    cache.tree.places_mut(block, group).warm = Some(Packed::Ready(packed));
                }
                None => {
                    if refused {
                        let Warm { bytes, limit, .. } = &mut cache.tiers.warm;
                        *limit = (*limit).min(*bytes - *bytes / PART);
                    } else {
                        cache.stats.incompressible_pages += 1;
                    }
                    cache.forget_warm(block, group);
                    if cache.tree.places(block, group).cold == NO_SLOT {
                        cache.store(block, group, Some(&bytes), Cause::Leaves);
                    }
                }
            });
        }
        if let Some(packer) = &mut self.tiers.warm.packer {
            packer.recycle(bytes);
        }
        self.trim_warm();
        true
    }

    /// Gives up compressed pages until the rest is within the limit.
    fn trim_warm(&mut self) {
        while self.tiers.warm.bytes > self.tiers.warm.limit {
            let is_ready = |block: NodeId| {
                let mut places = self.tree.all_places(block).iter();
                !places.any(|place| matches!(place.warm, Some(Packed::OnItsWay(_))))
            };
            let victim = self.tiers.warm.order.victim(&mut |block| is_ready(block));
            let Some(victim) = victim else { return };
            self.drop_warm(victim);
        }
    }

    /// Gives up the compressed pages of a block that is out of the order, to the file if it has not
    /// got them.
    fn drop_warm(&mut self, block: NodeId) {
        self.pinned(block, |cache| {
            for group in 0..cache.layout.groups.len() {
                let place = cache.tree.places(block, group);
                if place.warm.is_some() {
                    if place.cold == NO_SLOT {
                        let is_last = place.hot == NO_PAGE;
                        let cause = if is_last { Cause::Leaves } else { Cause::Complete };
                        if !cache.store(block, group, None, cause) {
                            cache.put_off(block, false);
                        }
                    }
                    cache.forget_warm(block, group);
                    cache.stats.warm_evicted_pages += 1;
                }
            }
        });
    }

    pub(crate) fn forget_warm(&mut self, block: NodeId, group: usize) {
        match self.tree.places_mut(block, group).warm.take() {
            Some(Packed::Ready(bytes)) => self.tiers.warm.bytes -= bytes.len(),
            Some(Packed::OnItsWay(number)) => self.tiers.warm.senders[number as usize] = None,
            None => return,
        }
        if self.tree.all_places(block).iter().all(|place| place.warm.is_none()) {
            self.tiers.warm.order.remove(block);
        }
    }

    /// Checks the books of this tier.
    pub(crate) fn validate_warm(&self) -> Result<()> {
        let warm = &self.tiers.warm;
        let (mut bytes, mut blocks, mut on_their_way) = (0, 0, 0);
        for block in self.tree.ids() {
            let places = self.tree.all_places(block);
            blocks += usize::from(places.iter().any(|place| place.warm.is_some()));
            for (group, place) in places.iter().enumerate() {
                match &place.warm {
                    Some(Packed::Ready(packed)) => bytes += packed.len(),
                    Some(Packed::OnItsWay(number)) => {
                        on_their_way += 1;
                        let known = warm.senders[*number as usize] == Some(Owner { block, group });
                        same("a page being compressed knows its sender", known.into(), 1)?;
                    }
                    None => {}
                }
            }
        }
        same("bytes of compressed pages", warm.bytes, bytes)?;
        same("blocks with compressed pages", warm.order.len(), blocks)?;
        same("pages being compressed", warm.senders.iter().flatten().count(), on_their_way)
    }
}
