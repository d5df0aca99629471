//! How far decoded values are from the originals.

use crate::dtype::Dtype;
use crate::error::Result;
use oss_simd::Isa;

/// Distances between values and what a format made of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distortion {
    /// Mean of the squared errors.
    pub mse: f64,
    /// The largest error.
    pub max: f64,
    /// Root of the squared errors' sum over the squared values' sum; 0 where both are 0.
    pub relative_rms: f64,
}

impl Distortion {
    /// Compares `got` with the `original` values, in double precision.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn between(original: &[f32], got: &[f32]) -> Distortion {
        assert_eq!(original.len(), got.len(), "values (left) and what became of them (right)");
        let (mut squares, mut errors, mut max) = (0.0, 0.0, 0.0_f64);
        for (&x, &y) in original.iter().zip(got) {
            let error = f64::from(y) - f64::from(x);
            squares += f64::from(x) * f64::from(x);
            errors += error * error;
            max = max.max(error.abs());
        }
        let relative = errors / squares;
        Distortion {
            mse: if original.is_empty() { 0.0 } else { errors / original.len() as f64 },
            max,
            relative_rms: if errors == 0.0 { 0.0 } else { relative.sqrt() },
        }
    }

    /// What one row loses when it is stored as `dtype`.
    ///
    /// # Errors
    /// As [`Dtype::quantise_row`].
    pub fn of_row(dtype: Dtype, values: &[f32]) -> Result<Distortion> {
        let bytes = dtype.row_bytes(values.len()).unwrap_or(0);
        let mut stored = vec![0; bytes];
        let mut got = vec![0.0; values.len()];
        dtype.quantise_row(values, &mut stored)?;
        dtype.dequantise_row(Isa::scalar(), &stored, &mut got)?;
        Ok(Distortion::between(values, &got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_what_their_names_say() {
        let distortion = Distortion::between(&[3.0, -4.0], &[3.0, -3.0]);
        assert_eq!(distortion, Distortion { mse: 0.5, max: 1.0, relative_rms: 0.2 });
        let nothing = Distortion { mse: 0.0, max: 0.0, relative_rms: 0.0 };
        assert_eq!(Distortion::between(&[], &[]), nothing);
        assert_eq!(Distortion::between(&[0.0], &[0.0]), nothing);
        assert!(Distortion::between(&[0.0], &[1.0]).relative_rms.is_infinite());
    }

    #[test]
    fn a_row_of_part_blocks_has_no_distortion_but_an_error() {
        let error = Distortion::of_row(Dtype::Q8_0, &[0.0; 31]).unwrap_err();
        assert_eq!(error.to_string(), "a row of 31 columns is not whole Q8_0 blocks of 32");
    }
}
