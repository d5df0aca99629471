//! What the machine has and what this process may use of it.

mod kinds;
mod list;

use std::path::{Path, PathBuf};
use std::thread;

use crate::error::Error;
use crate::os;

/// The most CPUs that are read; Linux knows no more.
const MAX_CPUS: usize = 8192;

/// What a core is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Speed: every core of a machine whose cores are alike.
    Performance,
    /// Little energy: clearly slower than the machine's fastest cores.
    Efficiency,
}

/// One physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its CPUs (hardware threads) that this process may use, ascending.
    pub cpus: Vec<usize>,
    /// Its NUMA node.
    pub node: usize,
    /// What it is made for.
    pub kind: Kind,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its CPUs, allowed or not.
    pub cpus: Vec<usize>,
    /// Whether it has memory that this process may have; true where the system does not say.
    pub has_memory: bool,
}

/// Cores, nodes and limits, as seen by this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Cores with at least one allowed CPU, by node, then by kind, then by their first CPU.
    pub cores: Vec<Core>,
    /// All nodes; at least one.
    pub nodes: Vec<Node>,
    /// CPUs' worth of time that the control groups (version 2) allow; none when unlimited.
    pub quota: Option<f64>,
}

impl Topology {
    /// Reads this machine.
    ///
    /// # Errors
    /// When the system describes itself in an unknown way.
    pub fn read() -> Result<Self, Error> {
        Self::read_under(Path::new("/"))
    }

    /// Reads the machine whose `/proc` and `/sys` lie under `root`; what is not there is taken from
    /// [`thread::available_parallelism`], as one node of cores with one CPU each.
    ///
    /// # Errors
    /// When a file is not written as Linux documents it.
    pub fn read_under(root: &Path) -> Result<Self, Error> {
        let system = root.join("sys/devices/system");
        let Some(online) = cpu_list(&system.join("cpu/online"))? else {
            return Ok(Self::plain(thread::available_parallelism().map_or(1, usize::from)));
        };
        // What the system itself says leaves out what is offline; the text does not.
        let here = if root == Path::new("/") { os::allowed_cpus() } else { None };
        let known = here.is_some();
        let allowed = match here {
            Some(cpus) => cpus,
            None => status_list(root, "Cpus_allowed_list:")?.unwrap_or_else(|| online.clone()),
        };
        let is_online = |cpu: &usize| online.contains(cpu);
        let online = match known {
            // Some containers (lxcfs) show as many CPUs as there are, by other numbers.
            true if !allowed.iter().all(is_online) => allowed.clone(),
            false if !allowed.iter().any(is_online) => allowed.clone(),
            _ => online,
        };
        let mut nodes = nodes(&system.join("node"), &online)?;
        let mems =
            [cpu_list(&system.join("node/has_memory"))?, status_list(root, "Mems_allowed_list:")?];
        for node in &mut nodes {
            node.has_memory = mems.iter().flatten().all(|ids| ids.contains(&node.id));
        }
        let efficient = kinds::efficient(&root.join("sys/devices"), &online)?;
        let mut cores: Vec<Core> = Vec::new();
        for &cpu in online.iter().filter(|&cpu| allowed.contains(cpu)) {
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            // The second name is that of kernels before 5.1.
            let siblings = match cpu_list(&folder.join("core_cpus_list"))? {
                Some(siblings) => siblings,
                None => cpu_list(&folder.join("thread_siblings_list"))?.unwrap_or(vec![cpu]),
            };
            if let Some(core) = cores.iter_mut().find(|core| siblings.contains(&core.cpus[0])) {
                core.cpus.push(cpu);
                continue;
            }
            let node = nodes.iter().find(|node| node.cpus.contains(&cpu)).map_or(0, |node| node.id);
            let is_efficient = efficient.contains(&cpu);
            let kind = if is_efficient { Kind::Efficiency } else { Kind::Performance };
            cores.push(Core { cpus: vec![cpu], node, kind });
        }
        cores.sort_by_key(|core| (core.node, core.kind, core.cpus[0]));
        Ok(Self { cores, nodes, quota: quota(root)? })
    }

    fn plain(cpus: usize) -> Self {
        let kind = Kind::Performance;
        let core = |cpu| Core { cpus: vec![cpu], node: 0, kind };
        let nodes = vec![Node { id: 0, cpus: (0..cpus).collect(), has_memory: true }];
        Self { cores: (0..cpus).map(core).collect(), nodes, quota: None }
    }

    /// Threads that are worth having without measuring: the allowed performance cores, or all cores
    /// where none of those is allowed; no more than the quota, at least 1. Threads of a phase wait
    /// for the slowest of them.
    pub fn default_threads(&self) -> usize {
        let fast = self.cores.iter().filter(|core| core.kind == Kind::Performance).count();
        if fast > 0 { self.within_quota(fast) } else { self.core_threads() }
    }

    /// One thread for each allowed core of any kind; no more than the quota, at least 1.
    pub fn core_threads(&self) -> usize {
        self.within_quota(self.cores.len())
    }

    fn within_quota(&self, threads: usize) -> usize {
        let quota = self.quota.map_or(usize::MAX, |cpus| cpus as usize);
        threads.min(quota).max(1)
    }

    /// One thread for each allowed CPU: the most that can be bound to CPUs of their own. No more
    /// than the quota, at least 1.
    pub fn cpu_threads(&self) -> usize {
        self.within_quota(self.cores.iter().map(|core| core.cpus.len()).sum())
    }

    /// The CPUs for threads to be bound to, in order: one of each core, node by node and within
    /// them performance cores first, then the cores' other CPUs.
    pub fn pin_order(&self) -> Vec<usize> {
        let most = self.cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        let layer = |rank: usize| self.cores.iter().filter_map(move |core| core.cpus.get(rank));
        (0..most).flat_map(layer).copied().collect()
    }

    /// The CPUs for so many threads: the first of [`Topology::pin_order`], those of a node side by
    /// side, since neighbours begin with neighbouring rows, which may lie on one node.
    pub fn cpus_for(&self, threads: usize) -> Vec<usize> {
        let mut cpus = self.pin_order();
        cpus.truncate(threads);
        let core_of = |cpu: &usize| self.cores.iter().find(|core| core.cpus.contains(cpu));
        cpus.sort_by_cached_key(|cpu| core_of(cpu).map(|core| core.node));
        cpus
    }
}

/// Threads for a team on this machine: performance cores within mask and quota, see
/// [`Topology::default_threads`].
///
/// Unreadable descriptions of the machine count as none; then it is what the standard library says.
pub fn default_threads() -> usize {
    // It also knows the quotas of control groups of version 1, and of other systems.
    let available = thread::available_parallelism().map_or(1, usize::from);
    Topology::read().map_or(available, |topology| topology.default_threads().min(available))
}

fn malformed(path: &Path, got: &str, expected: &'static str) -> Error {
    Error::Topology { path: path.to_path_buf(), got: got.trim().to_owned(), expected }
}

fn cpu_list(path: &Path) -> Result<Option<Vec<usize>>, Error> {
    let Some(text) = os::text(path) else { return Ok(None) };
    let list = list::parse(text.trim(), MAX_CPUS);
    list.map(Some).ok_or_else(|| malformed(path, &text, "a list such as 0-3,8"))
}

fn number(path: &Path) -> Result<Option<usize>, Error> {
    let Some(text) = os::text(path) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| malformed(path, &text, "a number"))
}

/// What this thread may use, CPUs or nodes, by the line of its status that begins so. The threads
/// that it starts inherit it.
fn status_list(root: &Path, begin: &str) -> Result<Option<Vec<usize>>, Error> {
    for name in ["proc/thread-self/status", "proc/self/status"] {
        let path = root.join(name);
        let Some(text) = os::text(&path) else { continue };
        let Some(line) = text.lines().find_map(|line| line.strip_prefix(begin)) else { continue };
        let list = list::parse(line.trim(), MAX_CPUS);
        return list.map(Some).ok_or_else(|| malformed(&path, line, "a list such as 0-3,8"));
    }
    Ok(None)
}

fn nodes(folder: &Path, online: &[usize]) -> Result<Vec<Node>, Error> {
    let ids = cpu_list(&folder.join("online"))?.unwrap_or_default();
    let mut nodes = Vec::with_capacity(ids.len());
    for id in ids {
        let folder = folder.join(format!("node{id}"));
        let cpus = cpu_list(&folder.join("cpulist"))?.unwrap_or_default();
        nodes.push(Node { id, cpus, has_memory: true });
    }
    if nodes.is_empty() {
        nodes.push(Node { id: 0, cpus: online.to_vec(), has_memory: true });
    }
    Ok(nodes)
}

/// The smallest `cpu.max` from this process's control group up to the root of what it can see.
fn quota(root: &Path) -> Result<Option<f64>, Error> {
    let groups = os::text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Ok(None);
    };
    let mounted = root.join("sys/fs/cgroup");
    // Outside of its namespace a group is called /.., and its limits cannot be seen.
    let inside = if group.starts_with("..") { "" } else { group };
    let mut folder: PathBuf = mounted.join(inside);
    let mut least: Option<f64> = None;
    loop {
        let path = folder.join("cpu.max");
        if let Some(text) = os::text(&path) {
            let cpus = cpu_max(&text)
                .ok_or_else(|| malformed(&path, &text, "max or a quota, then a period"))?;
            least = [least, cpus].into_iter().flatten().reduce(f64::min);
        }
        if folder == mounted || !folder.pop() {
            return Ok(least);
        }
    }
}

/// Some(None) is `max`.
fn cpu_max(text: &str) -> Option<Option<f64>> {
    let (quota, period) = text.trim().split_once(' ')?;
    let period = period.parse::<f64>().ok().filter(|&period| period > 0.0)?;
    match quota {
        "max" => Some(None),
        quota => Some(Some(quota.parse::<f64>().ok()? / period)),
    }
}

#[cfg(test)]
mod tests;
