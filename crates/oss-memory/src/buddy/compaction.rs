//! Which extents to move so that whole pieces become free.

use super::{BuddyAllocator, Extent, order_of};

/// An extent to be copied to a free place of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where it is.
    pub from: Extent,
    /// Where it should go.
    pub to: Extent,
}

impl BuddyAllocator {
    /// Moves that together free up to `most` pieces: the least used ones are emptied into the gaps
    /// of others. Pieces that cannot be emptied, and extents of a piece and more, are left alone.
    ///
    /// All targets are free now, so the moves may be made in any order: copy what is there, then
    /// tell [`BuddyAllocator::apply`]. Another plan after these moves may free more. Planning takes
    /// time in proportion to the range; call it when memory is wanted back, not while serving.
    pub fn plan_compaction(&self, most: usize) -> Vec<Move> {
        let mut pieces = self.pieces();
        pieces.sort_by_key(|piece| (piece.used, piece.index));
        let mut books = self.clone();
        let mut is_target = vec![false; self.units >> self.piece];
        let mut moves = Vec::new();
        let mut freed = 0;
        for piece in pieces {
            if freed == most {
                break;
            }
            if is_target[piece.index] {
                continue;
            }
            if let Some(planned) = books.empty(&piece) {
                for step in &planned {
                    // The end of the range may be less than a piece.
                    if let Some(mark) = is_target.get_mut(step.to.first >> self.piece) {
                        *mark = true;
                    }
                }
                moves.extend(planned);
                freed += 1;
            }
        }
        moves
    }

    /// Enters a move that the owner has made: `to` is allocated and `from` free. False, and nothing
    /// changed, when `to` has been allocated since the plan was made.
    ///
    /// # Panics
    /// When `from` is not allocated, or the lengths differ.
    pub fn apply(&mut self, step: Move) -> bool {
        let (from, to) = (step.from.len, step.to.len);
        assert!(from == to, "a move to {to} units, expected {from}");
        if !self.allocate_at(step.to) {
            return false;
        }
        self.free(step.from);
        true
    }

    /// Pieces that are used in part, by extents smaller than the piece.
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for extent in self.allocated().filter(|extent| extent.len < self.piece()) {
            let index = extent.first >> self.piece;
            if index >= self.units >> self.piece {
                break;
            }
            if pieces.last().is_none_or(|piece| piece.index != index) {
                pieces.push(Piece { index, used: 0, extents: Vec::new() });
            }
            if let Some(piece) = pieces.last_mut() {
                piece.used += extent.len;
                piece.extents.push(extent);
            }
        }
        pieces
    }

    /// Moves everything out of a piece into gaps of other pieces; on failure all is as before.
    fn empty(&mut self, piece: &Piece) -> Option<Vec<Move>> {
        let gaps = self.take_gaps(piece.index);
        let mut extents = piece.extents.clone();
        // Large ones first, as they find fewer gaps.
        extents.sort_by_key(|extent| (std::cmp::Reverse(extent.len), extent.first));
        let mut moves = Vec::with_capacity(extents.len());
        for from in extents {
            match self.allocate_below(order_of(from.len), self.piece) {
                Some(to) => moves.push(Move { from, to }),
                None => {
                    moves.iter().for_each(|step| self.free(step.to));
                    gaps.iter().for_each(|&(first, order)| self.free[order].insert(first >> order));
                    return None;
                }
            }
        }
        for step in &moves {
            self.forget(step.from);
        }
        self.insert_free(piece.index << self.piece, self.piece);
        Some(moves)
    }

    /// Takes the free extents of a piece off the lists, as (first, order).
    fn take_gaps(&mut self, index: usize) -> Vec<(usize, usize)> {
        let mut gaps = Vec::new();
        let (mut unit, end) = (index << self.piece, (index + 1) << self.piece);
        while unit < end {
            let mark = usize::from(self.allocated[unit]);
            if mark != 0 {
                unit += 1 << (mark - 1);
                continue;
            }
            let order = (0..self.piece).find(|&order| {
                unit.is_multiple_of(1 << order) && self.free[order].contains(unit >> order)
            });
            let order = order.expect("a unit that is not allocated is free");
            self.free[order].remove(unit >> order);
            gaps.push((unit, order));
            unit += 1 << order;
        }
        gaps
    }
}

/// One piece.
struct Piece {
    index: usize,
    used: usize,
    extents: Vec<Extent>,
}
