//! The civil calendar in UTC, and the little of `strftime` that templates use.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Seconds since 1970, by the system's clock.
pub fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

/// Seconds from 1970 to the first of a day that is written as `2025-06-28`; `None` for what is no
/// such day. Years have four digits.
pub fn seconds_until(day: &str) -> Option<i64> {
    let parts: Vec<i64> = day.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let &[year @ 0..=9999, month @ 1..=12, day_of_month @ 1..=31] = parts.as_slice() else {
        return None;
    };
    let days = days_until(year, month, day_of_month);
    (strftime("%F", days * 86_400) == day).then_some(days * 86_400)
}

/// Writes a time (seconds since 1970, UTC) as Python's `strftime` does, with English names and
/// years of at least four digits. Directives that it does not know are copied.
///
/// ```
/// use oss_text::chat::strftime;
///
/// assert_eq!(strftime("%A, %-d %B %Y", 1_751_113_805), "Saturday, 28 June 2025");
/// assert_eq!(strftime("%FT%TZ", 1_751_113_805), "2025-06-28T12:30:05Z");
/// ```
pub fn strftime(format: &str, now: i64) -> String {
    let days = now.div_euclid(86_400);
    let seconds = now.rem_euclid(86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[days.rem_euclid(7) as usize];
    let day_of_year = days - days_until(year, 1, 1) + 1;
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let two = |value: i64| if padded { format!("{value:02}") } else { value.to_string() };
        let text = match directive {
            Some('Y') => format!("{year:04}"),
            Some('y') => two(year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('j') if padded => format!("{day_of_year:03}"),
            Some('j') => day_of_year.to_string(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let _ = write!(out, "%{}", if padded { "" } else { "-" });
                other.map(String::from).unwrap_or_default()
            }
        };
        out.push_str(&text);
    }
    out
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar, which repeats itself
/// every 400 years of 146,097 days. A year that begins in March has its leap day last (H. Hinnant,
/// "chrono-compatible low-level date algorithms": this is `civil_from_days`, and `days_until` is
/// `days_from_civil`).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + MARCH_OF_0;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (year_of_era * 365 + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Days from the first of March of the year 0 to 1970-01-01.
const MARCH_OF_0: i64 = 719_468;

/// Days from 1970-01-01 to a date.
fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - MARCH_OF_0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_as_they_are_written() {
        for (day, seconds) in
            [("1970-01-01", 0), ("2000-02-29", 951_782_400), ("2025-06-28", 1_751_068_800)]
        {
            assert_eq!(seconds_until(day), Some(seconds), "{day}");
        }
        let wrong = [
            "",
            "today",
            "2025-6-28",
            "2025-02-29",
            "2025-13-01",
            "2025-06-28-01",
            "28.6.2025",
            "-001-01-01",
            "10000-01-01",
            "9223372036854775807-01-01",
            "2025-01-9223372036854775807",
        ];
        for day in wrong {
            assert_eq!(seconds_until(day), None, "{day}");
        }
    }

    #[test]
    fn every_day_of_ten_thousand_years_has_its_date() {
        let (first, last) = (days_until(0, 1, 1), days_until(9999, 12, 31));
        assert_eq!((first, last), (-719_528, 2_932_896));
        for days in first..=last {
            let (year, month, day) = date(days);
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + i64::from(is_leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            assert!((1..=12).contains(&month) && (1..=length).contains(&day), "{days}");
            assert_eq!(days_until(year, month, day), days);
        }
    }

    #[test]
    fn times_are_written_as_python_does() {
        let format = "%Y-%m-%d %H:%M:%S %j %A %a %d %B %b %-d %I %p %y %% %Q";
        let cases = [
            (0, "1970-01-01 00:00:00 001 Thursday Thu 01 January Jan 1 12 AM 70 % %Q"),
            (951_827_696, "2000-02-29 12:34:56 060 Tuesday Tue 29 February Feb 29 12 PM 00 % %Q"),
            (1_751_068_799, "2025-06-27 23:59:59 178 Friday Fri 27 June Jun 27 11 PM 25 % %Q"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Monday Mon 01 March Mar 1 12 AM 00 % %Q"),
            (-1, "1969-12-31 23:59:59 365 Wednesday Wed 31 December Dec 31 11 PM 69 % %Q"),
            (-31_536_001, "1968-12-31 23:59:59 366 Tuesday Tue 31 December Dec 31 11 PM 68 % %Q"),
        ];
        for (now, expected) in cases {
            assert_eq!(strftime(format, now), expected);
        }
        // No time is too far away.
        for (now, year) in [(i64::MAX, "292277026596"), (i64::MIN, "-292277022657")] {
            assert_eq!(strftime("%Y", now), year);
        }
    }
}
