//! Whether guesses at the next layers' experts come true, so that only good ones cost a read.

/// Guesses of a kind are followed while this share of the last ones came true: reads in vain stay
/// below a tenth.
const TRUSTED: f32 = 0.9;
/// So many of them must have been seen.
const ENOUGH: f32 = 16.0;
/// The share is that of about so many of them.
const MEMORY: f32 = 64.0;

/// How guesses of one kind have come out.
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

/// The guesses at the next layers, and the record of each kind: by how many layers they look ahead,
/// and by their rank, which is 0 for a row's most probable expert. Only guesses at experts that are
/// not in slots count, since only they would be read.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    /// By layers ahead, then by rank.
    records: Vec<Vec<Record>>,
    guesses: Vec<Guess>,
}

#[derive(Debug)]
struct Guess {
    layer: usize,
    expert: u32,
    /// Layers ahead, and rank.
    kind: (usize, usize),
}

impl Foresight {
    /// Forgets guesses at a layer that nobody has judged.
    pub(super) fn clear(&mut self, layer: usize, ahead: usize) {
        self.guesses.retain(|guess| guess.layer != layer || guess.kind.0 != ahead);
    }

    /// Notes a guess at a layer's expert, so many layers ahead and of a rank; true where such
    /// guesses mostly come true.
    pub(super) fn guess(
        &mut self,
        (layer, expert): (usize, u32),
        kind @ (ahead, rank): (usize, usize),
    ) -> bool {
        if self.records.len() <= ahead {
            self.records.resize_with(ahead + 1, Vec::new);
        }
        let records = &mut self.records[ahead];
        if records.len() <= rank {
            records.resize(rank + 1, Record::default());
        }
        let same =
            |guess: &Guess| (guess.layer, guess.expert, guess.kind.0) == (layer, expert, ahead);
        if self.guesses.iter().any(same) {
            return false;
        }
        self.guesses.push(Guess { layer, expert, kind });
        records[rank].is_trusted()
    }

    /// Compares the guesses at a layer with the experts that it needs.
    pub(super) fn judge(&mut self, layer: usize, active: &[u32]) {
        let records = &mut self.records;
        self.guesses.retain(|Guess { layer: of, expert, kind: (ahead, rank) }| {
            if *of == layer {
                records[*ahead][*rank].add(active.contains(expert));
            }
            *of != layer
        });
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
            foresight.clear(1, 1);
            followed.push([foresight.guess((1, 7), (1, 0)), foresight.guess((1, 8), (1, 1))]);
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
            foresight.clear(2, 1);
            foresight.guess((2, 7), (1, 0));
            foresight.guess((2, 7), (1, 1));
            foresight.judge(1, &[7]);
            foresight.judge(2, &[7]);
        }
        assert_eq!(foresight.records[1][1].seen, 0.0);
        assert!(foresight.records[1][0].is_trusted());
    }

    #[test]
    fn guesses_from_further_off_have_a_record_of_their_own() {
        let mut foresight = Foresight::default();
        let mut followed = [false; 2];
        for _ in 0..50 {
            foresight.clear(2, 2);
            followed[1] = foresight.guess((2, 8), (2, 0)); // two layers before: wrong
            foresight.clear(2, 1);
            followed[0] = foresight.guess((2, 7), (1, 0)); // one layer before: right
            foresight.judge(2, &[7]);
            assert!(foresight.guesses.is_empty());
        }
        assert_eq!(followed, [true, false]);
    }
}
