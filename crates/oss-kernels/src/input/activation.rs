//! How activations meet weights, by name.

use std::str::FromStr;
use std::{error, fmt};

/// How activations meet weights, one choice for a whole engine.
///
/// Matrices of floating-point weights take [`Activation::Bf16`] where the choice is codes: they
/// have none to multiply them with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Single precision.
    F32,
    /// Rounded to bf16, numbers below 2^-50 to zero, multiplied and added in single precision.
    Bf16,
    /// 8-bit codes with one scale per 32 columns; products are added as integers.
    Int8,
    /// 16-bit codes with one scale per 32 columns, as two planes of 8 bits: twice the products,
    /// next to no loss.
    Int16,
}

impl Activation {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::Int16];

    /// The name, as on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
        }
    }

    /// How many planes of 8-bit codes a row has.
    #[must_use]
    pub const fn planes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Int8 => 1,
            Self::Int16 => 2,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a kind as it is displayed.
///
/// ```
/// use oss_kernels::Activation;
///
/// for activation in Activation::ALL {
///     assert_eq!(activation.to_string().parse::<Activation>(), Ok(activation));
/// }
/// let error = "int9".parse::<Activation>().unwrap_err().to_string();
/// assert_eq!(error, "got the activations int9, expected f32, bf16, int8 or int16");
/// ```
impl FromStr for Activation {
    type Err = ParseActivationError;

    fn from_str(text: &str) -> Result<Self, ParseActivationError> {
        let found = Self::ALL.into_iter().find(|activation| activation.name() == text);
        found.ok_or_else(|| ParseActivationError { got: text.to_owned() })
    }
}

/// A text is no [`Activation`]'s name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseActivationError {
    /// The text.
    pub got: String,
}

impl fmt::Display for ParseActivationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "got the activations {}, expected f32, bf16, int8 or int16", self.got)
    }
}

impl error::Error for ParseActivationError {}
