//! `strftime_now` for templates that print today's date. The time is UTC, in English, whatever the machine's locale.

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
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The directives of C's `strftime` that make sense without a locale; an unknown one is left as it stands.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[((days + 4) % 7) as usize];
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let day_of_year = days - days_before(year) + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('j') => out.push_str(&format!("{day_of_year:03}")),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{hour12:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970-01-01 to the first of January of the year.
fn days_before(year: u64) -> u64 {
    let leaps = |y: u64| y / 4 - y / 100 + y / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month (1 to 12) and day (1 to 31) of a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut left = days - days_before(year);
    let february = if is_leap(year) { 29 } else { 28 };
    for (i, length) in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
        if left < length {
            return (year, i as u64 + 1, left + 1);
        }
        left -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let cases = [
            (0, "Thu 1970-01-01 00:00:00 001"),
            (951_782_399, "Mon 2000-02-28 23:59:59 059"),
            (951_782_400, "Tue 2000-02-29 00:00:00 060"),
            (978_307_199, "Sun 2000-12-31 23:59:59 366"),
            (4_107_542_400, "Mon 2100-03-01 00:00:00 060"),
            (1_796_127_296, "Tue 2026-12-01 12:14:56 335"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime("%a %F %T %j", at(seconds)), expected);
        }
        assert_eq!(strftime("%d %B %y, %I %p %% %Q %e%", at(0)), "01 January 70, 12 AM % %Q  1%");
    }
}
