//! Draws follow the distribution that they are drawn from.
//!
//! `OSS_SAMPLER_DRAWS` sets how many draws each check makes (100,000 if it is not set; the full
//! check of a release is 1,000,000).

use oss_sampler::{Options, Sampler, Scratch};
use oss_simd::Isa;
use oss_testing::{Seeded, twins};

fn draws() -> u64 {
    match std::env::var("OSS_SAMPLER_DRAWS") {
        Ok(text) => text.parse().expect("OSS_SAMPLER_DRAWS is a number"),
        Err(_) => 100_000,
    }
}

/// Pearson's statistic, and how many standard deviations it lies above its mean under the null
/// hypothesis (Wilson and Hilferty's cube-root approximation). Rare cells are pooled to an
/// expectation of at least 10.
fn excess(counts: &[u64], probabilities: &[f64]) -> f64 {
    let total: u64 = counts.iter().sum();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    let (mut statistic, mut cells, mut count, mut expectation) = (0.0, 0.0, 0.0, 0.0);
    for (rank, &id) in order.iter().enumerate() {
        count += counts[id] as f64;
        expectation += probabilities[id] * total as f64;
        if expectation >= 10.0 || rank + 1 == order.len() {
            let difference: f64 = count - expectation;
            statistic += difference * difference / expectation.max(1e-300);
            cells += 1.0;
            (count, expectation) = (0.0, 0.0);
        }
    }
    let degrees: f64 = cells - 1.0;
    let spread = 2.0 / (9.0 * degrees);
    ((statistic / degrees).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Counts draws at consecutive positions.
fn count(options: &Options, choice: u32, logits: &[f32]) -> Vec<u64> {
    let isa = Isa::detect().unwrap();
    let sampler = Sampler::new(options.clone(), logits.len(), choice).unwrap();
    let (mut work, scratch) = (logits.to_vec(), &mut Scratch::new(logits.len()));
    let mut counts = vec![0; logits.len()];
    for position in 0..draws() {
        work.copy_from_slice(logits);
        let token = sampler.draw(isa, &mut work, position, None, scratch).unwrap().token;
        counts[token as usize] += 1;
    }
    counts
}

/// Four standard deviations: once in 30,000 by chance, and the seeds are fixed.
fn assert_follows(name: &str, counts: &[u64], probabilities: &[f64]) {
    let excess = excess(counts, probabilities);
    assert!(excess < 4.0, "{name}: chi-square is {excess:.2} standard deviations too large");
    // Far too good a fit would be as suspicious.
    assert!(excess > -4.0, "{name}: chi-square is {:.2} standard deviations too small", -excess);
}

fn tempered(logits: &[f32], temperature: f64) -> Vec<f64> {
    twins::softmax(&logits.iter().map(|&x| f64::from(x) / temperature).collect::<Vec<_>>())
}

#[test]
fn unfiltered_draws_follow_the_softmax() {
    let mut seeded = Seeded::new(61);
    for (seed, n, deviation) in [(0, 2, 1.0), (1, 10, 1.0), (2, 64, 2.0), (3, 150, 3.0)] {
        let logits = seeded.normals(n, deviation);
        let counts = count(&Options { seed, ..Options::default() }, 0, &logits);
        assert_follows(&format!("{n} tokens"), &counts, &tempered(&logits, 1.0));
    }
}

#[test]
fn temperature_flattens_the_softmax_that_is_drawn_from() {
    let logits = Seeded::new(67).normals(50, 2.0);
    for temperature in [0.5, 2.0] {
        let options = Options { temperature, seed: 5, ..Options::default() };
        let counts = count(&options, 1, &logits);
        assert_follows("tempered", &counts, &tempered(&logits, f64::from(temperature)));
    }
}

#[test]
fn filtered_draws_follow_the_renormalised_survivors() {
    let logits = Seeded::new(71).normals(200, 2.0);
    let options = Options { top_k: 30, top_p: 0.9, seed: 7, ..Options::default() };
    let sampler = Sampler::new(options.clone(), 200, 0).unwrap();
    let isa = Isa::detect().unwrap();
    let mut probabilities = vec![0.0; 200];
    for (id, p) in sampler.distribution(isa, &mut logits.clone(), 0, None).unwrap() {
        probabilities[id as usize] = f64::from(p);
    }
    let counts = count(&options, 0, &logits);
    let outside: u64 =
        counts.iter().zip(&probabilities).map(|(c, p)| if *p == 0.0 { *c } else { 0 }).sum();
    assert_eq!(outside, 0);
    let (kept, shares): (Vec<u64>, Vec<f64>) =
        counts.into_iter().zip(probabilities).filter(|(_, p)| *p > 0.0).unzip();
    assert_follows("filtered", &kept, &shares);
}

#[test]
fn rare_tokens_are_drawn_as_often_as_they_should_be() {
    // 0.2 % in forty tokens of 5e-5 each: noise of few bits would miss or favour them.
    let mut logits = vec![0.0; 41];
    logits[0] = (0.998f32 / 5e-5).ln();
    let counts = count(&Options { seed: 11, ..Options::default() }, 0, &logits);
    let rare: u64 = counts[1..].iter().sum();
    assert_follows("rare", &[counts[0], rare], &[0.998, 0.002]);
}

#[test]
fn draws_of_neighbouring_positions_choices_and_seeds_are_independent() {
    let logits = [0.0, 0.5, 1.0];
    let single = tempered(&logits, 1.0);
    let pairs: Vec<f64> = single.iter().flat_map(|a| single.iter().map(move |b| a * b)).collect();
    let isa = Isa::detect().unwrap();
    let draw = |seed: u64, choice: u32, position: u64| {
        let options = Options { seed, ..Options::default() };
        let sampler = Sampler::new(options, 3, choice).unwrap();
        let scratch = &mut Scratch::new(3);
        let drawn = sampler.draw(isa, &mut logits.clone(), position, None, scratch);
        drawn.unwrap().token as usize
    };
    type Place = fn(u64) -> (u64, u32, u64);
    let neighbours: [(&str, Place); 3] =
        [("positions", |i| (1, 0, i)), ("choices", |i| (1, i as u32, 0)), ("seeds", |i| (i, 0, 0))];
    for (name, place) in neighbours {
        let mut counts = vec![0; 9];
        for i in 0..draws() / 10 {
            let (seed, choice, position) = place(2 * i);
            let first = draw(seed, choice, position);
            let (seed, choice, position) = place(2 * i + 1);
            counts[3 * first + draw(seed, choice, position)] += 1;
        }
        assert_follows(name, &counts, &pairs);
    }
}

#[test]
fn the_statistic_notices_a_wrong_distribution() {
    let logits = [0.0, 0.5, 1.0];
    let counts = count(&Options::default(), 0, &logits);
    let wrong = tempered(&[0.0, 0.5, 1.1], 1.0);
    assert!(excess(&counts, &wrong) > 8.0);
    // 2 degrees of freedom: the median is 1.386, near the middle of the scale.
    let known = excess(&[1000 + 26, 1000 - 26, 1000], &[1.0 / 3.0; 3]);
    assert!(known.abs() < 0.15, "{known}");
}
