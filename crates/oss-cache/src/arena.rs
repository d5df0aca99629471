//! Where extents lie in memory, and which of them take any.
//!
//! Extents lie in pieces of up to [`PIECE`], slot by slot: `[slot][extent of the piece]`. Pages
//! that follow each other go to neighbouring extents while there are any, so that the keys and
//! values of one head, which are read together, are neighbours too. Memory comes and goes by
//! pieces: a closed one takes none.

use oss_memory::placement::{MemoryPolicy, Placement};
use oss_memory::{BuddyAllocator, Buffer, Extent, Move, Pages};

use crate::Result;
use crate::error::same;
use crate::shape::Layout;

/// The most extents in a piece.
const PIECE: usize = 32;
/// A piece is no more than one of so many parts of the arena.
const LEAST_PIECES: usize = 32;

/// The extents.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Buffer,
    /// Bytes from one slot to the next in an extent that is alone.
    slot: usize,
    /// Slots of an extent.
    slots: usize,
    /// Closed pieces are allocated as a whole, extents in use one by one.
    books: BuddyAllocator,
    /// The first extents of closed pieces, the lowest last.
    closed: Vec<usize>,
    /// Extents that may be in use.
    limit: usize,
    /// Extents that have never been in use are zero.
    touched: Vec<bool>,
}

impl Arena {
    pub(crate) fn new(
        layout: &Layout,
        extents: usize,
        (memory, pages): (&MemoryPolicy, Pages),
    ) -> Result<Arena> {
        let mut bytes = Buffer::new(extents * layout.extent_bytes, pages)?;
        if memory.placement() == Placement::Interleave {
            memory.place(&mut bytes, &[])?;
        }
        let piece = 1 << (extents / LEAST_PIECES).clamp(1, PIECE).ilog2();
        let mut books = BuddyAllocator::new(extents, piece);
        let pieces: Vec<Extent> = books.free_pieces().collect();
        for &piece in &pieces {
            let is_free = books.allocate_at(piece);
            debug_assert!(is_free, "{piece:?} of a new arena");
        }
        Ok(Arena {
            bytes,
            slot: layout.slot_stride,
            slots: layout.extent_bytes / layout.slot_stride,
            books,
            closed: pieces.iter().rev().map(|piece| piece.first).collect(),
            limit: extents,
            touched: vec![false; extents],
        })
    }

    /// Extents, used or not.
    pub(crate) fn extents(&self) -> usize {
        self.books.units()
    }

    /// Extents in use.
    pub(crate) fn in_use(&self) -> usize {
        self.books.used() - self.closed.len() * self.books.piece()
    }

    /// Extents that can still be taken.
    pub(crate) fn available(&self) -> usize {
        self.limit.saturating_sub(self.in_use())
    }

    /// Extents that may be in use.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Extents that take memory: all of open pieces.
    fn open(&self) -> usize {
        self.extents() - self.closed.len() * self.books.piece()
    }

    /// Bytes of memory taken: what was set aside is taken as a whole, and for good.
    pub(crate) fn bytes_resident(&self) -> usize {
        match self.bytes_reserved() {
            0 => self.open() * self.slots * self.slot,
            reserved => reserved,
        }
    }

    /// Bytes on pages that were set aside: none, or all.
    pub(crate) fn bytes_reserved(&self) -> usize {
        if self.bytes.pages() == Pages::Reserved { self.bytes.len() } else { 0 }
    }

    /// The share of the free memory that cannot be given back as it is.
    pub(crate) fn fragmentation(&self) -> f64 {
        self.books.fragmentation()
    }

    /// Changes how many extents may be in use: whole pieces, so that the memory is bounded too.
    pub(crate) fn set_limit(&mut self, extents: usize) {
        let rest = self.extents() % self.books.piece();
        let beyond = extents.min(self.extents()).saturating_sub(rest);
        self.limit = extents.min(rest) + beyond - beyond % self.books.piece();
    }

    /// An extent, if possible the one that follows `after`, and whether it is zero.
    pub(crate) fn take(&mut self, after: Option<usize>) -> Option<(usize, bool)> {
        if self.available() == 0 {
            return None;
        }
        let piece = self.books.piece();
        let next = after.map(|extent| Extent::unit(extent + 1));
        let next = next.filter(|next| !next.first.is_multiple_of(piece));
        let extent = match next {
            Some(next) if self.books.allocate_at(next) => next.first,
            _ => {
                if self.books.largest_free() < piece && self.open() + piece <= self.limit {
                    let first = self.closed.pop();
                    first
                        .into_iter()
                        .for_each(|first| self.books.free(Extent { first, len: piece }));
                }
                self.books.allocate_with_room()?.first
            }
        };
        Some((extent, !std::mem::replace(&mut self.touched[extent], true)))
    }

    /// Gives an extent back.
    pub(crate) fn give_back(&mut self, extent: usize) {
        self.books.free(Extent::unit(extent));
    }

    /// Moves that empty as many open pieces as there are too many of.
    pub(crate) fn plan_compaction(&self) -> Vec<Move> {
        let piece = self.books.piece();
        let too_many = self.open().saturating_sub(self.limit).div_ceil(piece);
        self.books.plan_compaction(too_many.saturating_sub(self.books.free_pieces().count()))
    }

    /// Makes a planned move.
    pub(crate) fn apply(&mut self, step: Move) {
        let (from, to) = (step.from.first, step.to.first);
        self.copy((from, 0), (to, 0), self.slots);
        self.touched[to] = true;
        let is_free = self.books.apply(step);
        debug_assert!(is_free, "{step:?}");
    }

    /// Closes the pieces that are wholly free: their memory goes back to the system.
    pub(crate) fn release_free(&mut self) -> Result<()> {
        let free: Vec<Extent> = self.books.free_pieces().collect();
        let bytes = self.slots * self.slot;
        // What is set aside is of no use to others.
        let goes_back = self.bytes_reserved() == 0;
        for piece in free {
            if goes_back {
                self.bytes.release(piece.first * bytes..(piece.first + piece.len) * bytes)?;
            }
            if self.books.allocate_at(piece) {
                self.closed.push(piece.first);
            }
        }
        self.closed.sort_unstable_by(|a, b| b.cmp(a));
        Ok(())
    }

    /// The first byte of an extent's slot.
    #[inline]
    pub(crate) fn start(&self, extent: usize, slot: usize) -> usize {
        let first = extent & !(self.books.piece() - 1);
        first * self.slots * self.slot + (slot * self.width(first) + extent - first) * self.slot
    }

    /// Extents of the piece that begins at `first`: fewer in the last one.
    #[inline]
    fn width(&self, first: usize) -> usize {
        self.books.piece().min(self.extents() - first)
    }

    /// The bytes of `slots` slots of an extent, from slot `first` on.
    pub(crate) fn read(&self, extent: usize, first: usize, slots: usize) -> PageBytes<'_> {
        let (start, last) = (self.start(extent, first), self.start(extent, first + slots - 1));
        let bytes = &self.bytes[start..last + self.slot];
        match self.step(extent) {
            step if step == self.slot => PageBytes::from(bytes),
            step => PageBytes { bytes, slot: self.slot, step },
        }
    }

    /// The same bytes to be written, in pieces: all of one length but for the last.
    pub(crate) fn write(
        &mut self,
        extent: usize,
        first: usize,
        slots: usize,
    ) -> impl Iterator<Item = &mut [u8]> {
        let (start, last) = (self.start(extent, first), self.start(extent, first + slots - 1));
        let (slot, step) = (self.slot, self.step(extent));
        self.bytes[start..last + slot].chunks_mut(step).map(move |bytes| &mut bytes[..slot])
    }

    /// Bytes from one slot of an extent to the next.
    fn step(&self, extent: usize) -> usize {
        self.width(extent & !(self.books.piece() - 1)) * self.slot
    }

    /// Copies `slots` slots from one extent to another, each from slot `.1` on.
    pub(crate) fn copy(&mut self, from: (usize, usize), to: (usize, usize), slots: usize) {
        for slot in 0..slots {
            let (start, end) = (self.start(from.0, from.1 + slot), self.start(to.0, to.1 + slot));
            self.bytes.copy_within(start..start + self.slot, end);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Checks the books against `is_used`, for each extent whether somebody has it.
    pub(crate) fn validate(&self, is_used: &[bool]) -> Result<()> {
        let mut allocated = vec![0; self.extents()];
        for extent in self.books.allocated() {
            allocated[extent.first..extent.first + extent.len].fill(1);
        }
        for &first in &self.closed {
            for extent in &mut allocated[first..first + self.books.piece()] {
                same("a closed piece is allocated", *extent, 1)?;
                *extent = 0;
            }
        }
        for (&got, &expected) in allocated.iter().zip(is_used) {
            same("an extent in use", got, usize::from(expected))?;
        }
        same("order of closed pieces", usize::from(self.closed.is_sorted_by(|a, b| a > b)), 1)
    }
}

/// The bytes of one page: slots of one length, so many bytes apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageBytes<'a> {
    bytes: &'a [u8],
    slot: usize,
    step: usize,
}

impl<'a> From<&'a [u8]> for PageBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        PageBytes { bytes, slot: bytes.len(), step: bytes.len() }
    }
}

impl<'a> PageBytes<'a> {
    /// The slots in order; together they are the page.
    pub(crate) fn slots(self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.step).map(move |bytes| &bytes[..self.slot])
    }

    /// Appends the page to `out`.
    pub(crate) fn append_to(self, out: &mut Vec<u8>) {
        self.slots().for_each(|slot| out.extend_from_slice(slot));
    }

    /// Bytes of the page.
    pub(crate) fn len(self) -> usize {
        self.bytes.len().div_ceil(self.step) * self.slot
    }
}
