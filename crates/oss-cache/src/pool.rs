//! Pages: extents that pass between the groups, reference counts.
//!
//! The arena is cut into extents as large as the largest group's page. An extent is free or
//! belongs to one group, which cuts it into its own pages; an extent whose pages are all free
//! goes back to all groups. So the groups share one budget without a fixed split, and groups
//! with equal pages (the usual case) waste nothing.

use std::collections::HashMap;

use oss_memory::placement::MemoryPolicy;
use oss_memory::{Pages, try_zeroed};

use crate::arena::{Arena, PageBytes};
use crate::error::same;
use crate::shape::Layout;
use crate::{Error, Result};

/// A page's number: `extent << extent_shift | page within the extent`.
pub(crate) type PageId = u32;

/// No page: behind the window, or never computed.
pub(crate) const NO_PAGE: PageId = PageId::MAX;

/// Extents that are kept free where pages can be compressed ahead of need.
const SPARE_EXTENTS: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Extent {
    /// The owning group, meaningless while the extent is free.
    group: u16,
    /// Position in the group's list of partly free extents, [`u32::MAX`] when not listed.
    listed_at: u32,
    /// One bit for each free page.
    free: u64,
}

#[derive(Debug, Default)]
struct GroupPages {
    /// Extents of the group with at least one page free.
    partly_free: Vec<u32>,
    /// Free pages in them.
    free: usize,
    in_use: usize,
    /// Pages whose only owner is the prefix tree.
    idle: usize,
}

/// The pages of all groups.
#[derive(Debug)]
pub(crate) struct Pool {
    arena: Arena,
    refs: Vec<u32>,
    /// Whether the prefix tree is one of a page's owners.
    in_tree: Vec<bool>,
    extents: Vec<Extent>,
    groups: Vec<GroupPages>,
}

impl Pool {
    pub(crate) fn new(
        layout: &Layout,
        capacity_bytes: usize,
        memory: (&MemoryPolicy, Pages),
    ) -> Result<Pool> {
        let n_extents = capacity_bytes / layout.extent_bytes;
        let most = (NO_PAGE >> layout.extent_shift) as usize;
        if n_extents == 0 {
            return Err(Error::Capacity { got: capacity_bytes, expected: layout.extent_bytes });
        }
        let n_extents = n_extents.min(most);
        Ok(Pool {
            arena: Arena::new(layout, n_extents, memory)?,
            refs: try_zeroed(n_extents << layout.extent_shift)?,
            in_tree: try_zeroed(n_extents << layout.extent_shift)?,
            extents: vec![Extent { group: 0, listed_at: u32::MAX, free: 0 }; n_extents],
            groups: layout
                .groups
                .iter()
                .map(|_| GroupPages {
                    partly_free: Vec::with_capacity(n_extents),
                    ..Default::default()
                })
                .collect(),
        })
    }

    /// The extent of a page, and its first slot there.
    #[inline]
    fn place(layout: &Layout, group: usize, page: PageId) -> (usize, usize) {
        let within = (page & ((1 << layout.extent_shift) - 1)) as usize;
        ((page >> layout.extent_shift) as usize, within * layout.groups[group].slots)
    }

    /// The first byte of one slot of a page within [`Pool::arena`].
    #[inline]
    pub(crate) fn start(&self, layout: &Layout, group: usize, page: PageId, slot: usize) -> usize {
        let (extent, first) = Pool::place(layout, group, page);
        self.arena.start(extent, first + slot)
    }

    /// The bytes of one page.
    pub(crate) fn bytes(&self, layout: &Layout, group: usize, page: PageId) -> PageBytes<'_> {
        let (extent, first) = Pool::place(layout, group, page);
        self.arena.read(extent, first, layout.groups[group].slots)
    }

    /// Gives one page the bytes that [`Pool::bytes`] will return.
    pub(crate) fn write(&mut self, layout: &Layout, group: usize, page: PageId, bytes: &[u8]) {
        let group_layout = &layout.groups[group];
        let (got, expected) = (bytes.len(), group_layout.page_bytes);
        assert!(got == expected, "a page of {got} bytes, expected {expected}");
        let (extent, first) = Pool::place(layout, group, page);
        let slots = self.arena.write(extent, first, group_layout.slots);
        for (slot, bytes) in slots.zip(bytes.chunks_exact(layout.slot_stride)) {
            slot.copy_from_slice(bytes);
        }
    }

    /// Page ids are below this.
    pub(crate) fn ids(&self) -> usize {
        self.refs.len()
    }

    /// How many extents there are.
    pub(crate) fn extents(&self) -> usize {
        self.arena.extents()
    }

    pub(crate) fn arena(&self) -> &[u8] {
        self.arena.bytes()
    }

    pub(crate) fn arena_mut(&mut self) -> &mut [u8] {
        self.arena.bytes_mut()
    }

    /// Changes how many extents may be in use; more than there are is no more than all.
    pub(crate) fn set_limit(&mut self, extents: usize) {
        self.arena.set_limit(extents);
    }

    /// Whether more extents are in use than may be.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.arena.in_use() > self.arena.limit()
    }

    /// Whether fewer extents are free than a step may want: a sixteenth of all, at most
    /// [`SPARE_EXTENTS`].
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.arena.available() < (self.arena.limit() / 16).min(SPARE_EXTENTS)
    }

    /// Gives the memory of free extents back to the system.
    pub(crate) fn release_free(&mut self) -> Result<()> {
        self.arena.release_free()
    }

    /// Moves pages so that less memory is taken, if that is more than may be, and returns the new
    /// numbers of those that have moved, of which their owners have to be told, and the bytes that
    /// were.
    pub(crate) fn compact(&mut self, layout: &Layout) -> (HashMap<PageId, PageId>, usize) {
        let (mut moved, mut bytes) = (HashMap::new(), 0);
        for step in self.arena.plan_compaction() {
            self.arena.apply(step);
            bytes += layout.extent_bytes;
            let (from, to) = (step.from.first, step.to.first);
            self.extents.swap(from, to);
            let Extent { group, listed_at, free } = self.extents[to];
            if free != 0 {
                self.groups[usize::from(group)].partly_free[listed_at as usize] = to as u32;
            }
            for within in 0..1 << layout.extent_shift {
                let page = |extent: usize| extent << layout.extent_shift | within;
                self.refs.swap(page(from), page(to));
                self.in_tree.swap(page(from), page(to));
                if self.refs[page(to)] > 0 {
                    moved.insert(page(from) as PageId, page(to) as PageId);
                }
            }
        }
        (moved, bytes)
    }

    /// Pages the group could still get if no other group took any.
    pub(crate) fn available(&self, layout: &Layout, group: usize) -> usize {
        self.groups[group].free + self.arena.available() * layout.groups[group].pages_per_extent
    }

    pub(crate) fn in_use(&self, group: usize) -> usize {
        self.groups[group].in_use
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes_resident(&self) -> usize {
        self.arena.bytes_resident()
    }

    /// Bytes on pages that were set aside.
    pub(crate) fn bytes_reserved(&self) -> usize {
        self.arena.bytes_reserved()
    }

    /// The share of the free memory that cannot be given back before pages are moved.
    pub(crate) fn fragmentation(&self) -> f64 {
        self.arena.fragmentation()
    }

    /// Whether `wanted[group]` pages of every group can be had together; else the group that
    /// runs short. With `evicting`, idle pages count as free.
    pub(crate) fn check(&self, layout: &Layout, wanted: &[usize], evicting: bool) -> Result<()> {
        let alone = |group: usize| layout.groups[group].pages_per_extent == 1;
        let idle = |group: usize| if evicting { self.groups[group].idle } else { 0 };
        let given: usize = (0..wanted.len()).filter(|&group| alone(group)).map(idle).sum();
        // More may be in use than the limit allows, where that was lowered.
        let mut extents = (self.arena.limit() + given).saturating_sub(self.arena.in_use());
        for (group, &expected) in wanted.iter().enumerate() {
            let per_extent = layout.groups[group].pages_per_extent;
            let free = self.groups[group].free + if alone(group) { 0 } else { idle(group) };
            let needed = expected.saturating_sub(free).div_ceil(per_extent);
            if needed > extents {
                return Err(Error::OutOfPages {
                    group,
                    got: free + extents * per_extent,
                    expected,
                });
            }
            extents -= needed;
        }
        Ok(())
    }

    /// A page with one reference and all bytes zero, if possible next to `before`, the page of the
    /// positions before it; none when the group cannot get any.
    pub(crate) fn take(&mut self, layout: &Layout, group: usize, before: PageId) -> Option<PageId> {
        let (page, is_zero) = self.take_any(layout, group, before)?;
        if !is_zero {
            let (extent, first) = Pool::place(layout, group, page);
            let slots = self.arena.write(extent, first, layout.groups[group].slots);
            slots.for_each(|slot| slot.fill(0));
        }
        Some(page)
    }

    /// A page with one reference and the bytes of `source`; `before` as for [`Pool::take`].
    pub(crate) fn take_copy(
        &mut self,
        layout: &Layout,
        group: usize,
        before: PageId,
        source: PageId,
    ) -> Option<PageId> {
        let (page, _) = self.take_any(layout, group, before)?;
        let from = Pool::place(layout, group, source);
        let to = Pool::place(layout, group, page);
        self.arena.copy(from, to, layout.groups[group].slots);
        Some(page)
    }

    /// A page and whether its memory is known to be zero.
    fn take_any(
        &mut self,
        layout: &Layout,
        group: usize,
        before: PageId,
    ) -> Option<(PageId, bool)> {
        let pages = &mut self.groups[group];
        let mut is_zero = false;
        if pages.partly_free.is_empty() {
            let before = (before != NO_PAGE).then_some(before >> layout.extent_shift);
            let (extent, never_touched) = self.arena.take(before.map(|extent| extent as usize))?;
            let count = layout.groups[group].pages_per_extent;
            is_zero = never_touched && count == 1;
            let free = u64::MAX >> (64 - count);
            self.extents[extent] = Extent { group: group as u16, listed_at: 0, free };
            pages.partly_free.push(extent as u32);
            pages.free += count;
        }
        let extent_id = *pages.partly_free.last()?;
        let extent = &mut self.extents[extent_id as usize];
        let within = extent.free.trailing_zeros();
        extent.free &= extent.free - 1;
        pages.free -= 1;
        pages.in_use += 1;
        if extent.free == 0 {
            extent.listed_at = u32::MAX;
            pages.partly_free.pop();
        }
        let page = extent_id << layout.extent_shift | within;
        self.refs[page as usize] = 1;
        Some((page, is_zero))
    }

    pub(crate) fn refs(&self, page: PageId) -> u32 {
        self.refs[page as usize]
    }

    pub(crate) fn share(&mut self, group: usize, page: PageId) {
        let refs = &mut self.refs[page as usize];
        assert!(*refs > 0, "share of page {page}: got 0 references, expected 1");
        *refs += 1;
        if *refs == 2 && self.in_tree[page as usize] {
            self.groups[group].idle -= 1;
        }
    }

    pub(crate) fn is_in_tree(&self, page: PageId) -> bool {
        self.in_tree[page as usize]
    }

    /// The tree becomes an owner of a page that already has one.
    pub(crate) fn enter_tree(&mut self, group: usize, page: PageId) {
        assert!(!self.in_tree[page as usize], "page {page} is in the tree twice");
        self.share(group, page);
        self.in_tree[page as usize] = true;
    }

    /// The only owner of a page hands it to the tree.
    pub(crate) fn give_to_tree(&mut self, group: usize, page: PageId) {
        self.enter_tree(group, page);
        self.refs[page as usize] -= 1;
        self.groups[group].idle += usize::from(self.refs[page as usize] == 1);
    }

    /// The tree stops being an owner.
    pub(crate) fn leave_tree(&mut self, layout: &Layout, group: usize, page: PageId) {
        assert!(self.in_tree[page as usize], "page {page} is not in the tree");
        self.in_tree[page as usize] = false;
        if self.refs[page as usize] == 1 {
            self.groups[group].idle -= 1;
        }
        self.release(layout, group, page);
    }

    /// Pages of a group whose only owner is the tree.
    pub(crate) fn idle(&self, group: usize) -> usize {
        self.groups[group].idle
    }

    /// Gives one reference back; the last one frees the page.
    pub(crate) fn release(&mut self, layout: &Layout, group: usize, page: PageId) {
        let refs = &mut self.refs[page as usize];
        assert!(*refs > 0, "release of page {page}: got 0 references, expected at least 1");
        *refs -= 1;
        if *refs > 0 {
            self.groups[group].idle += usize::from(*refs == 1 && self.in_tree[page as usize]);
            return;
        }
        let extent_id = page >> layout.extent_shift;
        let within = page & ((1 << layout.extent_shift) - 1);
        let pages = &mut self.groups[group];
        let extent = &mut self.extents[extent_id as usize];
        assert_eq!(usize::from(extent.group), group, "page {page} released by another group");
        if extent.free == 0 {
            extent.listed_at = pages.partly_free.len() as u32;
            pages.partly_free.push(extent_id);
        }
        extent.free |= 1 << within;
        pages.free += 1;
        pages.in_use -= 1;
        let count = layout.groups[group].pages_per_extent;
        if extent.free.count_ones() as usize == count {
            let at = extent.listed_at as usize;
            extent.listed_at = u32::MAX;
            extent.free = 0;
            pages.free -= count;
            pages.partly_free.swap_remove(at);
            if let Some(&moved) = pages.partly_free.get(at) {
                self.extents[moved as usize].listed_at = at as u32;
            }
            self.arena.give_back(extent_id as usize);
        }
    }

    /// Checks the books against `counted`, the references found at each page's owners.
    pub(crate) fn validate(&self, layout: &Layout, counted: &[u32]) -> Result<()> {
        for (&got, &expected) in self.refs.iter().zip(counted) {
            same("references of a page", got as usize, expected as usize)?;
        }
        let mut in_use = vec![0; self.groups.len()];
        let mut idle = vec![0; self.groups.len()];
        let mut partly_free = vec![0; self.groups.len()];
        let mut is_used = vec![false; self.extents.len()];
        for (index, extent) in self.extents.iter().enumerate() {
            let pages = index << layout.extent_shift..(index + 1) << layout.extent_shift;
            is_used[index] = self.refs[pages.clone()].iter().any(|&refs| refs > 0);
            let group = usize::from(extent.group);
            let count = if is_used[index] { layout.groups[group].pages_per_extent } else { 0 };
            for (within, page) in pages.enumerate() {
                let expected = within < count && extent.free >> within & 1 == 0;
                same("page in use", usize::from(self.refs[page] > 0), expected.into())?;
                in_use[group] += usize::from(expected);
                idle[group] += usize::from(self.in_tree[page] && self.refs[page] == 1);
            }
            partly_free[group] += extent.free.count_ones() as usize;
            if extent.free != 0 {
                let at = extent.listed_at as usize;
                same("extent in its list", self.groups[group].partly_free[at] as usize, index)?;
            }
        }
        self.arena.validate(&is_used)?;
        for (group, pages) in self.groups.iter().enumerate() {
            same("pages in use", pages.in_use, in_use[group])?;
            same("idle pages", pages.idle, idle[group])?;
            same("pages free in partly used extents", pages.free, partly_free[group])?;
        }
        Ok(())
    }
}
