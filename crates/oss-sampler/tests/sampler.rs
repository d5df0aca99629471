//! What callers rely on: draws that repeat, options that cannot break them, errors that name the
//! step.

use oss_sampler::{Draw, Dry, Error, Mask, ORDER, Options, Sampler, Scratch};
use oss_simd::Isa;
use oss_testing::{Seeded, assert_close, twins};

fn isa() -> Isa {
    Isa::detect().unwrap()
}

fn token(sampler: &Sampler, logits: &[f32], position: u64) -> u32 {
    let scratch = &mut Scratch::new(logits.len());
    sampler.draw(isa(), &mut logits.to_vec(), position, None, scratch).unwrap().token
}

#[test]
fn a_draw_depends_on_seed_choice_and_position_alone() {
    let logits = Seeded::new(1).normals(500, 1.0);
    let new =
        |seed, choice| Sampler::new(Options { seed, ..Options::default() }, 500, choice).unwrap();
    let forwards = new(3, 1);
    let first: Vec<u32> = (0..64).map(|p| token(&forwards, &logits, p)).collect();
    // Backwards, with other draws between, from another sampler, and in other threads.
    let backwards = new(3, 1);
    let other = new(4, 0);
    for position in (0..64).rev() {
        token(&other, &logits, position);
        assert_eq!(token(&backwards, &logits, position), first[position as usize]);
    }
    std::thread::scope(|scope| {
        for position in 0..4 {
            let (logits, want) = (&logits, first[position as usize]);
            scope.spawn(move || assert_eq!(token(&new(3, 1), logits, position), want));
        }
    });
    // Another seed, choice or position gives other draws.
    let differs = |sampler: Sampler, shift: u64| {
        (0..64).filter(|&p| token(&sampler, &logits, p + shift) != first[p as usize]).count()
    };
    assert!(differs(new(5, 1), 0) > 50 && differs(new(3, 2), 0) > 50 && differs(new(3, 1), 1) > 50);
}

#[test]
fn every_isa_draws_the_same_tokens_with_the_same_log_probabilities() {
    let mut seeded = Seeded::new(2);
    let options = [
        Options::default(),
        Options { top_k: 40, top_p: 0.95, ..Options::default() },
        Options { temperature: 1.7, typical_p: 0.9, ..Options::default() },
        Options { temperature: 0.3, min_p: 0.01, ..Options::default() },
        Options { top_p: 0.99, ..Options::default() },
        Options::greedy(),
    ];
    for n in [1, 17, 64, 1000, 20_001] {
        let logits = seeded.normals(n, 2.5);
        for options in &options {
            let options = Options { top_logprobs: n.min(5), ..options.clone() };
            let of = |isa: Isa, position| {
                let sampler = Sampler::new(options.clone(), n, 0).unwrap();
                let (logits, scratch) = (&mut logits.clone(), &mut Scratch::new(n));
                let Draw { token, logprob, top } =
                    sampler.draw(isa, logits, position, None, scratch).unwrap();
                (token, logprob.unwrap().to_bits(), top.to_vec())
            };
            for position in 0..20 {
                let want = of(Isa::scalar(), position);
                for isa in Isa::available() {
                    assert_eq!(of(isa, position), want, "{isa}, {n} tokens, {options:?}");
                }
            }
        }
    }
}

#[test]
fn a_filter_that_keeps_everything_changes_no_draw() {
    let logits = Seeded::new(3).normals(3000, 2.0);
    let of = |options: Options| {
        let sampler = Sampler::new(options, 3000, 0).unwrap();
        (0..50).map(|position| token(&sampler, &logits, position)).collect::<Vec<_>>()
    };
    for temperature in [0.5, 1.0, 2.0] {
        let unfiltered = Options { temperature, ..Options::default() };
        let want = of(unfiltered.clone());
        assert_eq!(of(Options { top_k: 3000, ..unfiltered.clone() }), want, "{temperature}");
        assert_eq!(of(Options { min_p: 1e-30, ..unfiltered }), want, "{temperature}");
    }
}

#[test]
fn a_token_that_survives_a_stricter_filter_is_drawn_again() {
    let logits = Seeded::new(4).normals(1000, 1.0);
    let wide = Sampler::new(Options::default(), 1000, 0).unwrap();
    let narrow = Sampler::new(Options { top_k: 300, ..Options::default() }, 1000, 0).unwrap();
    let kept: Vec<u32> = narrow
        .distribution(isa(), &mut logits.clone(), 0, None)
        .unwrap()
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    let mut both = 0;
    for position in 0..200 {
        let drawn = token(&wide, &logits, position);
        if kept.contains(&drawn) {
            assert_eq!(token(&narrow, &logits, position), drawn);
            both += 1;
        }
    }
    assert!(both > 50, "{both}");
}

#[test]
fn log_probabilities_are_the_models_own() {
    let mut seeded = Seeded::new(5);
    for n in [3, 64, 777, 30_000] {
        let logits = seeded.normals(n, 3.0);
        let want = twins::log_softmax(&twins::widen(&logits));
        let options = Options {
            temperature: 0.4,
            top_k: 5,
            repetition_penalty: 1.5,
            logit_bias: vec![(0, 2.0)],
            top_logprobs: 3,
            ..Options::default()
        };
        let mut sampler = Sampler::new(options, n, 0).unwrap();
        sampler.prompt(&[0, 1, 2]);
        let mut mask = Mask::all(n);
        mask.forbid(twins::top_k(&want, 1)[0] as u32);
        let scratch = &mut Scratch::new(n);
        let draw = sampler.draw(isa(), &mut logits.clone(), 0, Some(&mask), scratch).unwrap();
        let best = twins::top_k(&want, 3);
        let ids: Vec<usize> = draw.top.iter().map(|t| t.0 as usize).collect();
        assert_eq!(ids, best);
        let got: Vec<f32> = draw.top.iter().map(|t| t.1).collect();
        let expected: Vec<f64> = best.iter().map(|&id| want[id]).collect();
        assert_close(&got, &expected, 2e-6, 1e-6);
        assert_close(&[draw.logprob.unwrap()], &[want[draw.token as usize]], 2e-6, 1e-6);
        let (token, logprob, top) = (draw.token, draw.logprob, draw.top.to_vec());
        let score = sampler.score(isa(), &logits, (0, token), 3, scratch).unwrap();
        assert_eq!((score.token, score.logprob, score.top), (token, logprob, &top[..]));
        for (best, told) in [(0, 0), (n + 9, n)] {
            let score = sampler.score(isa(), &logits, (0, token), best, scratch).unwrap();
            assert_eq!(score.top.len(), told);
        }
    }
}

#[test]
fn log_probabilities_are_given_only_when_asked_for() {
    let scratch = &mut Scratch::new(3);
    let sampler = Sampler::new(Options::default(), 3, 0).unwrap();
    let scored = sampler.score(isa(), &[0.0; 3], (0, 1), 3, scratch).unwrap();
    assert_eq!(scored.top.len(), 3);
    let draw = sampler.draw(isa(), &mut [0.0; 3], 1, None, scratch).unwrap();
    assert_eq!((draw.logprob, draw.top), (None, &[][..]));
    let sampler = Sampler::new(Options { logprobs: true, ..Options::default() }, 3, 0).unwrap();
    let draw = sampler.draw(isa(), &mut [0.0; 3], 0, None, scratch).unwrap();
    assert_close(&[draw.logprob.unwrap()], &[-(3f64.ln())], 0.0, 1e-6);
    assert!(draw.top.is_empty());
}

#[test]
fn fewer_best_log_probabilities_are_given_where_fewer_logits_are_finite() {
    let options = Options { top_logprobs: 3, ..Options::default() };
    let sampler = Sampler::new(options, 4, 0).unwrap();
    let (none, scratch) = (f32::NEG_INFINITY, &mut Scratch::new(4));
    let draw = sampler.draw(isa(), &mut [none, 1.0, none, 1.0], 0, None, scratch).unwrap();
    assert_eq!(draw.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_nan_is_an_error_that_names_step_and_token() {
    for n in [1usize, 40, 64, 65, 1000] {
        for wrong in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for isa in Isa::available() {
                let mut logits = vec![f32::NEG_INFINITY; n];
                logits[n - 1] = wrong;
                let sampler = Sampler::new(Options::greedy(), n, 0).unwrap();
                // A mask that forbids the token does not hide it.
                let (mask, scratch) = (Mask::new(n), &mut Scratch::new(n));
                let drawn = sampler.draw(isa, &mut logits, 77, Some(&mask), scratch);
                let error = drawn.unwrap_err();
                let Error::Logit { position, id, got } = error else { panic!("{error}") };
                assert_eq!((position, id as usize, got.to_bits()), (77, n - 1, wrong.to_bits()));
            }
        }
    }
    let (sampler, scratch) =
        (Sampler::new(Options::default(), 3, 0).unwrap(), &mut Scratch::new(3));
    let error = sampler.draw(isa(), &mut [0.0, f32::NAN, f32::NAN], 12, None, scratch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "logit of token 1 at position 12: got NaN, expected a number or -inf"
    );
}

#[test]
fn where_no_token_is_left_the_error_says_why() {
    let sampler = Sampler::new(Options::default(), 100, 0).unwrap();
    let scratch = &mut Scratch::new(100);
    let nothing = Error::NoToken { position: 3, allowed: 100, vocabulary: 100 };
    let got = sampler.draw(isa(), &mut [f32::NEG_INFINITY; 100], 3, None, scratch);
    assert_eq!(got.unwrap_err(), nothing);
    let mask = Mask::new(100);
    let got = sampler.draw(isa(), &mut [0.0; 100], 4, Some(&mask), scratch).unwrap_err();
    assert_eq!(
        got.to_string(),
        "no token can be drawn at position 4: every logit is -inf; the mask allows 0 of 100 tokens"
    );
    let bias = (0..100).map(|id| (id, f32::NEG_INFINITY)).collect();
    let options = Options { logit_bias: bias, ..Options::default() };
    let sampler = Sampler::new(options, 100, 0).unwrap();
    assert!(sampler.draw(isa(), &mut [0.0; 100], 0, None, scratch).is_err());
}

#[test]
fn only_allowed_tokens_are_drawn() {
    let mut seeded = Seeded::new(6);
    for n in [1, 16, 63, 64, 65, 80, 500] {
        let mut mask = Mask::new(n);
        (0..n as u32).filter(|id| id % 7 == 0).for_each(|id| mask.allow(id));
        for options in [Options::default(), Options { top_k: 3, ..Options::default() }] {
            let sampler = Sampler::new(options, n, 0).unwrap();
            let scratch = &mut Scratch::new(n);
            for isa in Isa::available() {
                let mut logits = seeded.normals(n, 1.0);
                let before = logits.clone();
                let draw = sampler.draw(isa, &mut logits, 0, Some(&mask), scratch).unwrap();
                assert!(mask.is_allowed(draw.token));
                for (id, (after, before)) in logits.iter().zip(&before).enumerate() {
                    let kept = mask.is_allowed(id as u32);
                    assert_eq!(*after, if kept { *before } else { f32::NEG_INFINITY });
                }
            }
        }
    }
}

#[test]
fn penalties_and_biases_that_overflow_leave_numbers_to_draw_from() {
    let largest = f32::MAX;
    let cases = [
        Options { repetition_penalty: 1e-38, ..Options::default() },
        Options { repetition_penalty: largest, ..Options::default() },
        Options { presence_penalty: -largest, ..Options::default() },
        Options { frequency_penalty: largest, ..Options::default() },
        Options { frequency_penalty: -largest, ..Options::default() },
        Options { logit_bias: vec![(1, largest); 2], ..Options::default() },
        Options { logit_bias: vec![(1, -largest); 2], ..Options::default() },
        Options { dry: Dry { multiplier: largest, ..Dry::default() }, ..Options::default() },
    ];
    for (options, temperature) in cases.iter().flat_map(|case| [(case, 0.0), (case, 1.0)]) {
        let mut sampler = Sampler::new(Options { temperature, ..options.clone() }, 4, 0).unwrap();
        [1, 2, 1, 2, 1].into_iter().for_each(|id| sampler.accept(id));
        let mut logits = [f32::NEG_INFINITY, 1e32, -1e32, f32::NEG_INFINITY];
        let scratch = &mut Scratch::new(4);
        let drawn = sampler.draw(isa(), &mut logits, 5, None, scratch).map(|draw| draw.token);
        assert!(matches!(drawn, Ok(1 | 2)), "{drawn:?}, {options:?}");
        assert!(logits[1].is_finite() && logits[2].is_finite(), "{logits:?}, {options:?}");
        assert_eq!([logits[0], logits[3]], [f32::NEG_INFINITY; 2], "{options:?}");
    }
    // What is forbidden stays so, whatever is added to it.
    let logit_bias = vec![(1, f32::NEG_INFINITY), (1, largest)];
    let options = Options { logit_bias, ..Options::default() };
    let sampler = Sampler::new(options, 2, 0).unwrap();
    assert_eq!(token(&sampler, &[0.0, 90.0], 0), 0);
}

#[test]
#[should_panic(expected = "logits: got 4, expected 5")]
fn a_wrong_number_of_logits_is_a_programmers_error() {
    token(&Sampler::new(Options::default(), 5, 0).unwrap(), &[0.0; 4], 0);
}

#[test]
fn options_outside_their_range_are_errors_that_name_the_field() {
    let dry = |dry: Dry| Options { dry, ..Options::default() };
    let wrong = [
        ("temperature", "-1", Options { temperature: -1.0, ..Options::default() }),
        ("temperature", "NaN", Options { temperature: f32::NAN, ..Options::default() }),
        ("top_p", "-0.1", Options { top_p: -0.1, ..Options::default() }),
        ("top_p", "NaN", Options { top_p: f32::NAN, ..Options::default() }),
        ("min_p", "2", Options { min_p: 2.0, ..Options::default() }),
        ("typical_p", "1.1", Options { typical_p: 1.1, ..Options::default() }),
        ("repetition_penalty", "0", Options { repetition_penalty: 0.0, ..Options::default() }),
        (
            "presence_penalty",
            "inf",
            Options { presence_penalty: f32::INFINITY, ..Options::default() },
        ),
        ("frequency_penalty", "NaN", Options { frequency_penalty: f32::NAN, ..Options::default() }),
        ("logit_bias", "100", Options { logit_bias: vec![(100, 0.0)], ..Options::default() }),
        (
            "logit_bias",
            "inf for token 1",
            Options { logit_bias: vec![(1, f32::INFINITY)], ..Options::default() },
        ),
        (
            "logit_bias",
            "NaN for token 1",
            Options { logit_bias: vec![(1, f32::NAN)], ..Options::default() },
        ),
        ("top_logprobs", "101", Options { top_logprobs: 101, ..Options::default() }),
        ("dry.multiplier", "-1", dry(Dry { multiplier: -1.0, ..Dry::default() })),
        ("dry.base", "0.5", dry(Dry { base: 0.5, ..Dry::default() })),
        ("dry.allowed_length", "0", dry(Dry { allowed_length: 0, ..Dry::default() })),
        (
            "dry.sequence_breakers",
            "100",
            dry(Dry { sequence_breakers: vec![3, 100], ..Dry::default() }),
        ),
    ];
    for (name, value, options) in wrong {
        match Sampler::new(options, 100, 0).unwrap_err() {
            Error::Option { field, got, expected } => {
                assert_eq!((field, got.as_str()), (name, value));
                assert!(!expected.is_empty());
            }
            other => panic!("{other}"),
        }
    }
    let error = Sampler::new(Options::default(), 0, 0).unwrap_err();
    assert!(error.to_string().starts_with("sampling option vocabulary: got 0"));
}

#[test]
fn the_order_of_the_filters_is_the_documented_one() {
    assert_eq!(
        ORDER,
        [
            "penalties",
            "dry",
            "logit_bias",
            "mask",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "typical_p"
        ]
    );
}

#[test]
fn very_small_and_very_large_temperatures_stay_numbers() {
    let logits = [1.0, 3.0, 2.0, f32::NEG_INFINITY];
    for temperature in [1e-45, 1e-30, 1e30, f32::MAX] {
        let options = Options { temperature, ..Options::default() };
        let sampler = Sampler::new(options, 4, 0).unwrap();
        let drawn: Vec<u32> = (0..100).map(|p| token(&sampler, &logits, p)).collect();
        if temperature < 1.0 {
            assert!(drawn.iter().all(|&id| id == 1));
        } else {
            assert!((0..3).all(|id| drawn.contains(&id)) && !drawn.contains(&3));
        }
    }
}

#[test]
fn greedy_draws_are_moved_by_every_penalty_the_bias_and_the_mask() {
    let n = 70;
    let mut logits = vec![0.0; n];
    (logits[5], logits[66], logits[3]) = (2.0, 1.5, 1.4);
    let greedy = Options::greedy;
    let dry = |allowed_length| Dry { multiplier: 1.0, allowed_length, ..Dry::default() };
    let mut forbids = Mask::all(n);
    forbids.forbid(5);
    // What was generated, the options and the mask; the token that comes then.
    let cases = [
        (&[5][..], greedy(), None, 5),
        (&[5], Options { repetition_penalty: 1.5, ..greedy() }, None, 66),
        (&[5], Options { presence_penalty: 1.0, ..greedy() }, None, 66),
        (&[5, 5], Options { frequency_penalty: 0.2, ..greedy() }, None, 5),
        (&[5, 5, 5], Options { frequency_penalty: 0.2, ..greedy() }, None, 66),
        (&[1, 5, 1], Options { dry: dry(1), ..greedy() }, None, 66),
        (&[1, 5, 1], Options { dry: dry(2), ..greedy() }, None, 5),
        (&[], Options { logit_bias: vec![(5, -0.55)], ..greedy() }, None, 66),
        (&[], Options { logit_bias: vec![(3, 0.65)], ..greedy() }, None, 3),
        (&[], Options { logit_bias: vec![(5, f32::NEG_INFINITY)], ..greedy() }, None, 66),
        (&[], greedy(), Some(&forbids), 66),
    ];
    for (generated, options, mask, want) in cases {
        for logprobs in [false, true] {
            let options = Options { logprobs, ..options.clone() };
            let mut sampler = Sampler::new(options.clone(), n, 0).unwrap();
            generated.iter().for_each(|&id| sampler.accept(id));
            let (scratch, isa) = (&mut Scratch::new(n), isa());
            let draw = sampler.draw(isa, &mut logits.clone(), 9, mask, scratch).unwrap();
            let (got, logprob) = (draw.token, draw.logprob);
            assert_eq!(got, want, "{generated:?} {options:?}");
            let own = sampler.score(isa, &logits, (9, want), 0, scratch).unwrap().logprob;
            assert_eq!(logprob, own.filter(|_| logprobs), "{generated:?} {options:?}");
        }
    }
}

#[test]
fn a_log_probability_is_the_models_own_where_several_filters_change_the_logit() {
    let logits = Seeded::new(8).normals(20, 1.0);
    for token in 0..20 {
        let options = Options {
            repetition_penalty: 1.7,
            presence_penalty: 0.5,
            logit_bias: vec![(token, 50.0), (token, 50.0)],
            logprobs: true,
            ..Options::greedy()
        };
        let mut sampler = Sampler::new(options, 20, 0).unwrap();
        (0..20).for_each(|id| sampler.accept(id));
        let scratch = &mut Scratch::new(20);
        let draw = sampler.draw(isa(), &mut logits.clone(), 0, None, scratch).unwrap();
        assert_eq!(draw.token, token);
        let logprob = draw.logprob;
        let own = sampler.score(isa(), &logits, (0, token), 0, scratch).unwrap();
        assert_eq!(logprob, own.logprob);
    }
}

#[test]
fn sequence_breakers_may_come_in_any_order() {
    let sequence_breakers: Vec<u32> = (10..90).rev().chain([3, 3]).collect();
    let dry = Dry { multiplier: 1.0, allowed_length: 1, sequence_breakers, ..Dry::default() };
    let mut sampler = Sampler::new(Options { dry, ..Options::greedy() }, 100, 0).unwrap();
    // Each of them comes after another one, as it did before: none is penalised for it.
    [3, 11, 3, 11, 89, 3].into_iter().for_each(|id| sampler.accept(id));
    let mut logits = vec![0.0; 100];
    logits[11] = 0.5;
    assert_eq!(token(&sampler, &logits, 6), 11);
}

#[test]
fn scratch_that_others_drew_with_changes_no_draw() {
    let mut seeded = Seeded::new(10);
    let (n, mut shared) = (500, Scratch::new(500));
    let dry = Dry { multiplier: 0.5, ..Dry::default() };
    let all = [
        Options { typical_p: 0.9, top_logprobs: 9, ..Options::default() },
        Options { top_k: 7, repetition_penalty: 1.3, logprobs: true, ..Options::default() },
        Options { dry, top_logprobs: 2, ..Options::default() },
        Options::greedy(),
    ];
    let mut samplers = all.map(|options| Sampler::new(options, n, 0).unwrap());
    for position in 0..40 {
        for sampler in &mut samplers {
            let logits = seeded.normals(n, 2.0);
            let told = |scratch: &mut Scratch| {
                let drawn = sampler.draw(isa(), &mut logits.clone(), position, None, scratch);
                let draw = drawn.unwrap();
                (draw.token, draw.logprob, draw.top.to_vec())
            };
            let got = told(&mut shared);
            assert_eq!(got, told(&mut Scratch::new(n)), "{:?}", sampler.options());
            sampler.accept(got.0);
        }
    }
}

/// Eight seeds, choices and positions with the token that is drawn, unfiltered and filtered: what a
/// seed gives is a promise, on every instruction set.
#[test]
fn a_seed_gives_these_tokens() {
    let logits = Seeded::new(2026).normals(1000, 1.5);
    let filtered = Options { temperature: 0.7, top_k: 50, top_p: 0.9, ..Options::default() };
    let pinned = [
        (0, 0, 0, 773, 998),
        (1, 0, 0, 898, 47),
        (0, 1, 0, 704, 584),
        (0, 0, 1, 438, 998),
        (42, 0, 4095, 863, 928),
        (7, 127, 131_072, 638, 646),
        (u64::MAX, 3, 12, 4, 248),
        (0x0123_4567_89ab_cdef, 1, 1_000_000, 782, 511),
    ];
    for (seed, choice, position, plain, narrow) in pinned {
        for (options, want) in [(Options::default(), plain), (filtered.clone(), narrow)] {
            let sampler = Sampler::new(Options { seed, ..options }, 1000, choice).unwrap();
            for isa in Isa::available() {
                let scratch = &mut Scratch::new(1000);
                let draw = sampler.draw(isa, &mut logits.clone(), position, None, scratch);
                assert_eq!(draw.unwrap().token, want, "{isa}: {seed} {choice} {position}");
            }
        }
    }
}
