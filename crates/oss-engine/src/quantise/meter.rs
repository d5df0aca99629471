//! How far a model's output is from that of the unchanged model.

use crate::error::Result;
use oss_cache::KvCache;
use oss_model::{Batch, Model, Row, State, forward, head};
use oss_threads::{Chunks, Team};
use std::ops::Range;

/// Tokens of a position that are compared one by one.
const TOP: usize = 64;
/// Positions whose logits are in memory together.
const ROWS: usize = 32;
/// The least probability that is told from none.
const LEAST: f64 = 1e-12;

/// What a model said at a position: its likeliest tokens and their probabilities, the likeliest
/// first.
struct Said(Vec<(u32, f64)>);

/// How far from it another is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// The KL divergence in nats, infinite where a model says no numbers.
    pub(super) loss: f64,
    /// The share of positions whose likeliest token is the same.
    pub(super) same_token: f64,
}

/// Some windows of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// Those by which types are chosen: the first, the third and so on.
    Choosing,
    /// The others.
    Checking,
}

/// Texts, and what a model said to them at first.
pub(super) struct Meter {
    reader: Reader,
    windows: Vec<Window>,
}

/// Some tokens, read as a sequence of its own.
struct Window {
    tokens: Vec<u32>,
    said: Vec<Said>,
    /// The residual stream before the layer where [`Meter::measure`] begins: nothing before the
    /// first.
    residual: Vec<f32>,
}

/// What windows are read with.
struct Reader {
    team: Team,
    state: State,
    cache: KvCache,
    /// The layer before which the windows' residual streams were kept.
    layer: usize,
}

impl Meter {
    /// Listens to a model.
    pub(super) fn new(
        model: &Model,
        team: Team,
        cache_bytes: usize,
        windows: &[&[u32]],
    ) -> Result<Self> {
        let rows = windows.iter().map(|window| window.len()).fold(0, usize::max);
        let state = State::new(model, rows, team.threads())?;
        let cache = KvCache::new(model.cache_shape(), cache_bytes)?;
        let mut reader = Reader { team, state, cache, layer: 0 };
        let window = |tokens: &&[u32]| {
            let (tokens, mut said) = (tokens.to_vec(), Vec::with_capacity(tokens.len()));
            let mut window = Window { tokens, said: Vec::new(), residual: Vec::new() };
            reader.read(model, &window, |_, _, logits| {
                said.extend(logits.chunks_exact(model.config.vocabulary).map(Said::of));
            })?;
            window.said = said;
            Ok(window)
        };
        let windows = windows.iter().map(window).collect::<Result<_>>()?;
        Ok(Self { reader, windows })
    }

    /// Measures from a layer on: all before it are, and stay, as they were at first. Layers go up,
    /// or back to the first.
    pub(super) fn begin_at(&mut self, model: &Model, layer: usize) -> Result<()> {
        let Self { reader, windows } = self;
        for window in windows {
            if layer < reader.layer {
                window.residual.clear();
            } else if layer > reader.layer {
                reader.advance(model, window, layer)?;
            }
        }
        reader.layer = layer;
        Ok(())
    }

    /// Compares a model with the first one, over all positions of some windows.
    pub(super) fn measure(&mut self, model: &Model, which: Windows) -> Result<Difference> {
        let Self { reader, windows } = self;
        let (mut sum, mut positions) = (Difference::default(), 0);
        let mut rows = [Difference::default(); ROWS];
        let skipped = if which == Windows::Choosing { 0 } else { 1 };
        for window in windows.iter().skip(skipped).step_by(2) {
            reader.read(model, window, |team, first, logits| {
                let vocabulary = model.config.vocabulary;
                let n = logits.len() / vocabulary;
                team.phase(n, Chunks::new(&mut rows[..n], 1), |unit, row| {
                    let logits = &logits[unit.index * vocabulary..][..vocabulary];
                    row[0] = window.said[first + unit.index].against(logits);
                });
                for row in &rows[..n] {
                    sum.loss += row.loss;
                    sum.same_token += row.same_token;
                }
            })?;
            positions += window.tokens.len();
        }
        let n = positions as f64;
        Ok(Difference { loss: sum.loss / n, same_token: sum.same_token / n })
    }
}

impl Reader {
    /// Takes a window through the rest of the model and shows the logits, those of some positions
    /// after the other with the first of them.
    fn read(
        &mut self,
        model: &Model,
        window: &Window,
        mut show: impl FnMut(&Team, usize, &[f32]),
    ) -> Result<()> {
        self.run(model, window, self.layer..model.config.layers.len())?;
        let Self { team, state, .. } = self;
        let n = window.tokens.len();
        for first in (0..n).step_by(ROWS) {
            let some = first..n.min(first + ROWS);
            show(team, first, head(model, team, state, some));
        }
        Ok(())
    }

    /// Takes a window to a later layer.
    fn advance(&mut self, model: &Model, window: &mut Window, layer: usize) -> Result<()> {
        self.run(model, window, self.layer..layer)?;
        window.residual = self.state.residual(window.tokens.len()).to_vec();
        Ok(())
    }

    fn run(&mut self, model: &Model, window: &Window, layers: Range<usize>) -> Result<()> {
        let Self { team, state, cache, .. } = self;
        let (n, sequence) = (window.tokens.len(), cache.create());
        let row =
            |(position, &token)| Row { sequence, position, token, wanted: true, draft: false };
        let rows: Vec<Row> = window.tokens.iter().enumerate().map(row).collect();
        if layers.start > 0 {
            cache.reserve(sequence, n)?;
            state.residual(n).copy_from_slice(&window.residual);
        }
        let done = forward(model, team, state, cache, Batch { rows: &rows }, layers);
        cache.remove(sequence);
        Ok(done?)
    }
}

impl Said {
    fn of(logits: &[f32]) -> Self {
        let total = log_sum(logits);
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: u32| logits[token as usize];
        let order = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
        if tokens.len() > TOP {
            tokens.select_nth_unstable_by(TOP - 1, order);
            tokens.truncate(TOP);
        }
        tokens.sort_unstable_by(order);
        let probability = |token| (token, (f64::from(logit(token)) - total).exp());
        Self(tokens.into_iter().map(probability).collect())
    }

    /// How far other logits of the position are from it.
    fn against(&self, logits: &[f32]) -> Difference {
        let total = log_sum(logits);
        let (mut loss, mut said, mut now) = (0.0, 0.0, 0.0);
        for (token, p) in &self.0 {
            let log = f64::from(logits[*token as usize]) - total;
            if *p > 0.0 {
                loss += p * (p.ln() - log);
            }
            said += p;
            now += log.exp();
        }
        let (rest, now) = (1.0 - said, (1.0 - now).max(LEAST));
        if rest > LEAST {
            loss += rest * (rest / now).ln();
        }
        let (first, largest) = (self.0[0].0, logits.iter().copied().fold(f32::MIN, f32::max));
        Difference {
            // A sum of rounded numbers may be a little below the zero that it stands for.
            loss: if loss.is_finite() { loss.max(0.0) } else { f64::INFINITY },
            same_token: f64::from(u8::from(logits[first as usize] >= largest)),
        }
    }
}

/// The logarithm of the sum of exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_testing::Seeded;

    /// The divergence over the whole vocabulary.
    fn divergence(p: &[f32], q: &[f32]) -> f64 {
        let softmax = |logits: &[f32]| -> Vec<f64> {
            let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            logits.iter().map(|x| f64::from(*x).exp() / sum).collect()
        };
        softmax(p).iter().zip(softmax(q)).map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn the_difference_is_the_divergence() {
        let mut seeded = Seeded::new(5);
        for (vocabulary, tolerance) in [(40, 1e-9), (64, 1e-9), (500, 0.2)] {
            let p: Vec<f32> = (0..vocabulary).map(|_| 3.0 * seeded.normal()).collect();
            let q: Vec<f32> = p.iter().map(|x| x + 0.3 * seeded.normal()).collect();
            let (said, expected) = (Said::of(&p), divergence(&p, &q));
            let got = said.against(&q).loss;
            assert!((got - expected).abs() <= tolerance * expected, "{got}, not {expected}");
            // What is not seen one by one can only be missing.
            assert!(got <= expected + 1e-9);
            assert_eq!(said.against(&p).same_token, 1.0);
            assert!(said.against(&p).loss < 1e-9);
        }
    }

    #[test]
    fn another_token_and_no_number_are_seen() {
        let said = Said::of(&[1.0, 3.0, 2.0]);
        assert_eq!(said.against(&[1.0, 2.0, 3.0]).same_token, 0.0);
        assert_eq!(said.against(&[1.0, f32::NAN, 3.0]).loss, f64::INFINITY);
    }
}
