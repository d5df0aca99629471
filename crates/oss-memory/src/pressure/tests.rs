//! Recorded systems, unfolded into a scratch folder.

use std::fs;

use tempfile::TempDir;

use super::{Level, Pressure, room_of_huge_pages};

const GROUP: &str = include_str!("../../tests/data/control_group.txt");
/// A container on a host that has the controllers in groups of version 1.
const GROUP_1: &str = include_str!("../../tests/data/control_group_1.txt");
const GIB: u64 = 1 << 30;

/// Unfolds a record: lines of `path:content`, as `grep -r .` prints them.
fn unfold(record: &str) -> TempDir {
    let root = tempfile::tempdir().expect("folder");
    for (path, content) in record.lines().filter_map(|line| line.split_once(':')) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{before}{content}\n")).expect("file");
    }
    root
}

/// The record with one file replaced.
fn changed(path: &str, content: &str) -> Pressure {
    let root = unfold(GROUP);
    fs::write(root.path().join(path), content).expect("file");
    Pressure::read_under(root.path()).expect("pressure")
}

const SERVICE: &str = "sys/fs/cgroup/system.slice/engine.service";

#[test]
fn limit_and_room_are_those_of_the_group_with_the_least_room() {
    let root = unfold(GROUP);
    let pressure = Pressure::read_under(root.path()).expect("pressure");
    // The service may have 8 GiB (high), of which 5 are used and 2 of these are idle files; the
    // slice may have 16 GiB, of which 14 are used and none is idle.
    assert_eq!((pressure.limit, pressure.room), (Some(16 * GIB), Some(2 * GIB)));
    assert_eq!((pressure.some_stalled, pressure.all_stalled), (Some(1.5), Some(0.25)));
    assert_eq!((pressure.level(), pressure.shed_bytes()), (Level::Calm, 0));
    assert_eq!(pressure.spare_bytes(), Some(0));
    // Where the slice has more room, the service's own limit counts.
    let slice = "sys/fs/cgroup/system.slice/memory.current";
    let pressure = changed(slice, &(10 * GIB).to_string());
    assert_eq!((pressure.limit, pressure.room), (Some(8 * GIB), Some(5 * GIB)));
    // Of 6 GiB that the slice has left, less is spare: a fifth of its limit is to stay.
    assert_eq!(pressure.spare_bytes(), Some(6 * GIB - (16.0 * GIB as f64 * 0.20) as u64));
    assert_eq!(Pressure::default().spare_bytes(), None);
}

#[test]
fn little_room_or_long_stalls_raise_the_level() {
    let used = |bytes: u64| changed(&format!("{SERVICE}/memory.current"), &bytes.to_string());
    let tight = used(10 * GIB - GIB / 2);
    assert_eq!((tight.room, tight.level()), (Some(GIB / 2), Level::Tight));
    assert_eq!(tight.shed_bytes(), (8.0 * GIB as f64 * 0.10) as u64 - GIB / 2);
    assert_eq!(tight.spare_bytes(), Some(0));
    assert_eq!(used(12 * GIB).level(), Level::Critical);

    // The service has 5 GiB left, and the slice 2; of the machine's 64 GiB, 4 are to stay.
    let machine = changed("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 2621440 kB\n");
    assert_eq!((machine.limit, machine.level()), (Some(16 * GIB), Level::Tight));
    assert_eq!(machine.shed_bytes(), 4 * GIB - 5 * GIB / 2);

    let stalled = |some: &str, full: &str| {
        let text =
            format!("some avg10={some} avg60=0 total=1\nfull avg10={full} avg60=0 total=1\n");
        changed(&format!("{SERVICE}/memory.pressure"), &text).level()
    };
    assert_eq!(stalled("9.9", "4.9"), Level::Calm);
    assert_eq!(stalled("10.1", "4.9"), Level::Tight);
    assert_eq!(stalled("50.0", "5.1"), Level::Critical);
}

#[test]
fn a_large_machine_needs_no_larger_part_of_it_as_room() {
    let left = |gib: u64| {
        let [total, left] = [1024, gib].map(|gib| gib << 20);
        let text = format!("MemTotal: {total} kB\nMemAvailable: {left} kB\n");
        let root = tempfile::tempdir().expect("folder");
        fs::create_dir(root.path().join("proc")).expect("folder");
        fs::write(root.path().join("proc/meminfo"), text).expect("file");
        let pressure = Pressure::read_under(root.path()).expect("pressure");
        (pressure.level(), pressure.shed_bytes() / GIB, pressure.spare_bytes().map(|b| b / GIB))
    };
    assert_eq!(left(90), (Level::Calm, 0, Some(82)));
    assert_eq!(left(4), (Level::Calm, 0, Some(0)));
    assert_eq!(left(3), (Level::Tight, 1, Some(0)));
    assert_eq!(left(1), (Level::Tight, 3, Some(0)));
    assert_eq!(left(0), (Level::Critical, 4, Some(0)));
}

#[test]
fn groups_of_version_1_are_limits_too() {
    let root = unfold(GROUP_1);
    let pressure = Pressure::read_under(root.path()).expect("pressure");
    // 8.5 GiB of 8 are used, 1 of these for idle files; the groups above are not limited.
    assert_eq!((pressure.limit, pressure.room), (Some(8 * GIB), Some(GIB / 2)));
    assert_eq!((pressure.level(), pressure.some_stalled), (Level::Tight, Some(0.5)));
    // In the container its own group is the outermost, and its name means nothing.
    let group = root.path().join("sys/fs/cgroup/memory");
    for name in ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"] {
        fs::rename(group.join("docker/4f1d").join(name), group.join(name)).expect("moved");
    }
    fs::remove_dir_all(group.join("docker")).expect("removed");
    assert_eq!(Pressure::read_under(root.path()).expect("pressure"), pressure);
}

#[test]
fn huge_pages_are_promised_as_far_as_each_group_allows() {
    let room = |root: &TempDir| room_of_huge_pages(root.path()).expect("limits");
    let first = unfold(GROUP_1);
    assert_eq!(room(&first), Some(GIB / 4), "three of four quarters are promised");
    let rest = "docker/4f1d/hugetlb.2MB.rsvd.usage_in_bytes";
    fs::remove_file(first.path().join("sys/fs/cgroup/hugetlb").join(rest)).expect("removed");
    assert_eq!(room(&first), Some(3 * GIB / 4), "before Linux 5.7");

    let second = unfold(GROUP);
    assert_eq!(room(&second), None);
    let slice = second.path().join("sys/fs/cgroup/system.slice");
    fs::write(slice.join("hugetlb.2MB.max"), "4194304\n").expect("file");
    fs::write(slice.join("hugetlb.2MB.current"), "2097152\n").expect("file");
    fs::write(slice.join("engine.service/hugetlb.2MB.max"), "max\n").expect("file");
    assert_eq!(room(&second), Some(2 << 20));
    fs::write(slice.join("engine.service/hugetlb.2MB.max"), "0\n").expect("file");
    assert_eq!(room(&second), Some(0));
}

#[test]
fn a_machine_without_control_groups_goes_by_its_memory() {
    let root = unfold(GROUP);
    fs::remove_dir_all(root.path().join("sys")).expect("remove");
    let pressure = Pressure::read_under(root.path()).expect("pressure");
    assert_eq!((pressure.limit, pressure.room), (Some(64 * GIB), Some(32 * GIB)));
    assert_eq!(pressure.some_stalled, Some(0.0));
    let empty = tempfile::tempdir().expect("folder");
    let silent = Pressure::read_under(empty.path()).expect("pressure");
    assert_eq!((silent, silent.level()), (Pressure::default(), Level::Calm));
}

#[test]
fn a_malformed_file_is_named_with_what_it_holds() {
    for (path, content) in [
        ("proc/meminfo", "MemTotal: many kB\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "some\n"),
        ("sys/fs/cgroup/system.slice/engine.service/memory.pressure", "some avg60=0\n"),
    ] {
        let root = unfold(GROUP);
        fs::write(root.path().join(path), content).expect("file");
        let error = Pressure::read_under(root.path()).expect_err("malformed").to_string();
        assert!(error.contains(path) && error.contains("got "), "{error}");
    }
}

#[test]
fn this_machine_can_be_read() {
    let pressure = Pressure::read().expect("pressure");
    assert!(pressure.room <= pressure.limit || pressure.limit.is_none(), "{pressure:?}");
}
