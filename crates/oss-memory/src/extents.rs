//! A buddy allocator of extents: 4 KiB × 2ⁿ, within a range of addresses that its owner holds.
//!
//! It keeps the books only: extents are offsets, and the bytes belong to whoever owns the range (a
//! [`crate::Buffer`], a file). Splitting and merging take `O(log n)` steps and allocate nothing.

mod bits;
mod compaction;

use bits::Bits;
pub use compaction::Move;

/// Bytes of the smallest extent.
pub const SMALLEST: usize = 4096;
/// The order of an extent that a huge page fits.
const HUGE_ORDER: usize = (crate::HUGE_PAGE / SMALLEST).trailing_zeros() as usize;

/// A piece of the range: it begins at a multiple of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Where it begins, in bytes from the start of the range.
    pub offset: usize,
    /// Its length in bytes, [`SMALLEST`] × 2ⁿ.
    pub bytes: usize,
}

/// The books of a range.
#[derive(Clone, Debug)]
pub struct Extents {
    /// Length of the range in blocks of [`SMALLEST`].
    blocks: usize,
    /// Free extents by order, as offset / length.
    free: Vec<Bits>,
    /// For each block that an allocated extent begins at, its order + 1; otherwise 0.
    allocated: Vec<u8>,
    used_blocks: usize,
}

impl Extents {
    /// The books of an empty range of `bytes`.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of [`SMALLEST`].
    pub fn new(bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(SMALLEST), "{bytes} bytes, expected a multiple of {SMALLEST}");
        let blocks = bytes / SMALLEST;
        let orders = if blocks == 0 { 0 } else { blocks.ilog2() as usize + 1 };
        let mut free: Vec<Bits> = (0..orders).map(|order| Bits::new(blocks >> order)).collect();
        // The largest aligned extents that fit, from the front: the binary digits of the length.
        let mut begin = 0;
        for order in (0..orders).rev().filter(|order| blocks >> order & 1 == 1) {
            free[order].insert(begin >> order);
            begin += 1 << order;
        }
        Self { blocks, free, allocated: vec![0; blocks], used_blocks: 0 }
    }

    /// The extent that serves `bytes`, from the smallest free one that is large enough, the lowest
    /// of these; none when there is none.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn allocate(&mut self, bytes: usize) -> Option<Extent> {
        let order = order_of(bytes);
        self.allocate_below(order, self.free.len())
    }

    /// Gives an extent back; it merges with free neighbours.
    ///
    /// # Panics
    /// When the extent is not one that was allocated and not yet freed.
    pub fn free(&mut self, extent: Extent) {
        let order = self.forget(extent);
        self.insert_free(extent.offset / SMALLEST, order);
    }

    /// Length of the range in bytes.
    pub fn capacity(&self) -> usize {
        self.blocks * SMALLEST
    }

    /// Bytes of all allocated extents.
    pub fn used_bytes(&self) -> usize {
        self.used_blocks * SMALLEST
    }

    /// Bytes of all free extents.
    pub fn free_bytes(&self) -> usize {
        self.capacity() - self.used_bytes()
    }

    /// Bytes of the largest extent that can be allocated now.
    pub fn largest_free(&self) -> usize {
        let order = self.free.iter().rposition(|free| free.len() > 0);
        order.map_or(0, |order| SMALLEST << order)
    }

    /// Pieces of [`crate::HUGE_PAGE`] that are wholly free and could be given back to the system.
    pub fn free_huge_pages(&self) -> usize {
        let large = self.free.iter().enumerate().skip(HUGE_ORDER);
        large.map(|(order, free)| free.len() << (order - HUGE_ORDER)).sum()
    }

    /// The share of the free bytes that lies in pieces of [`crate::HUGE_PAGE`] that are partly
    /// used: 0 when all of it could be given back, 1 when none.
    pub fn fragmentation(&self) -> f64 {
        let free = self.free_bytes();
        let whole = self.free_huge_pages() * crate::HUGE_PAGE;
        if free == 0 { 0.0 } else { (free - whole) as f64 / free as f64 }
    }

    /// The allocated extents, ascending.
    pub fn allocated(&self) -> impl Iterator<Item = Extent> + '_ {
        let marks = self.allocated.iter().enumerate().filter(|&(_, &mark)| mark != 0);
        marks.map(|(block, &mark)| extent(block, usize::from(mark) - 1))
    }

    /// Allocates from a free extent of an order below `limit`.
    fn allocate_below(&mut self, order: usize, limit: usize) -> Option<Extent> {
        let found = (order..limit.min(self.free.len())).find(|&at| self.free[at].len() > 0)?;
        let index = self.free[found].first()?;
        let block = index << found;
        self.carve(block, found, block, order);
        Some(extent(block, order))
    }

    /// Allocates exactly `wanted`; false when part of it is in use.
    fn allocate_at(&mut self, wanted: Extent) -> bool {
        let (block, order) = (wanted.offset / SMALLEST, order_of(wanted.bytes));
        let around = (order..self.free.len()).find(|&at| self.free[at].contains(block >> at));
        if let Some(at) = around {
            self.carve(block >> at << at, at, block, order);
        }
        around.is_some()
    }

    /// Takes the extent `wanted` of `order` out of the free extent `whole` of order `at`, and frees
    /// the halves beside it.
    fn carve(&mut self, whole: usize, at: usize, wanted: usize, order: usize) {
        self.free[at].remove(whole >> at);
        for half in (order..at).rev() {
            self.free[half].insert((wanted >> half) ^ 1);
        }
        self.allocated[wanted] = order as u8 + 1;
        self.used_blocks += 1 << order;
    }

    /// Takes an allocated extent out of the books and returns its order.
    fn forget(&mut self, extent: Extent) -> usize {
        let order = order_of(extent.bytes);
        let block = extent.offset / SMALLEST;
        let mark = self.allocated.get(block).copied().unwrap_or(0);
        assert!(
            usize::from(mark) == order + 1 && extent == self::extent(block, order),
            "{extent:?} is freed, expected an allocated extent"
        );
        self.allocated[block] = 0;
        self.used_blocks -= 1 << order;
        order
    }

    /// Adds a free extent and merges it with its buddies.
    fn insert_free(&mut self, mut block: usize, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove((block >> order) ^ 1) {
            block &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(block >> order);
    }
}

fn extent(block: usize, order: usize) -> Extent {
    Extent { offset: block * SMALLEST, bytes: SMALLEST << order }
}

/// The order of the smallest extent that holds `bytes`.
fn order_of(bytes: usize) -> usize {
    assert!(bytes > 0, "an extent of {bytes} bytes, expected at least 1");
    (bytes - 1)
        .checked_div(SMALLEST)
        .map_or(0, |more| (usize::BITS - more.leading_zeros()) as usize)
}

#[cfg(test)]
mod tests;
