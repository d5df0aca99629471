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
    /// The sums under each inverse scale.
    fn each(values: &[f32], low: f32, inverses: &Tried, top: i32) -> [Sums; 16] {
        let (n, mut x_sum, mut xx) = (values.len() as f32, 0.0, 0.0);
        let [mut q_sum, mut qq, mut xq] = [Tried::default(); 3];
        for &x in values {
            let sums = q_sum.iter_mut().zip(&mut qq).zip(&mut xq);
            for (inverse, ((q_sum, qq), xq)) in inverses.iter().zip(sums) {
                let q = code(x - low, *inverse, 0, top) as f32;
                *q_sum += q;
                *qq += q * q;
                *xq += x * q;
            }
            x_sum += x;
            xx += x * x;
        }
        std::array::from_fn(|i| Sums { n, q: q_sum[i], qq: qq[i], x: x_sum, xq: xq[i], xx })
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
            let mut sums = Sums { n, q: 0.0, qq: 0.0, x: 0.0, xq: 0.0, xx: 0.0 };
            for &x in values {
                let q = code(x - low, inverse, 0, top) as f32;
                sums.q += q;
                sums.qq += q * q;
                sums.x += x;
                sums.xq += x * q;
                sums.xx += x * x;
            }
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
