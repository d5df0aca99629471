//! Weights on the NUMA nodes of the machine.

use super::Weights;
use crate::error::Result;
use oss_memory::placement::{MemoryPolicy, Node, Placement};
use oss_threads::TeamOptions;
use oss_threads::topology::{Core, Topology};
use std::ops::Range;
use std::path::Path;

/// A placement over the nodes on which this process may compute, as the `proc` and `sys` under
/// `root` describe them. Where there is one, and for [`Placement::System`], the system decides.
///
/// # Errors
/// When the system describes itself in an unknown way.
pub fn memory_policy(
    placement: Placement,
    root: &Path,
) -> Result<MemoryPolicy, oss_threads::Error> {
    if placement == Placement::System {
        return Ok(MemoryPolicy::default());
    }
    let node = |cores: &[Core]| {
        let cpus = cores.iter().flat_map(|core| &core.cpus).copied().collect();
        Node { id: cores[0].node, cpus }
    };
    let cores = Topology::read_under(root)?.cores;
    let nodes = cores.chunk_by(|one, next| one.node == next.node).map(node).collect();
    Ok(MemoryPolicy::new(placement, nodes))
}

/// Options of a team for weights that are so placed, bound to CPUs if `pin` says so, and where rows
/// have nodes: node by node, and so to the rows that threads begin with.
#[must_use]
pub fn team_options(threads: usize, pin: bool, policy: &MemoryPolicy) -> TeamOptions {
    TeamOptions { pin: pin || policy.is_by_rows(), ..TeamOptions::new(threads) }
}

impl Weights {
    /// Lays the packed matrices over nodes, in memory of this process's own: those of a packed file
    /// are read from it, since its map lies where the system keeps files. Where the system decides,
    /// nothing is done. To be called before [`Weights::promote`], and not where experts are in
    /// slots: [`Weights::keep_experts_in_slots`] takes the policy too.
    ///
    /// # Errors
    /// When memory or a node is refused.
    ///
    /// # Panics
    /// When experts are in slots.
    pub fn place(&mut self, policy: &MemoryPolicy) -> Result<()> {
        if policy.placement() == Placement::System {
            return Ok(());
        }
        let matrices = self.section_matrices();
        let placed = self.storage.place(&self.container, (policy, self.pages), &matrices);
        self.count_reserved();
        placed
    }

    /// Where the matrices of each section lie in it, in order.
    pub(super) fn section_matrices(&self) -> Vec<Vec<Range<usize>>> {
        let mut sections: Vec<Vec<Range<usize>>> = Vec::new();
        for stored in self.all_stored() {
            if sections.len() <= stored.section {
                sections.resize(stored.section + 1, Vec::new());
            }
            sections[stored.section].push(stored.bytes());
        }
        sections.iter_mut().for_each(|matrices| matrices.sort_by_key(|bytes| bytes.start));
        sections
    }
}
