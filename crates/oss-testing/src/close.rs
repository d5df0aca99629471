//! How far two arrays are apart.

use crate::twins;

/// A float that can be compared in double precision.
pub trait Number: Copy + std::fmt::Debug {
    /// The same value as f64, exactly.
    fn wide(self) -> f64;
}

impl Number for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Number for f64 {
    fn wide(self) -> f64 {
        self
    }
}

/// Panics unless every `|got - want| <= abs + rel * |want|`.
///
/// Equal infinities are close and NaN is close to NaN: a kernel must give them where its twin does.
///
/// # Panics
/// With the worst element's index, both values, the error and the allowance; also when the lengths
/// differ.
#[track_caller]
pub fn assert_close<A: Number, B: Number>(got: &[A], want: &[B], abs: f64, rel: f64) {
    same_len(got, want);
    let mut wrong = 0;
    let mut worst: Option<(usize, f64)> = None;
    for (index, (g, w)) in got.iter().zip(want).enumerate() {
        let error = difference(g.wide(), w.wide());
        let allowed = abs + rel * w.wide().abs();
        let ratio = match (error, error / allowed) {
            (0.0, _) => 0.0,
            (_, ratio) if ratio.is_nan() => f64::INFINITY,
            (_, ratio) => ratio,
        };
        if ratio <= 1.0 {
            continue;
        }
        wrong += 1;
        if worst.is_none_or(|(_, most)| ratio > most) {
            worst = Some((index, ratio));
        }
    }
    let Some((index, ratio)) = worst else { return };
    let (g, w) = (got[index], want[index]);
    panic!(
        "{wrong} of {} elements differ; the worst, [{index}]: got {g:?}, expected {w:?}, \
         {ratio:.3} times the allowance (abs {abs:e} + rel {rel:e})",
        got.len(),
    );
}

/// `‖got − want‖ / ‖want‖`; 0 when both are zero, infinite when only `want` is.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn relative_rms<A: Number, B: Number>(got: &[A], want: &[B]) -> f64 {
    same_len(got, want);
    let error: f64 =
        got.iter().zip(want).map(|(g, w)| difference(g.wide(), w.wide()).powi(2)).sum();
    let norm: f64 = want.iter().map(|w| w.wide().powi(2)).sum();
    if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
}

/// `KL(softmax(want) ‖ softmax(got))` in nats: what is lost by using `got` for `want`.
///
/// A logit of −∞ is probability zero; infinite where `got` excludes what `want` allows.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn kl_divergence<A: Number, B: Number>(got: &[A], want: &[B]) -> f64 {
    same_len(got, want);
    let got: Vec<f64> = got.iter().map(|g| g.wide()).collect();
    let want: Vec<f64> = want.iter().map(|w| w.wide()).collect();
    let (got, want) = (twins::log_softmax(&got), twins::log_softmax(&want));
    let term = |g: f64, w: f64| if w == f64::NEG_INFINITY { 0.0 } else { w.exp() * (w - g) };
    got.iter().zip(&want).map(|(&g, &w)| term(g, w)).sum()
}

fn difference(got: f64, want: f64) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    let difference = (got - want).abs();
    if difference.is_nan() { f64::INFINITY } else { difference }
}

#[track_caller]
fn same_len<A, B>(got: &[A], want: &[B]) {
    assert_eq!(got.len(), want.len(), "lengths differ: got {}, expected {}", got.len(), want.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_infinities_and_nans_are_close() {
        let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
        assert_close(&special, &special, 0.0, 0.0);
    }

    #[test]
    #[should_panic(expected = "1 of 2 elements differ; the worst, [1]: got NaN, expected 2.0")]
    fn a_nan_is_never_close_to_a_number() {
        assert_close(&[1.0f32, f32::NAN], &[1.0, 2.0], 1e9, 1e9);
    }

    #[test]
    #[should_panic(expected = "2 of 3 elements differ; the worst, [2]: got 3.5, expected 3.0")]
    fn the_worst_element_is_named() {
        assert_close(&[1.0f32, 2.1, 3.5], &[1.0f64, 2.0, 3.0], 0.05, 0.0);
    }

    #[test]
    #[should_panic(expected = "lengths differ: got 1, expected 2")]
    fn different_lengths_are_refused() {
        assert_close(&[1.0f32], &[1.0f32, 2.0], 1.0, 1.0);
    }

    #[test]
    fn the_relative_error_agrees_with_hand_made_cases() {
        assert_eq!(relative_rms(&[3.0f32, 5.0], &[3.0f32, 4.0]), 0.2);
        assert_eq!(relative_rms(&[0.0f32], &[0.0f32]), 0.0);
        assert_eq!(relative_rms(&[1.0f32], &[0.0f32]), f64::INFINITY);
    }

    #[test]
    fn divergence_is_zero_of_itself_and_known_for_two_coins() {
        assert_eq!(kl_divergence(&[1.0f32, -3.0, 0.5], &[1.0f32, -3.0, 0.5]), 0.0);
        let (fair, bent) = ([0.5f64.ln(), 0.5f64.ln()], [0.75f64.ln(), 0.25f64.ln()]);
        let known = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((kl_divergence(&bent, &fair) - known).abs() < 1e-15);
        assert_eq!(kl_divergence(&[0.0, f64::NEG_INFINITY], &fair), f64::INFINITY);
        assert!(kl_divergence(&fair, &[0.0, f64::NEG_INFINITY]) > 0.69);
    }
}
