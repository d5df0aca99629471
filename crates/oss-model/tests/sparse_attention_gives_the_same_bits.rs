//! With sparse attention too, chunks, company, threads, instruction sets and what became of a
//! sequence before do not change a bit; and where nothing is left out, nothing changes.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, bits, data, prompt};
use oss_kernels::Activation;
use oss_kernels::attention::SparseAttention;
use oss_model::{Row, head};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;

const MODES: [(Activation, KvFormat); 4] = [
    (Activation::F32, KvFormat::F32),
    (Activation::Int8, KvFormat::Bf16),
    (Activation::Int8, KvFormat::Int8),
    (Activation::Int16, KvFormat::Int4),
];

const SPARSE: SparseAttention = SparseAttention { first: 64, window: 100, blocks: 2 };
/// Sequences that are no longer see everything.
const DENSE: usize = 4 * 64 - 1 + 100;

fn sparse(setting: Setting) -> Setting {
    Setting { sparse_attention: Some(SPARSE), ..setting }
}

#[test]
fn chunks_and_threads_and_instruction_sets_do_not_change_a_bit() {
    let ids = prompt(700, 3);
    for path in ["demo.gguf", "edge/edge.gguf"] {
        for (activation, kv_format) in MODES {
            let setting = sparse(Setting { activation, kv_format, ..Setting::exact() });
            let want = bits(&Runner::new(&data(path), setting).logits(&ids, 256));
            for (threads, chunk) in [(1, 1), (1, 37), (2, 101), (3, 5)] {
                let mut runner = Runner::new(&data(path), Setting { threads, ..setting });
                let got = bits(&runner.logits(&ids, chunk));
                assert!(got == want, "{path} {kv_format}, {threads} threads, chunks of {chunk}");
            }
            for isa in Isa::available() {
                let mut runner = Runner::new(&data(path), Setting { isa, ..setting });
                assert!(bits(&runner.logits(&ids, 64)) == want, "{path} {kv_format} on {isa}");
            }
        }
    }
}

#[test]
fn only_rows_beyond_what_is_seen_change() {
    let ids = prompt(700, 4);
    for path in ["demo.gguf", "edge/edge.gguf"] {
        let logits = |sparse_attention| {
            let setting = Setting { sparse_attention, ..Setting::fast() };
            Runner::new(&data(path), setting).logits(&ids, 256)
        };
        let dense = logits(None);
        let width = dense.len() / ids.len();
        let sparse = logits(Some(SPARSE));
        assert!(bits(&sparse[..DENSE * width]) == bits(&dense[..DENSE * width]), "{path}");
        let rows = sparse.chunks(width).zip(dense.chunks(width));
        let changed = rows.filter(|(sparse, dense)| sparse != dense).count();
        assert!(changed > 100, "{path}: {changed} rows changed");
        let all = SparseAttention { blocks: 700 / 64, ..SPARSE };
        assert!(bits(&logits(Some(all))) == bits(&dense), "{path}, all blocks");
    }
}

/// Each step takes a different number of tokens of each prompt; some choose, some do not yet.
#[test]
fn company_in_the_batch_does_not_change_a_bit() {
    let setting = sparse(Setting { threads: 2, ..Setting::fast() });
    let mut runner = Runner::new(&data("demo.gguf"), setting);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(60 + 170 * i, 7 + i)).collect();
    let alone: Vec<Vec<u32>> = prompts.iter().map(|ids| bits(&runner.logits(ids, 256))).collect();
    let sequences: Vec<_> = prompts.iter().map(|_| runner.cache.create()).collect();
    let mut together = vec![Vec::new(); prompts.len()];
    for step in 0.. {
        let mut rows = Vec::new();
        for (i, ids) in prompts.iter().enumerate() {
            let done = runner.cache.len(sequences[i]);
            let n = ((step * 7 + i * 3) % 41).min(ids.len() - done);
            rows.extend((done..done + n).map(|position| Row {
                sequence: sequences[i],
                position,
                token: ids[position],
                wanted: true,
                draft: false,
            }));
        }
        if !rows.is_empty() {
            runner.step(&rows);
            let width = runner.model.config.vocabulary;
            let logits = runner.head(rows.len());
            for (row, logits) in rows.iter().zip(logits.chunks(width)) {
                let i = sequences.iter().position(|s| *s == row.sequence).unwrap();
                together[i].extend(bits(logits));
            }
        } else if prompts.iter().zip(&together).all(|(ids, got)| got.len() == ids.len() * 2048) {
            break;
        }
    }
    for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert!(together == alone, "prompt {i}");
    }
}

/// Rows far into a sequence, whose positions several workers then share: splits of which nothing is
/// chosen lie between.
#[test]
fn sharing_a_long_sequence_among_workers_does_not_change_a_bit() {
    const LONG: usize = 5_000;
    let ids = prompt(LONG as u32 + 20, 5);
    // More than a split is seen.
    let sparse = SparseAttention { first: 64, window: 900, blocks: 6 };
    for path in ["demo.gguf", "edge/edge.gguf"] {
        let run = |threads| {
            let sparse_attention = Some(sparse);
            let setting = Setting { threads, sparse_attention, ..Setting::fast() };
            let mut runner = Runner::new(&data(path), setting);
            let sequence = runner.cache.create();
            let row = |position| Row {
                sequence,
                position,
                token: ids[position],
                wanted: position >= LONG,
                draft: false,
            };
            for begin in (0..LONG).step_by(250) {
                runner.step(&(begin..begin + 250).map(row).collect::<Vec<_>>());
            }
            let mut logits = Vec::new();
            let mut at = LONG;
            for n in [1, 1, 5, 9, 1] {
                runner.step(&(at..at + n).map(row).collect::<Vec<_>>());
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

/// Wrong drafts complete pages, so that their means are written, and written again.
#[test]
fn what_was_taken_back_and_what_was_forked_does_not_change_a_bit() {
    let ids = prompt(600, 6);
    let setting = sparse(Setting { threads: 2, ..Setting::fast() });
    let mut runner = Runner::new(&data("demo.gguf"), setting);
    let want = bits(&runner.logits(&ids, 256));
    let width = runner.model.config.vocabulary;
    let row =
        |sequence, position, token| Row { sequence, position, token, wanted: true, draft: false };
    let mut sequence = runner.cache.create();
    for position in 0..ids.len() {
        // Guesses over the end of a page, all wrong but for the first.
        let n = if position % 16 == 12 { 8.min(ids.len() - position) } else { 1 };
        let rows: Vec<Row> = (position..position + n)
            .map(|at| row(sequence, at, if at == position { ids[at] } else { 299 - ids[at] }))
            .collect();
        runner.step(&rows);
        assert!(bits(runner.head(n))[..width] == want[position * width..][..width], "{position}");
        assert_eq!(runner.cache.truncate(sequence, position + 1).unwrap(), position + 1);
        if position % 100 == 99 {
            let fork = runner.cache.fork(sequence).unwrap();
            runner.cache.remove(std::mem::replace(&mut sequence, fork));
        }
    }
    // What the prefix tree has of it, and a page that is copied before it is written.
    let found = runner.cache.lookup(&ids[..550]);
    let again = runner.cache.create();
    let known = runner.cache.adopt(again, &found, 549).unwrap();
    assert!(known > 500, "{known}");
    let rows: Vec<Row> = (known..600).map(|at| row(again, at, ids[at])).collect();
    runner.step(&rows);
    let Runner { model, team, state, .. } = &mut runner;
    let logits = head(model, team, state, 0..rows.len());
    assert!(bits(logits) == want[known * width..]);
}

#[test]
fn what_is_kept_of_other_patterns_is_never_found() {
    let patterns = [
        None,
        Some(SPARSE),
        Some(SparseAttention { first: 65, ..SPARSE }),
        Some(SparseAttention { window: 101, ..SPARSE }),
        Some(SparseAttention { blocks: 3, ..SPARSE }),
    ];
    let key = |sparse_attention| {
        let setting = Setting { sparse_attention, ..Setting::fast() };
        let model = Runner::new(&data("edge/edge.gguf"), setting).model;
        (model.content_key(), model.cache_shape().slot_bytes)
    };
    let keys = patterns.map(key);
    for (i, (key, slot_bytes)) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|(other, _)| other != key), "pattern {i}");
        assert_eq!(*slot_bytes, 4096 + if i == 0 { 0 } else { 256 });
    }
}
