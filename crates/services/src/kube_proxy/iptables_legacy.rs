//! The chains of iptables-legacy, which nf_tables does not show. They are found, not removed: the kernel only replaces a
//! whole table at once, and a change of another program in between would be lost.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use podwire_ip::IpFamily;
use podwire_netlink::sys::{query_iptables, IptablesQuery};

use super::names::{is_proxy_chain, IPTABLES};

/// How often a table is read again because it changed meanwhile.
const ATTEMPTS: usize = 10;
/// The bytes of a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`; its last field is the size of the rules.
const INFO: usize = 84;
const INFO_SIZE: usize = 80;
/// `struct ipt_get_entries`, without the rules that follow.
const ENTRIES: usize = 40;

/// The chains of kube-proxy by table.
pub(super) fn find(family: IpFamily) -> io::Result<Vec<(&'static str, Vec<String>)>> {
    let file = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Reading another table would create it.
    let names = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for table in IPTABLES.into_iter().filter(|table| names.lines().any(|name| name == *table)) {
        let mut chains = chains(family, &read(family, table)?);
        chains.retain(|chain| is_proxy_chain(chain));
        if !chains.is_empty() {
            found.push((table, chains));
        }
    }
    Ok(found)
}

/// The rules of a table.
fn read(family: IpFamily, table: &str) -> io::Result<Vec<u8>> {
    let socket = match family {
        IpFamily::V4 => UdpSocket::bind("0.0.0.0:0"),
        IpFamily::V6 => UdpSocket::bind("[::]:0"),
    }?;
    let named = |length: usize| {
        let mut buffer = vec![0; length];
        buffer[..table.len().min(NAME)].copy_from_slice(&table.as_bytes()[..table.len().min(NAME)]);
        buffer
    };
    for _ in 0..ATTEMPTS {
        let mut info = named(INFO);
        query_iptables(socket.as_fd(), family, IptablesQuery::Info, &mut info)?;
        let size = number(&info, INFO_SIZE).unwrap_or(0);
        let mut entries = named(ENTRIES + size as usize);
        entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        match query_iptables(socket.as_fd(), family, IptablesQuery::Entries, &mut entries) {
            // The size has changed.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome.map(|()| entries.split_off(ENTRIES)),
        }
    }
    Err(io::Error::other("another program changes the table all the time"))
}

/// The names of a table's own chains: each begins with a rule whose target is called `ERROR` and contains the name.
fn chains(family: IpFamily, mut rules: &[u8]) -> Vec<String> {
    // The offsets of `target_offset` and `next_offset` in `struct ipt_entry` and `struct ip6t_entry`.
    let (target_offset, next_offset) = match family {
        IpFamily::V4 => (88, 90),
        IpFamily::V6 => (140, 142),
    };
    // `struct xt_error_target`: a length, the target's name and revision in 32 bytes, and the chain's name.
    let (target_name, chain_name) = (2..31, 32..62);
    let mut found = Vec::new();
    while let (Some(target), Some(next)) = (short(rules, target_offset), short(rules, next_offset)) {
        let text = |range: std::ops::Range<usize>| {
            Some(text(rules.get(usize::from(target) + range.start..usize::from(target) + range.end)?))
        };
        if text(target_name.clone()).as_deref() == Some("ERROR") {
            found.extend(text(chain_name.clone()));
        }
        match rules.get(usize::from(next)..) {
            Some(rest) if next > 0 => rules = rest,
            _ => break,
        }
    }
    found
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Text up to the first NUL.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lengths_end_the_list() {
        let mut endless = vec![0; 200];
        assert_eq!(chains(IpFamily::V4, &endless), [""; 0]);
        endless[90] = 8;
        assert_eq!(chains(IpFamily::V4, &endless), [""; 0]);
        endless[88..92].fill(255);
        assert_eq!(chains(IpFamily::V4, &endless), [""; 0]);
        assert_eq!(chains(IpFamily::V6, &[0; 141]), [""; 0]);
    }
}
