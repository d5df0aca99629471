//! How long does a draw take, per instruction set? (µs, and GB/s of logits beside reading as many
//! bytes from the same cache; the aim is at most 60 µs for top-k 40 with top-p 0.95 over 201,088
//! logits and 10 µs over 32,000.)

#[path = "support/shares.rs"]
mod shares;

use oss_sampler::{Mask, Options, Sampler, Scratch};
use oss_simd::Isa;
use oss_testing::Seeded;
use shares::{Bound, Shares, Work};
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

/// A draw from logits that a head has just written (they are in the cache).
fn draw(
    shares: &mut Shares,
    name: &str,
    vocabulary: usize,
    options: &Options,
    mask: Option<&Mask>,
) {
    let logits = Seeded::new(1).normals(vocabulary, 2.5);
    let changes = mask.is_some() || options.repetition_penalty != 1.0;
    let bytes = Work { bound: Bound::Cache, amount: 4 * vocabulary, things: (1, "draw") };
    for isa in Isa::available() {
        let mut sampler =
            Sampler::new(options.clone(), vocabulary, 0).expect("the options are in their ranges");
        sampler.prompt(&(0..500).collect::<Vec<_>>());
        let (mut work, mut position) = (logits.clone(), 0);
        let mut scratch = Scratch::new(vocabulary);
        shares.timed(&format!("draw of {vocabulary}, {name}"), isa, bytes, |calls| {
            let mut spent = Duration::ZERO;
            for _ in 0..calls {
                // The draw works in place: put back what it changed, outside the clock.
                if changes {
                    work.copy_from_slice(&logits);
                }
                position += 1;
                let start = Instant::now();
                let draw = sampler.draw(isa, black_box(&mut work), position, mask, &mut scratch);
                black_box(draw.expect("the logits are numbers").token);
                spent += start.elapsed();
            }
            spent
        });
    }
}

fn main() {
    let mut shares = Shares::new();
    for vocabulary in [32_000, 201_088] {
        for (name, options) in cases() {
            draw(&mut shares, name, vocabulary, &options, None);
        }
        let mut mask = Mask::new(vocabulary);
        (0..vocabulary as u32).step_by(50).for_each(|id| mask.allow(id));
        let options = Options { top_k: 40, top_p: 0.95, ..Options::default() };
        draw(&mut shares, "top-k + top-p + mask", vocabulary, &options, Some(&mask));
    }
    shares.finish();
}
