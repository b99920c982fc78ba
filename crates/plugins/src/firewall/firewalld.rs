//! firewalld: binds the pod's addresses as sources to a zone, `trusted` unless the config names another.
//!
//! The binding lasts until firewalld is restarted or reloaded, because pods do not belong in its permanent
//! configuration.

use std::net::IpAddr;

use podwire_cni_spec::code;
use podwire_ip::IpFamily;

use super::dbus::{self, Bus, Call};

const NAME: &str = "org.fedoraproject.FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";
const OBJECT: &str = "/org/fedoraproject/FirewallD1";
/// An address that no pod has (RFC 5737).
const UNUSED_SOURCE: &str = "192.0.2.1/32";

/// firewalld's error codes for adding a source that the zone already has.
const ALREADY_BOUND: [&str; 2] = ["ZONE_ALREADY_SET", "ALREADY_ENABLED"];
/// firewalld's error codes for removing a source that the zone does not have.
const NOT_BOUND: [&str; 4] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT", "INVALID_ZONE"];

/// A pod's address as a source: a network with this address only.
pub(super) fn source(address: &IpAddr) -> String {
    format!("{address}/{}", IpFamily::of(*address).bits())
}

/// A connection to firewalld, and the zone of the network's pods.
#[derive(Debug)]
pub(super) struct Firewalld<'a> {
    bus: Bus,
    zone: &'a str,
}

type Result<T> = std::result::Result<T, dbus::Error>;

impl<'a> Firewalld<'a> {
    /// Connects to the bus, without checking that firewalld runs.
    pub fn connect(zone: &'a str) -> Result<Firewalld<'a>> {
        Ok(Firewalld { bus: Bus::system()?, zone })
    }

    /// Connects if firewalld runs. A bus that cannot be reached counts as one without firewalld.
    pub fn find(zone: &'a str) -> Option<Firewalld<'a>> {
        let mut found = Firewalld::connect(zone).ok()?;
        let response = found.bus.call(&Call::to_bus("NameHasOwner", &[NAME])).ok()?;
        response.boolean().is_ok_and(|owned| owned).then_some(found)
    }

    /// Binds a source to the zone. Returns whether it was not bound before.
    pub fn add(&mut self, source: &str) -> Result<bool> {
        self.change("addSource", source, &ALREADY_BOUND)
    }

    /// Removes a source from the zone. Returns whether it was bound.
    pub fn remove(&mut self, source: &str) -> Result<bool> {
        self.change("removeSource", source, &NOT_BOUND)
    }

    /// Whether a source is bound to the zone.
    pub fn has(&mut self, source: &str) -> Result<bool> {
        Ok(self.call("querySource", source)?.boolean()?)
    }

    /// Fails if firewalld does not run, or has no such zone.
    pub fn ensure_zone(&mut self) -> Result<()> {
        self.has(UNUSED_SOURCE).map(drop)
    }

    /// Calls a method. Errors with one of the codes `unchanged` mean that there was nothing to change.
    fn change(&mut self, member: &str, source: &str, unchanged: &[&str]) -> Result<bool> {
        match self.call(member, source) {
            Ok(_) => Ok(true),
            Err(error) if error_code(&error).is_some_and(|code| unchanged.contains(&code)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn call(&mut self, member: &str, source: &str) -> Result<dbus::Message> {
        let args = [self.zone, source];
        self.bus.call(&Call { destination: NAME, path: OBJECT, interface: ZONES, member, args: &args })
    }
}

/// firewalld's error code, as in `ZONE_CONFLICT: '10.1.0.5/32' already bound to a zone`.
fn error_code(error: &dbus::Error) -> Option<&str> {
    match error {
        dbus::Error::Refused { name, text } if name.starts_with(NAME) => text.split(':').next(),
        _ => None,
    }
}

/// The CNI error for a failed call.
pub(super) fn failure(doing: String, error: &dbus::Error) -> podwire_cni_spec::Error {
    let (code, hint) = match error_code(error) {
        Some("INVALID_ZONE") => (
            code::INVALID_CONFIG,
            "firewalldZone must be one of `firewall-cmd --get-zones`; new ones need a reload",
        ),
        Some("ZONE_CONFLICT") => (
            code::INTERNAL,
            "unbind the address there first: `firewall-cmd --zone=ZONE --remove-source=ADDRESS`",
        ),
        _ if error.is_absent() => {
            (code::NOT_AVAILABLE, "start firewalld, or remove \"backend\" from the config")
        }
        _ if matches!(error, dbus::Error::Timeout) => {
            (code::TRY_AGAIN, "firewalld or the D-Bus is busy or hangs")
        }
        _ => (code::INTERNAL, ""),
    };
    let why = match error {
        dbus::Error::Refused { .. } if error.is_absent() => "firewalld does not run".to_owned(),
        _ => error.to_string(),
    };
    podwire_cni_spec::Error::new(code, format!("{doing}: {why}")).with_details(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, text: &str) -> dbus::Error {
        dbus::Error::Refused { name: name.into(), text: text.into() }
    }

    #[test]
    fn a_source_is_one_address() {
        assert_eq!(source(&[10, 88, 0, 4].into()), "10.88.0.4/32");
        assert_eq!(source(&"fd00:0::0:5".parse().unwrap()), "fd00::5/128");
    }

    #[test]
    fn only_errors_of_firewalld_have_a_code() {
        let exception = "org.fedoraproject.FirewallD1.Exception";
        assert_eq!(error_code(&refused(exception, "INVALID_ZONE: nowhere")), Some("INVALID_ZONE"));
        assert_eq!(error_code(&refused(exception, "NOT_ENABLED")), Some("NOT_ENABLED"));
        assert_eq!(error_code(&refused("org.freedesktop.DBus.Error.NoReply", "INVALID_ZONE: x")), None);
        assert_eq!(error_code(&dbus::Error::Timeout), None);
    }

    #[test]
    fn failures_have_a_hint() {
        let invalid =
            failure("add".into(), &refused("org.fedoraproject.FirewallD1.Exception", "INVALID_ZONE: x"));
        assert_eq!(invalid.code, code::INVALID_CONFIG);
        assert_eq!(failure("add".into(), &dbus::Error::Timeout).code, code::TRY_AGAIN);
        let unknown = refused("org.freedesktop.DBus.Error.ServiceUnknown", "no such name");
        let absent = failure("add".into(), &unknown);
        assert_eq!((absent.code, absent.msg.as_str()), (code::NOT_AVAILABLE, "add: firewalld does not run"));
    }
}
