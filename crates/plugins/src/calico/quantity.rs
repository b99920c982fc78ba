//! Kubernetes quantities: `10M`, `1.5Gi`, `2e6`.

/// The quantity, rounded up to an integer.
pub(super) fn parse(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    // Longer numbers would overflow when multiplied.
    if number.len() > 20 {
        return None;
    }
    let (times, over) = factor(suffix)?;
    let over = over.checked_mul(10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    u64::try_from(digits.checked_mul(times)?.div_ceil(over)).ok()
}

/// The numerator and denominator of a suffix.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    const DECIMAL: [(&str, u32); 7] =
        [("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    const SMALL: [(&str, u32); 3] = [("m", 3), ("u", 6), ("n", 9)];
    let named =
        |table: &[(&str, u32)]| table.iter().find(|(name, _)| *name == suffix).map(|(_, power)| *power);
    if let Some(power) = named(&DECIMAL) {
        return Some((10_u128.pow(power), 1));
    }
    if let Some(power) = named(&BINARY) {
        return Some((1 << power, 1));
    }
    if let Some(power) = named(&SMALL) {
        return Some((1, 10_u128.pow(power)));
    }
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|power: &i32| power.abs() <= 18)?;
    let size = 10_u128.pow(power.unsigned_abs());
    Some(if power < 0 { (1, size) } else { (size, 1) })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, amount) in [
            ("1000", 1000),
            ("10M", 10_000_000),
            ("1.5k", 1500),
            ("1Ki", 1024),
            ("4Gi", 4 << 30),
            ("1P", 1_000_000_000_000_000),
            ("2e6", 2_000_000),
            ("2E3", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("1500m", 2),
            (".5k", 500),
        ] {
            assert_eq!(parse(text), Some(amount), "{text}");
        }
        for nonsense in
            ["", "M", "10MB", "1,5k", "-1", "1e99", "1.2.3", "99999999999999999999999", "ten", "."]
        {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
