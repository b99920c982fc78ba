//! Addresses of the system's bus, in the syntax of the D-Bus specification. Only local sockets are supported.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use podwire_netlink::sys;

use super::error::{Error, TIMEOUT};

const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT: &str = "unix:path=/run/dbus/system_bus_socket";

/// Connects to the first address that has a listener.
pub(super) fn connect() -> Result<UnixStream, Error> {
    let given = std::env::var(VARIABLE).ok().filter(|given| !given.is_empty());
    first(given.as_deref().unwrap_or(DEFAULT))
}

fn first(addresses: &str) -> Result<UnixStream, Error> {
    let mut failed = Error::Absent(addresses.into());
    for address in addresses.split(';').filter_map(parse) {
        match sys::connect_unix(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) if is_absence(&error) => {}
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Parses `unix:path=…` or `unix:abstract=…`; other keys, such as the bus's guid, may follow.
fn parse(address: &str) -> Option<SocketAddr> {
    let pairs = address.strip_prefix("unix:")?;
    pairs.split(',').filter_map(|pair| pair.split_once('=')).find_map(|(key, value)| {
        let value = unescape(value)?;
        match key {
            "path" => SocketAddr::from_pathname(String::from_utf8(value).ok()?).ok(),
            "abstract" => SocketAddr::from_abstract_name(value).ok(),
            _ => None,
        }
    })
}

/// Decodes `%` and two hexadecimal digits.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, plain) = part.split_at_checked(2)?;
        // `from_str_radix` accepts a sign, too.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(plain.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_abstract_names_are_parsed() {
        let path = |address: &str| parse(address)?.as_pathname().map(|path| path.display().to_string());
        assert_eq!(path(DEFAULT).unwrap(), "/run/dbus/system_bus_socket");
        assert_eq!(path("unix:guid=00,path=/run/a%20bus").unwrap(), "/run/a bus");
        assert_eq!(parse("unix:abstract=bus,guid=1").unwrap().as_abstract_name(), Some(&b"bus"[..]));
    }

    #[test]
    fn other_addresses_are_skipped() {
        let others = ["", "tcp:host=localhost,port=1", "unix:", "unix:path", "unix:path=%", "unix:path=%zz"];
        for address in
            others.into_iter().chain(["unix:path=%+1", "unix:path=%é", "unix:path=/%00", "unix:dir=/run"])
        {
            assert!(parse(address).is_none(), "{address}");
        }
        assert!(parse(&format!("unix:path=/{}", "x".repeat(200))).is_none());
    }

    #[test]
    fn no_listener_at_any_address_means_absent() {
        let folder = std::env::temp_dir();
        let nowhere = format!("tcp:host=x;unix:path={}/podwire-no-bus", folder.display());
        assert!(first(&nowhere).unwrap_err().is_absent());
    }
}
