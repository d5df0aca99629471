//! The cache itself: sequences over pages.

use std::ops::Range;

use oss_memory::Pages;
use oss_memory::placement::MemoryPolicy;
use xxhash_rust::xxh3::Xxh3;

use crate::error::same;
use crate::policy::{EvictionPolicy, Policy};
use crate::pool::{NO_PAGE, Pool};
use crate::sequence::{Sequence, SequenceId, Sequences};
use crate::shape::{GroupLayout, Layout, Shape};
use crate::stats::Stats;
use crate::tier::{ColdOptions, Tiers};
use crate::tree::{NodeId, ROOT, Tree};
use crate::{Error, Result};

/// What a cache may use, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of resident pages, shared by all groups.
    pub capacity_bytes: usize,
    /// How memory is laid over NUMA nodes: resident pages are interleaved where it says so.
    /// Otherwise they lie where the system puts them: as a rule, by the worker that writes there
    /// first.
    pub memory: MemoryPolicy,
    /// The machine's pages that resident ones lie on. Those that are set aside
    /// ([`Pages::Reserved`]) are taken at once, and for good.
    pub pages: Pages,
    /// Which reusable page goes first, in each tier: resident ones, compressed ones, and those of
    /// the file. Each tier has its own instance.
    pub policy: EvictionPolicy,
    /// Bytes of compressed pages beside the resident ones; 0: none are kept.
    pub warm_bytes: usize,
    /// A file for pages that leave memory, and for the next process.
    pub cold: Option<ColdOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            capacity_bytes: 0,
            memory: MemoryPolicy::default(),
            pages: Pages::Transparent,
            policy: EvictionPolicy::default(),
            warm_bytes: 0,
            cold: None,
        }
    }
}

/// Keys and values of many sequences, in pages (see the crate's tour).
#[derive(Debug)]
pub struct KvCache {
    pub(crate) shape: Shape,
    pub(crate) layout: Layout,
    pub(crate) pool: Pool,
    pub(crate) sequences: Sequences,
    pub(crate) tree: Tree,
    /// Orders the blocks with resident pages.
    pub(crate) policy: Box<dyn Policy>,
    /// Orders the blocks whose window pages may be thinned.
    pub(crate) windows: Box<dyn Policy>,
    pub(crate) tiers: Tiers,
    /// The block where the last search for windows that are kept has ended.
    pub(crate) thinned_to: NodeId,
    pub(crate) stats: Stats,
    /// Scratch: pages wanted per group.
    pub(crate) wanted: Vec<usize>,
}

/// The pages of one group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCount {
    /// Pages with at least one owner.
    pub in_use: usize,
    /// Pages this group could still get at once if no other group took any.
    pub available: usize,
    /// Pages kept for reuse only: given up when pages run out.
    pub idle: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
}

impl KvCache {
    /// A cache of at most `capacity_bytes`, shared by all groups. The memory is reserved at once
    /// and used as pages are first touched.
    ///
    /// # Errors
    /// [`Error::Shape`], or [`Error::Capacity`] when not a single page fits.
    pub fn new(shape: Shape, capacity_bytes: usize) -> Result<KvCache> {
        KvCache::with_options(shape, &Options { capacity_bytes, ..Options::default() })
    }

    /// A cache with more to choose. What the file of cold pages holds from an earlier process is
    /// found by [`KvCache::lookup`] from now on.
    ///
    /// # Errors
    /// As [`KvCache::new`]; [`Error::Memory`] when memory cannot be interleaved; that or
    /// [`Error::InUse`] when the file cannot be had, [`Error::Thread`] when the system gives no
    /// thread for a tier.
    pub fn with_options(shape: Shape, options: &Options) -> Result<KvCache> {
        let layout = Layout::new(&shape)?;
        let groups = layout.groups.len();
        let blocks = options.capacity_bytes / layout.extent_bytes;
        let mut cache = KvCache {
            pool: Pool::new(&layout, options.capacity_bytes, (&options.memory, options.pages))?,
            sequences: Sequences::new(groups),
            tree: Tree::new(layout.page_tokens, groups, blocks),
            policy: options.policy.build(),
            windows: options.policy.build(),
            tiers: Tiers::new(options.warm_bytes, options.policy)?,
            thinned_to: 1,
            stats: Stats::default(),
            wanted: vec![0; groups],
            shape,
            layout,
        };
        let policy = options.policy;
        if let Some(options) = &options.cold {
            cache.open_cold(options, policy)?;
        }
        Ok(cache)
    }

    /// The shape the cache was made with.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// A new, empty sequence.
    pub fn create(&mut self) -> SequenceId {
        self.tree.node_mut(ROOT).pins += 1;
        self.sequences.create()
    }

    /// Forgets a sequence and gives back its pages. Those of a sequence whose tokens are known
    /// ([`KvCache::commit_tokens`]) stay in the prefix tree until they are needed elsewhere.
    ///
    /// # Panics
    /// When the sequence has been removed before.
    pub fn remove(&mut self, id: SequenceId) {
        self.retire(id);
        self.drop_pages(id, 0);
        self.sequences.remove(id);
    }

    /// A second sequence with the same past. All pages are shared; the first of the two to write
    /// into a shared page gets its own copy. What the parent had reserved beyond its length is
    /// given back: reserve again. Drafts count as accepted.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn fork(&mut self, parent: SequenceId) -> Result<SequenceId> {
        self.sequences.check(parent)?;
        self.accept_drafts(parent);
        let len = self.sequences.get(parent).len;
        self.drop_pages(parent, self.layout.pages_for(len));
        let child = self.sequences.create();
        let (from, to) = self.sequences.get_pair(parent, child);
        to.len = len;
        to.reserved = len;
        to.tracked = from.tracked;
        to.block = from.block;
        to.pending.extend_from_slice(&from.pending);
        self.tree.node_mut(from.block).pins += 1;
        for (group, (source, target)) in from.tables.iter().zip(&mut to.tables).enumerate() {
            target.pages.extend_from_slice(&source.pages);
            target.first = source.first;
            source.at_hand().for_each(|page| self.pool.share(group, page));
        }
        self.sequences.get_mut(parent).reserved = len;
        Ok(child)
    }

    /// Shortens a sequence to the nearest position at or before `len` from which it can go on,
    /// and returns that position: `len` itself while the window pages that it needs are at hand
    /// (always so without windows), else the nearest position whose window the prefix tree has.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::BeyondSequence`] when the sequence is shorter.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<usize> {
        self.sequences.check(id)?;
        let sequence = self.sequences.get(id);
        if len > sequence.len {
            return Err(Error::BeyondSequence { got: len, expected: sequence.len });
        }
        let page_tokens = self.layout.page_tokens;
        let mut groups = sequence.tables.iter().zip(&self.layout.groups);
        if !groups.all(|(table, group)| table.first <= group.first_page_needed(len, page_tokens)) {
            return self.resume_within(id, len);
        }
        self.step_back(id, len);
        self.drop_pages(id, self.layout.pages_for(len));
        let sequence = self.sequences.get_mut(id);
        sequence.len = len;
        sequence.reserved = len;
        Ok(len)
    }

    /// Positions committed.
    ///
    /// # Panics
    /// When the sequence has been removed.
    pub fn len(&self, id: SequenceId) -> usize {
        self.sequences.get(id).len
    }

    /// Sees to it that positions `len..len + n` lie in pages which this sequence alone owns and
    /// may write. A new page is zero; a shared last page is copied. Pages kept for reuse make room
    /// when there are no others. Without effect when the pages are there already; a failure leaves
    /// the sequence as it was.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::OutOfPages`].
    pub fn reserve(&mut self, id: SequenceId, n: usize) -> Result<()> {
        self.sequences.check(id)?;
        let sequence = self.sequences.get(id);
        let end = sequence.len + n;
        if end <= sequence.reserved {
            return Ok(());
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        for (group, wanted) in wanted.iter_mut().enumerate() {
            *wanted = self.more_pages(sequence, group, n);
        }
        self.renew_patience();
        let room = self.make_room(&wanted);
        self.wanted = wanted;
        room?;
        let last = self.layout.pages_for(end);
        let sequence = self.sequences.get_mut(id);
        let current = sequence.len / self.layout.page_tokens;
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            if let Some(page) = table.get(current)
                && self.pool.refs(page) > 1
            {
                let before = current.checked_sub(1).map_or(NO_PAGE, |index| table.pages[index]);
                let copy = self.pool.take_copy(&self.layout, group, before, page);
                table.pages[current] = copy.expect("room was made");
                self.pool.release(&self.layout, group, page);
                self.stats.copied_pages += 1;
                self.stats.copied_bytes += self.layout.groups[group].page_bytes as u64;
            }
            while table.pages.len() < last {
                let before = table.pages.last().copied().unwrap_or(NO_PAGE);
                let page = self.pool.take(&self.layout, group, before);
                table.pages.push(page.expect("room was made"));
            }
        }
        sequence.reserved = last * self.layout.page_tokens;
        Ok(())
    }

    /// Pages that `n` more positions of a sequence take of a group: new ones, and one that is
    /// written to and has other owners.
    pub(crate) fn more_pages(&self, sequence: &Sequence, group: usize, n: usize) -> usize {
        let table = &sequence.tables[group];
        let current = sequence.len / self.layout.page_tokens;
        let shared = table.get(current).is_some_and(|page| self.pool.refs(page) > 1);
        let last = self.layout.pages_for(sequence.len + n);
        last.saturating_sub(table.pages.len()) + usize::from(shared)
    }

    /// Counts `n` reserved positions as written. Window pages that no later query needs are let
    /// go; they stayed until now because the earliest query of the `n` rows needed them. One page
    /// more than needed stays, so that truncating by up to a page always succeeds.
    ///
    /// As the tokens are not told, the sequence will not be found by later ones with the same
    /// prefix; [`KvCache::commit_tokens`] is for those that shall be.
    ///
    /// # Panics
    /// When fewer than `n` positions are reserved, or the sequence has been removed.
    pub fn commit(&mut self, id: SequenceId, n: usize) {
        if n > 0 {
            self.untrack(id);
        }
        self.advance(id, n);
    }

    /// Counts reserved positions as written and lets window pages go.
    pub(crate) fn advance(&mut self, id: SequenceId, n: usize) {
        let sequence = self.sequences.get_mut(id);
        let reserved = sequence.reserved - sequence.len;
        assert!(n <= reserved, "commit: got {n} positions, expected at most {reserved} (reserved)");
        sequence.len += n;
        // One page more than the next query needs, so that rejected drafts can be taken back.
        let earliest = sequence.len.saturating_sub(self.layout.page_tokens);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let needed = self.layout.groups[group];
            let first = needed.first_page_needed(earliest, self.layout.page_tokens);
            for index in table.first..first.min(table.pages.len()) {
                let page = std::mem::replace(&mut table.pages[index], NO_PAGE);
                self.pool.release(&self.layout, group, page);
            }
            table.first = table.first.max(first.min(table.pages.len()));
        }
    }

    /// The first position at or before `len` whose keys and values are at hand for `layer`:
    /// 0, or the start of the window's first page.
    pub fn first_position(&self, layer: usize, id: SequenceId) -> usize {
        let (group, _) = self.layout.layers[layer];
        self.sequences.get(id).tables[group].first * self.layout.page_tokens
    }

    /// The keys and values of one layer, head and page (`position / page_tokens`) of a sequence,
    /// reserved positions included: `slot_bytes` bytes at a multiple of 64.
    ///
    /// # Panics
    /// When the page is behind the window or was never reserved.
    #[inline]
    pub fn slot(&self, layer: usize, id: SequenceId, page: usize, kv_head: usize) -> &[u8] {
        &self.pool.arena()[self.slot_range(layer, id, page, kv_head)]
    }

    /// Where [`KvCache::slot`] lies in [`KvCache::arena_mut`]. The ranges of different slots are
    /// disjoint; write only positions that are reserved.
    ///
    /// # Panics
    /// As [`KvCache::slot`].
    #[inline]
    pub fn slot_range(
        &self,
        layer: usize,
        id: SequenceId,
        page: usize,
        kv_head: usize,
    ) -> Range<usize> {
        let layout = &self.layout;
        let (group, index) = layout.layers[layer];
        assert!(kv_head < layout.n_kv_heads, "kv head {kv_head} of {}", layout.n_kv_heads);
        let table = &self.sequences.get(id).tables[group].pages;
        let number = table.get(page).copied().unwrap_or(NO_PAGE);
        assert!(number != NO_PAGE, "page {page} of layer {layer} is not at hand ({id:?})");
        let slot = index * layout.n_kv_heads + kv_head;
        let start = self.pool.start(layout, group, number, slot);
        start..start + layout.slot_bytes
    }

    /// All pages, for a write phase over disjoint [`KvCache::slot_range`]s. The groups share one
    /// arena; `layer` says what is about to be written.
    pub fn arena_mut(&mut self, layer: usize) -> &mut [u8] {
        let layers = self.layout.layers.len();
        assert!(layer < layers, "layer: got {layer}, expected below {layers}");
        self.pool.arena_mut()
    }

    /// Pages, of all groups together, that a sequence of `len` positions needs to go on.
    pub fn pages_to_resume(&self, len: usize) -> usize {
        let (layout, blocks) = (&self.layout, self.layout.pages_for(len));
        let needed = |group: &GroupLayout| {
            blocks - group.first_page_needed(len, layout.page_tokens).min(blocks)
        };
        layout.groups.iter().map(needed).sum()
    }

    /// The pages of one group.
    pub fn pages(&self, group: usize) -> PageCount {
        PageCount {
            in_use: self.pool.in_use(group),
            available: self.pool.available(&self.layout, group),
            idle: self.pool.idle(group),
            page_bytes: self.layout.groups[group].page_bytes,
        }
    }

    /// Bytes of memory that the pages take of the machine, free ones beside them included: all that
    /// the cache may ever take where they were set aside ([`KvCache::bytes_reserved`]).
    pub fn bytes_resident(&self) -> usize {
        self.pool.bytes_resident()
    }

    /// Bytes that lie on pages which the administrator has set aside: all that the cache may ever
    /// take, or none.
    pub fn bytes_reserved(&self) -> usize {
        self.pool.bytes_reserved()
    }

    /// The share of the free memory among that ([`KvCache::bytes_resident`]) that could not be
    /// given back to the system before pages are moved: 0 when all could, 1 when none.
    pub fn fragmentation(&self) -> f64 {
        self.pool.fragmentation()
    }

    /// A hash over the complete pages a sequence has at hand, in order. Equal for sequences with
    /// the same past, shared or not.
    ///
    /// # Panics
    /// When the sequence has been removed.
    pub fn checksum(&self, id: SequenceId) -> u64 {
        let mut hash = Xxh3::new();
        let sequence = self.sequences.get(id);
        for (group, table) in sequence.tables.iter().enumerate() {
            let complete = sequence.len / self.layout.page_tokens;
            let first = self.layout.groups[group]
                .first_page_needed(sequence.len, self.layout.page_tokens)
                .max(table.first);
            for page in (first..complete).filter_map(|index| table.get(index)) {
                let bytes = self.pool.bytes(&self.layout, group, page);
                bytes.slots().for_each(|slot| hash.update(slot));
            }
        }
        hash.digest()
    }

    /// Counts every reference anew and checks the books against it.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] names the first rule that does not hold.
    pub fn validate(&self) -> Result<()> {
        let mut counted = vec![0; self.pool.ids()];
        for sequence in self.sequences.iter() {
            for table in &sequence.tables {
                for (index, &page) in table.pages.iter().enumerate() {
                    let behind = usize::from(index < table.first);
                    same("page behind the window", usize::from(page == NO_PAGE), behind)?;
                }
                let covered = table.pages.len() * self.layout.page_tokens;
                same("reserved positions", covered.min(sequence.reserved), sequence.reserved)?;
                for page in table.at_hand() {
                    counted[page as usize] += 1;
                }
                let written = sequence.len / self.layout.page_tokens;
                let writable = &table.pages[written.min(table.pages.len())..];
                for &page in writable.iter().filter(|_| sequence.reserved > sequence.len) {
                    same("references of a writable page", self.pool.refs(page) as usize, 1)?;
                }
            }
        }
        self.validate_tree(&mut counted)?;
        self.pool.validate(&self.layout, &counted)
    }

    /// Gives back the pages from page `keep` on.
    pub(crate) fn drop_pages(&mut self, id: SequenceId, keep: usize) {
        for (group, table) in self.sequences.get_mut(id).tables.iter_mut().enumerate() {
            for page in table.pages.drain(keep.min(table.pages.len())..) {
                if page != NO_PAGE {
                    self.pool.release(&self.layout, group, page);
                }
            }
            table.first = table.first.min(table.pages.len());
        }
    }
}
