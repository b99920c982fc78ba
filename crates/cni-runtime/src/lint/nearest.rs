//! The name that a misspelt one probably means.

/// The candidate that differs least from `name`, without case, if it is similar: one edit, or one for each three
/// characters.
pub(super) fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let name = name.to_ascii_lowercase();
    let rated = candidates.map(|candidate| (distance(&name, &candidate.to_ascii_lowercase()), candidate));
    let (edits, nearest) = rated.min()?;
    (edits <= (name.chars().count() / 3).max(1)).then_some(nearest)
}

/// The least number of insertions, deletions and replacements that turn one text into the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_name_is_found_and_another_one_is_not() {
        let keys = ["isGateway", "isDefaultGateway", "ipMasq", "mtu", "vlan"];
        let near = |name| nearest(name, keys.into_iter());
        assert_eq!(near("isDefaultGatway"), Some("isDefaultGateway"));
        assert_eq!(
            (near("ipMask"), near("is_gateway"), near("MUT")),
            (Some("ipMasq"), Some("isGateway"), None)
        );
        assert_eq!((near("hairpinMode"), near("x"), near("")), (None, None, None));
        assert_eq!(nearest("maximum", ["maxID"].into_iter()), None);
        assert_eq!(nearest("a", [].into_iter()), None);
    }
}
