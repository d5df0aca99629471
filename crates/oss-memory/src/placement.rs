//! On which NUMA nodes memory lies.
//!
//! A processor reads the memory of its own node fastest. Which placement is best depends on the
//! model and the machine, so it is an option; on a machine with one node each does nothing.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, panic, thread};

use crate::os::{self, Policy};
use crate::{Buffer, Error, HUGE_PAGE, Pages, Result};

/// How memory is laid over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The system decides: as a rule, a page lies on the node of whichever thread touches it first.
    #[default]
    System,
    /// Pages in turn on all nodes: every worker gets the mean of near and far.
    Interleave,
    /// A whole copy on each node: every worker reads near memory, for as many times the room as
    /// there are nodes.
    Replicate,
    /// One contiguous part of each matrix's rows on each node, for workers that keep to their
    /// node's rows.
    RowSlab,
    /// The same parts, placed by threads of each node that touch them first: for systems that do
    /// not let a process say where its memory lies, as many containers.
    FirstTouch,
}

impl Placement {
    /// Every choice.
    pub const ALL: [Self; 5] =
        [Self::System, Self::Interleave, Self::Replicate, Self::RowSlab, Self::FirstTouch];

    /// The name, as on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Interleave => "interleave",
            Self::Replicate => "replicate",
            Self::RowSlab => "row-slab",
            Self::FirstTouch => "first-touch",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Placement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|placement| placement.name() == text);
        found.ok_or_else(|| Error::Placement { got: text.to_owned() })
    }
}

/// A node that has memory and computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, as the system has it.
    pub id: usize,
    /// Those of its CPUs that this process may use; at least one.
    pub cpus: Vec<usize>,
}

/// A placement and the nodes that it is for. A clone is another handle of the same.
#[derive(Clone, Debug, Default)]
pub struct MemoryPolicy {
    placement: Placement,
    /// None where the system decides.
    nodes: Arc<[Node]>,
    /// For each CPU the index of its node.
    node_of_cpu: Arc<[usize]>,
}

impl MemoryPolicy {
    /// The policy; with fewer than two nodes, that the system decides.
    ///
    /// # Panics
    /// When a node has no CPUs.
    pub fn new(placement: Placement, nodes: Vec<Node>) -> Self {
        assert!(nodes.iter().all(|node| !node.cpus.is_empty()), "a node without CPUs: {nodes:?}");
        if placement == Placement::System || nodes.len() < 2 {
            return Self::default();
        }
        let cpus = nodes.iter().flat_map(|node| &node.cpus).max().map_or(0, |last| last + 1);
        let mut node_of_cpu = vec![0; cpus];
        for (index, node) in nodes.iter().enumerate() {
            node.cpus.iter().for_each(|&cpu| node_of_cpu[cpu] = index);
        }
        Self { placement, nodes: nodes.into(), node_of_cpu: node_of_cpu.into() }
    }

    /// The placement in force.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The nodes; none where the system decides.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many times [`Replicas`] keep their bytes.
    pub fn copies(&self) -> usize {
        if self.placement == Placement::Replicate { self.nodes.len() } else { 1 }
    }

    /// Whether rows have nodes, so that workers had better keep to theirs.
    pub fn is_by_rows(&self) -> bool {
        matches!(self.placement, Placement::RowSlab | Placement::FirstTouch)
    }

    /// The slabs of a buffer of `bytes` in which `matrices` lie, in order and packed by rows:
    /// ranges that cover it, each with the index of its node. A matrix has a slab on each node, in
    /// the order of the nodes and in proportion to their CPUs. Long slabs end on huge pages, others
    /// on pages, so that what is smaller than a page lies on one node.
    ///
    /// # Panics
    /// When the system decides.
    pub fn slabs(&self, bytes: usize, matrices: &[Range<usize>]) -> Vec<(Range<usize>, usize)> {
        self.slabs_on(os::page_size(), bytes, matrices)
    }

    /// [`MemoryPolicy::slabs`] of a buffer that lies on pages of `page` bytes.
    fn slabs_on(
        &self,
        page: usize,
        bytes: usize,
        matrices: &[Range<usize>],
    ) -> Vec<(Range<usize>, usize)> {
        let nodes = self.nodes.len();
        assert!(nodes > 1, "{nodes} nodes, expected at least 2");
        let cpus: usize = self.nodes.iter().map(|node| node.cpus.len()).sum();
        let mut slabs = Vec::new();
        let mut begin = 0;
        for matrix in matrices {
            let is_long = matrix.len() / nodes >= 16 * HUGE_PAGE;
            let unit = if is_long { HUGE_PAGE } else { page };
            let mut cpus_before = 0;
            for (index, node) in self.nodes.iter().enumerate() {
                cpus_before += node.cpus.len();
                let border = matrix.start + matrix.len() * cpus_before / cpus;
                let end = ((border + unit / 2) / unit * unit).min(bytes);
                if end > begin {
                    slabs.push((begin..end, index));
                    begin = end;
                }
            }
        }
        match slabs.last_mut() {
            Some((last, _)) => last.end = bytes,
            None => slabs.push((0..bytes, 0)),
        }
        slabs
    }

    /// Lays a buffer whose pages are not yet touched over the nodes; `matrices` are those that will
    /// lie in it, in order. On huge pages that were set aside slabs are whole ones. Copies are not
    /// made here: see [`Replicas`].
    ///
    /// # Errors
    /// When the system refuses, as for a node that it does not have.
    pub fn place(&self, buffer: &mut Buffer, matrices: &[Range<usize>]) -> Result<()> {
        let page = buffer.page();
        match self.placement {
            Placement::System | Placement::Replicate => Ok(()),
            Placement::Interleave => {
                place(buffer.with_last_page(), Policy::Interleave, &self.nodes)
            }
            Placement::RowSlab => {
                let memory = buffer.with_last_page();
                let mut slabs = self.slabs_on(page, memory.len(), matrices).into_iter();
                slabs.try_for_each(|(slab, node)| {
                    place(&mut memory[slab], Policy::Prefer, &self.nodes[node..=node])
                })
            }
            Placement::FirstTouch => self.touch(buffer, matrices),
        }
    }

    /// Touches the slabs of each node by a thread that is bound to it.
    fn touch(&self, buffer: &mut Buffer, matrices: &[Range<usize>]) -> Result<()> {
        let (page, bytes) = (buffer.page(), buffer.len());
        let mut slabs: Vec<Vec<&mut [u8]>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut rest = &mut buffer[..];
        for (slab, node) in self.slabs_on(page, bytes, matrices) {
            let (slab, behind) = rest.split_at_mut(slab.len());
            slabs[node].push(slab);
            rest = behind;
        }
        let touch = |node: &Node, slabs: Vec<&mut [u8]>| {
            os::bind_thread(&node.cpus)?;
            slabs.into_iter().for_each(first_touch);
            Ok(())
        };
        thread::scope(|scope| {
            let mut threads = Vec::with_capacity(slabs.len());
            for (node, slabs) in self.nodes.iter().zip(slabs) {
                let run = move || touch(node, slabs);
                threads.push((node, thread::Builder::new().spawn_scoped(scope, run)));
            }
            threads.into_iter().try_for_each(|(node, thread)| {
                let ended = thread.and_then(|thread| match thread.join() {
                    Ok(touched) => touched,
                    Err(panic) => panic::resume_unwind(panic),
                });
                ended.map_err(Error::place(bytes, std::slice::from_ref(node)))
            })
        })
    }

    /// The index of the node that the calling thread runs on just now.
    fn here(&self) -> usize {
        let cpu = os::current_cpu().unwrap_or(0);
        self.node_of_cpu.get(cpu).copied().unwrap_or(0)
    }
}

/// Tells the system where pages come to lie when they are touched.
fn place(memory: &mut [u8], policy: Policy, nodes: &[Node]) -> Result<()> {
    if memory.is_empty() {
        return Ok(());
    }
    let ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
    os::place(memory, policy, &ids).map_err(Error::place(memory.len(), nodes))
}

/// Touches every page, which then lies on the node of the calling thread. The bytes stay.
fn first_touch(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(os::page_size()) {
        // A plain write of what was read would be optimised away.
        *byte = std::hint::black_box(*byte);
    }
}

/// Memory that is placed as a policy says: once, or under [`Placement::Replicate`] on each node.
#[derive(Debug)]
pub struct Replicas {
    policy: MemoryPolicy,
    copies: Vec<Buffer>,
}

impl Replicas {
    /// `bytes` zeros, in which `matrices` will lie, in order.
    ///
    /// # Errors
    /// When the system has not that much memory, or refuses a node.
    pub fn new(
        bytes: usize,
        pages: Pages,
        policy: &MemoryPolicy,
        matrices: &[Range<usize>],
    ) -> Result<Self> {
        let mut copies = Vec::with_capacity(policy.copies());
        for index in 0..policy.copies() {
            let mut copy = Buffer::new(bytes, pages)?;
            match policy.placement {
                Placement::Replicate => {
                    let node = &policy.nodes[index..=index];
                    place(copy.with_last_page(), Policy::Prefer, node)?;
                }
                _ => policy.place(&mut copy, matrices)?,
            }
            copies.push(copy);
        }
        Ok(Self { policy: policy.clone(), copies })
    }

    /// The copy of the node that the calling thread runs on.
    pub fn near(&self) -> &[u8] {
        match &self.copies[..] {
            [one] => one,
            copies => &copies[self.policy.here()],
        }
    }

    /// All copies.
    pub fn copies(&self) -> &[Buffer] {
        &self.copies
    }

    /// All copies, to be written: with the same bytes.
    pub fn copies_mut(&mut self) -> &mut [Buffer] {
        &mut self.copies
    }

    /// Bytes of one copy.
    pub fn bytes(&self) -> usize {
        self.copies[0].len()
    }

    /// Bytes of all copies.
    pub fn resident_bytes(&self) -> usize {
        self.copies.len() * self.bytes()
    }
}

impl From<Buffer> for Replicas {
    /// One copy, wherever it lies.
    fn from(buffer: Buffer) -> Self {
        Self { policy: MemoryPolicy::default(), copies: vec![buffer] }
    }
}

#[cfg(test)]
mod tests;
