//! How packed blocks are gathered: runs of codes, each followed by the scales of the run.

use crate::unpack::Block;

/// Blocks of a run, one record or two.
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

/// The bytes of one record.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes<'a> {
    codes: &'a [u8],
    tail: &'a [u8],
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

    /// Blocks in a whole record.
    #[must_use]
    pub const fn blocks(self) -> usize {
        self.blocks
    }

    /// The record that begins with the block `first` of a group of `n_blocks`.
    ///
    /// # Panics
    /// When it is not all in the group.
    #[inline(always)]
    pub(crate) fn bytes(self, group: &[u8], n_blocks: usize, first: usize) -> RecordBytes<'_> {
        debug_assert!(first.is_multiple_of(self.blocks), "block {first}");
        let codes = self.blocks.min(n_blocks - first) * self.code_bytes;
        let (codes, behind) = group[self.codes_at(first)..].split_at(codes);
        RecordBytes { codes, tail: &behind[..self.tail_bytes] }
    }

    /// A block of a record.
    ///
    /// # Panics
    /// When the record has fewer blocks.
    #[inline(always)]
    pub(crate) fn block_of(self, record: RecordBytes<'_>, index: usize) -> Block<'_> {
        let codes = &record.codes[index * self.code_bytes..][..self.code_bytes];
        Block { codes, tail: record.tail, index }
    }

    /// Whether records make runs of [`RUN_BLOCKS`].
    #[must_use]
    pub const fn has_runs(self) -> bool {
        RUN_BLOCKS.is_multiple_of(self.blocks)
    }

    /// The blocks of a run, the first of which begins a record.
    ///
    /// # Panics
    /// When they are not all in the group.
    #[inline(always)]
    pub(crate) fn run(self, group: &[u8], first: usize) -> [Block<'_>; RUN_BLOCKS] {
        const { assert!(RUN_BLOCKS == 4, "each block is written out") }
        debug_assert!(self.has_runs() && first.is_multiple_of(self.blocks), "block {first}");
        let run = &group[self.codes_at(first)..][..RUN_BLOCKS * self.block_bytes()];
        // The compiler may call a function for what an array is made from otherwise.
        [
            self.block_of_run(run, 0),
            self.block_of_run(run, 1),
            self.block_of_run(run, 2),
            self.block_of_run(run, 3),
        ]
    }

    #[inline(always)]
    fn block_of_run(self, run: &[u8], j: usize) -> Block<'_> {
        let record = &run[j / self.blocks * self.blocks * self.block_bytes()..];
        Block {
            codes: &record[j % self.blocks * self.code_bytes..][..self.code_bytes],
            tail: &record[self.blocks * self.code_bytes..][..self.tail_bytes],
            index: j % self.blocks,
        }
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
