//! Chunks, company, threads, instruction sets, tilings and prefetching do not change a bit of the
//! logits.

#[path = "support/runner.rs"]
mod common;
#[path = "support/random.rs"]
mod random;

use common::{Runner, Setting, bits, data, prompt};
use oss_kernels::Activation;
use oss_model::{Batch, Error, Row, Tiling, forward, head};
use oss_quant::Dtype;
use oss_quant::kv::KvFormat;
use oss_simd::{Isa, PrefetchPolicy};
use oss_weights::TensorPlan;
use std::path::Path;

const MODES: [(Activation, KvFormat); 5] = [
    (Activation::F32, KvFormat::F32),
    (Activation::Bf16, KvFormat::Bf16),
    (Activation::Int8, KvFormat::Bf16),
    (Activation::Int8, KvFormat::F16),
    (Activation::Int16, KvFormat::Bf16),
];

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

/// A layer with experts, of random weights, so wide that norms and the router ride on products of
/// few rows too.
fn write_wide(path: &Path) {
    const HIDDEN: usize = 2080;
    let counts = [
        ("block_count", 1),
        ("context_length", 4096),
        ("embedding_length", HIDDEN as u32),
        ("expert_feed_forward_length", 64),
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("attention.sliding_window", 128),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
    ];
    let key = |name: &str| format!("gpt-oss.{name}");
    let mut metadata = vec![
        ("general.architecture".to_owned(), "gpt-oss".into()),
        (key("attention.layer_norm_rms_epsilon"), 1e-5f32.into()),
        (key("rope.freq_base"), 150_000f32.into()),
        (key("rope.scaling.type"), "yarn".into()),
        (key("rope.scaling.factor"), 32f32.into()),
        (key("rope.scaling.original_context_length"), 4096u32.into()),
    ];
    metadata.extend(counts.map(|(name, n)| (key(name), n.into())));
    let tensors: [(&str, &[usize]); 22] = [
        ("token_embd.weight", &[300, HIDDEN]),
        ("output_norm.weight", &[HIDDEN]),
        ("output.weight", &[300, HIDDEN]),
        ("blk.0.attn_norm.weight", &[HIDDEN]),
        ("blk.0.attn_q.weight", &[64, HIDDEN]),
        ("blk.0.attn_q.bias", &[64]),
        ("blk.0.attn_k.weight", &[32, HIDDEN]),
        ("blk.0.attn_k.bias", &[32]),
        ("blk.0.attn_v.weight", &[32, HIDDEN]),
        ("blk.0.attn_v.bias", &[32]),
        ("blk.0.attn_output.weight", &[HIDDEN, 64]),
        ("blk.0.attn_output.bias", &[HIDDEN]),
        ("blk.0.attn_sinks.weight", &[4]),
        ("blk.0.post_attention_norm.weight", &[HIDDEN]),
        ("blk.0.ffn_gate_inp.weight", &[5, HIDDEN]),
        ("blk.0.ffn_gate_inp.bias", &[5]),
        ("blk.0.ffn_gate_exps.weight", &[5, 64, HIDDEN]),
        ("blk.0.ffn_gate_exps.bias", &[5, 64]),
        ("blk.0.ffn_up_exps.weight", &[5, 64, HIDDEN]),
        ("blk.0.ffn_up_exps.bias", &[5, 64]),
        ("blk.0.ffn_down_exps.weight", &[5, HIDDEN, 64]),
        ("blk.0.ffn_down_exps.bias", &[5, HIDDEN]),
    ];
    let plans = tensors.map(|(name, shape)| {
        let is_vector = name.ends_with("bias") || shape.len() == 1;
        let dtype = if is_vector || name.contains("inp") { Dtype::F32 } else { Dtype::Q8_0 };
        TensorPlan { name: name.to_owned(), dtype, shape: shape.to_vec() }
    });
    random::write_gguf(path, &metadata, &plans, 13);
}

#[test]
fn chunks_and_threads_do_not_change_a_bit_where_rows_are_wide() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    write_wide(&path);
    let ids = prompt(48, 3);
    for activation in [Activation::F32, Activation::Int8] {
        let setting = Setting { activation, ..Setting::exact() };
        let want = bits(&Runner::new(&path, setting).logits(&ids, 48));
        for threads in [1, 3] {
            let mut runner = Runner::new(&path, Setting { threads, ..setting });
            for chunk in [1, 7, 40] {
                let got = bits(&runner.logits(&ids, chunk));
                assert!(got == want, "{activation:?}, chunks of {chunk}, {threads} threads");
            }
        }
    }
}

#[test]
fn tilings_and_prefetching_do_not_change_a_bit() {
    let folder = tempfile::tempdir().unwrap();
    let wide = folder.path().join("wide.gguf");
    write_wide(&wide);
    for path in [data("demo.gguf"), data("edge/edge.gguf"), wide] {
        for (activation, threads) in [(Activation::F32, 2), (Activation::Int8, 1)] {
            let setting = Setting { activation, threads, ..Setting::exact() };
            let mut runner = Runner::new(&path, setting);
            // So many rows that units of the largest tiling are cut too, and a few for wide units.
            let (ids, few) = (prompt(201, 3), prompt(9, 5));
            let want = [bits(&runner.logits(&ids, 201)), bits(&runner.logits(&few, 9))];
            for (input_rows, matrix_rows, wide_rows) in
                [(128, 64, 256), (1, 64, 64), (37, 192, 128), (64, 128, 512), (300, 256, 2048)]
            {
                let tiling = Tiling { input_rows, matrix_rows, wide_rows };
                runner.state.set_tiling(tiling).unwrap();
                let got = [bits(&runner.logits(&ids, 201)), bits(&runner.logits(&few, 9))];
                assert!(got == want, "{} {activation:?}, {tiling:?}", path.display());
                assert!(bits(&runner.logits(&few, 1)) == want[1], "{activation:?}, {tiling:?}");
            }
            for (name, policy) in PrefetchPolicy::ALL {
                runner.state.set_prefetch(policy);
                let got = [bits(&runner.logits(&ids, 201)), bits(&runner.logits(&few, 1))];
                assert!(got == want, "{} {activation:?}, {name}", path.display());
            }
        }
    }
}

#[test]
#[should_panic(expected = "matrix_rows: 96")]
fn a_tiling_that_would_cut_blocks_is_refused() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting::fast());
    runner.state.set_tiling(Tiling { matrix_rows: 96, ..Tiling::default() }).unwrap();
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
                    draft: false,
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
            let told = runner.state.bytes();
            let (long, short) = (runner.cache.create(), runner.cache.create());
            let row = |sequence, position| Row {
                sequence,
                position,
                token: ids[position],
                wanted: position >= LONG,
                draft: false,
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
            // What is shared was counted before it was there.
            let logits_bytes = 4 * 9 * runner.model.config.vocabulary;
            assert_eq!(runner.state.bytes(), told + logits_bytes, "{path}, {threads} threads");
            logits
        };
        let want = run(1);
        for threads in [2, 3, 16] {
            assert!(run(threads) == want, "{path}, {threads} threads");
        }
    }
}

#[test]
fn the_logits_of_some_rows_are_those_of_all() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting { threads: 2, ..Setting::fast() });
    let sequence = runner.cache.create();
    let rows: Vec<Row> = prompt(9, 1)
        .into_iter()
        .enumerate()
        .map(|(position, token)| Row {
            sequence,
            position,
            token,
            wanted: position % 4 == 0,
            draft: false,
        })
        .collect();
    runner.step(&rows);
    assert_eq!(runner.state.wanted(), 3);
    let full = runner.head(3).to_vec();
    let Runner { model, team, state, .. } = &mut runner;
    let some = head(model, team, state, 1..3);
    assert!(bits(some) == bits(&full[2048..]));
}

#[test]
fn a_batch_that_does_not_continue_its_sequence_is_refused_and_changes_nothing() {
    let mut runner = Runner::new(&data("edge/edge.gguf"), Setting::fast());
    let sequence = runner.cache.create();
    let row = |position, token| Row { sequence, position, token, wanted: true, draft: false };
    let draft = |position, token| Row { draft: true, ..row(position, token) };
    let layers = 0..runner.model.config.layers.len();
    for (rows, words) in [
        (vec![row(1, 0)], "row 0: position: got 1, expected 0"),
        (vec![row(0, 0), row(2, 0)], "row 1: position: got 2, expected 1"),
        (vec![row(0, 300)], "row 0: token: got 300, expected below 300"),
        (vec![draft(0, 0), row(1, 0)], "row 1: draft: got 0, expected 1, as the row before"),
    ] {
        let Runner { model, team, state, cache } = &mut runner;
        let batch = Batch { rows: &rows };
        let error = forward(model, team, state, cache, batch, layers.clone());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(cache.len(sequence), 0);
    }
}

#[test]
fn a_row_that_is_not_finite_is_refused_and_changes_nothing() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting::fast());
    let ids = prompt(40, 1);
    let want = bits(&runner.logits(&ids, 40));
    let (layers, hidden) = (runner.model.config.layers.len(), runner.model.config.hidden_dim);
    let sequence = runner.cache.create();
    let row = |(position, &token)| Row {
        sequence,
        position,
        token,
        wanted: position % 20 == 19,
        draft: false,
    };
    let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
    let blocks = runner.cache.blocks();
    for (done, bad) in [(1, 3), (1, 39), (layers - 1, 3), (layers - 1, 39)] {
        for number in [f32::NAN, f32::NEG_INFINITY] {
            let Runner { model, team, state, cache } = &mut runner;
            let batch = Batch { rows: &rows };
            forward(model, team, state, cache, batch, 0..done).unwrap();
            state.residual(40)[bad * hidden + 7] = number;
            let error = forward(model, team, state, cache, batch, done..layers).unwrap_err();
            let Error::NotFinite { position, token, .. } = error else { panic!("{error}") };
            assert!(position == bad && token == ids[bad], "{error}");
            assert_eq!((cache.len(sequence), cache.blocks()), (0, blocks));
        }
    }
    runner.step(&rows);
    let vocabulary = runner.model.config.vocabulary;
    let got = bits(runner.head(2));
    assert!(got[..vocabulary] == want[19 * vocabulary..][..vocabulary]);
    assert!(got[vocabulary..] == want[39 * vocabulary..]);
}
