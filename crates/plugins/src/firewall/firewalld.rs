//! firewalld: a zone decides about the packets of the sources that are bound to it.
//!
//! The pod's addresses become sources of a zone, `trusted` unless the config names another. That lasts until
//! firewalld is restarted or reloaded, since pods do not belong into its permanent configuration.

use std::net::IpAddr;

use podwire_cni_spec::code;

use super::bus::{self, Bus, Call};

const NAME: &str = "org.fedoraproject.FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";
const OBJECT: &str = "/org/fedoraproject/FirewallD1";
/// An address that no pod has (RFC 5737).
const NOBODY: &str = "192.0.2.1/32";

/// What firewalld says, before a colon, of a source that the zone has already.
const THERE: [&str; 2] = ["ZONE_ALREADY_SET", "ALREADY_ENABLED"];
/// And of one that it does not have (any more).
const GONE: [&str; 4] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT", "INVALID_ZONE"];

/// A pod's address as a source: a network in which it is alone.
pub(super) fn source(address: &IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// firewalld, and the zone that pods of this network are in.
#[derive(Debug)]
pub(super) struct Firewalld<'a> {
    bus: Bus,
    zone: &'a str,
}

type Result<T> = std::result::Result<T, bus::Error>;

impl<'a> Firewalld<'a> {
    /// On its bus, whether or not it is there.
    pub fn at(zone: &'a str) -> Result<Firewalld<'a>> {
        Ok(Firewalld { bus: Bus::system()?, zone })
    }

    /// If it runs. A bus that cannot be asked has no firewalld, for all that can be told.
    pub fn find(zone: &'a str) -> Option<Firewalld<'a>> {
        let mut found = Firewalld::at(zone).ok()?;
        let answer = found.bus.call(&Call::to_bus("NameHasOwner", &[NAME])).ok()?;
        answer.boolean().is_ok_and(|owned| owned).then_some(found)
    }

    /// Binds a source to the zone; says whether it was not before.
    pub fn add(&mut self, source: &str) -> Result<bool> {
        self.change("addSource", source, &THERE)
    }

    /// Takes a source from the zone; says whether it was there.
    pub fn remove(&mut self, source: &str) -> Result<bool> {
        self.change("removeSource", source, &GONE)
    }

    /// Whether a source is bound to the zone.
    pub fn has(&mut self, source: &str) -> Result<bool> {
        Ok(self.ask("querySource", source)?.boolean()?)
    }

    /// Fails if it does not run, or has no such zone.
    pub fn ensure_zone(&mut self) -> Result<()> {
        self.has(NOBODY).map(drop)
    }

    fn change(&mut self, member: &str, source: &str, already: &[&str]) -> Result<bool> {
        match self.ask(member, source) {
            Ok(_) => Ok(true),
            Err(error) if complaint(&error).is_some_and(|code| already.contains(&code)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn ask(&mut self, member: &str, source: &str) -> Result<bus::Message> {
        let args = [self.zone, source];
        self.bus.call(&Call { destination: NAME, path: OBJECT, interface: ZONES, member, args: &args })
    }
}

/// firewalld's own code of an error, as in `ZONE_CONFLICT: '10.1.0.5/32' already bound to a zone`.
fn complaint(error: &bus::Error) -> Option<&str> {
    match error {
        bus::Error::Refused { name, text } if name.starts_with(NAME) => text.split(':').next(),
        _ => None,
    }
}

/// The spec's error object for something that firewalld would not do.
pub(super) fn failure(doing: String, error: &bus::Error) -> podwire_cni_spec::Error {
    let (code, hint) = match complaint(error) {
        Some("INVALID_ZONE") => (
            code::INVALID_CONFIG,
            "firewalldZone must be one of `firewall-cmd --get-zones`; new ones need a reload",
        ),
        Some("ZONE_CONFLICT") => (
            code::INTERNAL,
            "unbind the address there first: `firewall-cmd --zone=ZONE --remove-source=ADDRESS`",
        ),
        _ if error.is_absent() => {
            (code::NOT_AVAILABLE, "start firewalld, or leave \"backend\" out of the config")
        }
        _ if matches!(error, bus::Error::Silent) => {
            (code::TRY_AGAIN, "firewalld or the D-Bus is busy or hangs")
        }
        _ => (code::INTERNAL, ""),
    };
    let why = match error {
        bus::Error::Refused { .. } if error.is_absent() => "firewalld does not run".to_owned(),
        _ => error.to_string(),
    };
    podwire_cni_spec::Error::new(code, format!("{doing}: {why}")).with_details(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, text: &str) -> bus::Error {
        bus::Error::Refused { name: name.into(), text: text.into() }
    }

    #[test]
    fn a_source_is_one_address() {
        assert_eq!(source(&[10, 88, 0, 4].into()), "10.88.0.4/32");
        assert_eq!(source(&"fd00:0::0:5".parse().unwrap()), "fd00::5/128");
    }

    #[test]
    fn complaints_of_firewalld_have_a_code_and_those_of_others_none() {
        let exception = "org.fedoraproject.FirewallD1.Exception";
        assert_eq!(complaint(&refused(exception, "INVALID_ZONE: nowhere")), Some("INVALID_ZONE"));
        assert_eq!(complaint(&refused(exception, "NOT_ENABLED")), Some("NOT_ENABLED"));
        assert_eq!(complaint(&refused("org.freedesktop.DBus.Error.NoReply", "INVALID_ZONE: x")), None);
        assert_eq!(complaint(&bus::Error::Silent), None);
    }

    #[test]
    fn failures_say_what_to_do() {
        let invalid =
            failure("add".into(), &refused("org.fedoraproject.FirewallD1.Exception", "INVALID_ZONE: x"));
        assert_eq!(invalid.code, code::INVALID_CONFIG);
        assert_eq!(failure("add".into(), &bus::Error::Silent).code, code::TRY_AGAIN);
        let nobody = refused("org.freedesktop.DBus.Error.ServiceUnknown", "no such name");
        let absent = failure("add".into(), &nobody);
        assert_eq!((absent.code, absent.msg.as_str()), (code::NOT_AVAILABLE, "add: firewalld does not run"));
    }
}
