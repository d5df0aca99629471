//! A buddy allocator of extents: 2ⁿ neighbouring units of a range that its owner holds.
//!
//! It keeps the books only. What a unit is, such as the place of one page of keys and values, is
//! its owner's business, and so is the piece: so many units as the owner can give back to the
//! system together. Splitting and merging take `O(log n)` steps and allocate nothing.

mod bits;
mod compaction;

use bits::Bits;
pub use compaction::Move;

/// Units next to each other: they begin at a multiple of their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first unit.
    pub first: usize,
    /// How many there are, a power of two.
    pub len: usize,
}

impl Extent {
    /// One unit.
    #[must_use]
    pub const fn unit(first: usize) -> Self {
        Self { first, len: 1 }
    }
}

/// The books of a range.
#[derive(Clone, Debug)]
pub struct BuddyAllocator {
    units: usize,
    /// The order of a piece.
    piece: usize,
    /// Free extents by order, as first / length.
    free: Vec<Bits>,
    /// For each unit that an allocated extent begins at, its order + 1; otherwise 0.
    allocated: Vec<u8>,
    used: usize,
}

impl BuddyAllocator {
    /// The books of `units` free units that can be given back `piece` at a time.
    ///
    /// # Panics
    /// When `piece` is not a power of two.
    pub fn new(units: usize, piece: usize) -> Self {
        assert!(piece.is_power_of_two(), "a piece of {piece} units, expected a power of two");
        let orders = if units == 0 { 0 } else { units.ilog2() as usize + 1 };
        let mut free: Vec<Bits> = (0..orders).map(|order| Bits::new(units >> order)).collect();
        // The largest aligned extents that fit, from the front: the binary digits of the length.
        let mut begin = 0;
        for order in (0..orders).rev().filter(|order| units >> order & 1 == 1) {
            free[order].insert(begin >> order);
            begin += 1 << order;
        }
        let piece = piece.trailing_zeros() as usize;
        Self { units, piece, free, allocated: vec![0; units], used: 0 }
    }

    /// An extent of at least `len` units, from the smallest free one that is large enough, the
    /// lowest of these; none when there is none.
    ///
    /// # Panics
    /// When `len` is 0.
    pub fn allocate(&mut self, len: usize) -> Option<Extent> {
        let order = order_of(len);
        self.allocate_below(order, self.free.len())
    }

    /// The first unit of the largest free extent, the lowest of these: what is taken after it can
    /// follow it for long.
    pub fn allocate_with_room(&mut self) -> Option<Extent> {
        let order = self.free.iter().rposition(|free| free.len() > 0)?;
        let first = self.free[order].first()? << order;
        self.carve(first, order, first, 0);
        Some(Extent::unit(first))
    }

    /// Allocates exactly `wanted`; false when part of it is in use or beyond the end.
    ///
    /// # Panics
    /// When `wanted` does not begin at a multiple of its length, or that is not a power of two.
    pub fn allocate_at(&mut self, wanted: Extent) -> bool {
        let order = order_of(wanted.len);
        assert!(wanted == extent(wanted.first >> order << order, order), "{wanted:?}");
        let is_free = |&at: &usize| self.free[at].contains(wanted.first >> at);
        let around = (order..self.free.len()).find(is_free);
        if let Some(at) = around {
            self.carve(wanted.first >> at << at, at, wanted.first, order);
        }
        around.is_some()
    }

    /// Gives an extent back; it merges with free neighbours.
    ///
    /// # Panics
    /// When the extent is not one that was allocated and not yet freed.
    pub fn free(&mut self, extent: Extent) {
        let order = self.forget(extent);
        self.insert_free(extent.first, order);
    }

    /// Units of the range.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Units of a piece.
    pub fn piece(&self) -> usize {
        1 << self.piece
    }

    /// Units of all allocated extents.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Units of the largest extent that can be allocated now.
    pub fn largest_free(&self) -> usize {
        let order = self.free.iter().rposition(|free| free.len() > 0);
        order.map_or(0, |order| 1 << order)
    }

    /// The pieces that are wholly free and could be given back to the system, ascending.
    pub fn free_pieces(&self) -> impl Iterator<Item = Extent> + '_ {
        let pieces =
            (0..self.units >> self.piece).map(|index| extent(index << self.piece, self.piece));
        pieces.filter(|piece| {
            (self.piece..self.free.len()).any(|at| self.free[at].contains(piece.first >> at))
        })
    }

    /// The share of the free units that lies in pieces that are partly used: 0 when all of it
    /// could be given back, 1 when none.
    pub fn fragmentation(&self) -> f64 {
        let large = self.free.iter().enumerate().skip(self.piece);
        let whole: usize = large.map(|(order, free)| free.len() << order).sum();
        let free = self.units - self.used;
        if free == 0 { 0.0 } else { (free - whole) as f64 / free as f64 }
    }

    /// The allocated extents, ascending.
    pub fn allocated(&self) -> impl Iterator<Item = Extent> + '_ {
        let marks = self.allocated.iter().enumerate().filter(|&(_, &mark)| mark != 0);
        marks.map(|(first, &mark)| extent(first, usize::from(mark) - 1))
    }

    /// Allocates from a free extent of an order below `limit`.
    fn allocate_below(&mut self, order: usize, limit: usize) -> Option<Extent> {
        let found = (order..limit.min(self.free.len())).find(|&at| self.free[at].len() > 0)?;
        let index = self.free[found].first()?;
        let first = index << found;
        self.carve(first, found, first, order);
        Some(extent(first, order))
    }

    /// Takes the extent `wanted` of `order` out of the free extent `whole` of order `at`, and frees
    /// the halves beside it.
    fn carve(&mut self, whole: usize, at: usize, wanted: usize, order: usize) {
        self.free[at].remove(whole >> at);
        for half in (order..at).rev() {
            self.free[half].insert((wanted >> half) ^ 1);
        }
        self.allocated[wanted] = order as u8 + 1;
        self.used += 1 << order;
    }

    /// Takes an allocated extent out of the books and returns its order.
    fn forget(&mut self, extent: Extent) -> usize {
        let order = order_of(extent.len);
        let mark = self.allocated.get(extent.first).copied().unwrap_or(0);
        assert!(
            usize::from(mark) == order + 1 && extent.len == 1 << order,
            "{extent:?} is freed, expected an allocated extent"
        );
        self.allocated[extent.first] = 0;
        self.used -= 1 << order;
        order
    }

    /// Adds a free extent and merges it with its buddies.
    fn insert_free(&mut self, mut first: usize, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove((first >> order) ^ 1) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(first >> order);
    }
}

fn extent(first: usize, order: usize) -> Extent {
    Extent { first, len: 1 << order }
}

/// The order of the smallest extent that holds `len` units.
fn order_of(len: usize) -> usize {
    assert!(len > 0, "an extent of {len} units, expected at least 1");
    len.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests;
