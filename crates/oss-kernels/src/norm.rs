//! Root-mean-square normalisation: `x[i] · gain[i] / sqrt(mean(x²) + epsilon)` (Zhang and Sennrich,
//! 2019).
//!
//! The root is one factor of the whole row, and products are linear in the row. So the unit that
//! has changed some columns stores them times their gains, beside their sums of squares (see
//! [`prepare_with_gain`](crate::prepare_with_gain)), and the factor is applied to the results of
//! the products: no unit has to wait for the root.

/// `1 / sqrt(mean(x²) + epsilon)` of a row of `len` numbers, by the sums of squares of its parts,
/// which are added one after the other.
#[must_use]
pub fn rms_factor(squares: &[f32], len: usize, epsilon: f32) -> f32 {
    1.0 / (squares.iter().sum::<f32>() / len as f32 + epsilon).sqrt()
}
