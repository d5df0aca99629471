//! Prefix reuse: sequences take over the pages that others have computed.

use crate::Result;
use crate::cache::KvCache;
use crate::pool::NO_PAGE;
use crate::sequence::{Sequence, SequenceId, Table};
use crate::stats::Stats;
use crate::tier::Missing;
use crate::tree::{NodeId, Origin, Places, ROOT, chain_all};

/// The longest known prefix of some tokens, as [`KvCache::lookup`] found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    pub(crate) block: NodeId,
    pub(crate) generation: u32,
    pub(crate) len: usize,
}

impl Match {
    /// Positions that need not be computed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl KvCache {
    /// The longest prefix of `tokens` whose full-attention pages, and the window's pages before
    /// its end, are at hand in some tier. It may end within a block.
    pub fn lookup(&self, tokens: &[u32]) -> Match {
        let mut path = Vec::with_capacity(tokens.len() / self.layout.page_tokens + 1);
        let known = self.follow(tokens, &mut path);
        let len = self.resume(&path, known);
        let blocks = self.layout.pages_for(len);
        let block = if blocks == 0 { ROOT } else { path[blocks - 1] };
        Match { block, generation: self.tree.node(block).generation, len }
    }

    /// Lets an empty sequence begin with a known prefix, at most `at_most` positions of it, and
    /// returns how many it has now. That is fewer than the match promised only if pages have gone
    /// since, or could not be brought back from a lower tier.
    ///
    /// # Errors
    /// [`crate::Error::UnknownSequence`].
    ///
    /// # Panics
    /// When the sequence is not empty.
    pub fn adopt(&mut self, id: SequenceId, found: &Match, at_most: usize) -> Result<usize> {
        self.sequences.check(id)?;
        let len = self.sequences.get(id).len;
        assert!(len == 0, "adopt: got a sequence of {len} positions, expected none");
        self.step_back(id, 0);
        self.drop_pages(id, 0);
        self.sequences.get_mut(id).reserved = 0;
        let path = self.path_of(found);
        if path.is_empty() {
            return Ok(0);
        }
        let len = self.pinned(found.block, |cache| {
            let len = cache.take_over(id, &path, found.len.min(at_most));
            cache.stand(id, &path, len);
            // Where one has gone on, others will.
            let last = cache.layout.pages_for(len);
            cache.keep_window(len, path[..last].last().copied().unwrap_or(ROOT));
            len
        });
        self.stats.reused_tokens += len as u64;
        Ok(len)
    }

    /// The blocks of a match; none where they have gone since.
    pub(crate) fn path_of(&self, found: &Match) -> Vec<NodeId> {
        let mut path = Vec::new();
        let node = self.tree.node(found.block);
        if node.generation == found.generation && node.live {
            self.tree.path(found.block, &mut path);
        }
        path
    }

    /// [`KvCache::commit`] for positions whose tokens are known: complete blocks enter the prefix
    /// tree, window pages included, so that those which fall behind the window pass to the tree.
    /// Where another sequence has computed the same block, its pages are kept and these given up.
    /// Drafts before them count as accepted.
    ///
    /// # Panics
    /// As [`KvCache::commit`].
    pub fn commit_tokens(&mut self, id: SequenceId, tokens: impl ExactSizeIterator<Item = u32>) {
        let sequence = self.sequences.get(id);
        let reserved = sequence.reserved - sequence.len;
        let n = tokens.len();
        assert!(n <= reserved, "commit: got {n} positions, expected at most {reserved} (reserved)");
        self.accept_drafts(id);
        for token in tokens {
            let sequence = self.sequences.get_mut(id);
            if !sequence.tracked {
                break;
            }
            sequence.pending.push(token);
            if sequence.pending.len() == self.layout.page_tokens {
                self.insert_block(id);
            }
        }
        self.advance(id, n);
    }

    /// [`KvCache::commit_tokens`] for drafts: tokens that may turn out wrong and be taken back by
    /// [`KvCache::truncate`]. No block with one of them enters the prefix tree, nor any file,
    /// before [`KvCache::accept_drafts`].
    ///
    /// # Panics
    /// As [`KvCache::commit`].
    pub fn commit_drafts(&mut self, id: SequenceId, tokens: impl ExactSizeIterator<Item = u32>) {
        let n = tokens.len();
        let sequence = self.sequences.get_mut(id);
        if sequence.tracked {
            sequence.pending.extend(tokens);
            sequence.drafts += n;
        }
        self.advance(id, n);
    }

    /// The drafts that a sequence still has were right: they are tokens as all others.
    ///
    /// # Panics
    /// When the sequence has been removed.
    pub fn accept_drafts(&mut self, id: SequenceId) {
        self.sequences.get_mut(id).drafts = 0;
        while self.sequences.get(id).pending.len() >= self.layout.page_tokens {
            self.insert_block(id);
        }
    }

    /// Marks the end of a message: the sequence's present length becomes a point from which later
    /// sequences can go on exactly, and its window pages are thinned last. An incomplete last
    /// block is shared too; the sequence copies it when it goes on, and what it had reserved is
    /// given back. Drafts count as accepted.
    ///
    /// # Panics
    /// When the sequence has been removed.
    pub fn mark(&mut self, id: SequenceId) {
        let sequence = self.sequences.get(id);
        if !sequence.tracked || sequence.len == 0 {
            return;
        }
        self.accept_drafts(id);
        self.mark_at(id, self.sequences.get(id).len);
        if !self.sequences.get(id).pending.is_empty() {
            self.insert_tail(id);
        }
    }

    /// Marks the end of an earlier message, at position `len`: the window pages that it needs, as
    /// far as their blocks are complete, are thinned last.
    ///
    /// # Panics
    /// When the sequence is shorter, or has been removed.
    pub fn mark_at(&mut self, id: SequenceId, len: usize) {
        let sequence = self.sequences.get(id);
        assert!(len <= sequence.len, "mark: got {len}, expected at most {}", sequence.len);
        if sequence.tracked {
            let block = self.tree.ancestor(sequence.block, self.layout.pages_for(len));
            self.keep_window(len, block);
        }
    }

    /// Lets the window pages that position `len` needs be thinned last, up to `block`; the file
    /// gets them too.
    fn keep_window(&mut self, len: usize, block: NodeId) {
        let windows = self.layout.groups.iter().filter(|group| group.window.is_some());
        let needed = windows.map(|group| group.first_page_needed(len, self.layout.page_tokens));
        if let Some(first) = needed.min() {
            let mut at = block;
            while self.tree.depth(at) > first {
                self.tree.node_mut(at).boundary = true;
                self.leave_windows(at);
                self.write_through(at);
                at = self.tree.node(at).parent;
            }
        }
    }

    /// What the cache has done so far.
    pub fn stats(&self) -> Stats {
        // Those of a file that was discarded stay.
        let cold = self.tiers.cold.as_ref().map_or(self.stats.cold, |cold| cold.stats);
        Stats { cold, ..self.stats }
    }

    /// A key for what else may be kept of a prompt (as the logits after its last token): the hash
    /// chain over all its tokens, the same on every machine. Equal prompts have equal keys;
    /// different ones almost surely (63 bits) different keys.
    pub fn prompt_key(&self, tokens: &[u32]) -> u64 {
        chain_all(self.layout.page_tokens, tokens)
    }

    /// Blocks in the prefix tree.
    pub fn blocks(&self) -> usize {
        self.tree.len()
    }

    /// Walks down the tree along `tokens`; returns the positions that `path` covers.
    pub(crate) fn follow(&self, tokens: &[u32], path: &mut Vec<NodeId>) -> usize {
        let page_tokens = self.layout.page_tokens;
        let mut at = ROOT;
        for block in tokens.chunks_exact(page_tokens) {
            match self.tree.child(at, block) {
                Some(child) if self.is_held(child) => at = child,
                _ => break,
            }
            path.push(at);
        }
        let known = path.len() * page_tokens;
        let rest = &tokens[known..tokens.len().min(known + page_tokens)];
        match self.tree.closest(at, rest, |child| self.is_held(child)) {
            Some((child, common)) => {
                path.push(child);
                known + common
            }
            None => known,
        }
    }

    /// The last position at or before `len` from which the pages of `path` let a sequence go on:
    /// `len` itself, or a multiple of the page.
    pub(crate) fn resume(&self, path: &[NodeId], mut len: usize) -> usize {
        let page_tokens = self.layout.page_tokens;
        if let Some(lost) = path.iter().position(|&block| !self.is_held(block)) {
            len = len.min(lost * page_tokens);
        }
        // What is held has its pages of the groups without a window.
        let groups = self.layout.groups.iter().enumerate();
        let windows = groups.filter(|(_, group)| group.window.is_some());
        'shorter: while len > 0 {
            for (group, layout) in windows.clone() {
                let needed = layout.first_page_needed(len, page_tokens)..len.div_ceil(page_tokens);
                let missing = |&block: &usize| !self.tree.places(path[block], group).anywhere();
                if let Some(block) = needed.rev().find(missing) {
                    len = block * page_tokens;
                    continue 'shorter;
                }
            }
            break;
        }
        len
    }

    /// Fills the tables of an empty sequence from `path`, bringing pages back from lower tiers;
    /// returns how far that went.
    fn take_over(&mut self, id: SequenceId, path: &[NodeId], mut at_most: usize) -> usize {
        self.renew_patience();
        self.renew_path(path);
        let len = loop {
            let len = self.resume(path, at_most);
            match self.try_take_over(id, path, len) {
                Ok(()) => break len,
                Err(limit) => at_most = limit,
            }
            self.drop_pages(id, 0);
        };
        for &block in path[..self.layout.pages_for(len)].iter().rev() {
            let node = self.tree.node_mut(block);
            node.uses = node.uses.saturating_add(1);
            self.policy.touch(block);
            self.windows.touch(block);
            self.touch_lower(block);
        }
        let sequence = self.sequences.get_mut(id);
        sequence.len = len;
        sequence.reserved = len;
        len
    }

    /// As [`KvCache::take_over`] for exactly `len` positions. When a page does not come back: the
    /// position beyond which there is no point in trying again.
    fn try_take_over(
        &mut self,
        id: SequenceId,
        path: &[NodeId],
        len: usize,
    ) -> std::result::Result<(), usize> {
        let page_tokens = self.layout.page_tokens;
        let blocks = self.layout.pages_for(len);
        let mut missing = Vec::new();
        let sequence = self.sequences.get_mut(id);
        // Resident pages first: once shared they cannot be evicted to make room for the others.
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let first = self.layout.groups[group].first_page_needed(len, page_tokens).min(blocks);
            table.first = first;
            table.pages.resize(first, NO_PAGE);
            for (index, &block) in path.iter().enumerate().take(blocks).skip(first) {
                let page = self.tree.places(block, group).hot;
                match page {
                    NO_PAGE => missing.push((index, group)),
                    _ => self.pool.share(group, page),
                }
                table.pages.push(page);
            }
        }
        missing.sort_unstable();
        for &(index, group) in &missing {
            let page = match self.promote(path[index], group) {
                Ok(page) => page,
                Err(Missing::Lost) => return Err(len),
                Err(Missing::NoRoom | Missing::OnItsWay) => return Err(index * page_tokens),
            };
            self.pool.share(group, page);
            self.sequences.get_mut(id).tables[group].pages[index] = page;
        }
        for (group, table) in self.sequences.get(id).tables.iter().enumerate() {
            for &block in &path[table.first..blocks] {
                let places = self.tree.places_mut(block, group);
                *match std::mem::take(&mut places.origin) {
                    Origin::Here => &mut self.stats.hot_hits,
                    Origin::Warm => &mut self.stats.warm_hits,
                    Origin::Cold => &mut self.stats.cold_hits,
                } += 1;
            }
        }
        Ok(())
    }

    /// Puts a sequence that has just taken over `len` positions of `path` into its place.
    fn stand(&mut self, id: SequenceId, path: &[NodeId], len: usize) {
        let page_tokens = self.layout.page_tokens;
        let complete = len / page_tokens;
        let block = if complete == 0 { ROOT } else { path[complete - 1] };
        self.move_to(id, block);
        let sequence = self.sequences.get_mut(id);
        sequence.tracked = true;
        sequence.pending.clear();
        sequence.drafts = 0;
        if !len.is_multiple_of(page_tokens) {
            let tokens = &self.tree.tokens(path[complete])[..len % page_tokens];
            sequence.pending.extend_from_slice(tokens);
            self.tree.use_now(path[complete]);
        }
    }

    fn move_to(&mut self, id: SequenceId, block: NodeId) {
        self.tree.node_mut(block).pins += 1;
        self.tree.use_now(block);
        let before = std::mem::replace(&mut self.sequences.get_mut(id).block, block);
        self.tree.node_mut(before).pins -= 1;
        self.prune(before);
    }

    /// The pending tokens begin with a complete block: enters it and its pages.
    fn insert_block(&mut self, id: SequenceId) {
        let page_tokens = self.layout.page_tokens;
        let sequence = self.sequences.get(id);
        let (parent, index) = (sequence.block, self.tree.depth(sequence.block));
        let tokens = &sequence.pending[..page_tokens];
        let known = self.tree.child(parent, tokens);
        let Some(block) = known.or_else(|| self.tree.insert(parent, tokens)) else {
            self.stats.hash_collisions += 1;
            self.untrack(id);
            return;
        };
        match known {
            Some(_) => self.stats.duplicate_blocks += 1,
            None => self.stats.inserted_blocks += 1,
        }
        let sequence = self.sequences.get_mut(id);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let Some(own) = table.get(index) else { continue };
            match self.tree.places(block, group).hot {
                NO_PAGE => {
                    self.pool.enter_tree(group, own);
                    self.tree.set_hot(block, group, own);
                }
                known if known != own => {
                    self.pool.share(group, known);
                    table.pages[index] = known;
                    self.pool.release(&self.layout, group, own);
                }
                _ => {}
            }
        }
        self.settle(block);
        self.move_to(id, block);
        self.drop_covered_tails(parent, block);
        self.write_through(block);
        self.sequences.get_mut(id).pending.drain(..page_tokens);
    }

    /// Enters the incomplete last block, unless a block that covers it is there with all pages.
    fn insert_tail(&mut self, id: SequenceId) {
        let sequence = self.sequences.get(id);
        let (parent, index) = (sequence.block, self.tree.depth(sequence.block));
        let complete = |child| self.tree.all_places(child).iter().all(Places::anywhere);
        let tokens = &sequence.pending;
        if self.tree.closest(parent, tokens, complete).is_some_and(|(_, n)| n == tokens.len()) {
            return;
        }
        // A fork's last page may be in the tree already, as part of a block that was not compared.
        let is_known =
            |table: &Table| table.get(index).is_some_and(|page| self.pool.is_in_tree(page));
        if sequence.tables.iter().any(is_known) {
            return;
        }
        let Some(block) = self.tree.insert(parent, tokens) else { return };
        self.stats.inserted_blocks += 1;
        self.tree.use_now(block);
        self.tree.node_mut(block).boundary = true;
        for (group, table) in sequence.tables.iter().enumerate() {
            if let Some(page) = table.get(index) {
                self.pool.enter_tree(group, page);
                self.tree.set_hot(block, group, page);
            }
        }
        let sequence = self.sequences.get_mut(id);
        sequence.reserved = sequence.len;
        self.pinned(block, |cache| {
            cache.settle(block);
            cache.write_through(block);
        });
        let keep = self.layout.pages_for(self.sequences.get(id).len);
        self.drop_pages(id, keep);
    }

    /// Tails that a new complete block begins with are found through it from now on.
    fn drop_covered_tails(&mut self, parent: NodeId, block: NodeId) {
        let covers = |&tail: &NodeId| {
            let tokens = self.tree.tokens(tail);
            tokens.len() < self.layout.page_tokens && self.tree.tokens(block).starts_with(tokens)
        };
        let covered: Vec<NodeId> = self.tree.children(parent).take(16).filter(covers).collect();
        for tail in covered {
            self.tree.node_mut(block).boundary |= self.tree.node(tail).boundary;
            self.forget_pages(tail);
            self.forget_lower(tail);
            self.prune(tail);
        }
        if self.tree.node(block).boundary {
            self.leave_windows(block);
        }
    }

    /// Makes the known tokens of a sequence end at `len`, before its pages do.
    pub(crate) fn step_back(&mut self, id: SequenceId, len: usize) {
        let page_tokens = self.layout.page_tokens;
        let sequence = self.sequences.get_mut(id);
        if !sequence.tracked {
            sequence.tracked = len == 0;
            return;
        }
        sequence.drafts = sequence.drafts.saturating_sub(sequence.len - len);
        let complete = len / page_tokens;
        let block = sequence.block;
        if complete < self.tree.depth(block) {
            let partly = self.tree.ancestor(block, complete + 1);
            sequence.pending.clear();
            sequence.pending.extend_from_slice(&self.tree.tokens(partly)[..len % page_tokens]);
            self.move_to(id, self.tree.node(partly).parent);
        } else {
            sequence.pending.truncate(len - self.tree.end(block));
        }
    }

    /// Shortens a sequence to the nearest position whose window the tree has.
    pub(crate) fn resume_within(&mut self, id: SequenceId, len: usize) -> Result<usize> {
        let page_tokens = self.layout.page_tokens;
        let mut path = Vec::new();
        let sequence = self.sequences.get(id);
        let (last, tracked) = (sequence.block, sequence.tracked);
        self.tree.path(last, &mut path);
        path.truncate(len.div_ceil(page_tokens));
        let known = if tracked { len.min(path.len() * page_tokens) } else { 0 };
        Ok(self.pinned(last, |cache| {
            cache.drop_pages(id, 0);
            let len = cache.take_over(id, &path, known);
            cache.stand(id, &path, len);
            len
        }))
    }

    /// The tokens of a sequence are no longer known.
    pub(crate) fn untrack(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(id);
        if sequence.tracked {
            sequence.tracked = false;
            sequence.pending.clear();
            sequence.drafts = 0;
            self.move_to(id, ROOT);
        }
    }

    /// A sequence is about to go: what it has computed stays findable, but for drafts.
    pub(crate) fn retire(&mut self, id: SequenceId) {
        let Sequence { len, drafts, .. } = *self.sequences.get(id);
        if drafts > 0 {
            self.step_back(id, len - drafts);
            self.sequences.get_mut(id).len = len - drafts;
        }
        self.mark(id);
        let block = self.sequences.get(id).block;
        self.tree.use_now(block);
        let mut at = block;
        while at != ROOT {
            self.policy.renew(at);
            // Whatever order they were written in, a page is older than what it follows.
            self.renew_lower(at);
            at = self.tree.node(at).parent;
        }
        self.tree.node_mut(block).pins -= 1;
        self.prune(block);
    }
}

#[cfg(test)]
mod tests;
