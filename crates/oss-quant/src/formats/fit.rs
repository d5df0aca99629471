//! Scales with a small squared error: shared by the quantisers.

/// A number for each scale that is tried, and for a few more: the compiler makes vectors of it.
type Tried = [f32; 16];

/// The scale for codes in `-limit..limit` that loses least: a few are tried around the one that
/// gives the value of largest magnitude the code `-limit`, each improved by least squares.
pub(crate) fn symmetric(values: &[f32], limit: i32) -> f32 {
    /// From -6 to 6.
    const NUDGES: usize = 13;
    let extreme = values.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme == 0.0 {
        return 0.0;
    }
    let inverses: Tried =
        std::array::from_fn(|i| -(limit as f32 + 0.1 * (i as f32 - 6.0)) / extreme);
    if !inverses[..NUDGES].iter().all(|inverse| inverse.is_finite()) {
        return extreme / -limit as f32;
    }
    let [mut xq, mut qq] = [Tried::default(); 2];
    for &x in values {
        for ((inverse, xq), qq) in inverses.iter().zip(&mut xq).zip(&mut qq) {
            let q = code(x, *inverse, -limit, limit - 1) as f32;
            *xq += x * q;
            *qq += q * q;
        }
    }
    let mut best = (f32::NEG_INFINITY, 0.0);
    for (xq, qq) in xq.into_iter().zip(qq).take(NUDGES) {
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
    /// From -5 to 5.
    const NUDGES: usize = 11;
    let (mut low, high) =
        values.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
    if below_zero {
        low = low.min(0.0);
    }
    let range = high - low;
    if range <= 0.0 || !(top as f32 / range).is_finite() {
        return (0.0, -low);
    }
    let inverses = std::array::from_fn(|i| (top as f32 + 0.2 * (i as f32 - 5.0)) / range);
    let mut best = (f32::INFINITY, (range / top as f32, -low));
    for sums in Sums::each(values, low, &inverses, top).into_iter().take(NUDGES) {
        sums.try_lines(low, below_zero, &mut best);
    }
    best.1
}

/// Sums over values `y`, which are `x` less the lowest of all, and the codes `q` that an inverse
/// scale gives them. (Those of `x` itself would lose, where its minimum is many times its range,
/// the digits that matter.)
struct Sums {
    n: f32,
    q: f32,
    qq: f32,
    y: f32,
    yq: f32,
    yy: f32,
}

impl Sums {
    /// The sums under each inverse scale.
    fn each(values: &[f32], low: f32, inverses: &Tried, top: i32) -> [Sums; 16] {
        let (n, mut y_sum, mut yy) = (values.len() as f32, 0.0, 0.0);
        let [mut q_sum, mut qq, mut yq] = [Tried::default(); 3];
        for &x in values {
            let y = x - low;
            let sums = q_sum.iter_mut().zip(&mut qq).zip(&mut yq);
            for (inverse, ((q_sum, qq), yq)) in inverses.iter().zip(sums) {
                let q = code(y, *inverse, 0, top) as f32;
                *q_sum += q;
                *qq += q * q;
                *yq += y * q;
            }
            y_sum += y;
            yy += y * y;
        }
        std::array::from_fn(|i| Sums { n, q: q_sum[i], qq: qq[i], y: y_sum, yq: yq[i], yy })
    }

    /// Puts the better of the lines of these codes in the place of a worse one: `best` is a squared
    /// error with its scale and minimum.
    fn try_lines(&self, low: f32, below_zero: bool, best: &mut (f32, (f32, f32))) {
        // A line of y has the minimum of that of x, and `low` more.
        let fitted = self.line().filter(|(_, above)| !below_zero || *above >= low);
        // The one through x = 0.
        let through_zero = below_zero.then(|| ((self.yq + low * self.q) / self.qq, low));
        for (scale, above) in fitted.into_iter().chain(through_zero) {
            let error = self.squared_error((scale, above));
            if error < best.0 {
                *best = (error, (scale, above - low));
            }
        }
    }

    /// The least-squares scale and minimum.
    fn line(&self) -> Option<(f32, f32)> {
        let determinant = self.n * self.qq - self.q * self.q;
        let scale = (self.n * self.yq - self.y * self.q) / determinant;
        (determinant > 0.0 && scale > 0.0).then(|| (scale, (scale * self.q - self.y) / self.n))
    }

    /// The sum of `(scale q - min - y)^2`.
    fn squared_error(&self, (scale, min): (f32, f32)) -> f32 {
        let own = self.yy + scale * scale * self.qq + min * min * self.n;
        own + 2.0 * (min * self.y - scale * self.yq - scale * min * self.q)
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

#[cfg(test)]
mod tests {
    use super::*;
    use oss_testing::Seeded;

    /// [`symmetric`], one scale after the other.
    fn plain_symmetric(values: &[f32], limit: i32) -> f32 {
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
            let gain = xq * xq / qq;
            if gain > best.0 {
                best = (gain, xq / qq);
            }
        }
        best.1
    }

    /// [`affine`], one scale after the other.
    fn plain_affine(values: &[f32], top: i32, below_zero: bool) -> (f32, f32) {
        let (low, high) =
            values.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
        let low = if below_zero { low.min(0.0) } else { low };
        let range = high - low;
        if range <= 0.0 || !(top as f32 / range).is_finite() {
            return (0.0, -low);
        }
        let mut best = (f32::INFINITY, (range / top as f32, -low));
        for nudge in -5..=5 {
            let inverse = (top as f32 + 0.2 * nudge as f32) / range;
            let n = values.len() as f32;
            let mut sums = Sums { n, q: 0.0, qq: 0.0, y: 0.0, yq: 0.0, yy: 0.0 };
            for &x in values {
                let y = x - low;
                let q = code(y, inverse, 0, top) as f32;
                sums.q += q;
                sums.qq += q * q;
                sums.y += y;
                sums.yq += y * q;
                sums.yy += y * y;
            }
            sums.try_lines(low, below_zero, &mut best);
        }
        best.1
    }

    /// The squared error of a line, with the codes that are nearest, in double precision.
    fn squared_error(values: &[f32], (scale, min): (f64, f64), top: i32) -> f64 {
        let error = |x: f32| {
            let q = ((f64::from(x) + min) / scale).round().clamp(0.0, f64::from(top));
            scale * q - min - f64::from(x)
        };
        values.iter().map(|&x| error(x).powi(2)).sum()
    }

    /// Values far from zero lose no more than the same values around it.
    #[test]
    fn a_minimum_of_many_times_the_range_costs_nothing() {
        let mut seeded = Seeded::new(6);
        for _ in 0..200 {
            // Multiples of 2^-12 below 2: exact also with 1,024 added.
            let values: [f32; 32] = std::array::from_fn(|_| {
                (seeded.normal() * 500.0).round().clamp(-4e3, 4e3) / 4096.0
            });
            for top in [15, 31] {
                let error = |offset: f32| {
                    let values = values.map(|x| x + offset);
                    let (scale, min) = affine(&values, top, false);
                    // The minimum itself is rounded: taken here from the scale.
                    let (scale, n) = (f64::from(scale), values.len() as f64);
                    let codes = |x: f32| ((f64::from(x) + f64::from(min)) / scale).round();
                    let off: f64 = values.iter().map(|&x| scale * codes(x) - f64::from(x)).sum();
                    squared_error(&values, (scale, off / n), top)
                };
                let (near, far) = (error(0.0), error(1024.0));
                assert!(far <= 1.02 * near, "{top}: {far:e}, {near:e} around zero: {values:?}");
            }
        }
    }

    #[test]
    fn scales_are_those_of_trying_one_after_the_other() {
        let odd = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-39, 65_504.0];
        let mut seeded = Seeded::new(5);
        for round in 0..4_000 {
            let scale = 10.0_f32.powi(round % 60 - 40);
            let share = [0, 0, 0, 1, 8][round as usize % 5];
            let values: [f32; 32] = std::array::from_fn(|_| match seeded.below(8) < share {
                true => odd[seeded.below(odd.len())],
                false => (seeded.normal() * scale).clamp(f32::MIN, f32::MAX),
            });
            for values in [&values[..16], &values] {
                for limit in [4, 8, 16, 32] {
                    let (got, expected) =
                        (symmetric(values, limit), plain_symmetric(values, limit));
                    assert_eq!(got.to_bits(), expected.to_bits(), "{limit}: {values:?}");
                }
                for (top, below_zero) in [(3, true), (15, true), (15, false), (31, true)] {
                    let got = affine(values, top, below_zero);
                    let expected = plain_affine(values, top, below_zero);
                    let bits = |(scale, min): (f32, f32)| (scale.to_bits(), min.to_bits());
                    assert_eq!(bits(got), bits(expected), "{top} {below_zero}: {values:?}");
                }
            }
        }
    }
}
