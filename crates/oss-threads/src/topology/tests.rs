//! Recorded machines, unfolded into a scratch folder.

use std::fs;
use std::path::PathBuf;

use super::Topology;
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
const QUOTA: &str = include_str!("../../tests/data/quota.txt");

#[test]
fn two_sockets_give_their_cores_siblings_and_nodes() {
    let root = unfold("two", &[TWO_SOCKETS]);
    let topology = Topology::read_under(&root.0).expect("topology");
    let cores = topology.cores.iter().map(|core| (core.cpus.as_slice(), core.package, core.node));
    let expected: [(&[usize], usize, usize); 4] =
        [(&[0, 4], 0, 0), (&[1, 5], 0, 0), (&[2, 6], 1, 1), (&[3, 7], 1, 1)];
    assert!(cores.eq(expected), "{:?}", topology.cores);
    assert_eq!(topology.nodes[1].cpus, [2, 3, 6, 7]);
    assert_eq!(topology.nodes[1].memory_bytes, 33_554_432 * 1024);
    assert_eq!(topology.placement(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((topology.default_threads(), topology.is_whole_machine()), (4, true));
}

#[test]
fn an_affinity_mask_leaves_only_its_cores() {
    let root = unfold("mask", &[TWO_SOCKETS]);
    fs::write(root.0.join("proc/self/status"), "Name:\tx\nCpus_allowed_list:\t1,5-6\n")
        .expect("file");
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!((topology.default_threads(), topology.is_whole_machine()), (2, false));
    assert_eq!(topology.placement(), [1, 6, 5]);
}

#[test]
fn the_smallest_quota_on_the_way_up_counts() {
    let root = unfold("quota", &[TWO_SOCKETS, QUOTA]);
    let topology = Topology::read_under(&root.0).expect("topology");
    assert_eq!(topology.quota, Some(2.5));
    assert_eq!((topology.default_threads(), topology.is_whole_machine()), (2, false));
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
