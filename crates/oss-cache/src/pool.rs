//! Pages: one arena, extents that pass between the groups, reference counts.
//!
//! The arena is cut into extents as large as the largest group's page. An extent is free or
//! belongs to one group, which cuts it into its own pages; an extent whose pages are all free
//! goes back to all groups. So the groups share one budget without a fixed split, and groups
//! with equal pages (the usual case) waste nothing.

use std::ops::Range;

use oss_memory::{Buffer, Pages};

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
    /// Takes memory: it has been touched, and not been given back to the system since.
    resident: bool,
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
    arena: Buffer,
    refs: Vec<u32>,
    /// Whether the prefix tree is one of a page's owners.
    in_tree: Vec<bool>,
    extents: Vec<Extent>,
    /// Extents given back; the last one given is the first one taken, while it is warm.
    returned: Vec<u32>,
    /// Extents from here on have never been touched: they are zero and use no memory yet.
    untouched: usize,
    /// Extents that may be in use.
    limit: usize,
    /// Extents that take memory.
    resident: usize,
    groups: Vec<GroupPages>,
}

impl Pool {
    pub(crate) fn new(layout: &Layout, capacity_bytes: usize) -> Result<Pool> {
        let n_extents = capacity_bytes / layout.extent_bytes;
        let most = (NO_PAGE >> layout.extent_shift) as usize;
        if n_extents == 0 {
            return Err(Error::Capacity { got: capacity_bytes, expected: layout.extent_bytes });
        }
        let n_extents = n_extents.min(most);
        Ok(Pool {
            arena: Buffer::new(n_extents * layout.extent_bytes, Pages::Huge)?,
            refs: vec![0; n_extents << layout.extent_shift],
            in_tree: vec![false; n_extents << layout.extent_shift],
            extents: vec![
                Extent { group: 0, listed_at: u32::MAX, free: 0, resident: false };
                n_extents
            ],
            returned: Vec::with_capacity(n_extents),
            untouched: 0,
            limit: n_extents,
            resident: 0,
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

    /// The bytes of one page within the arena.
    pub(crate) fn range(&self, layout: &Layout, group: usize, page: PageId) -> Range<usize> {
        let start = self.start(layout, group, page);
        start..start + layout.groups[group].page_bytes
    }

    /// The first byte of one page within the arena.
    #[inline]
    pub(crate) fn start(&self, layout: &Layout, group: usize, page: PageId) -> usize {
        let within = (page & ((1 << layout.extent_shift) - 1)) as usize;
        let extent = (page >> layout.extent_shift) as usize;
        extent * layout.extent_bytes + within * layout.groups[group].page_bytes
    }

    /// Page ids are below this.
    pub(crate) fn ids(&self) -> usize {
        self.refs.len()
    }

    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    pub(crate) fn arena_mut(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    fn extents_in_use(&self) -> usize {
        self.untouched - self.returned.len()
    }

    fn free_extents(&self) -> usize {
        self.limit.saturating_sub(self.extents_in_use())
    }

    /// Changes how many extents may be in use; more than there are is no more than all.
    pub(crate) fn set_limit(&mut self, extents: usize) {
        self.limit = extents.min(self.extents.len());
    }

    /// Whether more extents are in use than may be.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.extents_in_use() > self.limit
    }

    /// Whether fewer extents are free than a step may want: a sixteenth of all, at most
    /// [`SPARE_EXTENTS`].
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.free_extents() < (self.limit / 16).min(SPARE_EXTENTS)
    }

    /// Gives the memory of free extents back to the system.
    pub(crate) fn release_free(&mut self, layout: &Layout) -> Result<()> {
        let mut free = self.returned.clone();
        free.sort_unstable();
        for run in free.chunk_by(|&a, &b| a + 1 == b) {
            let (first, last) = (run[0] as usize, run[run.len() - 1] as usize);
            self.arena.release(first * layout.extent_bytes..(last + 1) * layout.extent_bytes)?;
            for extent in &mut self.extents[first..=last] {
                self.resident -= usize::from(std::mem::take(&mut extent.resident));
            }
        }
        Ok(())
    }

    /// Pages the group could still get if no other group took any.
    pub(crate) fn available(&self, layout: &Layout, group: usize) -> usize {
        self.groups[group].free + self.free_extents() * layout.groups[group].pages_per_extent
    }

    pub(crate) fn in_use(&self, group: usize) -> usize {
        self.groups[group].in_use
    }

    /// Bytes of extents that take memory.
    pub(crate) fn bytes_resident(&self, layout: &Layout) -> usize {
        self.resident * layout.extent_bytes
    }

    /// Whether `wanted[group]` pages of every group can be had together; else the group that
    /// runs short. With `evicting`, idle pages count as free.
    pub(crate) fn check(&self, layout: &Layout, wanted: &[usize], evicting: bool) -> Result<()> {
        let mut extents = self.free_extents();
        let alone = |group: usize| layout.groups[group].pages_per_extent == 1;
        let idle = |group: usize| if evicting { self.groups[group].idle } else { 0 };
        extents += (0..wanted.len()).filter(|&group| alone(group)).map(idle).sum::<usize>();
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

    /// A page with one reference and all bytes zero; none when the group cannot get any.
    pub(crate) fn take(&mut self, layout: &Layout, group: usize) -> Option<PageId> {
        let (page, fresh) = self.take_any(layout, group)?;
        if !fresh {
            let range = self.range(layout, group, page);
            self.arena[range].fill(0);
        }
        Some(page)
    }

    /// A page with one reference and the bytes of `source`.
    pub(crate) fn take_copy(
        &mut self,
        layout: &Layout,
        group: usize,
        source: PageId,
    ) -> Option<PageId> {
        let (page, _) = self.take_any(layout, group)?;
        let from = self.range(layout, group, source);
        let to = self.range(layout, group, page).start;
        self.arena.copy_within(from, to);
        Some(page)
    }

    /// A page and whether its memory has never been touched.
    fn take_any(&mut self, layout: &Layout, group: usize) -> Option<(PageId, bool)> {
        let has_extent = self.free_extents() > 0;
        let pages = &mut self.groups[group];
        let mut fresh = false;
        if pages.partly_free.is_empty() {
            if !has_extent {
                return None;
            }
            let extent = match self.returned.pop() {
                Some(extent) => extent,
                None if self.untouched < self.extents.len() => {
                    fresh = layout.groups[group].pages_per_extent == 1;
                    self.untouched += 1;
                    (self.untouched - 1) as u32
                }
                None => return None,
            };
            let count = layout.groups[group].pages_per_extent;
            let free = u64::MAX >> (64 - count);
            self.resident += usize::from(!self.extents[extent as usize].resident);
            self.extents[extent as usize] =
                Extent { group: group as u16, listed_at: 0, free, resident: true };
            pages.partly_free.push(extent);
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
        Some((page, fresh))
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
            self.returned.push(extent_id);
        }
    }

    /// Checks the books against `counted`, the references found at each page's owners.
    pub(crate) fn validate(&self, layout: &Layout, counted: &[u32]) -> Result<()> {
        let same = |what, got: usize, expected: usize| match got == expected {
            true => Ok(()),
            false => Err(Error::Inconsistent { what, got, expected }),
        };
        for (&got, &expected) in self.refs.iter().zip(counted) {
            same("references of a page", got as usize, expected as usize)?;
        }
        let mut in_use = vec![0; self.groups.len()];
        let mut idle = vec![0; self.groups.len()];
        let mut partly_free = vec![0; self.groups.len()];
        let mut is_free = vec![false; self.extents.len()];
        for &extent in &self.returned {
            same("an extent returned twice", usize::from(is_free[extent as usize]), 0)?;
            is_free[extent as usize] = true;
        }
        for (index, extent) in self.extents.iter().enumerate().take(self.untouched) {
            let first = index << layout.extent_shift;
            let group = usize::from(extent.group);
            let count = if is_free[index] { 0 } else { layout.groups[group].pages_per_extent };
            for within in 0..1 << layout.extent_shift {
                let expected = within < count && extent.free >> within & 1 == 0;
                same("page in use", usize::from(self.refs[first + within] > 0), expected.into())?;
                in_use[group] += usize::from(expected);
                let in_tree = self.in_tree[first + within];
                idle[group] += usize::from(in_tree && self.refs[first + within] == 1);
            }
            partly_free[group] += extent.free.count_ones() as usize;
            if extent.free != 0 {
                let at = extent.listed_at as usize;
                same("extent in its list", self.groups[group].partly_free[at] as usize, index)?;
            }
        }
        let resident = self.extents.iter().filter(|extent| extent.resident).count();
        same("resident extents", self.resident, resident)?;
        for (group, pages) in self.groups.iter().enumerate() {
            same("pages in use", pages.in_use, in_use[group])?;
            same("idle pages", pages.idle, idle[group])?;
            same("pages free in partly used extents", pages.free, partly_free[group])?;
        }
        Ok(())
    }
}
