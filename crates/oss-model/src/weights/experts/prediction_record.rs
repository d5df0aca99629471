//! Whether predictions of the next layers' experts come true, so that only good ones cost a read.

/// Predictions of a kind are followed while this share of the last ones came true: of no kind are
/// more than about a fifth read in vain.
const TRUSTED: f32 = 0.8;
/// So many of them must have been seen.
const ENOUGH: f32 = 16.0;
/// The share is that of about so many of them.
const MEMORY: f32 = 64.0;

/// Kinds of margins: below 1/8, and then one for each doubling, the last from 8 on.
const MARGINS: usize = 8;

/// The kind of a margin; one that is no number is of the least.
fn kind_of(margin: f32) -> usize {
    // A number below 0 becomes 0, and so does none.
    ((margin.log2() + 4.0) as usize).min(MARGINS - 1)
}

/// How predictions of one kind have come out.
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

/// The predictions of the next layers, and the record of each kind: by how many layers they look
/// ahead, and by their margin, which is how much larger its logit is than that of the best expert
/// that the row is not thought to go to. Only predictions of experts that are not in slots count,
/// since only they would be read.
#[derive(Debug, Default)]
pub(super) struct PredictionRecord {
    /// By layers ahead, then by margin.
    records: Vec<[Record; MARGINS]>,
    predictions: Vec<Prediction>,
}

#[derive(Debug)]
struct Prediction {
    layer: usize,
    expert: u32,
    /// Layers ahead, and the kind of margin.
    kind: (usize, usize),
}

impl PredictionRecord {
    /// Forgets predictions of a layer that nobody has judged.
    pub(super) fn clear(&mut self, layer: usize, ahead: usize) {
        self.predictions
            .retain(|prediction| prediction.layer != layer || prediction.kind.0 != ahead);
    }

    /// Notes a prediction of a layer's expert, so many layers ahead and of a margin; true where
    /// such predictions mostly come true.
    pub(super) fn note(
        &mut self,
        (layer, expert): (usize, u32),
        (ahead, margin): (usize, f32),
    ) -> bool {
        if self.records.len() <= ahead {
            self.records.resize(ahead + 1, [Record::default(); MARGINS]);
        }
        let kind = (ahead, kind_of(margin));
        let same = |prediction: &Prediction| {
            (prediction.layer, prediction.expert, prediction.kind.0) == (layer, expert, ahead)
        };
        if self.predictions.iter().any(same) {
            return false;
        }
        self.predictions.push(Prediction { layer, expert, kind });
        self.records[ahead][kind.1].is_trusted()
    }

    /// Compares the predictions of a layer with the experts that it needs.
    pub(super) fn judge(&mut self, layer: usize, active: &[u32]) {
        let records = &mut self.records;
        self.predictions.retain(|Prediction { layer: of, expert, kind: (ahead, margin) }| {
            if *of == layer {
                records[*ahead][*margin].add(active.contains(expert));
            }
            *of != layer
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    #[test]
    fn a_margin_is_followed_once_enough_of_its_predictions_came_true_and_while_they_do() {
        let mut record = PredictionRecord::default();
        let mut followed = Vec::new();
        for step in 0..300u32 {
            record.clear(1, 1);
            let (wide, narrow) = ((1, 3.0), (1, 0.3));
            followed.push([record.note((1, 7), wide), record.note((1, 8), narrow)]);
            // The wide margin is right but for 100 steps, the narrow one half of the time.
            let wide_is_right = !(100..200).contains(&step);
            let right = [(7, wide_is_right), (8, step % 2 == 0)];
            let active: Vec<u32> = right.iter().filter(|(_, is)| *is).map(|(e, _)| *e).collect();
            record.judge(1, &active);
        }
        assert!(followed.iter().all(|[_, narrow]| !narrow));
        let all =
            |steps: Range<usize>, are: bool| followed[steps].iter().all(|[wide, _]| *wide == are);
        assert!(all(0..16, false) && all(16..101, true), "trust comes");
        assert!(all(116..201, false), "and goes");
        assert!(all(290..300, true), "and comes again");
    }

    #[test]
    fn margins_are_told_apart_by_their_doublings() {
        let kinds = [f32::NAN, -1.0, 0.0, 0.12, 0.13, 0.3, 0.9, 1.0, 3.9, 4.0, 9.0, f32::INFINITY];
        assert_eq!(kinds.map(kind_of), [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7]);
    }

    #[test]
    fn predictions_of_another_layer_and_second_ones_of_an_expert_do_not_count() {
        let mut record = PredictionRecord::default();
        for _ in 0..50 {
            record.clear(2, 1);
            record.note((2, 7), (1, 1.0));
            record.note((2, 7), (1, 2.0));
            record.judge(1, &[7]);
            record.judge(2, &[7]);
        }
        assert_eq!(record.records[1][kind_of(2.0)].seen, 0.0);
        assert!(record.records[1][kind_of(1.0)].is_trusted());
    }

    #[test]
    fn predictions_from_further_off_have_a_record_of_their_own() {
        let mut record = PredictionRecord::default();
        let mut followed = [false; 2];
        for _ in 0..50 {
            record.clear(2, 2);
            followed[1] = record.note((2, 8), (2, 1.0)); // two layers before: wrong
            record.clear(2, 1);
            followed[0] = record.note((2, 7), (1, 1.0)); // one layer before: right
            record.judge(2, &[7]);
            assert!(record.predictions.is_empty());
        }
        assert_eq!(followed, [true, false]);
    }
}
