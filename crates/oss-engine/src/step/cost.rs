//! What a step of answers costs, by its rows.

/// The weight that what was known keeps at each step: some forty steps are remembered.
const KEEP: f64 = 0.975;
/// The share of a step of one row that each row costs, until steps of different sizes were seen:
/// measured on gpt-oss, where two rows take 1.4 times as long as one and four 2.2 times.
const EXPECTED: f64 = 0.4;
/// How many steps' worth of variance the expectation weighs.
const FAITH: f64 = 0.05;
/// A row never counts as cheaper than this share of what is expected of it.
const CHEAPEST: f64 = 0.1;

/// A line through the observed steps, seconds over rows: the newer the heavier, and as expected
/// where all steps had the same size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCost {
    weight: f64,
    rows: f64,
    seconds: f64,
    rows_squared: f64,
    rows_by_seconds: f64,
}

impl StepCost {
    /// A step of so many rows took so long.
    pub(crate) fn observe(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let add = |sum: &mut f64, value: f64| *sum = *sum * KEEP + value;
        add(&mut self.weight, 1.0);
        add(&mut self.rows, rows);
        add(&mut self.seconds, seconds);
        add(&mut self.rows_squared, rows * rows);
        add(&mut self.rows_by_seconds, rows * seconds);
    }

    /// Whether there was any step.
    pub(crate) fn is_known(&self) -> bool {
        self.weight > 0.0
    }

    /// Seconds of a step of so many rows; of a step of one row, where none has been seen.
    pub(crate) fn seconds(&self, rows: usize) -> f64 {
        let (base, row) = self.line();
        base + row * rows as f64
    }

    /// Seconds of one more row.
    pub(crate) fn row(&self) -> f64 {
        self.line().1
    }

    /// Base and slope. A ridge regression: the expected slope counts as evidence too.
    fn line(&self) -> (f64, f64) {
        if !self.is_known() {
            return (1.0 - EXPECTED, EXPECTED);
        }
        let (rows, seconds) = (self.rows / self.weight, self.seconds / self.weight);
        let expected = seconds * EXPECTED / (1.0 - EXPECTED + EXPECTED * rows);
        let variance = self.rows_squared / self.weight - rows * rows;
        let covariance = self.rows_by_seconds / self.weight - rows * seconds;
        let slope = (covariance + FAITH * expected) / (variance.max(0.0) + FAITH);
        // No step costs less than nothing without rows.
        let slope = slope.clamp(expected * CHEAPEST, seconds / rows);
        (seconds - slope * rows, slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_and_between_steps_the_expected_share_holds() {
        let mut cost = StepCost::default();
        assert!(!cost.is_known());
        assert!((cost.seconds(2) / cost.seconds(1) - 1.4).abs() < 1e-9);
        assert!((cost.seconds(4) / cost.seconds(1) - 2.2).abs() < 1e-9);
        (0..20).for_each(|_| cost.observe(4, 0.22));
        assert!((cost.seconds(1) - 0.1).abs() < 1e-6, "{}", cost.seconds(1));
        assert!((cost.row() - 0.04).abs() < 1e-6);
    }

    #[test]
    fn steps_of_different_sizes_tell_what_a_row_costs() {
        for row in [0.002, 0.02, 0.09] {
            let mut cost = StepCost::default();
            (0..60).for_each(|i| cost.observe(1 + i % 4, 0.1 + row * (i % 4) as f64));
            assert!((cost.row() - row).abs() < 0.005, "{} for {row}", cost.row());
            assert!((cost.seconds(1) - 0.1).abs() < 0.01);
        }
    }

    #[test]
    fn what_is_remembered_fades() {
        let mut cost = StepCost::default();
        (0..200).for_each(|_| cost.observe(1, 1.0));
        (0..200).for_each(|_| cost.observe(1, 0.1));
        assert!((cost.seconds(1) - 0.1).abs() < 0.01, "{}", cost.seconds(1));
    }
}
