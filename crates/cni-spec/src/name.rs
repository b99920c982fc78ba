//! Names that became file names, interface names and environment variables: checked once, then trusted.

use std::fmt;
use std::ops::Deref;

use serde::{Serialize, Serializer};

use crate::{code, Error};

/// Linux interface names live in 16 bytes with a trailing NUL (`IFNAMSIZ` in `linux/if.h`).
const IFNAME_MAX: usize = 15;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

name! {
    /// The runtime's id of a container or pod sandbox (`CNI_CONTAINERID`).
    ContainerId
}
name! {
    /// The name of a network (`name` in a config list).
    NetworkName
}
name! {
    /// The name of the interface to make in the container (`CNI_IFNAME`).
    IfName
}

/// What the specification allows in ids and network names. Neither can climb out of a folder.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

const IDENTIFIER_RULE: &str = "allowed are a-z A-Z 0-9 _ . - and the first must be a letter or digit";

impl ContainerId {
    /// Checks a container id. An empty one is an unknown container (code 3), a malformed one a bad
    /// environment (code 4).
    pub fn parse(text: &str) -> Result<ContainerId, Error> {
        if text.is_empty() {
            return Err(Error::new(code::UNKNOWN_CONTAINER, "missing containerID"));
        }
        if !is_identifier(text) {
            let error = Error::env("invalid characters in containerID").with_details(text);
            return Err(error.with_hint(IDENTIFIER_RULE));
        }
        Ok(ContainerId(text.to_owned()))
    }
}

impl NetworkName {
    /// Checks a network name (code 7).
    pub fn parse(text: &str) -> Result<NetworkName, Error> {
        if text.is_empty() {
            return Err(Error::invalid_config("missing network name"));
        }
        if !is_identifier(text) {
            let error = Error::invalid_config("invalid characters found in network name").with_details(text);
            return Err(error.with_hint(IDENTIFIER_RULE));
        }
        Ok(NetworkName(text.to_owned()))
    }
}

impl IfName {
    /// Checks an interface name as the kernel would (code 4): 1–15 bytes, not `.` or `..`, and none of `/`, `:`
    /// and white space in it.
    pub fn parse(text: &str) -> Result<IfName, Error> {
        let fail = |msg: &str, rule: &str| Err(Error::env(msg).with_hint(format!("{text:?}: {rule}")));
        if text.is_empty() {
            return Err(Error::env("interface name is empty"));
        }
        if text.len() > IFNAME_MAX {
            return fail("interface name is too long", "at most 15 bytes are allowed")
                .map_err(|error| error.with_details("interface name should be less than 16 characters"));
        }
        if text == "." || text == ".." {
            return fail("interface name is . or ..", "both name folders in sysfs");
        }
        if text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
            let rule = "no '/', ':', white space or control characters are allowed";
            return fail("interface name contains / or : or whitespace characters", rule);
        }
        Ok(IfName(text.to_owned()))
    }
}

/// Checks a plugin's `type` (code 7), which becomes a file name in `CNI_PATH`: not empty, no path separator,
/// not `.` or `..`.
pub fn plugin_type(text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::invalid_config("missing 'type'").with_details("it names the plugin's executable"));
    }
    if text == "." || text == ".." || text.contains(['/', '\\', '\0']) {
        return Err(Error::invalid_config(format!("invalid plugin name: {text}"))
            .with_details("a plugin type is a file name without any path"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_networks_follow_the_specification() {
        for good in ["a", "0", "k8s.io", "Pod_1-2.3", &"f".repeat(300)] {
            assert_eq!(ContainerId::parse(good).unwrap().as_str(), good);
            assert_eq!(&*NetworkName::parse(good).unwrap(), good);
        }
        for bad in ["-a", ".", "..", "_x", "a/b", "../x", "a b", "ä", "a\n", "a\0"] {
            assert_eq!(ContainerId::parse(bad).unwrap_err().code, code::INVALID_ENV, "{bad:?}");
            assert_eq!(NetworkName::parse(bad).unwrap_err().code, code::INVALID_CONFIG, "{bad:?}");
        }
    }

    #[test]
    fn empty_names_have_their_own_words() {
        let error = ContainerId::parse("").unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (code::UNKNOWN_CONTAINER, "missing containerID"));
        assert_eq!(NetworkName::parse("").unwrap_err().code, code::INVALID_CONFIG);
        assert_eq!(IfName::parse("").unwrap_err().code, code::INVALID_ENV);
        assert_eq!(plugin_type("").unwrap_err().msg, "missing 'type'");
    }

    #[test]
    fn interface_names_are_what_the_kernel_takes() {
        for good in ["e", "eth0", "123456789012345", "...", "a@b", "ä"] {
            assert_eq!(IfName::parse(good).unwrap().to_string(), good);
        }
        for bad in
            [".", "..", "1234567890123456", "a/b", "a:b", "a b", "a\tb", "a\u{a0}b", "a\u{2003}b", "a\0"]
        {
            assert_eq!(IfName::parse(bad).unwrap_err().code, code::INVALID_ENV, "{bad:?}");
        }
        // Bytes count, not characters.
        assert!(IfName::parse("ääääääää").is_err());
    }

    #[test]
    fn a_plugin_type_never_leaves_its_folder() {
        for good in ["bridge", "host-local", "my.plugin", "..."] {
            assert_eq!(plugin_type(good), Ok(()));
        }
        for bad in [".", "..", "/bin/sh", "a/b", "a\\b", "a\0"] {
            assert_eq!(plugin_type(bad).unwrap_err().code, code::INVALID_CONFIG, "{bad:?}");
        }
    }

    #[test]
    fn names_pad_and_serialize_as_text() {
        let name = IfName::parse("eth0").unwrap();
        assert_eq!(format!("{name:>6}|"), "  eth0|");
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"eth0\"");
        assert_eq!(String::from(name), "eth0");
    }
}
