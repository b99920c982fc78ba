//! Names that BIRD takes: of letters, digits and `_`, and of no more than 64.

/// So long a part of a name may be, with all that stands around it.
const LONGEST: usize = 46;

/// An address as a part of a name.
pub(super) fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// An object's name as a part of one. Two names are never one: Kubernetes knows no `_`, so `-` becomes that; what is too long, or has a dot,
/// ends with a number.
pub(super) fn label(name: &str) -> String {
    let word = word(name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match word.len() <= LONGEST && name.bytes().all(is_plain) {
        true => word,
        // All of it is ASCII.
        false => format!("{}_{:08x}", &word[..word.len().min(LONGEST - 9)], hash(name)),
    }
}

/// A session's name: of what it follows from, and the peer's address.
pub(super) fn session(kind: &str, name: &str, ip: &str) -> String {
    let whole = match name {
        "" => format!("{kind}_{}", word(ip)),
        name => format!("{kind}_{}_{}", label(name), word(ip)),
    };
    match whole.len() <= LONGEST + 9 {
        true => whole,
        false => format!("{}_{:08x}", &whole[..LONGEST], hash(&format!("{name} {ip}"))),
    }
}

/// A number that follows from a text.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_no_two_are_one() {
        assert_eq!(label("to-the-rack"), "to_the_rack");
        assert_ne!(label("a.b"), label("a-b"));
        assert_eq!(session("peer", "tor", "10.0.0.254"), "peer_tor_10_0_0_254");
        assert_eq!(session("mesh", "", "10.0.0.2"), "mesh_10_0_0_2");
        let long = "n".repeat(253);
        assert_ne!(label(&long), label(&format!("{long}x")));
        assert!(label(&long).len() <= LONGEST);
        let (one, two) =
            (session("peer", &long, "fd00:1:2:3:4:5:6:7"), session("peer", &long, "fd00:1:2:3:4:5:6:8"));
        assert!(one != two && one.len() <= 58, "{one}");
    }
}
