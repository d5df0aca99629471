//! On which NUMA nodes memory lies.
//!
//! A processor reads the memory of its own node fastest. Which layout is best depends on the model
//! and the machine, so it is an option; on a machine with one node every option does nothing.

use std::ops::Range;

use crate::os::{self, Policy};
use crate::{Buffer, Error, HUGE_PAGE, Pages, Result};

/// How memory is laid over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Each page on the node of the thread that touches it first: have the workers that will read
    /// it call [`first_touch`].
    #[default]
    FirstTouch,
    /// Pages in turn on all nodes: every worker gets the mean of near and far.
    Interleave,
    /// A whole copy on each node (see [`Replicas`]): every worker reads near memory, for as many
    /// times the room as there are nodes.
    Replicate,
    /// One contiguous part of the rows on each node, for workers that keep to their node's rows.
    RowSlab,
}

/// Touches every page, so that it is placed on the node of the calling thread. The bytes stay.
///
/// The memory must be fresh from the system: pages that were touched before stay where they are.
pub fn first_touch(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(os::page_size()) {
        // A plain write of what was read would be optimised away.
        *byte = std::hint::black_box(*byte);
    }
}

/// The slabs of a buffer of `bytes`: one range per node, in order, that begins and ends on a huge
/// page where possible.
///
/// # Panics
/// When `nodes` is 0.
pub fn slabs(bytes: usize, nodes: usize) -> impl Iterator<Item = Range<usize>> {
    assert!(nodes > 0, "{nodes} nodes, expected at least 1");
    let unit = if bytes / nodes >= 16 * HUGE_PAGE { HUGE_PAGE } else { os::page_size() };
    let units = bytes.div_ceil(unit);
    let border = move |node: usize| {
        let (each, more) = (units / nodes, units % nodes);
        ((each * node + more.min(node)) * unit).min(bytes)
    };
    (0..nodes).map(move |node| border(node)..border(node + 1))
}

impl Buffer {
    /// Lays pages that are not yet touched over `nodes` (their numbers, as the system has them).
    ///
    /// With fewer than two nodes, and for `FirstTouch` and `Replicate`, nothing is done: the first
    /// is the system's habit, the second needs a buffer for each node.
    ///
    /// # Errors
    /// When the system refuses, as for a node that it does not have.
    pub fn place(&mut self, placement: Placement, nodes: &[usize]) -> Result<()> {
        let bytes = self.len();
        if nodes.len() < 2 || bytes == 0 {
            return Ok(());
        }
        let refused = Error::memory("place", bytes);
        match placement {
            Placement::FirstTouch | Placement::Replicate => Ok(()),
            Placement::Interleave => os::place(self, Policy::Interleave, nodes).map_err(refused),
            Placement::RowSlab => {
                let mut slabs = slabs(bytes, nodes.len()).zip(nodes);
                let place = |(slab, &node): (Range<usize>, &usize)| {
                    os::place(&mut self[slab], Policy::Prefer, &[node])
                };
                slabs.try_for_each(place).map_err(refused)
            }
        }
    }
}

/// One copy of the same bytes on each node.
#[derive(Debug)]
pub struct Replicas {
    nodes: Vec<usize>,
    copies: Vec<Buffer>,
}

impl Replicas {
    /// Copies `bytes` to each of `nodes`; one copy when there are fewer than two.
    ///
    /// # Errors
    /// When the system has not that much memory, or refuses a node.
    pub fn new(bytes: &[u8], pages: Pages, nodes: &[usize]) -> Result<Self> {
        let mut copies = Vec::with_capacity(nodes.len().max(1));
        for index in 0..nodes.len().max(1) {
            let mut copy = Buffer::new(bytes.len(), pages)?;
            if nodes.len() > 1 && !bytes.is_empty() {
                let placed = os::place(&mut copy, Policy::Prefer, &nodes[index..=index]);
                placed.map_err(Error::memory("place", bytes.len()))?;
            }
            copy.copy_from_slice(bytes);
            copies.push(copy);
        }
        Ok(Self { nodes: nodes.to_vec(), copies })
    }

    /// The copy on `node`, or the first one for a node that has none.
    pub fn near(&self, node: usize) -> &[u8] {
        let index = self.nodes.iter().position(|&own| own == node).unwrap_or(0);
        &self.copies[index]
    }

    /// Number of copies.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, HUGE_PAGE, Pages, Placement, Replicas, first_touch, os, slabs};

    #[test]
    fn slabs_cover_everything_once_in_whole_pages() {
        let page = os::page_size();
        for (bytes, nodes) in [(0, 1), (1, 2), (10 * page + 5, 3), (1000 * HUGE_PAGE + 7, 8)] {
            let all: Vec<_> = slabs(bytes, nodes).collect();
            assert_eq!((all.len(), all[0].start, all[nodes - 1].end), (nodes, 0, bytes));
            let borders = all.windows(2).map(|pair| (pair[0].end, pair[1].start));
            for (end, start) in borders {
                assert!(end == start && (end.is_multiple_of(page) || end == bytes), "{all:?}");
            }
        }
        let large: Vec<_> = slabs(100 * HUGE_PAGE, 3).collect();
        assert_eq!(large[0], 0..34 * HUGE_PAGE);
    }

    #[test]
    fn one_node_needs_no_placement_and_touching_changes_nothing() {
        let mut buffer = Buffer::new(10 * os::page_size(), Pages::Default).expect("memory");
        for placement in [Placement::Interleave, Placement::RowSlab, Placement::FirstTouch] {
            buffer.place(placement, &[0]).expect("nothing to do");
        }
        buffer[5] = 7;
        first_touch(&mut buffer);
        assert_eq!(buffer.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 7);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_node_that_the_machine_does_not_have_is_refused() {
        let mut buffer = Buffer::new(10 * os::page_size(), Pages::Default).expect("memory");
        for placement in [Placement::Interleave, Placement::RowSlab] {
            let error = buffer.place(placement, &[1000, 1001]).expect_err("no such node");
            assert!(error.to_string().contains("could not place 40960 bytes"), "{error}");
        }
        assert!(Replicas::new(&[1; 100], Pages::Default, &[1000, 1001]).is_err());
    }

    #[test]
    fn replicas_hold_the_bytes_and_one_serves_all_on_one_node() {
        let replicas = Replicas::new(&[1, 2, 3], Pages::Default, &[0]).expect("memory");
        assert_eq!(
            (replicas.copies(), replicas.near(0), replicas.near(5)),
            (1, &[1, 2, 3][..], &[1, 2, 3][..])
        );
    }
}
