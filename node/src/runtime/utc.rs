//! Calendar times in UTC, for names of backups and for the target time of a restore.

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Internally years begin in
/// March, so that the leap day is the last day of its year.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the year, month and day of a day number.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + i64::from(month >= 10);
    (year, (month + 2) % 12 + 1, day)
}

/// Formats milliseconds since 1970: `2026-11-25T03:06:19.123Z`.
pub fn shown(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = date_of(i64::try_from(days).unwrap_or(i64::MAX / 2));
    let (hour, minute) = (ms / 3_600_000, ms / 60_000 % 60);
    let (second, ms) = (ms / 1_000 % 60, ms % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Formats milliseconds since 1970 for file names, with a resolution of a second:
/// `20261125T030619Z`.
pub(crate) fn name(unix_ms: u64) -> String {
    let text = shown(unix_ms);
    let seconds = text.split('.').next().unwrap_or_default();
    seconds.chars().filter(|c| !matches!(c, '-' | ':')).chain(['Z']).collect()
}

/// Whether a text has the format of [`name`].
pub(crate) fn is_name(text: &str) -> bool {
    let form = b"00000000T000000Z";
    text.len() == form.len()
        && text.bytes().zip(form).all(|(b, &f)| if f == b'0' { b.is_ascii_digit() } else { b == f })
}

/// Parses `2026-11-25T03:06:19Z` to milliseconds since 1970. A space may replace the T. The seconds
/// are optional and may have a fraction. An offset (`+02:00`) may replace the Z. A time with
/// neither is UTC.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let (date, rest) = text.split_at_checked(10)?;
    let number = |text: &str, most: i64| -> Option<i64> {
        let all_digits = text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|n| all_digits && (0..=most).contains(n))
    };
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() != 4 {
        return None;
    }
    let (year, month, day) = (number(year, 9_999)?, number(month, 12)?, number(day, 31)?);
    let days = days_of(year, month, day);
    if date_of(days) != (year, month, day) {
        return None;
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, minutes) = match rest.strip_suffix(['Z', 'z']) {
        Some(time) => (time, 0),
        None => match rest.rfind(['+', '-']) {
            Some(at) => {
                let (hours, minutes) = rest[at + 1..].split_once(':')?;
                let minutes = number(hours, 23)? * 60 + number(minutes, 59)?;
                (&rest[..at], if rest[at..].starts_with('-') { -minutes } else { minutes })
            }
            None => (rest, 0),
        },
    };
    let mut parts = time.split(':');
    let (hour, minute) = (number(parts.next()?, 23)?, number(parts.next()?, 59)?);
    let (second, fraction) = match parts.next() {
        Some(text) => text.split_once('.').unwrap_or((text, "0")),
        None => ("0", "0"),
    };
    let second = number(second, 59)?;
    let digits = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    if parts.next().is_some() || !digits {
        return None;
    }
    let ms: i64 = format!("{:0<3}", &fraction[..fraction.len().min(3)]).parse().ok()?;
    let seconds = ((days * 24 + hour) * 60 + minute - minutes) * 60 + second;
    u64::try_from(seconds * 1_000 + ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_reads_back() {
        for day in (0..200_000).step_by(13).chain(0..800) {
            let ms = day * 86_400_000 + day % 86_400 * 1_000 + day % 1_000;
            let text = shown(ms);
            assert_eq!(parse(&text), Some(ms), "{text}");
        }
        assert_eq!(shown(1_795_575_979_123), "2026-11-25T03:06:19.123Z");
        assert_eq!(name(1_795_575_979_123), "20261125T030619Z");
        assert_eq!(shown(951_782_400_000), "2000-02-29T00:00:00.000Z");
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let whole = parse("2026-11-25T03:06:19Z");
        assert_eq!(whole, Some(1_795_575_979_000));
        for same in [
            "2026-11-25 03:06:19",
            "2026-11-25T03:06:19.000Z",
            "2026-11-25T05:06:19+02:00",
            "2026-11-24T22:36:19-04:30",
            " 2026-11-25t03:06:19z ",
        ] {
            assert_eq!(parse(same), whole, "{same}");
        }
        assert_eq!(parse("2026-11-25T03:06:19.5Z"), Some(1_795_575_979_500));
        assert_eq!(parse("2026-11-25 03:06"), Some(1_795_575_960_000));
        for wrong in [
            "",
            "2026-11-25",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-25T24:00:00Z",
            "2026-11-25T03:06:19.Z",
            "2026-11-25T03:06:19:20Z",
            "2026-11-25T+3:06:19Z",
            "1969-12-31T23:59:59Z",
            "2026-1-25T03:06:19ZZ",
            "2026-11-25T03:06:19+2",
            "\u{e9}2026-11-25T03:06:19",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
