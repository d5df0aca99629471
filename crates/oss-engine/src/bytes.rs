//! Numbers of bytes as people write them.

use thiserror::Error;

/// What is wrong with a text that should be a number of bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// An unknown unit.
    #[error("got the unit {got}, expected kB, MB, GB, KiB, MiB or GiB")]
    Unit {
        /// What stands behind the number.
        got: String,
    },
    /// No number before the unit.
    #[error("got {got}, expected a number")]
    Number {
        /// What stands there.
        got: String,
    },
    /// Less than 0, or more than an address can tell.
    #[error("got {got}, expected a number of bytes")]
    Range {
        /// The text.
        got: String,
    },
}

/// Reads a number of bytes, with or without a unit: `8GB` (of 1000), `1.5GiB` (of 1024).
///
/// # Errors
/// When the text is none.
pub fn parse_bytes(text: &str) -> Result<usize, ParseBytesError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(ParseBytesError::Unit { got: other.to_owned() }),
    };
    let number: f64 =
        digits.parse().map_err(|_| ParseBytesError::Number { got: digits.to_owned() })?;
    let bytes = number * f64::from(unit);
    let fits = bytes >= 0.0 && bytes < usize::MAX as f64;
    fits.then_some(bytes as usize).ok_or_else(|| ParseBytesError::Range { got: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn numbers_of_bytes_have_units_of_a_thousand_or_of_1024() {
        let numbers = [("7", 7), ("8GB", 8_000_000_000), ("1.5KiB", 1536), ("2MiB", 2 << 20)];
        assert_eq!(numbers.map(|(text, _)| parse_bytes(text)), numbers.map(|(_, n)| Ok(n)));
        for wrong in ["", "GB", "8 GB", "8TB", "-1", "1e300"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
