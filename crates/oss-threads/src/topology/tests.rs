//! Recorded machines, unfolded into a scratch folder.

use std::fs;
use std::path::PathBuf;

use super::{Kind, Topology};
use crate::error::Error;

/// A folder that is removed when dropped.
struct Root(PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Unfolds a record: lines of `path:content`, as `grep -r .` prints them; the lines of one path
/// follow each other.
fn unfold(name: &str, records: &[&str]) -> Root {
    let root = std::env::temp_dir().join(format!("oss-threads-{}-{name}", std::process::id()));
    drop(fs::remove_dir_all(&root));
    let lines = records.iter().flat_map(|record| record.lines());
    for (path, content) in lines.filter_map(|line| line.split_once(':')) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{before}{content}\n")).expect("file");
    }
    Root(root)
}

const TWO_SOCKETS: &str = include_str!("../../tests/data/two_sockets.txt");
const INTEL_HYBRID: &str = include_str!("../../tests/data/intel_hybrid.txt");
const ARM_BIG_LITTLE: &str = include_str!("../../tests/data/arm_big_little.txt");
const QUOTA: &str = include_str!("../../tests/data/quota.txt");

#[test]
fn two_sockets_give_their_cores_siblings_and_nodes() {
    let root = unfold("two", &[TWO_SOCKETS]);
    let topology = Topology::read_under(&root.0).expect("topology");
    let cores = topology.cores.iter().map(|core| (core.cpus.as_slice(), core.node));
    let expected: [(&[usize], usize); 4] = [(&[0, 4], 0), (&[1, 5], 0), (&[2, 6], 1), (&[3, 7], 1)];
    assert!(cores.eq(expected), "{:?}", topology.cores);
    assert!(topology.cores.iter().all(|core| core.kind == Kind::Performance));
    assert_eq!(topology.nodes[1].cpus, [2, 3, 6, 7]);
    assert!(topology.nodes.iter().all(|node| node.has_memory), "{:?}", topology.nodes);
    assert_eq!(topology.pin_order(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((topology.default_threads(), topology.cpu_threads()), (4, 8));
}

#[test]
fn threads_that_share_cores_are_side_by_side_with_those_of_their_node() {
    let root = unfold("side", &[TWO_SOCKETS]);
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(topology.cpus_for(3), [0, 1, 2]);
    assert_eq!(topology.cpus_for(6), [0, 1, 4, 5, 2, 3]);
    assert_eq!(topology.cpus_for(8), [0, 1, 4, 5, 2, 3, 6, 7]);
}

#[test]
fn a_node_without_memory_that_the_process_may_have_is_told() {
    let root = unfold("memory", &[TWO_SOCKETS]);
    let have_memory = |path: &str, text: &str| {
        fs::write(root.0.join(path), text).expect("file");
        let nodes = Topology::read_under(&root.0).expect("topology").nodes;
        nodes.iter().map(|node| node.has_memory).collect::<Vec<_>>()
    };
    let status = "proc/self/status";
    assert_eq!(have_memory(status, "Mems_allowed_list:\t1\n"), [false, true]);
    assert_eq!(have_memory(status, "Mems_allowed_list:\t0-1\n"), [true, true]);
    assert_eq!(have_memory("sys/devices/system/node/has_memory", "0\n"), [true, false]);
}

#[test]
fn cpus_that_a_container_numbers_otherwise_are_those_that_may_be_had() {
    let root = unfold("numbers", &[TWO_SOCKETS]);
    fs::write(root.0.join("sys/devices/system/cpu/online"), "0-3\n").expect("file");
    fs::write(root.0.join("proc/self/status"), "Cpus_allowed_list:\t4-7\n").expect("file");
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!((topology.cpu_threads(), topology.pin_order()), (4, vec![4, 5, 6, 7]));
}

#[test]
fn this_machine_has_as_many_cpus_as_its_threads_may_use() {
    let topology = Topology::read().expect("topology");
    let allowed = crate::os::allowed_cpus().unwrap_or_else(|| topology.pin_order());
    let mut order = topology.pin_order();
    order.sort_unstable();
    assert_eq!(order, allowed);
}

#[test]
fn an_affinity_mask_leaves_only_its_cores() {
    let root = unfold("mask", &[TWO_SOCKETS]);
    fs::write(root.0.join("proc/self/status"), "Name:\tx\nCpus_allowed_list:\t1,5-6\n")
        .expect("file");
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!((topology.default_threads(), topology.cpu_threads()), (2, 3));
    assert_eq!(topology.pin_order(), [1, 6, 5]);
}

/// The first CPUs of the cores of a kind, in their order.
fn cpus_of(topology: &Topology, kind: Kind) -> Vec<usize> {
    let cores = topology.cores.iter().filter(|core| core.kind == kind);
    cores.map(|core| core.cpus[0]).collect()
}

/// Eight performance cores with two CPUs each, and eight efficiency cores.
#[test]
fn an_intel_hybrid_has_performance_cores_by_its_lists() {
    let root = unfold("intel", &[INTEL_HYBRID]);
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(cpus_of(&topology, Kind::Performance), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(cpus_of(&topology, Kind::Efficiency), [16, 17, 18, 19, 20, 21, 22, 23]);
    assert_eq!((topology.default_threads(), topology.core_threads()), (8, 16));
    let order = topology.pin_order();
    assert_eq!(order[..9], [0, 2, 4, 6, 8, 10, 12, 14, 16]);
    assert_eq!((order.len(), &order[14..18]), (24, &[22, 23, 1, 3][..]));
    assert_eq!(topology.cpu_threads(), 24);
}

#[test]
fn masks_and_quotas_bound_the_performance_cores_too() {
    let root = unfold("intel-mask", &[INTEL_HYBRID]);
    let restrict = |mask: &str, quota: &str| {
        let write = |path: &str, text: String| {
            let path = root.0.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            fs::write(path, text).expect("file");
        };
        write("proc/self/status", format!("Cpus_allowed_list:\t{mask}\n"));
        write("proc/self/cgroup", "0::/\n".to_owned());
        write("sys/fs/cgroup/cpu.max", format!("{quota} 100000\n"));
        let topology = Topology::read_under(&root.0).expect("topology");
        let most = topology.cpu_threads();
        let threads = [topology.default_threads(), topology.core_threads(), most];
        (threads, topology.pin_order().into_iter().take(most).collect::<Vec<_>>())
    };
    let (threads, cpus) = restrict("0-5,16-19", "max");
    assert_eq!((threads, cpus), ([3, 7, 10], vec![0, 2, 4, 16, 17, 18, 19, 1, 3, 5]));
    // All that is left is slow: then it is what there is.
    assert_eq!(restrict("16-21", "max").0, [6, 6, 6]);
    assert_eq!(restrict("0-23", "1000000"), ([8, 10, 10], vec![0, 2, 4, 6, 8, 10, 12, 14, 16, 17]));
    assert_eq!(restrict("0-23", "400000"), ([4, 4, 4], vec![0, 2, 4, 6]));
    // A core's second CPU counts as its first where that is not allowed.
    assert_eq!(restrict("1,3,16", "50000"), ([1, 1, 1], vec![1]));
}

/// CPUs 0 to 3 are the little ones, as boards number them.
#[test]
fn an_arm_machine_has_performance_cores_by_their_capacity() {
    let root = unfold("arm", &[ARM_BIG_LITTLE]);
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(cpus_of(&topology, Kind::Performance), [4, 5, 6, 7]);
    assert_eq!(cpus_of(&topology, Kind::Efficiency), [0, 1, 2, 3]);
    assert_eq!(topology.pin_order(), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!((topology.default_threads(), topology.core_threads()), (4, 8));
    // A CPU that says nothing leaves the clocks, of which these cores have nearly the same.
    fs::remove_file(root.0.join("sys/devices/system/cpu/cpu5/cpu_capacity")).expect("file");
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(topology.default_threads(), 8);
}

#[test]
fn clocks_tell_cores_apart_where_they_differ_by_more_than_a_fifth() {
    let threads = |name: &str, clocks: [usize; 4]| {
        let clock = |cpu: usize| {
            format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq:{}", clocks[cpu])
        };
        let clocks: Vec<String> = (0..4).map(clock).collect();
        let root = unfold(name, &["sys/devices/system/cpu/online:0-3", &clocks.join("\n")]);
        let topology = Topology::read_under(&root.0).expect("topology");
        (topology.default_threads(), cpus_of(&topology, Kind::Efficiency))
    };
    // Favoured cores clock a little higher; they are no kind of their own.
    assert_eq!(threads("uniform", [5_700_000, 5_500_000, 5_500_000, 4_560_000]), (4, vec![]));
    assert_eq!(threads("dense", [3_300_000, 5_100_000, 3_300_000, 5_000_000]), (2, vec![0, 2]));
}

#[test]
fn the_smallest_quota_on_the_way_up_counts() {
    let root = unfold("quota", &[TWO_SOCKETS, QUOTA]);
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(topology.quota, Some(2.5));
    assert_eq!((topology.default_threads(), topology.cpu_threads()), (2, 2));
    fs::write(root.0.join("sys/fs/cgroup/system.slice/engine.service/cpu.max"), "50000 100000\n")
        .expect("file");
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!((topology.quota, topology.default_threads()), (Some(0.5), 1));
}

#[test]
fn a_malformed_file_is_named_with_what_it_holds() {
    let root = unfold("malformed", &[TWO_SOCKETS]);
    fs::write(root.0.join("sys/devices/system/cpu/online"), "zero\n").expect("file");
    let error = Topology::read_under(&root.0).expect_err("malformed");
    assert!(matches!(error, Error::Topology { .. }));
    assert!(error.to_string().contains("cpu/online: got \"zero\""), "{error}");
}

#[test]
fn a_machine_without_a_description_is_one_node_of_plain_cores() {
    let root = unfold("plain", &[]);
    let topology = Topology::read_under(&root.0).expect("topology");
    let available = std::thread::available_parallelism().expect("cpus").get();
    assert_eq!((topology.cores.len(), topology.nodes.len()), (available, 1));
}
