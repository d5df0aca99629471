//! What the OS does with memory, as it reports it.

use std::fs;

use super::*;
use crate::os::{map_file, map_memory};

/// Bytes of whole pages that are in memory, mapped or not.
fn in_memory(map: &[u8]) -> usize {
    let page = page_size();
    let mut pages = vec![0u8; map.len().div_ceil(page)];
    let start = map.as_ptr().cast_mut().cast();
    // SAFETY: the map is whole pages, each of which has a byte to be written to.
    #[expect(unsafe_code, reason = "asks the system")]
    let status = unsafe { libc::mincore(start, map.len(), pages.as_mut_ptr().cast()) };
    assert_eq!(status, 0, "{}", io::Error::last_os_error());
    pages.iter().filter(|page| **page & 1 == 1).count() * page
}

/// Whether files there are in memory and nowhere else.
fn is_memory(file: &File) -> bool {
    // SAFETY: all zeros are a value of the structure, and the system writes no more than that.
    #[expect(unsafe_code, reason = "asks the system")]
    let (status, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut about), about)
    };
    status == 0 && about.f_type as u64 == libc::TMPFS_MAGIC as u64
}

/// Whether the system is Linux 5.14 or later.
fn knows_populating() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}

#[test]
fn memory_is_taken_by_populating_and_given_back_by_clearing() {
    let bytes = 64 * page_size();
    let mut map = map_memory(bytes).expect("memory");
    assert_eq!(in_memory(&map), 0);
    populate(&mut map).expect("memory");
    assert_eq!(in_memory(&map), if knows_populating() { bytes } else { 0 });
    assert!(map.iter().all(|byte| *byte == 0));
    map.fill(1);
    clear(&mut map[..bytes / 2]).expect("cleared");
    assert_eq!(in_memory(&map), bytes / 2);
    assert!(map[..bytes / 2].iter().all(|byte| *byte == 0));
    assert!(map[bytes / 2..].iter().all(|byte| *byte == 1));
}

#[test]
fn an_evicted_file_is_no_longer_in_memory() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("weights");
    let bytes = 256 * page_size();
    fs::write(&path, vec![1; bytes]).expect("write");
    let file = File::open(&path).expect("open");
    file.sync_all().expect("on disk");
    if is_memory(&file) {
        return;
    }
    let map = map_file(&file).expect("map");
    assert!(map.iter().all(|byte| *byte == 1));
    assert_eq!(in_memory(&map), bytes);
    advise(&map, Advice::DontNeed).expect("not mapped");
    evict(&file, 0..bytes).expect("evict");
    assert_eq!(in_memory(&map), 0);
}

#[test]
fn threads_are_bound_to_cpus_of_any_number() {
    let here = current_cpu().expect("a CPU");
    let bind = |cpus: &[usize]| bind_thread(cpus).map_err(|error| error.raw_os_error());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // CPUs that a machine does not have are left out, unless it has none of them.
            assert_eq!(bind(&[here, 1024, MOST_CPUS - 1]), Ok(()));
            assert_eq!(current_cpu(), Some(here));
            assert_eq!(bind(&[MOST_CPUS]), Err(None), "refused before the system is asked");
        });
    });
}
