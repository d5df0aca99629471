//! Weights on the NUMA nodes of the machine.

use super::Weights;
use crate::error::Result;
use oss_memory::placement::{MemoryPolicy, Node, Placement};
use oss_threads::TeamOptions;
use oss_threads::topology::{Core, Topology};
use std::ops::Range;
use std::path::Path;

/// A placement over the nodes on which this process may compute and have memory, as the `proc` and
/// `sys` under `root` describe them. Where there is but one, and for [`Placement::System`], the
/// system decides.
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
    let Topology { cores, nodes, .. } = Topology::read_under(root)?;
    let has_memory =
        |cores: &&[Core]| nodes.iter().any(|node| node.id == cores[0].node && node.has_memory);
    let by_node = cores.chunk_by(|one, next| one.node == next.node);
    Ok(MemoryPolicy::new(placement, by_node.filter(has_memory).map(node).collect()))
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
        self.storage.place(&self.container, (policy, self.pages), &matrices)
    }

    /// Where the matrices of each section lie in it, in order.
    pub(super) fn section_matrices(&self) -> Vec<Vec<Range<usize>>> {
        let mut sections: Vec<Vec<Range<usize>>> = Vec::new();
        for location in self.locations() {
            if sections.len() <= location.section {
                sections.resize(location.section + 1, Vec::new());
            }
            sections[location.section].push(location.bytes());
        }
        sections.iter_mut().for_each(|matrices| matrices.sort_by_key(|bytes| bytes.start));
        sections
    }
}

#[cfg(test)]
mod tests {
    use super::{Placement, memory_policy};
    use std::fs;

    #[test]
    fn a_node_whose_memory_the_process_may_not_have_gets_none() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-2");
        write("sys/devices/system/node/online", "0-2");
        for node in 0..3 {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), &node.to_string());
        }
        let ids = || {
            let policy = memory_policy(Placement::Interleave, root.path()).unwrap();
            policy.nodes().iter().map(|node| node.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(), [0, 1, 2]);
        write("sys/devices/system/node/has_memory", "0,2");
        assert_eq!(ids(), [0, 2]);
        write("proc/self/status", "Mems_allowed_list:\t1-2\n");
        assert!(ids().is_empty(), "one node is left: the system decides");
    }
}
