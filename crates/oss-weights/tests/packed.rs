//! The packed file: what is written is read back, what is damaged is named, what was interrupted
//! is continued.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, SystemTime};

use oss_memory::file::{Advice, Map};
use oss_weights::packed::{self, Reader, SectionPlan, Writer};
use oss_weights::{Container, Dtype, Encoded, Error, Fingerprint, Kind, gguf};
use xxhash_rust::xxh3::xxh3_64;

#[path = "support/reseal.rs"]
mod reseal;
use reseal::{put_checksums, reseal};

const SOURCE: Fingerprint = Fingerprint(0x0123_4567_89ab_cdef);
const HUGE: u64 = 2 << 20;

fn plan(name: &str, length: u64) -> SectionPlan {
    SectionPlan {
        kind: "matrix".to_string(),
        format: "p16".to_string(),
        shape: vec![3, length / 3],
        note: "{}".to_string(),
        ..SectionPlan::blob(name, length)
    }
}

/// Long and short sections, an empty one, a blob.
fn plans() -> Vec<SectionPlan> {
    vec![
        SectionPlan::blob("config.json", 11),
        plan("experts", HUGE + 12345),
        plan("norm", 4 * 96),
        plan("empty", 0),
        plan("attention", HUGE),
    ]
}

/// Bytes that differ from section to section.
fn content(plan: &SectionPlan) -> Vec<u8> {
    let seed = xxh3_64(plan.name.as_bytes());
    (0..plan.length).map(|i| (seed.wrapping_mul(i | 1) >> 32) as u8).collect()
}

fn write_rest(writer: &Writer) {
    for plan in plans() {
        if !writer.is_complete(&plan.name) {
            writer.section(&plan.name, &content(&plan)).unwrap();
        }
    }
}

/// A finished file with all sections.
fn written() -> (tempfile::TempDir, PathBuf) {
    let (directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    write_rest(&writer);
    writer.finish().unwrap();
    (directory, path)
}

fn check_all(path: &Path) {
    let reader = Reader::open(path).unwrap();
    assert_eq!(reader.source(), SOURCE);
    reader.verify(|_, _| ()).unwrap();
    for plan in plans() {
        assert!(reader.section(&plan.name).unwrap() == content(&plan), "{}", plan.name);
    }
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.oss");
    (directory, path)
}

/// A finished file with small sections only, as bytes.
fn small_file() -> Vec<u8> {
    let (_directory, path) = scratch();
    let plans = [plan("one", 300), plan("two", 5000), SectionPlan::blob("config.json", 2)];
    let writer = Writer::create(&path, SOURCE, &plans, None).unwrap();
    for plan in &plans {
        writer.section(&plan.name, &content(plan)).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(&path).unwrap()
}

fn open_error(bytes: Vec<u8>) -> String {
    Reader::from_bytes("file", bytes).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back_and_aligned() {
    let (_directory, path) = written();
    check_all(&path);
    assert!(!path.with_extension("oss.partial").exists());

    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.sections().count(), 5);
    for (section, plan) in reader.sections().zip(plans()) {
        let alignment = if section.length >= HUGE { HUGE } else { 4096 };
        assert_eq!(section.offset % alignment, 0, "{}", section.name);
        assert_eq!(reader.section(&section.name).unwrap().as_ptr() as usize % 4096, 0);
        assert_eq!((&section.kind, &section.format), (&plan.kind, &plan.format));
        assert_eq!((&section.shape, &section.note), (&plan.shape, &plan.note));
    }
    reader.release("experts");
    check_all(&path);
}

#[test]
fn a_container_tells_the_packed_file_and_serves_its_blobs() {
    let (_directory, path) = written();
    let container = Container::open(&path).unwrap();
    assert_eq!(container.kind(), Kind::Packed);
    assert_eq!(container.tensors().count(), 0);
    assert!(container.packed().unwrap().find("experts").is_some());
    assert_eq!(container.side_file("config.json").unwrap(), Some(content(&plans()[0])));
    assert_eq!(container.side_file("norm").unwrap(), None, "a matrix is no side file");
    let error = container.packed().unwrap().section("mlp").unwrap_err().to_string();
    assert!(error.ends_with("model.oss: no section mlp among 5"), "{error}");
    let other = Container::from_bytes("small", small_file(), Vec::new()).unwrap();
    assert_ne!(container.fingerprint(), other.fingerprint());
}

/// A packed file with one tensor of this plan and GGUF metadata, opened.
fn with_tensor(format: &str, shape: &[u64], image: &[u8]) -> Result<Container, Error> {
    let (_directory, path) = scratch();
    let tensor = SectionPlan {
        kind: packed::TENSOR.to_string(),
        format: format.to_string(),
        shape: shape.to_vec(),
        ..plan("w", 2 * 34)
    };
    let plans = [tensor, SectionPlan::blob(packed::METADATA, image.len() as u64)];
    let writer = Writer::create(&path, SOURCE, &plans, None).unwrap();
    writer.section("w", &content(&plans[0])).unwrap();
    writer.section(packed::METADATA, image).unwrap();
    writer.finish().unwrap();
    Container::open(&path)
}

#[test]
fn tensors_and_metadata_kept_in_a_packed_file_are_served_as_such() {
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/edge/edge.gguf");
    let gguf = Container::open(&gguf).unwrap();
    let image = gguf::metadata_image(gguf.metadata());
    let container = with_tensor("Q8_0", &[2, 32], &image).unwrap();
    let tensor = container.tensor("w").unwrap();
    assert_eq!((tensor.info.dtype, tensor.info.shape.as_slice()), (Dtype::Q8_0, &[2, 32][..]));
    assert_eq!(tensor.data, Encoded::Plain(&content(&plan("w", 68))));
    let pairs = |c: &Container| {
        c.metadata().iter().map(|(key, value)| (key.to_string(), value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(pairs(&container), pairs(&gguf));
}

#[test]
fn what_has_the_name_of_metadata_and_another_kind_is_none() {
    let (_directory, path) = scratch();
    let plans = [plan(packed::METADATA, 6)];
    let writer = Writer::create(&path, SOURCE, &plans, None).unwrap();
    writer.section(packed::METADATA, b"no key").unwrap();
    writer.finish().unwrap();
    assert!(Container::open(&path).unwrap().metadata().is_empty());
}

#[test]
fn tensors_and_metadata_in_a_packed_file_that_lie_are_refused() {
    let image = gguf::metadata_image(&Default::default());
    let error = |format, shape: &[u64], image: &[u8]| {
        with_tensor(format, shape, image).unwrap_err().to_string()
    };
    let wrong = error("Q8_0", &[3, 32], &image);
    assert!(wrong.contains("model.oss: tensor w: length: got 68, expected 102"), "{wrong}");
    let wrong = error("Q8_0", &[1 << 40, 1 << 40], &image);
    assert!(wrong.contains("tensor w: shape: got"), "{wrong}");
    let wrong = error("Q9", &[2, 32], &image);
    assert!(wrong.contains("tensor w: element type: got Q9, expected an element type"), "{wrong}");
    let wrong = error("Q8_0", &[2, 32], &image[..20]);
    assert!(wrong.contains("model.oss: metadata count at byte 16 ends early"), "{wrong}");
}

#[test]
fn sections_may_be_written_piece_by_piece_and_side_by_side() {
    let (_directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    std::thread::scope(|scope| {
        for plan in plans() {
            let writer = &writer;
            scope.spawn(move || {
                let mut section = writer.begin(&plan.name);
                for piece in content(&plan).chunks(100_003) {
                    section.append(piece).unwrap();
                }
                section.finish().unwrap();
            });
        }
    });
    assert!(plans().iter().all(|plan| writer.is_complete(&plan.name)));
    writer.finish().unwrap();
    check_all(&path);
}

#[test]
fn what_promotion_says_lies_on_huge_pages_does() {
    let (_directory, path) = scratch();
    let plan = plan("w", 20 * (1 << 20) + 4096);
    let writer = Writer::create(&path, SOURCE, std::slice::from_ref(&plan), None).unwrap();
    writer.section("w", &content(&plan)).unwrap();
    writer.finish().unwrap();
    let reader = Reader::open(&path).unwrap();
    reader.advise_huge_pages("w");
    let mut asked = Vec::new();
    let promoted = reader.promote("w", |bytes| {
        asked.push(bytes);
        true
    });
    let section = reader.find("w").unwrap();
    let range = section.offset as usize..(section.offset + section.length) as usize;
    let map = Map::open(&path).unwrap();
    println!("promoted: {promoted:?}, asked {asked:?}");
    if promoted == Some(true) {
        map.advise(range.clone(), Advice::PopulateRead).unwrap();
        let huge = map.huge_bytes(range.clone()).unwrap();
        assert!(huge >= range.len() / 16 * 15, "{huge} of {}", range.len());
    }
    // Where the system does not say where pages lie, nothing is tried.
    if map.huge_bytes(range).is_err() {
        assert_eq!((promoted, asked.len()), (Some(false), 0));
        return;
    }
    assert!(asked.len() >= 3 && asked.iter().all(|&bytes| bytes <= 8 << 20), "{asked:?}");
    for most in 0..3 {
        let mut asked = 0;
        let promoted = reader.promote("w", |_| {
            asked += 1;
            asked <= most
        });
        assert_eq!((promoted, asked), (None, most + 1), "it goes on after a no");
    }
    assert!(reader.section("w").unwrap() == content(&plan));
}

#[test]
fn sections_are_whole_whatever_pages_they_lie_on() {
    let (_directory, path) = written();
    let reader = Reader::open(&path).unwrap();
    for plan in plans() {
        reader.advise_huge_pages(&plan.name);
        // Which pages they are is the system's affair.
        reader.promote(&plan.name, |_| true);
        assert!(reader.section(&plan.name).unwrap() == content(&plan), "{}", plan.name);
    }
    assert_eq!(reader.promote("no such section", |_| true), Some(false));
    check_all(&path);
}

#[test]
fn a_writer_dropped_after_any_section_is_continued() {
    for complete in 0..=plans().len() {
        let (_directory, path) = scratch();
        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        for plan in &plans()[..complete] {
            writer.section(&plan.name, &content(plan)).unwrap();
        }
        if let Some(next) = plans().get(complete).filter(|plan| plan.length > 1) {
            writer.begin(&next.name).append(&content(next)[1..]).unwrap();
        }
        drop(writer);
        assert!(!path.exists(), "nothing is at the target before the end");

        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        let found = plans().iter().filter(|plan| writer.is_complete(&plan.name)).count();
        assert_eq!(found, complete);
        write_rest(&writer);
        writer.finish().unwrap();
        check_all(&path);
    }
}

#[test]
fn a_partial_file_is_never_opened() {
    let (_directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    write_rest(&writer);
    drop(writer);
    let partial = path.with_extension("oss.partial");
    let error = Container::open(&partial).unwrap_err().to_string();
    assert!(
        error.ends_with("got a file that was not finished, expected a finished one"),
        "{error}"
    );
}

#[test]
fn a_section_damaged_between_two_goes_is_written_again() {
    let (_directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    write_rest(&writer);
    drop(writer);
    let partial = path.with_extension("oss.partial");
    let mut bytes = std::fs::read(&partial).unwrap();
    let needle = content(&plans()[1])[100..116].to_vec();
    let place = bytes.windows(16).position(|window| window == needle).unwrap();
    bytes[place] ^= 1;
    std::fs::write(&partial, bytes).unwrap();

    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    let missing: Vec<String> =
        plans().into_iter().map(|p| p.name).filter(|name| !writer.is_complete(name)).collect();
    assert_eq!(missing, ["experts"]);
    write_rest(&writer);
    writer.finish().unwrap();
    check_all(&path);
}

#[test]
fn a_partial_file_of_another_plan_or_source_is_started_over() {
    let (_directory, path) = scratch();
    for (source, plans) in [(SOURCE, plans()), (Fingerprint(1), plans()), (SOURCE, vec![])] {
        let writer = Writer::create(&path, source, &plans, None).unwrap();
        assert!(plans.iter().all(|plan| !writer.is_complete(&plan.name)));
        for plan in &plans {
            writer.section(&plan.name, &content(plan)).unwrap();
        }
    }
    Writer::create(&path, SOURCE, &[], None).unwrap().finish().unwrap();
    assert_eq!(Reader::open(&path).unwrap().sections().count(), 0);
}

#[test]
fn a_partial_file_of_garbage_is_started_over() {
    let (_directory, path) = scratch();
    for garbage in [&b""[..], b"short", &[0x55; 5000]] {
        std::fs::write(path.with_extension("oss.partial"), garbage).unwrap();
        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        write_rest(&writer);
        writer.finish().unwrap();
        check_all(&path);
    }
}

#[test]
fn a_file_that_died_before_its_renaming_is_renamed_or_replaced() {
    let (_directory, path) = scratch();
    let partial = path.with_extension("oss.partial");
    let finish = |plans: &[SectionPlan]| {
        let writer = Writer::create(&path, SOURCE, plans, None).unwrap();
        let found = plans.iter().filter(|plan| writer.is_complete(&plan.name)).count();
        for plan in plans.iter().filter(|plan| !writer.is_complete(&plan.name)) {
            writer.section(&plan.name, &content(plan)).unwrap();
        }
        writer.finish().unwrap();
        Reader::open(&path).unwrap().verify(|_, _| ()).unwrap();
        found
    };
    assert_eq!(finish(&plans()), 0);
    std::fs::rename(&path, &partial).unwrap();
    assert_eq!(finish(&plans()), 5, "the same plan finds everything complete");
    std::fs::rename(&path, &partial).unwrap();
    assert_eq!(finish(&plans()[..2]), 0, "another plan takes nothing of it");
    // A damaged one is not repaired in place: it might be another process's target by now.
    assert_eq!(finish(&plans()), 0);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&partial, bytes).unwrap();
    assert_eq!(finish(&plans()), 0);
}

#[test]
fn a_target_that_is_a_directory_is_named_and_the_partial_file_stays() {
    let (_directory, path) = scratch();
    std::fs::create_dir(&path).unwrap();
    let finish = || {
        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        write_rest(&writer);
        writer.finish()
    };
    let error = finish().unwrap_err().to_string();
    let text = format!("model.oss.partial: could not rename to {}: ", path.display());
    assert!(error.contains(&text), "{error}");
    std::fs::remove_dir(&path).unwrap();
    finish().unwrap();
    check_all(&path);
}

#[test]
fn a_partial_file_removed_by_others_is_an_error_even_beside_an_older_target() {
    let (_directory, path) = scratch();
    Writer::create(&path, SOURCE, &[], None).unwrap().finish().unwrap();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    write_rest(&writer);
    std::fs::remove_file(path.with_extension("oss.partial")).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    let text = format!("model.oss.partial: could not rename to {}: ", path.display());
    assert!(error.contains(&text), "{error}");
}

#[cfg(unix)]
#[test]
fn a_file_that_others_began_under_the_partial_name_never_gets_the_final_one() {
    let (_directory, path) = scratch();
    let partial = path.with_extension("oss.partial");
    let begun = b"begun by a third process";
    let finish = |renamed_to_target: bool| {
        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        write_rest(&writer);
        // Another process, which waited for its turn as we do, is done with the same file.
        let renamed = if renamed_to_target { path.clone() } else { path.with_extension("away") };
        std::fs::rename(&partial, renamed).unwrap();
        std::fs::write(&partial, begun).unwrap();
        let finished = writer.finish();
        assert_eq!(std::fs::read(&partial).unwrap(), begun);
        std::fs::remove_file(&partial).unwrap();
        finished
    };
    let error = finish(false).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(!path.exists());
    finish(true).unwrap();
    check_all(&path);
}

#[test]
fn a_file_that_took_the_name_of_an_open_one_is_not_read_in_its_place() {
    let (_directory, path) = scratch();
    let pack = |fill: u8| {
        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        for plan in plans() {
            writer.section(&plan.name, &vec![fill; plan.length as usize]).unwrap();
        }
        writer.finish().unwrap();
    };
    pack(1);
    let reader = Reader::open(&path).unwrap();
    reader.open_direct().unwrap();
    pack(2);
    let error = reader.open_direct().unwrap_err().to_string();
    assert!(error.contains("model.oss: packed file: got another one under its name"), "{error}");
}

#[test]
fn two_writers_of_one_file_do_not_meet() {
    let (_directory, path) = scratch();
    let first = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    let error = Writer::create(&path, SOURCE, &plans(), None).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(first);
    Writer::create(&path, SOURCE, &plans(), None).unwrap();
}

#[test]
fn an_unfinished_plan_cannot_be_finished() {
    let (_directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    writer.section("config.json", &content(&plans()[0])).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("section experts: state: got a missing section"), "{error}");
    assert!(!path.exists());
}

#[test]
fn wrong_lengths_are_refused_with_the_section_named() {
    let (_directory, path) = scratch();
    let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
    let error = writer.section("norm", &[0; 385]).unwrap_err().to_string();
    let expected = "section norm: writing after 0 bytes: got 385, expected at most 384";
    assert!(error.contains(expected), "{error}");
    let error = writer.section("norm", &[0; 383]).unwrap_err().to_string();
    assert!(error.contains("section norm: bytes written: got 383, expected 384"), "{error}");
    assert!(!writer.is_complete("norm"));
    writer.section("norm", &content(&plans()[2])).unwrap();
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let (_directory, path) = scratch();
    let create = |plans: &[SectionPlan]| Writer::create(&path, SOURCE, plans, None).unwrap_err();
    let error = create(&[plan("a", 1), plan("a", 2)]).to_string();
    assert!(error.contains("section a: name: got a second one"), "{error}");
    let error = create(&[plan("", 1)]).to_string();
    assert!(error.contains("name: got an empty one"), "{error}");
    let error = create(&[plan("a", u64::MAX - 5)]).to_string();
    assert!(error.contains("section a: length: got 18446744073709551610"), "{error}");
    let error = create(&[plan("a", 1 << 62), plan("b", 1 << 62)]).to_string();
    assert!(error.contains("section b: length"), "{error}");
}

#[test]
fn a_damaged_section_is_found_by_verifying_and_named() {
    let mut bytes = small_file();
    *bytes.last_mut().unwrap() ^= 0x80;
    let reader = Reader::from_bytes("file", bytes).unwrap();
    let one = reader.find("one").unwrap();
    assert!(reader.verify_section(one, reader.bytes_of(one), |bytes| bytes == 300).unwrap());
    assert!(!reader.verify_section(one, reader.bytes_of(one), |_| false).unwrap());
    let mut reports = Vec::new();
    let error = reader.verify(|done, total| reports.push((done, total))).unwrap_err().to_string();
    assert!(error.starts_with("file: section config.json: checksum: got"), "{error}");
    assert_eq!(reports, [(0, 5302), (300, 5302), (5300, 5302)]);
}

#[test]
fn every_cut_is_refused() {
    let bytes = small_file();
    for length in (0..bytes.len()).filter(|l| *l < 700 || l % 1001 == 0 || l + 1 == bytes.len()) {
        open_error(bytes[..length].to_vec());
    }
    let error = open_error(bytes[..bytes.len() - 1].to_vec());
    let expected = format!("file length: got {}, expected {}", bytes.len() - 1, bytes.len());
    assert!(error.contains(&expected), "{error}");
    let error = open_error(bytes[..100].to_vec());
    assert!(error.contains("zeros at byte 64 ends early: got 36 bytes, expected 56"), "{error}");
}

#[test]
fn every_flipped_bit_of_header_and_table_is_refused() {
    let bytes = small_file();
    let table_bytes = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
    for at in 0..128 + table_bytes {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            assert!(Reader::from_bytes("file", bytes).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn other_magics_and_versions_are_told() {
    let mut bytes = small_file();
    bytes[0] = b'X';
    assert!(open_error(bytes).contains("file: magic: got [58, 4f, 53, 53, 0d"));
    let mut bytes = small_file();
    bytes[8] = 2;
    reseal(&mut bytes);
    assert_eq!(open_error(bytes), "file: format version: got 2, expected 1");
    let mut bytes = small_file();
    bytes[100] = 1;
    reseal(&mut bytes);
    assert!(open_error(bytes).contains("unused bytes of the header: got others, expected zeros"));
}

#[test]
fn a_table_longer_than_the_file_is_refused() {
    for length in [1 << 20, u64::MAX, u64::MAX - 127] {
        let mut bytes = small_file();
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        let checksum = xxh3_64(&bytes[..120]);
        bytes[120..128].copy_from_slice(&checksum.to_le_bytes());
        assert!(open_error(bytes).contains("section table at byte 128 ends early"));
    }
}

/// The record fields of the first section: (offset of the field, new value, what is said).
#[test]
fn records_that_lie_are_refused_even_with_right_checksums() {
    let first = 128 + 8;
    let cases: [(usize, u64, &str); 5] = [
        (128, u64::MAX, "section count: got 18446744073709551615, expected at most"),
        (first, u64::MAX, "section one: place: got 300 bytes at 18446744073709551615"),
        (first, 0, "section one: place: got 300 bytes at 0, expected bytes from"),
        (first, 4100, "section one: offset: got 4100, expected a multiple of 4096"),
        (first + 8, u64::MAX, "section one: place: got 18446744073709551615 bytes at 4096"),
    ];
    for (at, value, expected) in cases {
        let mut bytes = small_file();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        reseal(&mut bytes);
        let error = open_error(bytes);
        assert!(error.contains(expected), "{error} instead of {expected}");
    }
    let mut bytes = small_file();
    bytes[first + 8] ^= 1;
    put_checksums(&mut bytes);
    assert!(open_error(bytes).contains("section one: seal: got"));
}

/// Names and offsets.
type Sections<'a> = &'a [(&'a [u8], u64)];

/// The image of a packed file of sections of 4,096 bytes, and bytes behind its last record.
fn image(sections: Sections, behind: &[u8]) -> Vec<u8> {
    let mut table = (sections.len() as u64).to_le_bytes().to_vec();
    for (name, offset) in sections {
        for word in [*offset, 4096, 0, 0, name.len() as u64] {
            table.extend(word.to_le_bytes());
        }
        table.extend(*name);
        // Kind, format, note and shape are empty.
        table.extend([0; 4 * 8]);
    }
    table.extend(behind);
    let mut bytes = b"\x89OSS\r\n\x1a\n".to_vec();
    bytes.extend([1u32, 128].map(u32::to_le_bytes).concat());
    bytes.extend([16384, table.len() as u64].map(u64::to_le_bytes).concat());
    bytes.resize(128, 0);
    bytes.extend(table);
    bytes.resize(16384, 7);
    reseal(&mut bytes);
    bytes
}

#[test]
fn tables_that_lie_are_refused_even_with_right_seals() {
    let good = image(&[(b"one", 4096), (b"two", 8192)], b"");
    let reader = Reader::from_bytes("file", good).unwrap();
    assert_eq!(reader.section("two").unwrap(), [7; 4096]);
    let cases: [(Sections, &[u8], &str); 5] = [
        (&[(b"one", 8192), (b"two", 8192)], b"", "section two: offset: got 8192, expected no over"),
        (&[(b"one", 4096), (b"one", 8192)], b"", "section one: name: got a second one"),
        (&[(b"one", 4096)], b"behind", "section table: got 6 bytes more, expected the end after"),
        (&[(b"", 4096)], b"", "section : name: got an empty one, expected at least one character"),
        (&[(b"\xff", 4096)], b"", "name of section 0: got bytes ff after 0, expected a UTF-8"),
    ];
    for (sections, behind, expected) in cases {
        let error = open_error(image(sections, behind));
        assert!(error.contains(expected), "{error} instead of {expected}");
    }
}

/// What is packed once is opened by every later version: a change of these bytes is another format.
#[test]
fn the_bytes_of_a_file_are_those_of_its_version() {
    let got = xxh3_64(&small_file());
    assert_eq!(got, 0xed94_0e06_a9f0_b4c7, "{got:#018x}: raise VERSION of packed/format.rs");
}

/// How many of the sections a writer found, with this time of its source.
fn found(path: &Path, modified: SystemTime) -> usize {
    let writer = Writer::create(path, SOURCE, &plans(), Some(modified)).unwrap();
    plans().iter().filter(|plan| writer.is_complete(&plan.name)).count()
}

#[test]
fn a_partial_file_older_than_its_source_is_started_over() {
    let (_directory, path) = scratch();
    write_rest(&Writer::create(&path, SOURCE, &plans(), Some(SystemTime::now())).unwrap());
    assert_eq!(found(&path, SystemTime::UNIX_EPOCH), 5, "it is newer than its source");
    assert_eq!(found(&path, SystemTime::now() + Duration::from_secs(1)), 0, "it is older");
    assert_eq!(found(&path, SystemTime::UNIX_EPOCH), 0, "and was started over");
}

/// Processes that pack different things to one place, or the same, meet at any moment: the file is
/// whole for those who read it, always.
#[test]
fn many_packers_leave_a_whole_file_at_every_moment() {
    let (_directory, path) = scratch();
    let plans = |n: usize| [SectionPlan::blob(["a", "b"][n % 2], 3), plan("w", 30_000)];
    let pack = |n: usize| -> Result<(), Error> {
        let (plans, modified) = (plans(n), Some(SystemTime::UNIX_EPOCH));
        let writer = Writer::create(&path, SOURCE, &plans, modified)?;
        for plan in &plans {
            if !writer.is_complete(&plan.name) {
                writer.section(&plan.name, &content(plan))?;
            }
        }
        writer.finish()
    };
    pack(0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let packers: Vec<_> = (0..3)
            .map(|n| {
                let pack = &pack;
                scope.spawn(move || {
                    for round in 0..60 {
                        match pack(n + round / 7) {
                            Ok(()) | Err(Error::Busy { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        let readers = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // A map of a file that is cut off would kill the process.
                let bytes = std::fs::read(&path).unwrap();
                Reader::from_bytes("target", bytes).unwrap().verify(|_, _| ()).unwrap();
            }
        });
        let packed: Vec<_> = packers.into_iter().map(ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        readers.join().unwrap();
        assert!(packed.iter().all(Result::is_ok), "a packer failed");
    });
}

#[test]
fn random_tables_never_panic() {
    use proptest::prelude::*;
    let base = small_file();
    let table_bytes = u64::from_le_bytes(base[24..32].try_into().unwrap()) as usize;
    let change = (0..128 + table_bytes, any::<u8>());
    proptest!(ProptestConfig::with_cases(2000), |(changes in prop::collection::vec(change, 1..6))| {
        let mut bytes = base.clone();
        for (at, value) in changes {
            bytes[at] = value;
        }
        reseal(&mut bytes);
        if let Ok(reader) = Reader::from_bytes("file", bytes) {
            for section in reader.sections() {
                reader.section(&section.name).unwrap();
            }
            let _damaged_or_not = reader.verify(|_, _| ());
        }
    });
}

const CHILD: &str = "OSS_WEIGHTS_KILLED_WRITER";

/// The test runs itself as a child process that packs slowly, and kills it at some moment.
#[test]
fn a_killed_process_leaves_what_the_next_one_continues() {
    if let Some(path) = std::env::var_os(CHILD) {
        let writer = Writer::create(Path::new(&path), SOURCE, &plans(), None).unwrap();
        for plan in plans() {
            let mut section = writer.begin(&plan.name);
            for piece in content(&plan).chunks(1 << 18) {
                section.append(piece).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            section.finish().unwrap();
            std::fs::write(Path::new(&path).with_extension("begun"), b"").unwrap();
        }
        panic!("the parent should have killed this process by now");
    }
    let mut found = Vec::new();
    // The last one is killed after its first section, however long that takes.
    for pause_ms in [Some(0), Some(15), Some(40), Some(70), None] {
        let (_directory, path) = scratch();
        let mut child = oss_testing::again("a_killed_process_leaves_what_the_next_one_continues")
            .env(CHILD, &path)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let partial = path.with_extension("oss.partial");
        let awaited = match pause_ms {
            Some(_) => partial.clone(),
            None => path.with_extension("begun"),
        };
        while !awaited.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child ended before it began");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(pause_ms.unwrap_or(0)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!path.exists());
        assert!(Container::open(&partial).is_err(), "half a file was opened");

        let writer = Writer::create(&path, SOURCE, &plans(), None).unwrap();
        found.push(plans().iter().filter(|plan| writer.is_complete(&plan.name)).count());
        write_rest(&writer);
        writer.finish().unwrap();
        check_all(&path);
    }
    assert!(found.iter().any(|&n| n < plans().len()), "every child had finished: {found:?}");
    assert!(found.last().is_some_and(|&n| n > 0), "nothing was continued: {found:?}");
}
