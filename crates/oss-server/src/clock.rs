//! Dates and times in UTC, as answers carry them.

use oss_engine::date::{now, strftime};

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    // A clock before 1970 is taken for one that was never set.
    u64::try_from(now()).unwrap_or(0)
}

/// Today's date, such as `2025-06-28`.
pub(crate) fn date() -> String {
    strftime("%F", now())
}

/// Date and time, such as `2025-06-28T12:30:00Z`.
pub(crate) fn timestamp() -> String {
    strftime("%FT%TZ", now())
}
