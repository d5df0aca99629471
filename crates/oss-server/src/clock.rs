//! Dates and times in UTC, as answers carry them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    // A clock before 1970 is taken for one that was never set.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The date of so many seconds since 1970, such as `2025-06-28`.
pub(crate) fn date(seconds: u64) -> String {
    // The civil calendar in eras of 400 years that begin with a 1 March (H. Hinnant,
    // "chrono-compatible low-level date algorithms", `civil_from_days`).
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leaps = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Date and time of so many seconds since 1970, such as `2025-06-28T12:30:00Z`.
pub(crate) fn timestamp(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", date(seconds))
}

#[cfg(test)]
mod tests {
    use super::{date, timestamp};

    #[test]
    fn dates_are_those_of_the_calendar() {
        let days = [(0, "1970-01-01"), (11_016, "2000-02-29"), (19_782, "2024-02-29")];
        for (day, expected) in days {
            assert_eq!(date(day * 86_400), expected);
            assert_eq!(date(day * 86_400 + 86_399), expected);
        }
        assert_eq!(date(19_783 * 86_400), "2024-03-01");
        assert_eq!(timestamp(1_751_113_805), "2025-06-28T12:30:05Z");
    }
}
