//! The whole pipeline in double precision, by sorting: evidently right, and slow.

use oss_sampler::{Dry, Mask, Options, Sampler};
use oss_simd::Isa;

/// What a draw depends on besides logits and options.
pub(crate) struct Case {
    pub(crate) prompt: Vec<u32>,
    pub(crate) generated: Vec<u32>,
    pub(crate) mask: Option<Mask>,
}

/// The reference's answer.
pub(crate) struct Expected {
    /// Token and probability.
    pub(crate) tokens: Vec<(u32, f64)>,
    /// Whether a decision was closer than single precision can tell.
    pub(crate) close: bool,
}

/// A token with its tempered distance from the best and `exp` of it.
#[derive(Clone, Copy)]
struct Token {
    id: u32,
    logit: f64,
    value: f64,
    weight: f64,
}

/// How near, relatively, single precision comes.
const NEAR: f64 = 1e-5;

/// Compares the sampler on every ISA with the reference; false where a decision is too close.
pub(crate) fn compare(name: &str, logits: &[f32], options: &Options, case: &Case) -> bool {
    let expected = expected(logits, options, case);
    let got = drawn_from(logits, options, case);
    if expected.close {
        return false;
    }
    if let Some(disagreement) = disagreement(&got, &expected) {
        let shown = &logits[..logits.len().min(20)];
        panic!("{name}: {disagreement}\n{options:?}\n{} logits {shown:?}…", logits.len());
    }
    true
}

/// The sampler's distribution, which must be the same bits on every ISA.
pub(crate) fn drawn_from(logits: &[f32], options: &Options, case: &Case) -> Vec<(u32, f32)> {
    let of = |isa: Isa| {
        let mut sampler = Sampler::new(options.clone(), logits.len(), 0).unwrap();
        sampler.prompt(&case.prompt);
        case.generated.iter().for_each(|&id| sampler.accept(id));
        sampler.distribution(isa, &mut logits.to_vec(), 0, case.mask.as_ref()).unwrap()
    };
    let got = of(Isa::scalar());
    for isa in Isa::available() {
        assert_eq!(got, of(isa), "{isa}");
    }
    got
}

/// What is wrong, in words.
pub(crate) fn disagreement(got: &[(u32, f32)], expected: &Expected) -> Option<String> {
    let mut got: Vec<(u32, f64)> = got.iter().map(|&(id, p)| (id, f64::from(p))).collect();
    let mut want = expected.tokens.clone();
    got.sort_by_key(|token| token.0);
    want.sort_by_key(|token| token.0);
    let ids = |tokens: &[(u32, f64)]| tokens.iter().map(|token| token.0).collect::<Vec<_>>();
    if ids(&got) != ids(&want) {
        return Some(format!("tokens: got {:?}, expected {:?}", ids(&got), ids(&want)));
    }
    let wrong = got.iter().zip(&want).find(|(g, w)| (g.1 - w.1).abs() > 1e-7 + NEAR * w.1)?;
    Some(format!("probability of {}: got {}, expected {}", wrong.0.0, wrong.0.1, wrong.1.1))
}

/// The distribution by definition.
pub(crate) fn expected(logits: &[f32], options: &Options, case: &Case) -> Expected {
    let mut x: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    penalise(&mut x, options, case);
    dry(&mut x, &options.dry, &[&case.prompt[..], &case.generated[..]].concat());
    for &(id, bias) in &options.logit_bias {
        x[id as usize] += f64::from(bias);
    }
    let allowed = |id: &usize| case.mask.as_ref().is_none_or(|mask| mask.is_allowed(*id as u32));
    let ids: Vec<usize> = (0..x.len()).filter(|id| x[*id].is_finite() && allowed(id)).collect();
    let max = ids.iter().map(|&id| x[id]).fold(f64::NEG_INFINITY, f64::max);
    let value = |id: usize| (x[id] - max) / f64::from(options.temperature);
    // Adding zero makes the two zeros one.
    let token = |id: usize| Token {
        id: id as u32,
        logit: x[id] + 0.0,
        value: value(id),
        weight: value(id).exp(),
    };
    let mut tokens: Vec<Token> = ids.into_iter().map(token).collect();
    tokens.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
    let mut close = false;
    if options.top_k > 0 && options.top_k < tokens.len() {
        // Penalties are single precision in the sampler; without them the order is exact.
        let penalised = !case.prompt.is_empty() || !case.generated.is_empty();
        let (last, next) = (tokens[options.top_k - 1].logit, tokens[options.top_k].logit);
        close |= penalised && differ_little(last, next);
        tokens.truncate(options.top_k);
    }
    if options.top_p < 1.0 {
        close |= keep_mass(&mut tokens, options.top_p);
    }
    if options.min_p > 0.0 {
        let least = f64::from(options.min_p);
        close |= tokens.iter().any(|t| differ_little(t.weight / least, 1.0));
        tokens.retain(|token| token.weight >= least);
    }
    if options.typical_p < 1.0 {
        let total: f64 = tokens.iter().map(|t| t.weight).sum();
        let surprise = |t: &Token| total.ln() - t.value;
        let entropy: f64 = tokens.iter().map(|t| t.weight / total * surprise(t)).sum();
        let distance = |t: &Token| (surprise(t) - entropy).abs();
        tokens.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id)));
        let before = tokens.clone();
        close |= keep_mass(&mut tokens, options.typical_p);
        // The order around the cut must be certain: equal logits are, near distances are not.
        let cut = tokens.len();
        close |= before[cut.saturating_sub(3)..before.len().min(cut + 2)].windows(2).any(|pair| {
            pair[0].value != pair[1].value
                && (distance(&pair[0]) - distance(&pair[1])).abs() < 2.0 * NEAR
        });
    }
    let total: f64 = tokens.iter().map(|t| t.weight).sum();
    Expected { tokens: tokens.iter().map(|t| (t.id, t.weight / total)).collect(), close }
}

fn differ_little(a: f64, b: f64) -> bool {
    a != b && (a - b).abs() < NEAR * (1.0 + a.abs())
}

/// Keeps the smallest beginning with the mass; whether that was a close decision.
fn keep_mass(tokens: &mut Vec<Token>, p: f32) -> bool {
    let total: f64 = tokens.iter().map(|t| t.weight).sum();
    let target = total * f64::from(p);
    let (mut sum, mut keep, mut close) = (0.0, 0, false);
    while keep < tokens.len() && (keep == 0 || sum < target) {
        sum += tokens[keep].weight;
        keep += 1;
        close |= sum != target && (sum - target).abs() < NEAR * total;
    }
    tokens.truncate(keep);
    close
}

fn penalise(x: &mut [f64], options: &Options, case: &Case) {
    let all = [&case.prompt[..], &case.generated[..]].concat();
    let window = if options.repeat_last_n == 0 { all.len() } else { options.repeat_last_n };
    let start = all.len().saturating_sub(window);
    for (id, x) in x.iter_mut().enumerate() {
        let count = |from: usize| {
            all.iter().skip(from).filter(|&&token| token as usize == id).count() as f64
        };
        let generated = count(start.max(case.prompt.len()));
        if count(start) > 0.0 {
            let penalty = f64::from(options.repetition_penalty);
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        if generated > 0.0 {
            *x -= f64::from(options.presence_penalty);
        }
        *x -= f64::from(options.frequency_penalty) * generated;
    }
}

/// For each earlier place, how far the text before it equals the text's end.
fn dry(x: &mut [f64], dry: &Dry, all: &[u32]) {
    let window = if dry.window == 0 { all.len() } else { dry.window };
    let text = &all[all.len().saturating_sub(window)..];
    let mut longest = vec![0; x.len()];
    for place in 1..text.len() {
        let next = text[place];
        let pairs = text[..place].iter().rev().zip(text.iter().rev());
        let length =
            pairs.take_while(|(a, b)| a == b && !dry.sequence_breakers.contains(a)).count();
        if !dry.sequence_breakers.contains(&next) {
            longest[next as usize] = longest[next as usize].max(length);
        }
    }
    for (x, length) in x.iter_mut().zip(longest) {
        if dry.multiplier > 0.0 && length >= dry.allowed_length {
            let beyond = (length - dry.allowed_length) as f64;
            *x -= f64::from(dry.multiplier) * f64::from(dry.base).powf(beyond);
        }
    }
}
