//! The age of pods, in kubectl's format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since a moment, given in seconds since 1970.
pub(super) fn since(created: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(created))
}

/// An age in kubectl's format.
pub(super) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")]
        {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
