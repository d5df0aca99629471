//! How packed blocks are gathered: runs of codes, each followed by the scales of the run.

use crate::unpack::Block;

/// Blocks of a run: where records are shorter several make one, where they are longer their half.
pub const RUN_BLOCKS: usize = 4;

/// The shape of a format's records.
///
/// A record is `blocks` blocks of codes and then one tail of scales. The last record of a group may
/// have fewer blocks; its tail has the full size.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Blocks of 32 columns in a whole record.
    pub(crate) blocks: usize,
    /// Bytes of the codes of a block, a multiple of 64.
    pub(crate) code_bytes: usize,
    /// Bytes of the tail, a multiple of 64.
    pub(crate) tail_bytes: usize,
}

/// One row of one block, within its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The block's index in the record.
    pub(crate) block: usize,
    /// The row's index in the group.
    pub(crate) lane: usize,
}

impl Record {
    /// Bytes of a group with `n_blocks` blocks in a row; `None` when they do not fit.
    pub(crate) fn group_bytes(self, n_blocks: usize) -> Option<usize> {
        let codes = n_blocks.checked_mul(self.code_bytes)?;
        codes.checked_add(n_blocks.div_ceil(self.blocks).checked_mul(self.tail_bytes)?)
    }

    /// Bytes of a block, its share of the tail included.
    pub(crate) const fn block_bytes(self) -> usize {
        self.code_bytes + self.tail_bytes / self.blocks
    }

    /// A block of a group that has `n_blocks`.
    ///
    /// # Panics
    /// When it is not all in the group.
    #[inline(always)]
    pub(crate) fn block(self, group: &[u8], n_blocks: usize, block: usize) -> Block<'_> {
        Block {
            codes: &group[self.codes_at(block)..][..self.code_bytes],
            tail: &group[self.tail_at(n_blocks, block)..][..self.tail_bytes],
            index: block % self.blocks,
        }
    }

    /// Blocks of a whole record.
    #[must_use]
    pub const fn blocks(self) -> usize {
        self.blocks
    }

    /// The blocks of a run, the first of which begins a record or its half.
    ///
    /// # Panics
    /// When they are not all in the group.
    #[inline(always)]
    pub(crate) fn run(
        self,
        group: &[u8],
        n_blocks: usize,
        first: usize,
    ) -> [Block<'_>; RUN_BLOCKS] {
        let Self { blocks, code_bytes, tail_bytes } = self;
        debug_assert!(first.is_multiple_of(blocks.min(RUN_BLOCKS)), "{first} is within a record");
        let group = &group[self.codes_at(first)..];
        let index = first % blocks;
        let (run, tail) = if blocks > RUN_BLOCKS {
            // Half a record. Its tail lies where it ends: the last may have fewer blocks.
            let to_tail = self.tail_at(n_blocks, first) - self.codes_at(first);
            (&group[..RUN_BLOCKS * code_bytes], &group[to_tail..][..tail_bytes])
        } else {
            let run = &group[..RUN_BLOCKS * self.block_bytes()];
            (run, &run[..0])
        };
        let run = Run { record: self, bytes: run, tail, index };
        // Written out: the compiler may call what an array is made from by a function.
        [run.block(0), run.block(1), run.block(2), run.block(3)]
    }

    /// Where the codes of a block begin.
    #[inline(always)]
    pub(crate) const fn codes_at(self, block: usize) -> usize {
        block / self.blocks * self.tail_bytes + block * self.code_bytes
    }

    /// Where the tail of a block's record begins.
    #[inline(always)]
    pub(crate) const fn tail_at(self, n_blocks: usize, block: usize) -> usize {
        let first = block / self.blocks * self.blocks;
        let end = if n_blocks - first < self.blocks { n_blocks } else { first + self.blocks };
        block / self.blocks * self.tail_bytes + end * self.code_bytes
    }
}

/// Neighbouring blocks: whole records, or codes of one whose tail lies elsewhere.
struct Run<'a> {
    record: Record,
    bytes: &'a [u8],
    tail: &'a [u8],
    /// Index of the first block in its record.
    index: usize,
}

impl<'a> Run<'a> {
    #[inline(always)]
    fn block(&self, j: usize) -> Block<'a> {
        let Self { record: Record { blocks, code_bytes, tail_bytes }, bytes, tail, index } = *self;
        if blocks > RUN_BLOCKS {
            return Block { codes: &bytes[j * code_bytes..][..code_bytes], tail, index: index + j };
        }
        let record = &bytes[j / blocks * (blocks * code_bytes + tail_bytes)..];
        Block {
            codes: &record[j % blocks * code_bytes..][..code_bytes],
            tail: &record[blocks * code_bytes..][..tail_bytes],
            index: j % blocks,
        }
    }
}
