//! Keys that are in `sysctl` twice. The parsed config has only the last value of such a key, so they are looked for in the
//! text.

use std::collections::HashSet;
use std::fmt;

use podwire_cni_plugin::Result;
use podwire_cni_spec::Error;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The text of the Go plugin.
pub(super) const DUPLICATED: &str = "duplicated sysctl keys are not allowed";

/// Fails if the text of a config has a key twice.
pub(super) fn refuse(config: &[u8]) -> Result<()> {
    match serde_json::from_slice(config) {
        Ok(Config(Some(key))) => {
            Err(Error::invalid_config(DUPLICATED).with_hint(format!("{key:?} is there twice")).into())
        }
        // Other errors are found when the config is parsed.
        _ => Ok(()),
    }
}

/// The first duplicate in the `sysctl` of a config.
struct Config(Option<String>);

/// The first duplicate among the keys of an object.
struct Section(Option<String>);

struct ConfigVisitor;
struct SectionVisitor;

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Config, D::Error> {
        deserializer.deserialize_map(ConfigVisitor)
    }
}

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Section, D::Error> {
        deserializer.deserialize_map(SectionVisitor)
    }
}

impl<'de> Visitor<'de> for ConfigVisitor {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Config, A::Error> {
        let mut duplicate = None;
        while let Some(key) = map.next_key::<String>()? {
            if key.eq_ignore_ascii_case("sysctl") {
                duplicate = duplicate.or(map.next_value::<Section>()?.0);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Config(duplicate))
    }
}

impl<'de> Visitor<'de> for SectionVisitor {
    type Value = Section;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Section, A::Error> {
        let (mut seen, mut duplicate) = (HashSet::new(), None);
        while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
            if !seen.insert(key.clone()) {
                duplicate = duplicate.or(Some(key));
            }
        }
        Ok(Section(duplicate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_that_is_there_twice_is_refused() {
        let twice = br#"{"name": "a", "name": "b", "SysCtl": {"net.a": "1", "net.b": "1", "net.a": "0"}}"#;
        let error = refuse(twice).unwrap_err().to_cni();
        assert_eq!((error.code, error.msg.as_str()), (7, DUPLICATED));
        assert_eq!(error.hint, "\"net.a\" is there twice");
        for fine in [
            &br#"{"sysctl": {"net.a": "1", "net.b": "1"}, "args": {"net.a": "1"}}"#[..],
            br#"{"mtu": 1, "mtu": 2, "sysctl": null}"#,
            br#"{"sysctl": ["net.a", "net.a"]}"#,
            b"not JSON",
        ] {
            assert!(refuse(fine).is_ok());
        }
    }
}
