//! Experts that stay in the packed file, in any number of slots, do not change a bit of the logits.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, bits, data, prompt};
use oss_model::{Batch, Error, Precision, Row, forward, pack_to_file};
use oss_weights::Container;
use std::path::{Path, PathBuf};

fn packed(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join("model.oss");
    let container = Container::open(&data(name)).unwrap();
    pack_to_file(&container, &Precision::default(), &path, None).unwrap();
    path
}

#[test]
fn every_number_of_slots_gives_the_bits_of_all_experts_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["demo.gguf", "edge/edge.gguf"] {
        let path = packed(directory.path(), name);
        let setting = Setting { threads: 2, ..Setting::fast() };
        let ids = prompt(40, 3);
        let want = bits(&Runner::new(&path, setting).logits(&ids, 40));
        let room = Runner::new(&path, setting).model.weights.expert_room().unwrap();
        let mut counts = vec![1, 2, 3, 5, room.experts / 2, room.experts - 1, room.experts];
        counts.dedup();
        for slots in counts {
            let mut runner = Runner::with_slots(&path, setting, slots);
            for chunk in [40, 7, 1] {
                let got = bits(&runner.logits(&ids, chunk));
                assert!(got == want, "{name}, {slots} slots, chunks of {chunk}");
            }
            let weights = &runner.model.weights;
            let found = weights.expert_use().unwrap();
            assert_eq!((found.slots, found.experts), (slots, room.experts));
            assert_eq!(
                weights.resident_bytes(),
                room.dense_bytes.next_multiple_of(4096) + slots * room.slot_bytes
            );
            match slots == room.experts {
                true => assert!(found.misses <= slots as u64, "each is read once: {found:?}"),
                false => assert!(found.misses > slots as u64, "{found:?}"),
            }
        }
    }
}

#[test]
fn only_packed_files_with_experts_have_room_to_leave_them_there() {
    let runner = Runner::new(&data("demo.gguf"), Setting::fast());
    assert_eq!(runner.model.weights.expert_room(), None);
    assert_eq!(runner.model.weights.expert_use(), None);
}

#[test]
fn a_step_whose_expert_cannot_be_read_fails_and_the_next_one_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), "demo.gguf");
    let whole = std::fs::read(&path).unwrap();
    let ids = prompt(12, 3);
    let want = bits(&Runner::new(&path, Setting::fast()).logits(&ids, 12));
    let mut runner = Runner::with_slots(&path, Setting::fast(), 4);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 - 300_000).unwrap();
    let sequence = runner.cache.create();
    let row = |(position, token): (usize, &u32)| Row {
        sequence,
        position,
        token: *token,
        wanted: true,
        draft: false,
    };
    let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
    let Runner { model, team, state, cache } = &mut runner;
    let layers = 0..model.config.layers.len();
    let error = forward(model, team, state, cache, Batch { rows: &rows }, layers).unwrap_err();
    assert!(matches!(error, Error::Expert { .. }), "{error}");
    assert!(error.to_string().contains("model.oss: expert "), "{error}");
    assert_eq!(cache.len(sequence), 0);
    std::fs::write(&path, &whole).unwrap();
    runner.step(&rows);
    assert!(bits(runner.head(12)) == want);
}
