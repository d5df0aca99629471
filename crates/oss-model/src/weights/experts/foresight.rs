//! Whether guesses at the next layer's experts come true, so that only good ones cost a read.

/// Guesses of a rank are followed while this share of the last ones came true: reads in vain stay
/// below a tenth.
const TRUSTED: f32 = 0.9;
/// So many of them must have been seen.
const ENOUGH: f32 = 16.0;
/// The share is that of about so many of them.
const MEMORY: f32 = 64.0;

/// How guesses of one rank have come out.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    share: f32,
    seen: f32,
}

impl Record {
    fn add(&mut self, came_true: bool) {
        self.seen = (self.seen + 1.0).min(MEMORY);
        self.share += (f32::from(came_true) - self.share) / self.seen;
    }

    fn is_trusted(self) -> bool {
        self.seen >= ENOUGH && self.share >= TRUSTED
    }
}

/// The guesses at the next layer, and the record of each rank: a row's most probable expert is of
/// rank 0. Only guesses at experts that are not in slots count, since only they would be read.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    records: Vec<Record>,
    layer: usize,
    /// Rank and expert.
    guesses: Vec<(usize, u32)>,
}

impl Foresight {
    /// Forgets guesses that nobody has judged.
    pub(super) fn clear(&mut self) {
        self.guesses.clear();
    }

    /// Notes a guess; true where such guesses mostly come true.
    pub(super) fn guess(&mut self, layer: usize, rank: usize, expert: u32) -> bool {
        if self.records.len() <= rank {
            self.records.resize(rank + 1, Record::default());
        }
        self.layer = layer;
        if self.guesses.iter().any(|(_, other)| *other == expert) {
            return false;
        }
        self.guesses.push((rank, expert));
        self.records[rank].is_trusted()
    }

    /// Compares the guesses with the experts that the layer needs.
    pub(super) fn judge(&mut self, layer: usize, active: &[u32]) {
        if layer == self.layer {
            for (rank, expert) in self.guesses.drain(..) {
                self.records[rank].add(active.contains(&expert));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_followed_once_enough_of_its_guesses_came_true_and_while_they_do() {
        let mut foresight = Foresight::default();
        let mut followed = Vec::new();
        for step in 0..200u32 {
            foresight.clear();
            followed.push([foresight.guess(1, 0, 7), foresight.guess(1, 1, 8)]);
            // The first guess is right for 100 steps, the second half of the time.
            let active: &[u32] = match (step < 100, step % 2) {
                (true, 0) => &[7, 8],
                (true, _) => &[7],
                _ => &[3],
            };
            foresight.judge(1, active);
        }
        assert!(followed.iter().all(|[_, second]| !second));
        assert!(followed[..16].iter().all(|[first, _]| !first));
        assert!(followed[16..=100].iter().all(|[first, _]| *first));
        assert!(followed[110..].iter().all(|[first, _]| !first));
    }

    #[test]
    fn guesses_at_another_layer_and_second_guesses_at_an_expert_do_not_count() {
        let mut foresight = Foresight::default();
        for _ in 0..50 {
            foresight.clear();
            foresight.guess(2, 0, 7);
            foresight.guess(2, 1, 7);
            foresight.judge(1, &[7]);
            foresight.judge(2, &[7]);
        }
        assert_eq!(foresight.records[1].seen, 0.0);
        assert!(foresight.records[0].is_trusted());
    }
}
