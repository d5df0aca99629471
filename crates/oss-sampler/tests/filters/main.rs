//! Every filter against a plain double-precision reference, on random and on adversarial logits.

mod reference;

use oss_sampler::{Dry, Mask, Options, Sampler, Scratch};
use oss_simd::Isa;
use oss_testing::{ADVERSARIAL, Seeded};
use reference::Case;

/// Logits on which selection goes wrong first, and random ones.
fn fields(seeded: &mut Seeded) -> Vec<Vec<f32>> {
    let none = f32::NEG_INFINITY;
    let mut fields = vec![
        vec![0.5],
        vec![1.0, 1.0],
        vec![0.0, -0.0, 0.0],
        vec![none, 3.0, none],
        vec![2.5; 200],
        vec![f32::MAX, f32::MIN, 0.0, f32::MAX],
        ADVERSARIAL.to_vec(),
        (0..300).map(|i| i as f32 * 0.01).collect(),
        (0..300).map(|i| i as f32 * -0.01).collect(),
        (0..300).map(|i| (i / 7 % 5) as f32).collect(),
        (0..130).map(|i| if i == 128 { 40.0 } else { 0.0 }).collect(),
        (0..130).map(|i| if i % 3 == 0 { none } else { (i % 4) as f32 }).collect(),
    ];
    for n in [2, 15, 16, 17, 63, 64, 65, 1000, 5000] {
        fields.push(seeded.normals(n, 3.0));
        let mut ties = seeded.normals(n, 2.0);
        ties.iter_mut().for_each(|x| *x = x.round());
        fields.push(ties);
    }
    fields
}

/// Compares on all fields; few may be too close to a border to tell.
fn check(name: &str, options: &Options) {
    let mut seeded = Seeded::new(41);
    let fields = fields(&mut seeded);
    let case = Case { prompt: vec![], generated: vec![], mask: None };
    let told = fields.iter().filter(|logits| reference::compare(name, logits, options, &case));
    let (told, all) = (told.count(), fields.len());
    assert!(told * 10 >= all * 7, "{name}: only {told} of {all} fields could be compared");
}

#[test]
fn top_k_keeps_the_k_largest_and_the_lowest_ids_among_equals() {
    for top_k in [1, 2, 3, 40, 64, 100, 1_000_000] {
        check("top_k", &Options { top_k, ..Options::default() });
    }
}

#[test]
fn top_p_keeps_the_smallest_nucleus() {
    for top_p in [0.0, 0.001, 0.3, 0.5, 0.9, 0.95, 0.999] {
        check("top_p", &Options { top_p, ..Options::default() });
    }
}

#[test]
fn min_p_keeps_what_is_near_the_best() {
    for min_p in [1e-6, 0.01, 0.05, 0.5, 1.0] {
        check("min_p", &Options { min_p, ..Options::default() });
    }
}

#[test]
fn typical_keeps_what_is_near_the_entropy() {
    for typical_p in [0.01, 0.2, 0.5, 0.9, 0.99] {
        check("typical_p", &Options { typical_p, ..Options::default() });
    }
}

#[test]
fn temperature_scales_before_the_filters() {
    for temperature in [0.05, 0.7, 1.3, 10.0] {
        check("temperature", &Options { temperature, top_p: 0.8, ..Options::default() });
        check("temperature", &Options { temperature, min_p: 0.1, ..Options::default() });
        check("temperature", &Options { temperature, typical_p: 0.6, ..Options::default() });
    }
}

#[test]
fn filters_in_combination_work_on_what_is_left_of_those_before() {
    let options = Options {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.02,
        typical_p: 0.8,
        ..Options::default()
    };
    check("all", &options);
    check("all", &Options { top_k: 7, typical_p: 1.0, ..options.clone() });
    check("all", &Options { top_p: 1.0, ..options.clone() });
    check("all", &Options { top_k: 0, ..options });
}

#[test]
fn greedy_takes_the_lowest_id_of_the_largest_logit_and_ignores_the_filters() {
    let mut seeded = Seeded::new(43);
    for logits in fields(&mut seeded) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let want = logits.iter().position(|&x| x == max).unwrap() as u32;
        for options in [Options::greedy(), Options { typical_p: 0.1, ..Options::greedy() }] {
            let sampler = Sampler::new(options, logits.len(), 0).unwrap();
            let (isa, scratch) = (Isa::detect().unwrap(), &mut Scratch::new(logits.len()));
            let got = sampler.draw(isa, &mut logits.clone(), 5, None, scratch).unwrap();
            assert_eq!(got.token, want);
        }
    }
}

/// Random cases with prompt, generated tokens and mask; the reference recomputes all from them.
fn check_history(name: &str, options: &Options) {
    let mut seeded = Seeded::new(47);
    let mut told = 0;
    for round in 0..60 {
        let vocabulary = [1, 5, 64, 300][round % 4];
        let mut tokens = |n: usize| -> Vec<u32> {
            (0..n).map(|_| seeded.below(vocabulary.min(6)) as u32).collect()
        };
        let (prompt, generated) = (tokens(round % 13), tokens(round % 29));
        let mut logits = seeded.normals(vocabulary, 2.0);
        if vocabulary > 5 && round % 3 == 0 {
            logits[2] = f32::NEG_INFINITY;
        }
        let mask = (round % 2 == 0).then(|| {
            let mut mask = Mask::new(vocabulary);
            (0..vocabulary as u32).filter(|id| id % 3 != 1).for_each(|id| mask.allow(id));
            mask
        });
        let case = Case { prompt, generated, mask };
        told += usize::from(reference::compare(name, &logits, options, &case));
    }
    assert!(told >= 50, "{name}: only {told} of 60 cases could be compared");
}

#[test]
fn repetition_penalty_scales_tokens_of_prompt_and_answer() {
    for (repetition_penalty, repeat_last_n) in [(1.3, 0), (0.7, 0), (1.3, 4), (2.0, 1)] {
        let options = Options { repetition_penalty, repeat_last_n, ..Options::default() };
        check_history("repetition_penalty", &options);
    }
}

#[test]
fn presence_penalty_lowers_generated_tokens_once() {
    for (presence_penalty, repeat_last_n) in [(0.8, 0), (-0.8, 0), (1.5, 5)] {
        let options = Options { presence_penalty, repeat_last_n, ..Options::default() };
        check_history("presence_penalty", &options);
    }
}

#[test]
fn frequency_penalty_lowers_generated_tokens_by_their_count() {
    for (frequency_penalty, repeat_last_n) in [(0.3, 0), (-0.2, 0), (0.5, 6)] {
        let options = Options { frequency_penalty, repeat_last_n, ..Options::default() };
        check_history("frequency_penalty", &options);
    }
}

#[test]
fn dry_penalises_tokens_that_continue_a_repetition() {
    for (allowed_length, window) in [(1, 0), (2, 0), (2, 9), (3, 20)] {
        let sequence_breakers = vec![0];
        let dry = Dry { multiplier: 0.8, base: 1.75, allowed_length, window, sequence_breakers };
        check_history("dry", &Options { dry: dry.clone(), ..Options::default() });
        let dry = Dry { sequence_breakers: vec![], ..dry };
        check_history("dry", &Options { dry, ..Options::default() });
    }
}

#[test]
fn dry_stops_at_breakers() {
    let dry =
        Dry { multiplier: 1.0, allowed_length: 1, sequence_breakers: vec![9], ..Dry::default() };
    let options = Options { dry, ..Options::default() };
    let mut seeded = Seeded::new(53);
    for round in 0..80 {
        let generated: Vec<u32> = (0..round).map(|_| [1, 2, 9][seeded.below(3)] as u32).collect();
        let case = Case { prompt: vec![], generated, mask: None };
        assert!(reference::compare("dry", &seeded.normals(12, 1.0), &options, &case));
    }
}

#[test]
fn bias_and_mask_come_after_the_penalties() {
    let options = Options {
        repetition_penalty: 1.2,
        frequency_penalty: 0.1,
        logit_bias: vec![(0, 3.0), (0, -1.0)],
        ..Options::default()
    };
    check_history("logit_bias", &options);
}

#[test]
fn all_options_together_equal_the_reference() {
    let options = Options {
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        repeat_last_n: 11,
        dry: Dry { multiplier: 0.5, ..Dry::default() },
        logit_bias: vec![(0, 1.0)],
        temperature: 0.8,
        top_k: 30,
        top_p: 0.9,
        min_p: 0.05,
        typical_p: 0.9,
        ..Options::default()
    };
    check_history("all", &options);
}

#[test]
fn a_set_that_is_one_token_too_large_is_noticed() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let case = Case { prompt: vec![], generated: vec![], mask: None };
    let of = |top_k| Options { top_k, ..Options::default() };
    let got = reference::drawn_from(&logits, &of(3), &case);
    assert_eq!(reference::disagreement(&got, &reference::expected(&logits, &of(3), &case)), None);
    let narrow = reference::expected(&logits, &of(2), &case);
    assert!(reference::disagreement(&got, &narrow).is_some());
}
