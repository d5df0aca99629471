//! The lowest, the middle and the highest of repeated measurements.

use serde_json::{Value, json};

/// `{min, median, max}` of some numbers; null of none.
pub fn spread(values: impl Iterator<Item = f64>) -> Value {
    let values = sorted(values);
    match (values.first(), values.last()) {
        (Some(min), Some(max)) => json!({ "min": min, "median": middle(&values), "max": max }),
        _ => Value::Null,
    }
}

/// The median; none of none.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    (!values.is_empty()).then(|| middle(&values))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle of sorted numbers; the mean of both where there are two.
fn middle(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_two_is_their_mean_and_nothing_has_no_spread() {
        let three = spread([3.0, 1.0, 2.0].into_iter());
        assert_eq!(three, json!({ "min": 1.0, "median": 2.0, "max": 3.0 }));
        assert_eq!(median([1.0, 4.0].into_iter()), Some(2.5));
        assert_eq!((spread(std::iter::empty()), median(std::iter::empty())), (Value::Null, None));
    }
}
