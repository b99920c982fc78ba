//! Durations on the command line.

use std::time::Duration;

/// Parses `500ms`, `90s`, `2m`, `1h`, `1m30s`, or a bare number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let (mut rest, mut seconds) = (text, 0.0);
    loop {
        let (part, factor);
        (part, factor, rest) = first(rest)?;
        let number: f64 =
            part.parse().map_err(|_| "expected a number and a unit, like 90s or 2m".to_owned())?;
        seconds += number * factor;
        if rest.is_empty() {
            break;
        }
    }
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("must be longer than 0".to_owned());
    }
    Ok(duration)
}

/// The first number, the seconds of its unit, and what follows.
fn first(text: &str) -> Result<(&str, f64, &str), String> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (unit, rest) = rest.split_at(rest.find(is_number).unwrap_or(rest.len()));
    let factor = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {unit:?}: ms, s, m or h")),
    };
    Ok((number, factor, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("90s", 90_000),
            ("2m", 120_000),
            ("1.5h", 5_400_000),
            ("7", 7_000),
            ("1m30.5s", 90_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "m", "2d", "0s", "-1s", "1e400h", "1.2.3s", "1m-3s", "1ms2x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
