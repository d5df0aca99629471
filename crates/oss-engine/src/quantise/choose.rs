//! Which type for which place: the most bytes for a budget of loss.

use oss_quant::Dtype;

/// A place in another type than its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) dtype: Dtype,
    /// Bytes that a token reads.
    pub(super) bytes: usize,
    /// What it costs alone.
    pub(super) loss: f64,
}

/// What is less than this counts as this: nothing is for free.
const LEAST_LOSS: f64 = 1e-9;

/// One candidate for each place (its bytes as it is, and its candidates) or none, so that their
/// losses add up to at most `budget`: step by step, that which saves most bytes for what it costs.
pub(super) fn choose(places: &[(usize, &[Candidate])], budget: f64) -> Vec<Option<Candidate>> {
    let mut chosen: Vec<Option<Candidate>> = vec![None; places.len()];
    let mut spent = 0.0;
    loop {
        let mut best: Option<(f64, usize, Candidate)> = None;
        for (place, (bytes, candidates)) in places.iter().enumerate() {
            let (bytes, loss) = chosen[place].map_or((*bytes, 0.0), |c| (c.bytes, c.loss));
            for candidate in *candidates {
                let costs = candidate.loss - loss;
                if candidate.bytes >= bytes || spent + costs > budget {
                    continue;
                }
                let worth = (bytes - candidate.bytes) as f64 / costs.max(LEAST_LOSS);
                if best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, place, *candidate));
                }
            }
        }
        let Some((_, place, candidate)) = best else { return chosen };
        spent += candidate.loss - chosen[place].map_or(0.0, |before| before.loss);
        chosen[place] = Some(candidate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn candidate(bytes: usize, loss: f64) -> Candidate {
        Candidate { dtype: Dtype::F16, bytes, loss }
    }

    fn losses(chosen: &[Option<Candidate>]) -> f64 {
        chosen.iter().flatten().map(|candidate| candidate.loss).sum()
    }

    #[test]
    fn what_saves_most_for_its_loss_comes_first() {
        let (cheap, dear) = ([candidate(50, 0.1), candidate(30, 0.4)], [candidate(50, 0.3)]);
        let places = [(100, &cheap[..]), (100, &dear[..])];
        assert_eq!(choose(&places, 0.05), [None, None]);
        assert_eq!(choose(&places, 0.1), [Some(cheap[0]), None]);
        assert_eq!(choose(&places, 0.4), [Some(cheap[0]), Some(dear[0])]);
        assert_eq!(choose(&places, 0.75), [Some(cheap[1]), Some(dear[0])]);
    }

    #[test]
    fn the_budget_is_kept_and_what_is_free_is_taken() {
        let free = [candidate(90, 0.0), candidate(10, f64::INFINITY)];
        assert_eq!(choose(&[(100, &free[..])], 0.0), [Some(free[0])]);
        let many: Vec<Vec<Candidate>> = (1..20)
            .map(|i| (1..6).map(|j| candidate(100 - 15 * j, 0.001 * (i * j) as f64)).collect())
            .collect();
        let places: Vec<(usize, &[Candidate])> = many.iter().map(|c| (100, &c[..])).collect();
        let mut last = f64::INFINITY;
        for budget in [0.5, 0.2, 0.1, 0.03, 0.0] {
            let spent = losses(&choose(&places, budget));
            assert!(spent <= budget && spent <= last, "{spent} of {budget}");
            last = spent;
        }
    }
}
