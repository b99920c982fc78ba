//! Names that BIRD accepts: letters, digits and `_`, at most 64 of them.

/// The maximum length of an object's name in a name, which leaves room for prefix and suffix.
const MAX_LABEL: usize = 46;

/// An address as a part of a name.
pub(crate) fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// An object's name as a part of a name. Different names stay different: Kubernetes names have no `_`, so `-` becomes
/// `_`; a name that is too long or has a dot ends with a hash.
pub(crate) fn label(name: &str) -> String {
    let word = word(name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if word.len() <= MAX_LABEL && name.bytes().all(is_plain) {
        return word;
    }
    // `word` is ASCII, so every index is a character boundary.
    format!("{}_{:08x}", &word[..word.len().min(MAX_LABEL - 9)], hash(name))
}

/// The name of a session: the kind, the object that it comes from if there is one, and the peer's address.
pub(crate) fn session(kind: &str, name: &str, ip: &str) -> String {
    let whole = match name {
        "" => format!("{kind}_{}", word(ip)),
        name => format!("{kind}_{}_{}", label(name), word(ip)),
    };
    if whole.len() <= MAX_LABEL + 9 {
        return whole;
    }
    format!("{}_{:08x}", &whole[..MAX_LABEL], hash(&format!("{name} {ip}")))
}

/// FNV-1a.
pub(crate) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_unique() {
        assert_eq!(label("to-the-rack"), "to_the_rack");
        assert_ne!(label("a.b"), label("a-b"));
        assert_eq!(session("peer", "tor", "10.0.0.254"), "peer_tor_10_0_0_254");
        assert_eq!(session("mesh", "", "10.0.0.2"), "mesh_10_0_0_2");
        let long = "n".repeat(253);
        assert_ne!(label(&long), label(&format!("{long}x")));
        assert!(label(&long).len() <= MAX_LABEL);
        let (one, two) =
            (session("peer", &long, "fd00:1:2:3:4:5:6:7"), session("peer", &long, "fd00:1:2:3:4:5:6:8"));
        assert!(one != two && one.len() <= 58, "{one}");
    }
}
