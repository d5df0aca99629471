//! Scales with a small squared error: shared by the quantisers.

/// The scale for codes in `-limit..limit` that loses least: a few are tried around the one that
/// gives the value of largest magnitude the code `-limit`, each improved by least squares.
pub(crate) fn symmetric(values: &[f32], limit: i32) -> f32 {
    let extreme = values.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme == 0.0 {
        return 0.0;
    }
    let mut best = (f32::NEG_INFINITY, 0.0);
    for nudge in -6..=6 {
        let inverse = -(limit as f32 + 0.1 * nudge as f32) / extreme;
        if !inverse.is_finite() {
            return extreme / -limit as f32;
        }
        let (mut xq, mut qq) = (0.0, 0.0);
        for &x in values {
            let q = code(x, inverse, -limit, limit - 1) as f32;
            xq += x * q;
            qq += q * q;
        }
        // The squared error is the sum of x^2 less this gain.
        let gain = xq * xq / qq;
        if gain > best.0 {
            best = (gain, xq / qq);
        }
    }
    best.1
}

/// The scale and minimum (`value = scale * code - min`) for codes in `0..=top` that lose least.
/// With `below_zero`, the minimum is not negative, as the K-formats demand.
pub(crate) fn affine(values: &[f32], top: i32, below_zero: bool) -> (f32, f32) {
    let (mut low, high) =
        values.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
    if below_zero {
        low = low.min(0.0);
    }
    let range = high - low;
    if range <= 0.0 || !(top as f32 / range).is_finite() {
        return (0.0, -low);
    }
    let mut best = (range / top as f32, -low);
    let mut least = squared_error(values, best, top);
    for nudge in -5..=5 {
        let inverse = (top as f32 + 0.2 * nudge as f32) / range;
        let fitted = regression(values, low, inverse, top);
        let Some((scale, min)) = fitted.filter(|(_, min)| !below_zero || *min >= 0.0) else {
            continue;
        };
        let error = squared_error(values, (scale, min), top);
        if error < least {
            (best, least) = ((scale, min), error);
        }
    }
    best
}

/// Least squares of the values against the codes that `low` and `inverse` give them.
fn regression(values: &[f32], low: f32, inverse: f32, top: i32) -> Option<(f32, f32)> {
    let n = values.len() as f32;
    let (mut q1, mut q2, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0);
    for &x in values {
        let q = code(x - low, inverse, 0, top) as f32;
        q1 += q;
        q2 += q * q;
        x1 += x;
        xq += x * q;
    }
    let determinant = n * q2 - q1 * q1;
    let scale = (n * xq - x1 * q1) / determinant;
    (determinant > 0.0 && scale > 0.0).then(|| (scale, (scale * q1 - x1) / n))
}

fn squared_error(values: &[f32], (scale, min): (f32, f32), top: i32) -> f32 {
    let inverse = inverse(scale);
    let error = |x: f32| scale * code(x + min, inverse, 0, top) as f32 - min - x;
    values.iter().map(|&x| error(x) * error(x)).sum()
}

/// `1 / scale`, or zero where that is not a number to calculate with.
pub(crate) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest code in `low..=high`.
pub(crate) fn code(x: f32, inverse: f32, low: i32, high: i32) -> i32 {
    ((x * inverse).round_ties_even() as i32).clamp(low, high)
}

/// Codes of 32 values less the minimum, and `zero` added.
pub(crate) fn codes<const N: usize>(
    values: &[f32],
    (scale, min): (f32, f32),
    zero: i32,
    top: i32,
) -> [u8; N] {
    let inverse = inverse(scale);
    std::array::from_fn(|i| (code(values[i] + min, inverse, -zero, top - zero) + zero) as u8)
}
