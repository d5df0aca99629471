//! The lowest, the middle and the highest of repeated measurements.

use oss_testing::median;
use serde_json::{Value, json};

/// `{min, median, max}` of some numbers; null of none.
pub fn spread(values: impl Iterator<Item = f64>) -> Value {
    let values: Vec<f64> = values.collect();
    match median(values.iter().copied()) {
        Some(median) => json!({
            "min": values.iter().copied().fold(median, f64::min),
            "median": median,
            "max": values.iter().copied().fold(median, f64::max),
        }),
        None => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_lowest_middle_highest_and_nothing_has_none() {
        let three = spread([3.0, 1.0, 2.0].into_iter());
        assert_eq!(three, json!({ "min": 1.0, "median": 2.0, "max": 3.0 }));
        assert_eq!(spread(std::iter::empty()), Value::Null);
    }
}
