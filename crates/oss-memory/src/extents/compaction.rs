//! Which extents to move so that whole huge pages become free.

use super::{Extent, Extents, HUGE_ORDER, SMALLEST, order_of};
use crate::HUGE_PAGE;

/// An extent to be copied to a free place of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where it is.
    pub from: Extent,
    /// Where it should go.
    pub to: Extent,
}

impl Extents {
    /// Moves that together free up to `huge_pages` pieces of [`crate::HUGE_PAGE`]: the least used
    /// pieces are emptied into the gaps of others. Pieces that cannot be emptied are left alone.
    ///
    /// All targets are free now, so the moves may be made in any order: copy the bytes, then tell
    /// [`Extents::apply`]. Planning takes time in proportion to the range; call it when memory is
    /// wanted back, not while serving.
    pub fn plan_compaction(&self, huge_pages: usize) -> Vec<Move> {
        let mut pieces = self.pieces();
        pieces.sort_by_key(|piece| (piece.used_blocks, piece.index));
        let mut books = self.clone();
        let mut is_target = vec![false; self.blocks >> HUGE_ORDER];
        let mut moves = Vec::new();
        let mut freed = 0;
        for piece in pieces {
            if freed == huge_pages {
                break;
            }
            if is_target[piece.index] {
                continue;
            }
            if let Some(planned) = books.empty(&piece) {
                for step in &planned {
                    // The last piece of the range may be shorter than a huge page.
                    if let Some(mark) = is_target.get_mut(step.to.offset / HUGE_PAGE) {
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
        let (from, to) = (step.from.bytes, step.to.bytes);
        assert!(from == to, "a move to {to} bytes, expected {from}");
        if !self.allocate_at(step.to) {
            return false;
        }
        self.free(step.from);
        true
    }

    /// Pieces of a huge page's length that are used in part, by extents smaller than the piece.
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for extent in self.allocated().filter(|extent| extent.bytes < HUGE_PAGE) {
            let index = extent.offset / HUGE_PAGE;
            if index >= self.blocks >> HUGE_ORDER {
                break;
            }
            if pieces.last().is_none_or(|piece| piece.index != index) {
                pieces.push(Piece { index, used_blocks: 0, extents: Vec::new() });
            }
            if let Some(piece) = pieces.last_mut() {
                piece.used_blocks += extent.bytes / SMALLEST;
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
        extents.sort_by_key(|extent| (std::cmp::Reverse(extent.bytes), extent.offset));
        let mut moves = Vec::with_capacity(extents.len());
        for from in extents {
            match self.allocate_below(order_of(from.bytes), HUGE_ORDER) {
                Some(to) => moves.push(Move { from, to }),
                None => {
                    moves.iter().for_each(|step| self.free(step.to));
                    gaps.iter().for_each(|&(block, order)| self.free[order].insert(block >> order));
                    return None;
                }
            }
        }
        for step in &moves {
            self.forget(step.from);
        }
        self.insert_free(piece.index << HUGE_ORDER, HUGE_ORDER);
        Some(moves)
    }

    /// Takes the free extents of a piece off the lists, as (block, order).
    fn take_gaps(&mut self, index: usize) -> Vec<(usize, usize)> {
        let mut gaps = Vec::new();
        let (mut block, end) = (index << HUGE_ORDER, (index + 1) << HUGE_ORDER);
        while block < end {
            let mark = usize::from(self.allocated[block]);
            if mark != 0 {
                block += 1 << (mark - 1);
                continue;
            }
            let order = (0..HUGE_ORDER).find(|&order| {
                block.is_multiple_of(1 << order) && self.free[order].contains(block >> order)
            });
            let order = order.expect("a block that is not allocated is free");
            self.free[order].remove(block >> order);
            gaps.push((block, order));
            block += 1 << order;
        }
        gaps
    }
}

/// One piece of a huge page's length.
struct Piece {
    index: usize,
    used_blocks: usize,
    extents: Vec<Extent>,
}
