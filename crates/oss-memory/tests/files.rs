//! Files as the engine uses them.

use std::fs;
use std::path::Path;

use oss_memory::file::{self, Advice, DIRECT_ALIGNMENT, Map, RandomAccess, Writer};
use oss_memory::{Buffer, Error, HUGE_PAGE, Pages};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("directory").map(|entry| entry.expect("entry"));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Bytes of whole pages of `memory` that are mapped to memory just now; none where the system does
/// not say.
fn mapped(memory: &[u8]) -> Option<usize> {
    let page = oss_memory::page_size();
    let (first, end) =
        (memory.as_ptr().addr() / page, (memory.as_ptr().addr() + memory.len()) / page);
    let pages = RandomAccess::open_read_only(Path::new("/proc/self/pagemap")).ok()?;
    let mut words = vec![0; 8 * (end - first)];
    pages.read_at(&mut words, 8 * first as u64).ok()?;
    let is_mapped = |word: &&[u8]| word[7] >> 7 == 1;
    Some(words.chunks(8).filter(is_mapped).count() * page)
}

#[test]
fn memory_that_is_given_back_is_no_longer_mapped() {
    let bytes = 8 * HUGE_PAGE;
    for pages in [Pages::Ordinary, Pages::Transparent] {
        let mut buffer = Buffer::new(bytes, pages).expect("memory");
        assert_eq!(mapped(&buffer).unwrap_or(0), 0, "{pages}: taken when it is touched");
        buffer.fill(1);
        assert_eq!(mapped(&buffer).unwrap_or(bytes), bytes, "{pages}");
        buffer.release(HUGE_PAGE..bytes).expect("release");
        assert_eq!(mapped(&buffer).unwrap_or(HUGE_PAGE), HUGE_PAGE, "{pages}");
    }
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("weights");
    fs::write(&path, vec![1; bytes]).expect("write");
    let map = Map::open(&path).expect("map");
    let give_back: [fn(&Map, usize); 2] = [
        |map, bytes| map.advise(0..bytes, Advice::DontNeed).expect("advice"),
        |map, bytes| map.evict(0..bytes).expect("evicted"),
    ];
    for give_back in give_back {
        assert!(map.bytes().iter().all(|byte| *byte == 1));
        assert_eq!(mapped(map.bytes()).unwrap_or(bytes), bytes);
        give_back(&map, bytes);
        assert_eq!(mapped(map.bytes()).unwrap_or(0), 0);
    }
}

#[test]
fn a_map_shows_the_file_also_after_advice_and_refuses_it_past_the_end() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("weights");
    let bytes: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
    fs::write(&path, &bytes).expect("write");
    let map = Map::open(&path).expect("map");
    assert_eq!(map.bytes(), bytes);
    map.advise(5000..90_000, Advice::DontNeed).expect("advice");
    assert_eq!(map.clone().bytes(), bytes);
    let error = map.advise(0..100_001, Advice::DontNeed).expect_err("past the end");
    assert!(error.to_string().contains("0..100001") && error.to_string().contains("weights"));
}

#[test]
fn what_is_evicted_is_read_again_and_huge_pages_are_counted() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("weights");
    let bytes: Vec<u8> = (0..3 * HUGE_PAGE).map(|index| (index % 251) as u8).collect();
    fs::write(&path, &bytes).expect("write");
    fs::File::open(&path).expect("open").sync_all().expect("on disk");
    let map = Map::open(&path).expect("map");
    let range = 5000..2 * HUGE_PAGE + 7;
    for _ in 0..2 {
        assert_eq!(map.bytes(), bytes);
        // Systems that do not say are not wrong.
        if let Ok(huge) = map.huge_bytes(range.clone()) {
            assert!(huge <= 3 * HUGE_PAGE && huge.is_multiple_of(oss_memory::page_size()));
            assert_eq!(map.huge_bytes(0..0).expect("it said so before"), 0);
        }
        map.evict(range.clone()).expect("evict");
        assert_eq!(map.huge_bytes(HUGE_PAGE..HUGE_PAGE + 1).unwrap_or(0), 0, "nothing is mapped");
    }
    map.evict(0..3 * HUGE_PAGE + 1).expect_err("past the end");
    map.huge_bytes(0..3 * HUGE_PAGE + 1).expect_err("past the end");
}

#[test]
fn an_empty_file_maps_to_no_bytes_and_a_directory_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("empty");
    fs::write(&path, []).expect("write");
    let map = Map::open(&path).expect("map");
    assert_eq!(map.bytes(), []);
    for advice in [Advice::DontNeed, Advice::HugePage, Advice::PopulateRead] {
        map.advise(0..0, advice).expect("nothing to advise about");
    }
    assert!(matches!(Map::open(directory.path()), Err(Error::File { .. })));
    let error = Map::open(&directory.path().join("absent")).expect_err("absent");
    assert!(error.to_string().contains("absent: could not open"), "{error}");
}

#[test]
fn a_truncated_file_is_found_by_its_length() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("weights");
    fs::write(&path, [7; 9000]).expect("write");
    let map = Map::open(&path).expect("map");
    map.verify_len().expect("unchanged");
    fs::File::options().write(true).open(&path).expect("open").set_len(10).expect("truncate");
    let error = map.verify_len().expect_err("truncated");
    assert!(matches!(error, Error::LengthChanged { got: 10, expected: 9000, .. }), "{error}");
}

#[test]
fn a_reader_refuses_more_than_its_limit() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("config.json");
    fs::write(&path, [7; 100]).expect("write");
    assert_eq!(file::read(&path, 100).expect("read").len(), 100);
    let error = file::read(&path, 99).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { got: 100, expected: 99, .. }), "{error}");
}

#[test]
fn a_writer_replaces_the_file_on_commit_and_leaves_it_when_dropped() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("packed");
    fs::write(&path, "old").expect("write");
    let map = Map::open(&path).expect("map");

    let mut dropped = Writer::create(&path).expect("create");
    dropped.append(b"half").expect("append");
    drop(dropped);
    assert_eq!(
        (fs::read(&path).expect("read"), names(directory.path()).len()),
        (b"old".to_vec(), 1)
    );

    let mut writer = Writer::create(&path).expect("create");
    writer.append(b"new").expect("append");
    writer.append(b"er").expect("append");
    assert_eq!(fs::read(&path).expect("read"), b"old");
    writer.commit().expect("commit");
    assert_eq!(fs::read(&path).expect("read"), b"newer");
    assert_eq!(map.bytes(), b"old", "the map of the old file stays whole");
    assert_eq!(names(directory.path()), ["packed"]);
}

#[test]
fn a_writer_into_a_missing_directory_names_it() {
    let directory = tempfile::tempdir().expect("directory");
    let error = Writer::create(&directory.path().join("absent/packed")).expect_err("no directory");
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn positioned_access_reads_what_it_wrote_and_refuses_what_is_not_there() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("slots");
    let slots = RandomAccess::open(&path).expect("open");
    assert!(slots.is_empty().expect("len"));
    assert!(slots.try_lock().expect("lock"));
    assert!(!RandomAccess::open(&path).expect("open").try_lock().expect("lock"));
    slots.write_at(b"slot", 4096).expect("write");
    slots.sync().expect("sync");
    let mut bytes = [0; 4];
    slots.read_at(&mut bytes, 4096).expect("read");
    assert_eq!((&bytes, slots.len().expect("len")), (b"slot", 4100));
    let error = slots.read_at(&mut bytes, 4097).expect_err("past the end");
    assert!(error.to_string().contains("slots: could not read"), "{error}");
    let reader = RandomAccess::open_read_only(&path).expect("open");
    assert!(reader.write_at(b"no", 0).is_err());
}

#[test]
fn a_buffer_is_zero_aligned_and_zero_again_after_release() {
    for pages in [Pages::Ordinary, Pages::Transparent, Pages::Reserved] {
        let mut buffer = Buffer::new(3 * HUGE_PAGE + 100, pages).expect("memory");
        assert_eq!(buffer.len(), 3 * HUGE_PAGE + 100);
        let alignment = if pages == Pages::Ordinary { 4096 } else { HUGE_PAGE };
        assert!(buffer.as_ptr().addr().is_multiple_of(alignment), "{pages:?}");
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.fill(0xff);
        buffer.release(0..HUGE_PAGE).expect("release");
        assert!(buffer[..HUGE_PAGE].iter().all(|&byte| byte == 0));
        assert!(buffer[HUGE_PAGE..].iter().all(|&byte| byte == 0xff));
        buffer.release(HUGE_PAGE + 1..HUGE_PAGE + 4000).expect("no whole page");
        assert!(buffer[HUGE_PAGE..].iter().all(|&byte| byte == 0xff));
        buffer.release(0..buffer.len()).expect("release");
        assert!(buffer.iter().all(|&byte| byte == 0));
    }
    assert!(Buffer::new(0, Pages::Transparent).expect("empty").is_empty());
    let error = Buffer::new(usize::MAX, Pages::Transparent).expect_err("too much");
    assert!(matches!(error, Error::Memory { bytes: usize::MAX, .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn what_is_private_only_its_user_may_read_and_what_exists_stays_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    let directory = tempfile::tempdir().expect("directory");
    let inner = directory.path().join("a/b");
    file::create_private_directory(&inner).expect("create");
    file::create_private_directory(&inner).expect("it may exist");
    assert_eq!([mode(&inner), mode(&directory.path().join("a"))], [0o700; 2]);
    let path = inner.join("slots");
    let slots = RandomAccess::open_private(&path).expect("open");
    slots.write_at(b"slot", 0).expect("write");
    assert_eq!(mode(&path), 0o600);
    for path in [&path, &inner] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }
    file::create_private_directory(&inner).expect("it exists");
    let again = RandomAccess::open_private(&path).expect("open");
    assert_eq!((mode(&path), mode(&inner), again.len().expect("len")), (0o755, 0o755, 4));
}

#[test]
fn directories_are_made_listed_and_cleared() {
    let directory = tempfile::tempdir().expect("directory");
    let inner = directory.path().join("a/b");
    file::create_directory(&inner).expect("create");
    file::create_directory(&inner).expect("it may exist");
    for name in ["2", "1"] {
        fs::write(inner.join(name), name).expect("write");
    }
    assert_eq!(file::list(&inner).expect("list"), [inner.join("1"), inner.join("2")]);
    assert!(file::remove(&inner.join("1")).expect("remove"));
    assert!(!file::remove(&inner.join("1")).expect("gone already"));
    assert!(
        file::remove(&inner).expect_err("a directory").to_string().contains("could not remove")
    );
    assert!(file::list(&inner.join("absent")).is_err());
}

#[test]
fn a_rename_replaces_and_one_that_is_refused_names_both_paths() {
    let directory = tempfile::tempdir().expect("directory");
    let [from, to, absent] = ["part", "whole", "none"].map(|name| directory.path().join(name));
    fs::write(&from, "new").expect("write");
    fs::write(&to, "old").expect("write");
    file::rename(&from, &to).expect("rename");
    assert_eq!(fs::read(&to).expect("read"), b"new");
    let error = file::rename(&absent, &to).expect_err("no such file").to_string();
    let text = format!("{}: could not rename to {}: ", absent.display(), to.display());
    assert!(error.starts_with(&text), "{error}");
}

#[test]
fn reads_past_the_system_s_cache_end_where_the_file_does() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("experts");
    let bytes: Vec<u8> = (0..3 * DIRECT_ALIGNMENT + 100).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &bytes).expect("write");
    let block = DIRECT_ALIGNMENT as u64;
    for file in [RandomAccess::open_direct(&path), RandomAccess::open_read_only(&path)] {
        let file = file.expect("open");
        let mut buffer = Buffer::new(2 * DIRECT_ALIGNMENT, Pages::Ordinary).expect("memory");
        for (offset, expected) in [(0, 2 * DIRECT_ALIGNMENT), (2 * block, 4196), (4 * block, 0)] {
            let got = file.read_to_end_at(&mut buffer, offset).expect("read");
            assert_eq!(got, expected, "at {offset}: {file:?}");
            let there = &bytes[bytes.len().min(offset as usize)..];
            assert!(buffer[..got] == there[..got]);
        }
    }
    assert!(RandomAccess::open_direct(&directory.path().join("none")).is_err());
}
