//! Dates for chat templates, in UTC: the few `strftime` directives that templates use.

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

/// Formats `time`; an unknown directive is an error with its letter.
pub(super) fn strftime(format: &str, time: SystemTime) -> Result<String, char> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1970-01-01 was a Thursday.
    let day_name = DAYS[((days + 4) % 7) as usize];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let directive = letters.next().unwrap_or('%');
        out += &match directive {
            'Y' => format!("{year:04}"),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.into(),
            'b' => month_name[..3].into(),
            'A' => day_name.into(),
            'a' => day_name[..3].into(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'Z' => "UTC".into(),
            'z' => "+0000".into(),
            'F' => format!("{year:04}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            '%' => "%".into(),
            other => return Err(other),
        };
    }
    Ok(out)
}

/// Year, month (1 to 12) and day of a day since 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn known_dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(strftime("%d %b %Y", at(0)).unwrap(), "01 Jan 1970");
        // `date -u -d @951827696` and `@1735689599`
        assert_eq!(
            strftime("%A %e %B %Y %H:%M:%S", at(951_827_696)).unwrap(),
            "Tuesday 29 February 2000 12:34:56"
        );
        assert_eq!(strftime("%a %F %I %p 100%%", at(1_735_689_599)).unwrap(), "Tue 2024-12-31 11 PM 100%");
        assert_eq!(strftime("%Q", at(0)), Err('Q'));
    }
}
