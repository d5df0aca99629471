//! The page tables of the sequences.

use crate::pool::{NO_PAGE, PageId};
use crate::tree::{NodeId, ROOT};
use crate::{Error, Result};

/// Entries a page table starts with, so that short sequences never grow it.
const FIRST_TABLE_PAGES: usize = 1024;

/// Names one sequence of one cache. Ids of removed sequences are never mistaken for newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One sequence: its length and, per group, the page of every `page_tokens` positions.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Positions committed.
    pub(crate) len: usize,
    /// Positions `len..reserved` have exclusive pages.
    pub(crate) reserved: usize,
    pub(crate) tables: Vec<Table>,
    /// Whether all tokens so far are known, so that blocks can enter the prefix tree.
    pub(crate) tracked: bool,
    /// The last complete block in the tree, while tracked.
    pub(crate) block: NodeId,
    /// The tokens after it: fewer than a page, and drafts.
    pub(crate) pending: Vec<u32>,
    /// How many of them, the last ones, are drafts: no block enters the tree with them.
    pub(crate) drafts: usize,
}

#[derive(Debug)]
pub(crate) struct Table {
    /// Page of positions `i * page_tokens ..`; [`NO_PAGE`] below `first`.
    pub(crate) pages: Vec<PageId>,
    /// The first page at hand: those before fell behind the window.
    pub(crate) first: usize,
}

impl Sequence {
    fn new(groups: usize) -> Sequence {
        let table = || Table { pages: Vec::with_capacity(FIRST_TABLE_PAGES), first: 0 };
        Sequence {
            len: 0,
            reserved: 0,
            tables: (0..groups).map(|_| table()).collect(),
            tracked: true,
            block: ROOT,
            pending: Vec::new(),
            drafts: 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    live: bool,
    sequence: Sequence,
}

/// The sequences by id. A removed sequence leaves its tables for the next one.
#[derive(Debug)]
pub(crate) struct Sequences {
    groups: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Sequences {
    pub(crate) fn new(groups: usize) -> Sequences {
        Sequences { groups, entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn create(&mut self) -> SequenceId {
        let index = self.free.pop().unwrap_or_else(|| {
            let sequence = Sequence::new(self.groups);
            self.entries.push(Entry { generation: 0, live: false, sequence });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.live = true;
        SequenceId { index, generation: entry.generation }
    }

    /// Forgets the sequence; its tables must have been emptied.
    pub(crate) fn remove(&mut self, id: SequenceId) {
        let sequence = self.get_mut(id);
        sequence.len = 0;
        sequence.reserved = 0;
        sequence.tracked = true;
        sequence.block = ROOT;
        sequence.pending.clear();
        sequence.drafts = 0;
        for table in &mut sequence.tables {
            assert!(table.pages.is_empty(), "removed with {} pages, expected 0", table.pages.len());
            table.first = 0;
        }
        let entry = &mut self.entries[id.index as usize];
        entry.live = false;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.index);
    }

    pub(crate) fn contains(&self, id: SequenceId) -> bool {
        let entry = self.entries.get(id.index as usize);
        entry.is_some_and(|entry| entry.live && entry.generation == id.generation)
    }

    pub(crate) fn check(&self, id: SequenceId) -> Result<()> {
        match self.contains(id) {
            true => Ok(()),
            false => Err(Error::UnknownSequence { id: id.index }),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: SequenceId) -> &Sequence {
        let entry = &self.entries[id.index as usize];
        assert!(entry.generation == id.generation, "{id:?} has been removed");
        &entry.sequence
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> &mut Sequence {
        let entry = &mut self.entries[id.index as usize];
        assert!(entry.live && entry.generation == id.generation, "{id:?} has been removed");
        &mut entry.sequence
    }

    /// Two different sequences at once.
    pub(crate) fn get_pair(&mut self, a: SequenceId, b: SequenceId) -> (&Sequence, &mut Sequence) {
        assert!(self.contains(a) && self.contains(b), "{a:?} or {b:?} has been removed");
        let (a, b) = (a.index as usize, b.index as usize);
        assert!(a != b, "got the same sequence {a} twice, expected two");
        let (low, high) = self.entries.split_at_mut(a.max(b));
        match a < b {
            true => (&low[a].sequence, &mut high[0].sequence),
            false => (&high[0].sequence, &mut low[b].sequence),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.entries.iter().filter(|entry| entry.live).map(|entry| &entry.sequence)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.entries.iter_mut().filter(|entry| entry.live).map(|entry| &mut entry.sequence)
    }
}

impl Table {
    /// The page at `index`, if at hand.
    pub(crate) fn get(&self, index: usize) -> Option<PageId> {
        self.pages.get(index).copied().filter(|&page| page != NO_PAGE)
    }

    /// All pages at hand.
    pub(crate) fn at_hand(&self) -> impl Iterator<Item = PageId> {
        self.pages[self.first.min(self.pages.len())..].iter().copied()
    }
}
