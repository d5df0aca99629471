//! Complete pages that are still to be written to the file.
//!
//! The thread that writes has a short queue, and a step may complete more pages than it takes at
//! once. What finds no room waits here, parents before those that follow them: the next process
//! finds a page by those before it.

use std::collections::VecDeque;

use super::moves::Cause;
use crate::cache::KvCache;
use crate::error::same;
use crate::tree::{NodeId, Tree};

/// Blocks that have gone are looked for when there are so many more entries than blocks.
const SLACK: usize = 64;

/// Blocks with pages to write, the next one first.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// With the generations of their nodes.
    blocks: VecDeque<(NodeId, u32)>,
    /// So many at the front were begun before, but the queue, or the disk, had no room for all of
    /// their pages.
    again: usize,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn push(&mut self, tree: &Tree, block: NodeId, again: bool) {
        let entry = (block, tree.node(block).generation);
        if again {
            self.blocks.insert(self.again, entry);
            self.again += 1;
        } else {
            self.blocks.push_back(entry);
        }
        if self.blocks.len() > 2 * tree.len() + SLACK {
            let (mut at, mut again) = (0, 0);
            self.blocks.retain(|&entry| {
                let stays = is_live(tree, entry);
                again += usize::from(stays && at < self.again);
                at += 1;
                stays
            });
            self.again = again;
        }
    }

    fn pop(&mut self) -> Option<(NodeId, u32)> {
        self.again = self.again.saturating_sub(1);
        self.blocks.pop_front()
    }
}

fn is_live(tree: &Tree, (block, generation): (NodeId, u32)) -> bool {
    let node = tree.node(block);
    node.live && node.generation == generation
}

impl KvCache {
    /// Sends the pages of a block that are worth keeping to the file, now or when the queue has
    /// room for them.
    pub(crate) fn write_through(&mut self, block: NodeId) {
        if self.tiers.cold.is_none() {
            return;
        }
        self.note_written();
        if !self.tiers.backlog.is_empty() || !self.write_pages(block, Cause::Complete) {
            self.put_off(block, false);
        }
    }

    /// Sends as many of the pages that wait for that as the queue has room for.
    pub(super) fn write_backlog(&mut self) {
        while let Some(entry) = self.tiers.backlog.pop() {
            if !is_live(&self.tree, entry) {
                continue;
            }
            self.tree.node_mut(entry.0).in_backlog = false;
            if !self.write_pages(entry.0, Cause::Complete) {
                self.put_off(entry.0, true);
                return;
            }
        }
    }

    /// Lets a block's pages be written later; before all others where that was begun.
    pub(super) fn put_off(&mut self, block: NodeId, again: bool) {
        if !std::mem::replace(&mut self.tree.node_mut(block).in_backlog, true) {
            self.tiers.backlog.push(&self.tree, block, again);
        }
    }

    /// For when there is no file any more.
    pub(super) fn forget_backlog(&mut self) {
        while let Some(entry) = self.tiers.backlog.pop() {
            if is_live(&self.tree, entry) {
                self.tree.node_mut(entry.0).in_backlog = false;
            }
        }
    }

    /// Checks the books of what waits to be written.
    pub(crate) fn validate_backlog(&self) -> crate::Result<()> {
        let Backlog { blocks, again } = &self.tiers.backlog;
        let known = self.tree.ids().filter(|&block| self.tree.node(block).in_backlog).count();
        let live = blocks.iter().filter(|&&entry| is_live(&self.tree, entry)).count();
        same("blocks that wait to be written", known, live)?;
        same("blocks to be written again", *again, blocks.len().min(*again))
    }
}
