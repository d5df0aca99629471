//! The little of `strftime` that templates use.

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

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

/// Seconds from 1970 to the first of a day that is written as `2025-06-28`; `None` for what is no
/// such day.
pub fn seconds_until(day: &str) -> Option<i64> {
    let parts: Vec<i64> = day.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let &[year, month @ 1..=12, day_of_month] = parts.as_slice() else { return None };
    let days = days_until(year, month, day_of_month);
    (strftime("%F", days * 86_400) == day).then_some(days * 86_400)
}

/// Writes a time (seconds since 1970, UTC) as Python's `strftime` does, with English names.
/// Directives that it does not know are copied.
pub(super) fn strftime(format: &str, now: i64) -> String {
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
            Some('Y') => year.to_string(),
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
            Some('F') => format!("{year}-{month:02}-{day:02}"),
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

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar: 400 years have
/// 146,097 days, and a year that begins in March has its leap day last.
fn date(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_until(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rev().find(|&month| days_until(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_until(year, month, 1) + 1)
}

/// Days from 1970-01-01 to a date.
fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
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
        for wrong in
            ["", "today", "2025-6-28", "2025-02-29", "2025-13-01", "2025-06-28-01", "28.6.2025"]
        {
            assert_eq!(seconds_until(wrong), None, "{wrong}");
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
        ];
        for (now, expected) in cases {
            assert_eq!(strftime(format, now), expected);
        }
    }
}
