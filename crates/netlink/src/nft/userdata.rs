//! Comments. The kernel stores opaque user data with a rule or an element; nft writes and prints comments there, as
//! type, length and NUL-terminated text (libnftnl's `udata`).

const COMMENT: u8 = 0; // NFTNL_UDATA_RULE_COMMENT and NFTNL_UDATA_SET_ELEM_COMMENT

/// The longest comment. The length of an element's user data plus one must fit into a byte; type, length and the final
/// NUL take three more bytes.
pub const MAX_COMMENT: usize = 251;

/// The user data of a set whose key is in host byte order (names, marks): nft prints it reversed otherwise.
pub fn host_order() -> Vec<u8> {
    const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;
    const BYTEORDER_HOST_ENDIAN: u32 = 1;
    let mut bytes = vec![NFTNL_UDATA_SET_KEYBYTEORDER, 4];
    bytes.extend_from_slice(&BYTEORDER_HOST_ENDIAN.to_ne_bytes());
    bytes
}

/// The part of a comment that fits.
pub fn truncate(comment: &str) -> &str {
    let mut end = comment.len().min(MAX_COMMENT);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}

/// The user data for a comment, which is truncated if it is too long.
pub fn encode(comment: &str) -> Vec<u8> {
    let comment = truncate(comment);
    let mut bytes = Vec::with_capacity(comment.len() + 3);
    bytes.push(COMMENT);
    bytes.push(comment.len() as u8 + 1);
    bytes.extend_from_slice(comment.as_bytes());
    bytes.push(0);
    bytes
}

/// The comment in these bytes, if there is one.
pub fn decode(mut bytes: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..*length as usize)?;
        if *kind == COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        bytes = &rest[*length as usize..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_reads_back() {
        assert_eq!(encode("a/b/c"), b"\x00\x06a/b/c\x00");
        assert_eq!(decode(&encode("a/b/c")).as_deref(), Some("a/b/c"));
    }

    #[test]
    fn a_long_comment_is_truncated_between_characters() {
        let bytes = encode(&"é".repeat(200));
        assert_eq!(bytes.len(), 2 + 250 + 1);
        assert_eq!(decode(&bytes).unwrap(), "é".repeat(125));
    }

    #[test]
    fn invalid_lengths_and_other_types_are_no_comment() {
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[0, 9, b'a']), None);
        assert_eq!(decode(&[1, 1, 7, 0, 2, b'x', 0]).as_deref(), Some("x"));
    }
}
