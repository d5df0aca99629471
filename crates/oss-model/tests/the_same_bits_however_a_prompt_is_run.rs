//! Chunks, company, threads and instruction sets do not change a bit of the logits.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, data};
use oss_kernels::Activation;
use oss_model::{HeadRequest, Row, head};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;

const MODES: [(Activation, KvFormat); 5] = [
    (Activation::F32, KvFormat::F32),
    (Activation::Bf16, KvFormat::Bf16),
    (Activation::Int8, KvFormat::Bf16),
    (Activation::Int8, KvFormat::F16),
    (Activation::Int16, KvFormat::Bf16),
];

fn prompt(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 31 + i * seed + seed) % 300).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn chunks_and_threads_and_instruction_sets_do_not_change_a_bit() {
    for path in ["demo.gguf", "edge/edge.gguf"] {
        for (activation, kv_format) in MODES {
            let ids = prompt(150, 3);
            let setting = Setting { activation, kv_format, ..Setting::exact() };
            let want = bits(&Runner::new(&data(path), setting).logits(&ids, 150));
            for threads in [1, 2, 3] {
                let mut runner = Runner::new(&data(path), Setting { threads, ..setting });
                for chunk in [1, 7, 64] {
                    let got = bits(&runner.logits(&ids, chunk));
                    assert!(
                        got == want,
                        "{path} {activation:?}, chunks of {chunk}, {threads} threads"
                    );
                }
            }
            for isa in Isa::available() {
                let got =
                    bits(&Runner::new(&data(path), Setting { isa, ..setting }).logits(&ids, 64));
                assert!(got == want, "{path} {activation:?} on {isa}");
            }
        }
    }
}

#[test]
fn company_in_the_batch_does_not_change_a_bit() {
    for (activation, kv_format) in MODES {
        let setting = Setting { activation, kv_format, threads: 2, ..Setting::exact() };
        let mut runner = Runner::new(&data("demo.gguf"), setting);
        let prompts: Vec<Vec<u32>> = (0..5).map(|i| prompt(20 + 31 * i, 7 + i)).collect();
        let alone: Vec<Vec<u32>> =
            prompts.iter().map(|ids| bits(&runner.logits(ids, 256))).collect();
        // Each step takes a different number of tokens of each prompt.
        let sequences: Vec<_> = prompts.iter().map(|_| runner.cache.create()).collect();
        let mut done = vec![0; prompts.len()];
        let mut together = vec![Vec::new(); prompts.len()];
        for step in 0.. {
            let mut rows = Vec::new();
            for (i, ids) in prompts.iter().enumerate() {
                let n = ((step * 7 + i * 3) % 11).min(ids.len() - done[i]);
                rows.extend((done[i]..done[i] + n).map(|position| Row {
                    sequence: sequences[i],
                    position,
                    token: ids[position],
                    wanted: true,
                }));
                done[i] += n;
            }
            if !rows.is_empty() {
                runner.step(&rows);
                let logits = runner.head(rows.len());
                for (row, logits) in rows.iter().zip(logits.chunks(2048)) {
                    let i = sequences.iter().position(|s| *s == row.sequence).unwrap();
                    together[i].extend(bits(logits));
                }
            } else if done.iter().zip(&prompts).all(|(done, ids)| *done == ids.len()) {
                break;
            }
        }
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert!(together == alone, "{activation:?}, prompt {i}");
        }
    }
}

/// Few rows far into a sequence, whose positions several workers then share.
#[test]
fn sharing_a_long_sequence_among_workers_does_not_change_a_bit() {
    const LONG: usize = 2_300;
    let ids = prompt(LONG as u32 + 20, 5);
    for path in ["demo.gguf", "edge/edge.gguf"] {
        let run = |threads| {
            let setting = Setting { threads, ..Setting::fast() };
            let mut runner = Runner::new(&data(path), setting);
            let (long, short) = (runner.cache.create(), runner.cache.create());
            let row = |sequence, position| Row {
                sequence,
                position,
                token: ids[position],
                wanted: position >= LONG,
            };
            for begin in (0..LONG).step_by(250) {
                let end = LONG.min(begin + 250);
                let rows: Vec<Row> = (begin..end).map(|position| row(long, position)).collect();
                runner.step(&rows);
            }
            let mut logits = Vec::new();
            let mut at = LONG;
            for n in [1, 1, 5, 9, 1] {
                let mut rows: Vec<Row> = (at..at + n).map(|at| row(long, at)).collect();
                rows.push(row(short, runner.cache.len(short)));
                runner.step(&rows);
                logits.extend(bits(runner.head(n)));
                at += n;
            }
            logits
        };
        let want = run(1);
        for threads in [2, 3, 16] {
            assert!(run(threads) == want, "{path}, {threads} threads");
        }
    }
}

#[test]
fn some_logits_are_the_same_as_in_the_full_head() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting { threads: 2, ..Setting::fast() });
    let sequence = runner.cache.create();
    let rows: Vec<Row> = prompt(9, 1)
        .into_iter()
        .enumerate()
        .map(|(position, token)| Row { sequence, position, token, wanted: position % 4 == 0 })
        .collect();
    runner.step(&rows);
    assert_eq!(runner.state.wanted(), 3);
    let full = runner.head(3).to_vec();
    let ids = [2047, 0, 17, 64, 63, 1999];
    let Runner { model, team, state, .. } = &mut runner;
    let some = head(model, team, state, 1..3, HeadRequest::Rows(&ids));
    for (row, some) in some.chunks(ids.len()).enumerate() {
        let want: Vec<f32> = ids.iter().map(|id| full[(row + 1) * 2048 + *id as usize]).collect();
        assert_eq!(some, want);
    }
}

#[test]
fn a_batch_that_does_not_continue_its_sequence_is_refused_and_changes_nothing() {
    let mut runner = Runner::new(&data("edge/edge.gguf"), Setting::fast());
    let sequence = runner.cache.create();
    let row = |position, token| Row { sequence, position, token, wanted: true };
    let layers = 0..runner.model.config.layers.len();
    for (rows, words) in [
        (vec![row(1, 0)], "row 0: position: got 1, expected 0"),
        (vec![row(0, 0), row(2, 0)], "row 1: position: got 2, expected 1"),
        (vec![row(0, 300)], "row 0: token: got 300, expected below 300"),
    ] {
        let Runner { model, team, state, cache } = &mut runner;
        let batch = oss_model::Batch { rows: &rows };
        let error = oss_model::forward(model, team, state, cache, batch, layers.clone());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(cache.len(sequence), 0);
    }
}
