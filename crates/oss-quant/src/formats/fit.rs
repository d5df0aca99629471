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
    let mut best = (f32::INFINITY, (range / top as f32, -low));
    for nudge in -5..=5 {
        let inverse = (top as f32 + 0.2 * nudge as f32) / range;
        let sums = Sums::of(values, low, inverse, top);
        let fitted = sums.line().filter(|(_, min)| !below_zero || *min >= 0.0);
        for line in fitted.into_iter().chain(below_zero.then(|| (sums.xq / sums.qq, 0.0))) {
            let error = sums.squared_error(line);
            if error < best.0 {
                best = (error, line);
            }
        }
    }
    best.1
}

/// Sums over values `x` and the codes `q` that `low` and an inverse scale give them.
struct Sums {
    n: f32,
    q: f32,
    qq: f32,
    x: f32,
    xq: f32,
    xx: f32,
}

impl Sums {
    fn of(values: &[f32], low: f32, inverse: f32, top: i32) -> Sums {
        let n = values.len() as f32;
        let mut sums = Sums { n, q: 0.0, qq: 0.0, x: 0.0, xq: 0.0, xx: 0.0 };
        for &x in values {
            let q = code(x - low, inverse, 0, top) as f32;
            sums.q += q;
            sums.qq += q * q;
            sums.x += x;
            sums.xq += x * q;
            sums.xx += x * x;
        }
        sums
    }

    /// The least-squares scale and minimum.
    fn line(&self) -> Option<(f32, f32)> {
        let determinant = self.n * self.qq - self.q * self.q;
        let scale = (self.n * self.xq - self.x * self.q) / determinant;
        (determinant > 0.0 && scale > 0.0).then(|| (scale, (scale * self.q - self.x) / self.n))
    }

    /// The sum of `(scale q - min - x)^2`.
    fn squared_error(&self, (scale, min): (f32, f32)) -> f32 {
        let own = self.xx + scale * scale * self.qq + min * min * self.n;
        own + 2.0 * (min * self.x - scale * self.xq - scale * min * self.q)
    }
}

/// `1 / scale`, or zero where that is not a number to calculate with.
pub(crate) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest code in `low..=high` (small integers), ties to even.
pub(crate) fn code(x: f32, inverse: f32, low: i32, high: i32) -> i32 {
    // Adding 1.5 * 2^23 leaves the rounded number in the low bits of the sum: several times faster
    // than `round_ties_even` on processors whose baseline has no rounding instruction.
    const MAGIC: f32 = 12_582_912.0;
    let inside = (x * inverse).clamp(low as f32, high as f32);
    (inside + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}

/// Codes of `N` values less the minimum, and `zero` added.
pub(crate) fn codes<const N: usize>(
    values: &[f32],
    (scale, min): (f32, f32),
    zero: i32,
    top: i32,
) -> [u8; N] {
    let inverse = inverse(scale);
    std::array::from_fn(|i| (code(values[i] + min, inverse, -zero, top - zero) + zero) as u8)
}
