//! Durations on the command line.

use std::time::Duration;

/// Parses `500ms`, `90s`, `2m`, `1h`, or a bare number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {unit:?}: ms, s, m or h")),
    };
    let number: f64 =
        number.parse().map_err(|_| "expected a number and a unit, like 90s or 2m".to_owned())?;
    let duration = Duration::try_from_secs_f64(number * factor).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("must be longer than 0".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in
            [("500ms", 500), ("90s", 90_000), ("2m", 120_000), ("1.5h", 5_400_000), ("7", 7_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "m", "2d", "0s", "-1s", "1e400h", "1.2.3s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
