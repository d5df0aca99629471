//! Plain double-precision mathematics that the fast kernels are held to.
//!
//! Written for being evidently right; never for speed.

/// The same values as f64.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// `Σ aᵢ bᵢ`, summed in index order.
///
/// # Panics
/// If the lengths differ.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths of a dot product: got {}, expected {}", a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// `ln Σ exp xᵢ`, without overflow; −∞ for an empty slice and for −∞ everywhere.
pub fn log_sum_exp(values: &[f64]) -> f64 {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max.is_infinite() {
        return max;
    }
    max + values.iter().map(|value| (value - max).exp()).sum::<f64>().ln()
}

/// `xᵢ − ln Σ exp xⱼ`; NaN everywhere when no value is finite.
pub fn log_softmax(values: &[f64]) -> Vec<f64> {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = values.iter().map(|value| (value - max).exp()).sum::<f64>().ln();
    values.iter().map(|value| value - max - total).collect()
}

/// `exp xᵢ / Σ exp xⱼ`.
pub fn softmax(values: &[f64]) -> Vec<f64> {
    log_softmax(values).into_iter().map(f64::exp).collect()
}

/// `xᵢ wᵢ / √(mean(x²) + epsilon)`.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(values: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    assert_eq!(
        values.len(),
        weight.len(),
        "norm weights: got {}, expected {}",
        weight.len(),
        values.len()
    );
    let mean = dot(values, values) / values.len().max(1) as f64;
    let scale = 1.0 / (mean + epsilon).sqrt();
    values.iter().zip(weight).map(|(value, weight)| value * scale * weight).collect()
}

/// `x / (1 + exp(−alpha x))`; SiLU for alpha 1.
pub fn swish(value: f64, alpha: f64) -> f64 {
    value / (1.0 + (-alpha * value).exp())
}

/// The indices of the `k` largest values, largest first, ties by lowest index.
pub fn top_k(values: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(k);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_survives_large_and_excluded_values() {
        let got = softmax(&[1000.0, 1000.0, f64::NEG_INFINITY]);
        assert!((got[0] - 0.5).abs() < 1e-15 && got[0] == got[1] && got[2] == 0.0, "{got:?}");
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f64::NEG_INFINITY; 3]), f64::NEG_INFINITY);
    }

    #[test]
    fn a_normalised_vector_has_unit_mean_square() {
        let got = rms_norm(&[3.0, -4.0], &[1.0, 1.0], 0.0);
        assert!((dot(&got, &got) / 2.0 - 1.0).abs() < 1e-15);
        assert_eq!(rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-5), [0.0, 0.0]);
    }

    #[test]
    fn swish_is_half_the_value_at_zero_slope_and_the_value_far_out() {
        assert_eq!(swish(0.0, 1.702), 0.0);
        assert!((swish(50.0, 1.0) - 50.0).abs() < 1e-12);
        assert!(swish(-50.0, 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_largest_come_first_and_ties_take_the_lowest_index() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0], 3), [1, 2, 3]);
        assert_eq!(top_k(&[1.0], 5), [0]);
    }
}
