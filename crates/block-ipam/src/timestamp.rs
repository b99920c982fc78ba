//! Timestamps as Calico writes them. This crate does not read a clock: callers pass the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(u64);

const SECOND: u64 = 1_000_000_000;

impl Timestamp {
    /// The time this many nanoseconds after 1970.
    pub const fn from_unix_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// The current time, for callers.
    pub fn now() -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since 1970.
    pub const fn unix_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since `earlier`; 0 if that is later.
    pub fn seconds_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0) / SECOND
    }

    /// As in objects of Kubernetes and Calico: `2026-08-22T13:33:20Z`.
    pub fn rfc3339(self) -> String {
        let (year, month, day, clock) = self.calendar();
        format!("{year:04}-{month:02}-{day:02}T{clock}Z")
    }

    /// As Go prints a time. Calico's CNI plugin writes it into the attribute `timestamp`: `2026-08-22 13:33:20.1 +0000
    /// UTC`.
    pub fn go_string(self) -> String {
        let (year, month, day, clock) = self.calendar();
        let fraction = format!(".{:09}", self.0 % SECOND);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        format!("{year:04}-{month:02}-{day:02} {clock}{fraction} +0000 UTC")
    }

    /// Parses `2026-08-22T13:33:20Z`, with an optional fraction of a second and an optional offset.
    pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
        let (date, rest) = text.split_once(['T', 't', ' '])?;
        let zone = rest.find(['Z', 'z', '+', '-'])?;
        let (clock, zone) = rest.split_at(zone);
        let [year, month, day] = numbers(date, '-')?;
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        let [hour, minute, second] = numbers(clock, ':')?;
        let offset = match zone.split_at_checked(1)? {
            ("Z" | "z", "") => 0,
            (sign, offset) => {
                let [hours, minutes] = numbers(offset, ':')?;
                let seconds = hours * 3600 + minutes * 60;
                if sign == "-" {
                    -seconds
                } else {
                    seconds
                }
            }
        };
        let is_valid =
            (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
        if !is_valid || !fraction.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
        let nanos: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
        u64::try_from(seconds).ok()?.checked_mul(SECOND)?.checked_add(nanos).map(Timestamp)
    }

    /// Year, month, day and time of day.
    fn calendar(self) -> (i64, i64, i64, String) {
        let seconds = (self.0 / SECOND) as i64;
        let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let clock = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
        // Years begin in March here, so that the leap day is the last day of the year.
        let shifted = day + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        (year + era * 400 + i64::from(month <= 2), month, day, clock)
    }
}

/// Days from 1970 to a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let parts: Option<Vec<i64>> = text
        .split(separator)
        .map(|part| {
            part.bytes()
                .all(|c| c.is_ascii_digit())
                .then_some(part)
                .filter(|part| part.len() <= 4)?
                .parse()
                .ok()
        })
        .collect();
    parts?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_formatted_as_in_go() {
        let timestamp = Timestamp::from_unix_nanos(1_787_405_600_100_000_000);
        assert_eq!(timestamp.rfc3339(), "2026-08-22T13:33:20Z");
        assert_eq!(timestamp.go_string(), "2026-08-22 13:33:20.1 +0000 UTC");
        assert_eq!(Timestamp::from_unix_nanos(0).go_string(), "1970-01-01 00:00:00 +0000 UTC");
        assert_eq!(Timestamp::parse_rfc3339("2026-08-22T15:33:20.1+02:00"), Some(timestamp));
        for invalid in ["", "2026-08-22", "2026-13-01T00:00:00Z", "2026-08-22T13:33:20", "x-y-zT1:2:3Z", "TZ"]
        {
            assert_eq!(Timestamp::parse_rfc3339(invalid), None, "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn formatted_times_are_parsed(seconds in 0u64..8_000_000_000) {
            let timestamp = Timestamp::from_unix_nanos(seconds * SECOND);
            prop_assert_eq!(Timestamp::parse_rfc3339(&timestamp.rfc3339()), Some(timestamp));
        }

        #[test]
        fn the_parser_never_panics(text in "[0-9TZ:+. -]{0,30}") {
            let _ = Timestamp::parse_rfc3339(&text);
        }
    }
}
