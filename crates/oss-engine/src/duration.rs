//! Lengths of time as people write them.

use std::time::Duration;

use thiserror::Error;

/// The longest, three years: adding it to what a clock says cannot overflow.
const LONGEST: f64 = 1e8;

/// What is wrong with a text that should be a length of time.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[error("got {got}, expected a length of time such as 500ms, 30s, 5m, 2h or 30d")]
pub struct ParseDurationError {
    /// The text.
    pub got: String,
}

/// Reads a length of time: a number of milliseconds (`500ms`), seconds (`30s`, or `30`), minutes
/// (`5m`), hours (`2h`) or days (`30d`), up to 100,000,000 seconds.
///
/// # Errors
/// When the text is none.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86_400.0),
        _ => None,
    };
    let seconds = unit.and_then(|unit| Some(digits.parse::<f64>().ok()? * unit));
    let seconds = seconds.filter(|seconds| (0.0..=LONGEST).contains(seconds));
    let error = || ParseDurationError { got: text.to_owned() };
    seconds.map(Duration::from_secs_f64).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_units_and_plain_numbers_are_seconds() {
        let lengths = [
            ("100ms", 100),
            ("0.5", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("30d", 2_592_000_000),
            ("0", 0),
        ];
        for (text, milliseconds) in lengths {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "s", "-1", "1e9", "nan", "inf", "5 s", "5w", "5M"] {
            let said = parse_duration(wrong).unwrap_err().to_string();
            assert!(said.starts_with(&format!("got {wrong}, expected")), "{said}");
        }
    }
}
