//! How long does a draw take? (µs, and GB/s of logits read once; the aim is at most 60 µs for top-k
//! 40
//! with top-p 0.95 over 201,088 logits and 10 µs over 32,000.)
#![expect(missing_docs, reason = "criterion_group makes public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oss_sampler::{Mask, Options, Sampler};
use oss_simd::Isa;
use oss_testing::Seeded;
use std::hint::black_box;
use std::time::{Duration, Instant};

fn cases() -> Vec<(&'static str, Options)> {
    let options = Options::default;
    let (top_k, top_p) = (40, 0.95);
    vec![
        ("greedy", Options::greedy()),
        ("top-k 40 + top-p 0.95", Options { top_k, top_p, ..options() }),
        ("top-k + top-p + log-probability", Options { top_k, top_p, logprobs: true, ..options() }),
        (
            "top-k + top-p + repetition",
            Options { top_k, top_p, repetition_penalty: 1.1, ..options() },
        ),
        ("unfiltered", options()),
        ("top-p 0.95", Options { top_p, ..options() }),
        ("min-p 0.05", Options { min_p: 0.05, ..options() }),
        ("typical 0.95", Options { typical_p: 0.95, ..options() }),
    ]
}

/// Every case on the best instruction set; the aimed-at one on all.
fn draws(criterion: &mut Criterion) {
    let best = Isa::detect().expect("OSS_ISA names an instruction set of this machine");
    for vocabulary in [32_000, 201_088] {
        let mut group = criterion.benchmark_group(format!("draw of {vocabulary}"));
        group.throughput(Throughput::Bytes(4 * vocabulary as u64));
        for (name, options) in cases() {
            for isa in Isa::available() {
                if isa == best || name == "top-k 40 + top-p 0.95" {
                    let id = format!("{name}, {isa}");
                    group.bench_function(id, |bencher| {
                        measure(bencher, isa, vocabulary, &options, None);
                    });
                }
            }
        }
        let mut mask = Mask::new(vocabulary);
        (0..vocabulary as u32).step_by(50).for_each(|id| mask.allow(id));
        let options = Options { top_k: 40, top_p: 0.95, ..Options::default() };
        group.bench_function(format!("top-k + top-p + mask, {best}"), |bencher| {
            measure(bencher, best, vocabulary, &options, Some(&mask));
        });
        group.finish();
    }
}

/// One draw an iteration, of logits that a head has just written (they are in the cache).
fn measure(
    bencher: &mut criterion::Bencher<'_>,
    isa: Isa,
    vocabulary: usize,
    options: &Options,
    mask: Option<&Mask>,
) {
    let logits = Seeded::new(1).normals(vocabulary, 2.5);
    let mut sampler =
        Sampler::new(options.clone(), vocabulary, 0).expect("the options are in their ranges");
    sampler.prompt(&(0..500).collect::<Vec<_>>());
    let changes = mask.is_some() || options.repetition_penalty != 1.0;
    let mut work = logits.clone();
    let mut position = 0;
    bencher.iter_custom(|iterations| {
        let mut spent = Duration::ZERO;
        for _ in 0..iterations {
            // The draw works in place: put back what it changed, outside the clock.
            if changes {
                work.copy_from_slice(&logits);
            }
            position += 1;
            let start = Instant::now();
            let draw = sampler.draw(isa, black_box(&mut work), position, mask);
            black_box(draw.expect("the logits are numbers").token);
            spent += start.elapsed();
        }
        spent
    });
}

criterion_group!(benches, draws);
criterion_main!(benches);
