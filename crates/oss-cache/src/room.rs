//! Making room: which pages are evicted when there are none left.

use crate::Result;
use crate::cache::KvCache;
use crate::error::same;
use crate::pool::{NO_PAGE, PageId};
use crate::sequence::SequenceId;
use crate::tree::{NodeId, Places, ROOT};

/// Window pages are kept for every so many blocks (and at message boundaries) when they are
/// thinned: enough of them to resume there.
const STRIDE_BLOCKS: usize = 64;

impl KvCache {
    /// How long a sequence can get that has the cache to itself, where no more than `rows` of its
    /// positions are reserved at a time. Its last page may have to be copied before it goes on, as
    /// the tree has kept it as the end of a prompt.
    #[must_use]
    pub fn longest(&self, rows: usize) -> usize {
        let extents = |pages: usize| {
            let groups = self.layout.groups.iter();
            let needed = groups.map(|group| {
                let most = group.most_pages(rows, self.layout.page_tokens);
                (pages + 1).min(most).div_ceil(group.pages_per_extent)
            });
            needed.sum::<usize>()
        };
        let (mut fits, mut too_many) = (0, self.pool.ids() + 1);
        if extents(0) > self.pool.extents() {
            return 0;
        }
        if extents(too_many) <= self.pool.extents() {
            return usize::MAX;
        }
        while too_many - fits > 1 {
            let middle = fits.midpoint(too_many);
            match extents(middle) <= self.pool.extents() {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        fits * self.layout.page_tokens
    }

    /// Whether sequences could all grow by so many positions, no more than `rows` of each reserved
    /// at a time, if nothing else took pages.
    ///
    /// # Errors
    /// [`crate::Error::UnknownSequence`], [`crate::Error::OutOfPages`].
    pub fn can_hold(&self, growing: &[(SequenceId, usize)], rows: usize) -> Result<()> {
        let mut wanted = vec![0; self.layout.groups.len()];
        for &(id, n) in growing {
            self.sequences.check(id)?;
            let sequence = self.sequences.get(id);
            for (group, wanted) in wanted.iter_mut().enumerate() {
                let table = &sequence.tables[group];
                let most = self.layout.groups[group].most_pages(rows, self.layout.page_tokens);
                let more = most.saturating_sub(table.pages.len() - table.first);
                *wanted += more.min(self.more_pages(sequence, group, n));
            }
        }
        self.pool.check(&self.layout, &wanted, true)
    }

    /// Frees pages until `wanted[group]` can be had of every group.
    pub(crate) fn make_room(&mut self, wanted: &[usize]) -> Result<()> {
        self.pool.check(&self.layout, wanted, true)?;
        while self.pool.check(&self.layout, wanted, false).is_err() {
            if !(self.thin() || self.evict() || self.thin_any()) {
                return self.pool.check(&self.layout, wanted, false);
            }
        }
        Ok(())
    }

    /// Changes how many bytes of pages may be in use, up to what the cache was made with. Pages
    /// kept for reuse are given up as far as needed (compressed, or to the file as far as its queue
    /// has room), those that stay move together, and the memory of free ones goes back to the
    /// system. Returns the bytes still resident: more than asked for while sequences use them, and
    /// all where they lie on pages that were set aside.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] when the system does not take the memory back.
    pub fn set_capacity(&mut self, bytes: usize) -> Result<usize> {
        self.pool.set_limit(bytes / self.layout.extent_bytes);
        self.shed(|cache| {
            while cache.pool.is_over_limit() && (cache.thin() || cache.evict() || cache.thin_any())
            {
            }
        });
        self.compact();
        self.pool.release_free()?;
        Ok(self.bytes_resident())
    }

    /// Moves pages together where more memory is taken than may be, in as many rounds as help.
    fn compact(&mut self) {
        loop {
            let (moved, bytes) = self.pool.compact(&self.layout);
            if moved.is_empty() {
                return;
            }
            let renumber = |page: &mut PageId| *page = moved.get(page).copied().unwrap_or(*page);
            for sequence in self.sequences.iter_mut() {
                sequence.tables.iter_mut().flat_map(|table| &mut table.pages).for_each(renumber);
            }
            self.tree.hot_pages_mut().for_each(renumber);
            self.stats.moved_pages += moved.len() as u64;
            self.stats.moved_bytes += bytes as u64;
        }
    }

    /// Lets pages go ahead of need while the thread that compresses them has time, so that a step
    /// finds free ones.
    pub(crate) fn evict_ahead(&mut self) {
        while self.pool.is_nearly_full()
            && self.tiers.warm.has_room_in_queue()
            && (self.thin() || self.evict())
        {}
    }

    /// Gives up the window pages of one block that no sequence uses and no rule keeps.
    fn thin(&mut self) -> bool {
        let (tree, pool, groups) = (&self.tree, &self.pool, &self.layout.groups);
        let victim = self.windows.victim(&mut |block| {
            let mut places = groups.iter().zip(tree.all_places(block));
            places.all(|(group, at)| {
                group.window.is_none() || at.hot == NO_PAGE || pool.refs(at.hot) == 1
            })
        });
        let Some(block) = victim else { return false };
        self.tree.node_mut(block).in_windows = false;
        self.stats.thinned_pages += self.forget_windows(block, false);
        self.settle(block);
        self.prune(block);
        true
    }

    /// The last resort: gives up the window pages of any block that has some which no sequence
    /// uses.
    fn thin_any(&mut self) -> bool {
        let mut groups = self.layout.groups.iter().enumerate();
        if !groups.any(|(group, layout)| layout.window.is_some() && self.pool.idle(group) > 0) {
            return false;
        }
        let idle = |group: usize, at: &Places| {
            let windowed = self.layout.groups[group].window.is_some();
            windowed && at.hot != NO_PAGE && self.pool.refs(at.hot) == 1
        };
        // Where the last search ended: before that there is little left.
        let block = self.tree.ids_from(self.thinned_to).find(|&block| {
            let mut places = self.tree.all_places(block).iter().enumerate();
            places.any(|(group, at)| idle(group, at))
        });
        let Some(block) = block else { return false };
        self.thinned_to = block;
        self.pinned(block, |cache| {
            cache.stats.thinned_pages += cache.forget_windows(block, true);
            cache.settle(block);
        });
        true
    }

    /// Gives up the window pages of a block that no sequence uses; with `kept`, also those that a
    /// rule keeps: these for a lower tier, and the block has to be pinned.
    fn forget_windows(&mut self, block: NodeId, kept: bool) -> u64 {
        let mut thinned = 0;
        for group in 0..self.layout.groups.len() {
            let page = self.tree.places(block, group).hot;
            let windowed = self.layout.groups[group].window.is_some();
            let is_kept = self.is_kept(block, group);
            let may_go = windowed && (kept || !is_kept);
            if may_go && page != NO_PAGE && self.pool.refs(page) == 1 {
                if is_kept {
                    self.demote_page(block, group);
                }
                self.tree.set_hot(block, group, NO_PAGE);
                self.pool.leave_tree(&self.layout, group, page);
                thinned += 1;
            }
        }
        thinned
    }

    /// Gives up the pages of one block, by policy, which is not asked where none could go.
    fn evict(&mut self) -> bool {
        if !self.has_idle_blocks() {
            return false;
        }
        let (tree, pool) = (&self.tree, &self.pool);
        let victim = self.policy.victim(&mut |block| {
            let node = tree.node(block);
            let idle = |at: &Places| at.hot == NO_PAGE || pool.refs(at.hot) == 1;
            node.resident_children == 0 && node.pins == 0 && tree.all_places(block).iter().all(idle)
        });
        let Some(block) = victim else { return false };
        self.tree.node_mut(block).in_policy = false;
        self.stats.evicted_pages += u64::from(self.tree.node(block).resident);
        self.pinned(block, |cache| {
            cache.demote(block);
            cache.forget_pages(block);
        });
        true
    }

    /// Whether any block could go: where there are groups without a window, a block is in use while
    /// its pages of these are. Its idle windows are left to [`KvCache::thin_any`].
    fn has_idle_blocks(&self) -> bool {
        let groups = self.layout.groups.iter().enumerate();
        let windows_only = self.layout.groups.iter().all(|group| group.window.is_some());
        let mut full = groups.filter(|(_, group)| windows_only || group.window.is_none());
        full.any(|(group, _)| self.pool.idle(group) > 0)
    }

    /// Gives up the resident pages of a block.
    pub(crate) fn forget_pages(&mut self, block: NodeId) {
        for group in 0..self.layout.groups.len() {
            let page = self.tree.set_hot(block, group, NO_PAGE);
            if page != NO_PAGE {
                self.pool.leave_tree(&self.layout, group, page);
            }
        }
        self.settle(block);
    }

    /// Whether what every later position needs of a block is in some tier.
    pub(crate) fn is_held(&self, block: NodeId) -> bool {
        let groups = self.layout.groups.iter().zip(self.tree.all_places(block));
        let mut full = groups.filter(|(group, _)| group.window.is_none()).peekable();
        match full.peek() {
            Some(_) => full.all(|(_, places)| places.anywhere()),
            None => self.tree.all_places(block).iter().any(Places::anywhere),
        }
    }

    /// Works on a block, which stays meanwhile, and removes it if it is of no use any more then.
    pub(crate) fn pinned<T>(&mut self, block: NodeId, work: impl FnOnce(&mut KvCache) -> T) -> T {
        self.tree.node_mut(block).pins += 1;
        let done = work(self);
        self.tree.node_mut(block).pins -= 1;
        self.prune(block);
        done
    }

    /// Removes a block that is of no use any more, and then its parents.
    pub(crate) fn prune(&mut self, mut block: NodeId) {
        while block != ROOT
            && self.tree.is_leaf(block)
            && self.tree.node(block).pins == 0
            && !self.is_held(block)
        {
            let parent = self.tree.node(block).parent;
            self.forget_pages(block);
            self.forget_lower(block);
            self.tree.remove(block);
            block = parent;
        }
    }

    /// Tells the policies whether a block has pages that could go.
    pub(crate) fn settle(&mut self, block: NodeId) {
        let node = self.tree.node(block);
        let (hash, uses) = (node.hash, node.uses);
        let (resident, in_policy) = (node.resident > 0, node.in_policy);
        match (resident, in_policy) {
            (true, false) => self.policy.insert(block, hash, uses),
            (false, true) => self.policy.remove(block),
            _ => {}
        }
        self.tree.node_mut(block).in_policy = resident;
        let thinnable = self.is_thinnable(block);
        match (thinnable, self.tree.node(block).in_windows) {
            (true, false) => self.windows.insert(block, hash, uses),
            (false, true) => self.windows.remove(block),
            _ => {}
        }
        self.tree.node_mut(block).in_windows = thinnable;
    }

    pub(crate) fn leave_windows(&mut self, block: NodeId) {
        if std::mem::take(&mut self.tree.node_mut(block).in_windows) {
            self.windows.remove(block);
        }
    }

    /// Whether a block has resident window pages that no rule keeps.
    fn is_thinnable(&self, block: NodeId) -> bool {
        let mut places = self.tree.all_places(block).iter().enumerate();
        places.any(|(group, at)| at.hot != NO_PAGE && !self.is_kept(block, group))
    }

    /// Whether a page is more than a passing one: a full-attention page, or one of a window before
    /// a message boundary or before a multiple of the stride.
    pub(crate) fn is_kept(&self, block: NodeId, group: usize) -> bool {
        let node = self.tree.node(block);
        let before_stride = STRIDE_BLOCKS - node.index as usize % STRIDE_BLOCKS;
        self.layout.groups[group].window.is_none_or(|window| {
            node.boundary || before_stride <= window.div_ceil(self.layout.page_tokens)
        })
    }

    /// Counts the tree's references and checks its books.
    pub(crate) fn validate_tree(&self, counted: &mut [u32]) -> Result<()> {
        let mut pins = vec![0; self.tree.ids().max().unwrap_or(ROOT) as usize + 1];
        pins[ROOT as usize] = 1;
        for sequence in self.sequences.iter() {
            pins[sequence.block as usize] += 1;
            let known = self.tree.end(sequence.block) + sequence.pending.len();
            let expected = if sequence.tracked { sequence.len } else { 0 };
            same("known tokens of a sequence", known, expected)?;
            let drafts = sequence.drafts.min(sequence.pending.len());
            same("drafts of a sequence", sequence.drafts, drafts)?;
        }
        same("pins of the root", self.tree.node(ROOT).pins as usize, pins[ROOT as usize])?;
        let (mut in_policy, mut in_windows) = (0, 0);
        for block in self.tree.ids() {
            let node = self.tree.node(block);
            same("pins of a block", node.pins as usize, pins[block as usize])?;
            same("a block's parent lives", usize::from(self.tree.node(node.parent).live), 1)?;
            let resident = |&child: &NodeId| self.tree.node(child).resident > 0;
            let children = self.tree.children(block).filter(resident).count();
            same("resident children", node.resident_children as usize, children)?;
            for at in self.tree.all_places(block).iter().filter(|at| at.hot != NO_PAGE) {
                counted[at.hot as usize] += 1;
                same("page known to be in the tree", usize::from(self.pool.is_in_tree(at.hot)), 1)?;
            }
            in_policy += usize::from(node.in_policy);
            in_windows += usize::from(node.in_windows);
            same(
                "policy knows a resident block",
                node.in_policy.into(),
                (node.resident > 0).into(),
            )?;
            let useless = self.tree.is_leaf(block) && node.pins == 0 && !self.is_held(block);
            same("useless blocks", useless.into(), 0)?;
        }
        same("blocks in the policy", self.policy.len(), in_policy)?;
        same("blocks in the window list", self.windows.len(), in_windows)?;
        self.validate_lower()
    }
}

#[cfg(test)]
mod tests;
