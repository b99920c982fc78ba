//! Sanitizes packets before `dhcproto` decodes them.
//!
//! Any host on the link can send packets. This module checks what `dhcproto` does not: the length of hardware addresses, that
//! options end inside the packet, and that each has the length of its kind. Options that are not needed are removed. Split
//! options are joined (RFC 3396), and options in the file name fields are extracted (option 52).

const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Where the options of DHCPv4 begin, after the cookie.
const OPTIONS: usize = 240;
const REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const OVERLOAD: u8 = 52;
const END: u8 = 255;

/// The options of DHCPv4 that are decoded; those whose decoding can fail come last.
const KNOWN4: &[u8] = &[53, 54, 51, 58, 59, 1, 3, 6, 26, 33, 61, 15, 56, 121, 119];
/// Those with a fixed length.
const FIXED: &[u8] = &[1, 26, 51, 52, 53, 54, 58, 59];
/// The options of DHCPv6 that are decoded.
const KNOWN6: &[u16] = &[CLIENT, SERVER, IDENTITY, STATUS, 23, 24];
const CLIENT: u16 = 1;
const SERVER: u16 = 2;
const IDENTITY: u16 = 3;
const ADDRESS: u16 = 5;
const STATUS: u16 = 13;

/// A DHCPv4 reply to an Ethernet client with the known options, each valid and only once.
pub fn v4(packet: &[u8]) -> Option<Vec<u8>> {
    let head = packet.get(..OPTIONS)?;
    if head[0] != REPLY || head[1] != ETHERNET || head[2] != 6 || head[236..] != COOKIE {
        return None;
    }
    let mut found = Options::default();
    found.read(&packet[OPTIONS..]);
    let overload = found.value(OVERLOAD).and_then(|value| value.first().copied()).unwrap_or(0);
    if overload & 1 != 0 {
        found.read(&head[108..236]);
    }
    if overload & 2 != 0 {
        found.read(&head[44..108]);
    }
    let mut clean = head.to_vec();
    // The name fields are not needed and may contain anything.
    clean[44..236].fill(0);
    for &code in KNOWN4 {
        let value = found.value(code).filter(|value| value.len() <= 255 && is_valid(code, value));
        if let Some(value) = value {
            clean.extend([code, value.len() as u8]);
            clean.extend(value);
        }
    }
    clean.push(END);
    Some(clean)
}

/// The known options of a DHCPv4 packet, split options joined.
#[derive(Default)]
struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    fn value(&self, code: u8) -> Option<&Vec<u8>> {
        self.0.iter().find(|(one, _)| *one == code).map(|(_, value)| value)
    }

    /// Reads options up to the first incomplete one.
    fn read(&mut self, mut bytes: &[u8]) {
        while let [code, rest @ ..] = bytes {
            bytes = match (code, rest) {
                (0, _) => rest,
                (&END, _) => return,
                (_, [length, rest @ ..]) if rest.len() >= usize::from(*length) => {
                    let (value, after) = rest.split_at(usize::from(*length));
                    self.join(*code, value);
                    after
                }
                _ => return,
            };
        }
    }

    fn join(&mut self, code: u8, value: &[u8]) {
        if !KNOWN4.contains(&code) && code != OVERLOAD {
            return;
        }
        match self.0.iter_mut().find(|(one, _)| *one == code) {
            // A repeated option of fixed length replaces the first one; it is not a continuation.
            Some((_, before)) if FIXED.contains(&code) => *before = value.to_vec(),
            Some((_, before)) => before.extend(value),
            None => self.0.push((code, value.to_vec())),
        }
    }
}

fn is_valid(code: u8, value: &[u8]) -> bool {
    let whole = |size: usize| !value.is_empty() && value.len().is_multiple_of(size);
    match code {
        53 => value.len() == 1,
        26 => value.len() == 2,
        1 | 51 | 54 | 58 | 59 => value.len() == 4,
        3 | 6 => whole(4),
        33 => whole(8),
        15 | 56 => std::str::from_utf8(value).is_ok_and(|text| !text.is_empty()),
        121 => is_route_list(value),
        _ => !value.is_empty(),
    }
}

/// Whether every route of option 121 is complete: a truncated list would be another list.
fn is_route_list(mut value: &[u8]) -> bool {
    if value.is_empty() {
        return false;
    }
    while let [prefix, rest @ ..] = value {
        let length = usize::from(prefix.div_ceil(8)) + 4;
        if *prefix > 32 || rest.len() < length {
            return false;
        }
        value = &rest[length..];
    }
    true
}

/// A DHCPv6 message with the known options, each valid.
pub fn v6(packet: &[u8]) -> Option<Vec<u8>> {
    let mut clean = packet.get(..4)?.to_vec();
    for (code, value) in options6(&packet[4..])? {
        if KNOWN6.contains(&code) {
            keep6(code, value, &mut clean);
        }
    }
    Some(clean)
}

/// The options of DHCPv6 in `bytes`; `None` if the last one is incomplete.
fn options6(mut bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let head = bytes.get(..4)?;
        let (code, length) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
        let end = 4 + usize::from(length);
        all.push((code, bytes.get(4..end)?));
        bytes = &bytes[end..];
    }
    Some(all)
}

fn keep6(code: u16, value: &[u8], clean: &mut Vec<u8>) {
    let value = match code {
        // From an identity association only addresses and the status are kept, from an address nothing inside it.
        IDENTITY => match (value.get(..12), value.get(12..).and_then(options6)) {
            (Some(head), Some(inside)) => {
                let mut whole = head.to_vec();
                for (code, value) in inside.into_iter().filter(|(code, _)| [ADDRESS, STATUS].contains(code)) {
                    keep6(code, value, &mut whole);
                }
                whole
            }
            _ => return,
        },
        ADDRESS if value.len() >= 24 => value[..24].to_vec(),
        // The text of a status may have any encoding.
        STATUS if value.len() >= 2 => value[..2].to_vec(),
        ADDRESS | STATUS => return,
        23 if !value.len().is_multiple_of(16) => return,
        CLIENT | SERVER if value.is_empty() || value.len() > 130 => return,
        _ => value.to_vec(),
    };
    clean.extend(code.to_be_bytes());
    clean.extend((value.len() as u16).to_be_bytes());
    clean.extend(value);
}

/// A domain name for a resolver config, in lower case and without the final dot. Rejects line feeds, with which a server could add
/// lines to the config.
pub fn domain(text: &str) -> Option<String> {
    let name = text.trim_end_matches('\0').split(' ').next().unwrap_or_default().trim_end_matches('.');
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_valid = !name.is_empty() && name.len() <= 253 && name.chars().all(is_allowed);
    (is_valid && !name.starts_with('.') && !name.contains("..")).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; OPTIONS];
        packet[..3].copy_from_slice(&[REPLY, ETHERNET, 6]);
        packet[236..].copy_from_slice(&COOKIE);
        packet.extend(options);
        packet
    }

    fn kept(options: &[u8]) -> Vec<u8> {
        v4(&packet(options)).unwrap()[OPTIONS..].to_vec()
    }

    #[test]
    fn unknown_and_invalid_options_are_removed_and_split_ones_joined() {
        assert_eq!(kept(&[0, 53, 1, 5, 0, 80, 9, 1]), [53, 1, 5, END]);
        assert_eq!(kept(&[80, 1, 7, 53, 1, 5, END, 1, 4, 1, 1, 1, 1]), [53, 1, 5, END]);
        assert_eq!(kept(&[3, 2, 10, 0, 53, 1, 2, 3, 2, 0, 1]), [53, 1, 2, 3, 4, 10, 0, 0, 1, END]);
        assert_eq!(kept(&[51, 4, 0, 0, 0, 9, 51, 4, 0, 0, 0, 7]), [51, 4, 0, 0, 0, 7, END]);
        assert_eq!(kept(&[3, 3, 10, 0, 1, 26, 3, 1, 1, 1, 15, 2, 0xff, 0xfe]), [END]);
        assert_eq!(
            kept(&[121, 6, 8, 10, 1, 2, 3, 4, 119, 1, 0]),
            [121, 6, 8, 10, 1, 2, 3, 4, 119, 1, 0, END]
        );
        assert_eq!(kept(&[121, 5, 33, 10, 1, 2, 3]), [END]);
        assert_eq!(kept(&[121, 7, 8, 10, 1, 2, 3, 4, 0]), [END]);
    }

    #[test]
    fn options_in_the_name_fields_are_read() {
        let mut moved = packet(&[52, 1, 3, 53, 1, 5]);
        moved[108..112].copy_from_slice(&[26, 2, 5, 0xdc]);
        moved[44..50].copy_from_slice(&[54, 4, 10, 0, 0, 1]);
        let clean = v4(&moved).unwrap();
        assert_eq!(clean[OPTIONS..], [53, 1, 5, 54, 4, 10, 0, 0, 1, 26, 2, 5, 0xdc, END]);
        assert!(clean[44..236].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_replies_to_ethernet_clients_are_accepted() {
        for (at, value) in [(0, 1), (1, 6), (2, 16), (2, 255), (239, 0)] {
            let mut bad = packet(&[53, 1, 5]);
            bad[at] = value;
            assert_eq!(v4(&bad), None, "byte {at}");
        }
        assert_eq!(v4(&packet(&[])[..239]), None);
    }

    #[test]
    fn an_incomplete_dhcpv6_message_is_rejected() {
        let message = [7, 1, 2, 3, 0, 1, 0, 1, 9, 0, 13, 0, 4, 0, 0, b'o', b'k', 0, 99, 0, 0];
        assert_eq!(v6(&message).unwrap(), [7, 1, 2, 3, 0, 1, 0, 1, 9, 0, 13, 0, 2, 0, 0]);
        assert_eq!(v6(&message[..20]), None);
        assert_eq!(v6(&[7, 1, 2, 3, 0, 13, 0, 1, 0]).unwrap(), [7, 1, 2, 3]);
    }

    #[test]
    fn only_valid_domains_are_accepted() {
        assert_eq!(domain("Example.NET.").as_deref(), Some("example.net"));
        assert_eq!(domain("one.test two.test\0").as_deref(), Some("one.test"));
        for bad in ["", ".", "a..b", ".a", "x\nnameserver 192.0.2.1", "ü.test", &"a".repeat(254)] {
            assert_eq!(domain(bad), None, "{bad:?}");
        }
    }
}
