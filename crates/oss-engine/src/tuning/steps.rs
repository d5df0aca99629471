//! Measures how the products of a step are best cut, and their weights prefetched, on the loaded
//! model itself.

use std::time::{Duration, Instant};

use oss_cache::KvCache;
use oss_model::{Batch, Model, Row, State, Tiling, forward};
use oss_simd::PrefetchPolicy;
use oss_threads::Team;
use serde::{Deserialize, Serialize};

use crate::budget::{self, Spare};
use crate::error::Result;

/// Layers of a measured step: the others are like these.
const LAYERS: usize = 4;
/// How often each way is run, one after another: so often at least, and then until the time is
/// over, at most.
const ROUNDS: (usize, usize) = (5, 25);
/// What the rounds of a step may take.
const LIMIT: Duration = Duration::from_secs(1);
/// The most rows of a measured prompt, and the least where there is no room for more.
pub(super) const MOST_ROWS: usize = 256;
const LEAST_ROWS: usize = 16;

const USUAL: Tiling = Tiling::DEFAULT;
/// Tried with a piece of a prompt.
pub(super) const FOR_PROMPTS: [Tiling; 4] = [
    USUAL,
    Tiling { input_rows: 64, ..USUAL },
    Tiling { input_rows: 256, ..USUAL },
    Tiling { matrix_rows: 128, ..USUAL },
];
/// Tried with a token of an answer.
pub(super) const FOR_ANSWERS: [Tiling; 3] =
    [USUAL, Tiling { wide_rows: 128, ..USUAL }, Tiling { wide_rows: 512, ..USUAL }];

/// What a step takes whose products are cut in some way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TiledStep {
    /// The way.
    #[serde(with = "TilingFields")]
    pub tiling: Tiling,
    /// Seconds of the model's first layers: the median of all runs.
    pub seconds: f64,
}

/// What steps take by how their products are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepProfile {
    /// Threads.
    pub threads: usize,
    /// Rows of the piece of a prompt.
    pub rows: usize,
    /// The piece of a prompt, with each tiling that was tried.
    pub prompts: Vec<TiledStep>,
    /// A token of an answer, with each tiling that was tried.
    pub answers: Vec<TiledStep>,
    /// The same by how weights are prefetched: seconds by the names of [`PrefetchPolicy::ALL`].
    pub prefetches: Vec<(String, f64)>,
}

/// The fields of a [`Tiling`] as a profile has them.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Tiling")]
struct TilingFields {
    input_rows: usize,
    matrix_rows: usize,
    wide_rows: usize,
}

impl StepProfile {
    /// Whether it has what [`measure`] gives.
    pub(super) fn is_sound(&self) -> bool {
        let sound = |seconds: f64| seconds.is_finite() && seconds > 0.0;
        let are = |steps: &[TiledStep], tilings: &[Tiling]| {
            steps.iter().map(|step| &step.tiling).eq(tilings)
                && steps.iter().all(|step| sound(step.seconds))
        };
        let names = PrefetchPolicy::ALL.map(|(name, _)| name);
        are(&self.prompts, &FOR_PROMPTS)
            && are(&self.answers, &FOR_ANSWERS)
            && self.prefetches.iter().map(|(name, _)| name).eq(names)
            && self.prefetches.iter().all(|(_, seconds)| sound(*seconds))
    }
}

/// Bytes of scratch and pages for steps of so many rows, however they are cut.
///
/// # Errors
/// When the system refuses them.
pub(super) fn bytes(model: &Model, threads: usize, rows: usize) -> Result<usize> {
    let mut state = State::new(model, rows, threads)?;
    for tiling in FOR_PROMPTS.iter().chain(&FOR_ANSWERS) {
        state.set_tiling(*tiling)?;
    }
    Ok(state.bytes() + budget::context_bytes(model, rows, rows))
}

/// As many rows as are wanted, or half as many, and so on, so that they take what there is to
/// spare; the least where even these take more.
fn rows_within(wanted: usize, holds: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let fewer = |rows: &usize| (*rows > LEAST_ROWS).then_some((*rows / 2).max(LEAST_ROWS));
    for rows in std::iter::successors(Some(wanted), fewer) {
        if holds(rows)? {
            return Ok(rows);
        }
    }
    Ok(wanted.min(LEAST_ROWS))
}

/// Measures steps of `rows` rows of a prompt, or of fewer where there is less to spare, and of one
/// of an answer, on a cache of their own.
///
/// # Errors
/// When the weights are damaged, there is too little to spare, or the system refuses memory.
pub(super) fn measure(
    model: &Model,
    team: &Team,
    rows: usize,
    spare: &Spare<'_>,
) -> Result<StepProfile> {
    let _in_use = model.weights.begin_use()?;
    let bytes = |rows| bytes(model, team.threads(), rows);
    let rows = rows_within(rows.min(MOST_ROWS), |rows| Ok(spare.holds(bytes(rows)?)))?;
    let _taken = spare.take("scratch and pages to measure steps with", bytes(rows)?)?;
    let cache = KvCache::new(model.cache_shape(), budget::context_bytes(model, rows, rows))?;
    let mut steps = Steps { model, team, state: State::new(model, rows, team.threads())?, cache };
    let prompts = steps.tiled(&FOR_PROMPTS, rows)?;
    let answers = steps.tiled(&FOR_ANSWERS, 1)?;
    steps.state.set_tiling(USUAL)?;
    let set = |state: &mut State, (_, policy): (&str, PrefetchPolicy)| {
        state.set_prefetch(policy);
        Ok(())
    };
    let prefetches = steps.compare(&PrefetchPolicy::ALL, set, 1)?;
    let prefetches = prefetches.into_iter().map(|((name, _), seconds)| (name.to_owned(), seconds));
    let (threads, prefetches) = (team.threads(), prefetches.collect());
    Ok(StepProfile { threads, rows, prompts, answers, prefetches })
}

struct Steps<'a> {
    model: &'a Model,
    team: &'a Team,
    state: State,
    cache: KvCache,
}

impl Steps<'_> {
    /// Runs steps of so many rows with each tiling in turn.
    fn tiled(&mut self, tilings: &[Tiling], rows: usize) -> Result<Vec<TiledStep>> {
        let steps = self.compare(tilings, |state, tiling| Ok(state.set_tiling(tiling)?), rows)?;
        Ok(steps.into_iter().map(|(tiling, seconds)| TiledStep { tiling, seconds }).collect())
    }

    /// Runs steps of so many rows in each way in turn: the median of its seconds.
    fn compare<W: Copy>(
        &mut self,
        ways: &[W],
        set: impl Fn(&mut State, W) -> Result<()>,
        rows: usize,
    ) -> Result<Vec<(W, f64)>> {
        let mut seconds = vec![Vec::with_capacity(ROUNDS.1); ways.len()];
        let begin = Instant::now();
        for round in 0..ROUNDS.1 {
            if round >= ROUNDS.0 && begin.elapsed() >= LIMIT {
                break;
            }
            for (way, seconds) in ways.iter().zip(&mut seconds) {
                set(&mut self.state, *way)?;
                seconds.push(self.time(rows)?);
            }
        }
        let measured = ways.iter().zip(&mut seconds);
        let measured = measured.map(|(way, seconds)| {
            seconds.sort_by(f64::total_cmp);
            (*way, seconds[seconds.len() / 2])
        });
        Ok(measured.collect())
    }

    /// Seconds of a step of tokens from all over the vocabulary, so that many experts have some.
    fn time(&mut self, rows: usize) -> Result<f64> {
        let Self { model, team, state, cache } = self;
        let vocabulary = model.config.vocabulary;
        let sequence = cache.create();
        let row = |position: usize| {
            let token = (position * 7919 % vocabulary) as u32;
            Row { sequence, position, token, wanted: true, draft: false }
        };
        let rows: Vec<Row> = (0..rows).map(row).collect();
        let layers = 0..LAYERS.min(model.config.layers.len());
        let begin = Instant::now();
        forward(model, team, state, cache, Batch { rows: &rows }, layers)?;
        let seconds = begin.elapsed().as_secs_f64();
        cache.remove(sequence);
        Ok(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> StepProfile {
        let step = |tiling: &Tiling| TiledStep { tiling: *tiling, seconds: 0.25 };
        let (prompts, answers) = (FOR_PROMPTS.iter().map(step), FOR_ANSWERS.iter().map(step));
        let prefetches = PrefetchPolicy::ALL.map(|(name, _)| (name.to_owned(), 0.5));
        StepProfile {
            threads: 2,
            rows: 128,
            prompts: prompts.collect(),
            answers: answers.collect(),
            prefetches: prefetches.to_vec(),
        }
    }

    #[test]
    fn rows_are_halved_until_they_fit_down_to_a_page() {
        let within = |wanted, most| rows_within(wanted, |rows| Ok(rows <= most)).unwrap();
        assert_eq!(
            [300, 256, 255, 100, 20, 16].map(|most| within(256, most)),
            [256, 256, 128, 64, 16, 16]
        );
        assert_eq!([within(256, 3), within(24, 20), within(10, 3)], [16, 16, 10]);
    }

    #[test]
    fn all_that_is_tried_is_possible_and_the_usual_comes_first() {
        for tilings in [&FOR_PROMPTS[..], &FOR_ANSWERS] {
            assert!(tilings.iter().all(Tiling::is_possible));
            assert_eq!(tilings[0], Tiling::default());
        }
    }

    #[test]
    fn what_was_not_measured_so_is_not_sound() {
        assert!(profile().is_sound());
        let broken: [fn(&mut StepProfile); 7] = [
            |profile| profile.prompts[1].tiling.matrix_rows = 64 << 40,
            |profile| profile.prompts.truncate(3),
            |profile| profile.answers.swap(0, 1),
            |profile| profile.answers[0].seconds = 0.0,
            |profile| profile.prompts[2].seconds = f64::INFINITY,
            |profile| profile.prefetches[0].0 = "three streams".to_owned(),
            |profile| profile.prefetches[1].1 = -0.5,
        ];
        for (index, breaks) in broken.iter().enumerate() {
            let mut profile = profile();
            breaks(&mut profile);
            assert!(!profile.is_sound(), "{index}: {profile:?}");
        }
    }
}
