//! What a misspelt word was probably meant to be.

/// The candidate that is nearest to `word`, if it is near enough to be meant. Case does not count.
///
/// ```
/// use podwire_cni_spec::suggestion::nearest;
///
/// assert_eq!(nearest("brdige", ["bandwidth", "bridge"]), Some("bridge"));
/// assert_eq!(nearest("cilium", ["bandwidth", "bridge"]), None);
/// ```
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let is_near = |distance: usize| distance <= (word.chars().count() / 3).max(1);
    let measured = candidates.into_iter().map(|candidate| (distance(word, candidate), candidate));
    measured.filter(|(distance, _)| is_near(*distance)).min().map(|(_, candidate)| candidate)
}

/// How many letters must be inserted, removed, replaced or exchanged with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let (one, other) = (letters(one), letters(other));
    // Row i has the distances between the first i letters of `one` and each beginning of `other`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            let exchanged = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
            if exchanged {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        let cases =
            [("", "", 0), ("a", "", 1), ("bridge", "bridge", 0), ("brdige", "bridge", 1), ("abc", "xyz", 3)];
        for (one, other, expected) in cases {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn the_nearest_candidate_is_meant() {
        let types = ["bridge", "host-device", "host-local", "macvlan", "ptp", "ipvlan", "vlan"];
        let cases = [
            ("host_local", Some("host-local")),
            ("hostlocal", Some("host-local")),
            ("Bridge", Some("bridge")),
            ("brigde", Some("bridge")),
            ("mcvlan", Some("macvlan")),
            ("ppt", Some("ptp")),
            ("weave-net", None),
            ("x", None),
            ("", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, types), expected, "{word}");
        }
        let keys = ["isGateway", "isDefaultGateway", "ipMasq", "mtu", "vlan"];
        let cases = [
            ("isDefaultGatway", Some("isDefaultGateway")),
            ("ipMask", Some("ipMasq")),
            ("is_gateway", Some("isGateway")),
            ("MUT", Some("mtu")),
            ("hairpinMode", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(nearest("maximum", ["maxID"]), None);
        assert_eq!(nearest("a", []), None);
    }
}
