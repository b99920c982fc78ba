//! The sysctls that the node's administrator permits: a file with one regular expression per line, each of which may
//! match anywhere in a key. Without the file all are permitted.

use std::io;
use std::path::PathBuf;

use podwire_cni_plugin::Result;
use podwire_cni_spec::{code, Error};
use regex_lite::Regex;

use super::settings::Settings;

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// The allowed keys; `None` permits all.
#[derive(Debug)]
pub struct Allowlist(Option<Vec<Regex>>);

impl Allowlist {
    /// Reads the node's list.
    pub fn load() -> Result<Allowlist> {
        match std::fs::read_to_string(FILE) {
            Ok(text) => Allowlist::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Allowlist(None)),
            Err(source) => Err(podwire_kernel::Error::from(podwire_fs::FileError {
                doing: "read allowlist",
                path: PathBuf::from(FILE),
                source,
            })
            .into()),
        }
    }

    fn parse(text: &str) -> Result<Allowlist> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let compile = |line: &str| {
            Regex::new(line).map_err(|error| {
                let text = format!("{FILE}: the line {line:?} is not a regular expression: {error}");
                Error::new(code::INVALID_CONFIG, text).with_details("correct or remove that line").into()
            })
        };
        lines.map(compile).collect::<Result<_>>().map(Some).map(Allowlist)
    }

    /// Fails for a sysctl that is not in the list. Keys are compared as written.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        let Some(allowed) = &self.0 else { return Ok(()) };
        let matches = |key: &str| allowed.iter().any(|expression| expression.is_match(key));
        match settings.written_keys.iter().find(|key| !matches(key)) {
            None => Ok(()),
            Some(key) => {
                let all: Vec<&str> = allowed.iter().map(Regex::as_str).collect();
                let text = format!(
                    "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]",
                    all.join(" ")
                );
                Err(Error::invalid_config(text).with_hint(format!("{FILE} lists the allowed sysctls")).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &Allowlist, key: &str) -> std::result::Result<(), String> {
        let settings = Settings { written_keys: vec![key.into()], ..Settings::default() };
        list.check(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn expressions_match_anywhere_unless_anchored() {
        let list = Allowlist::parse("  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\r\n\nsomaxconn\n").unwrap();
        assert_eq!(check(&list, "net.ipv4.conf.IFNAME.arp_notify"), Ok(()));
        assert_eq!(check(&list, "net.core.somaxconn"), Ok(()));
        let text = check(&list, "net.ipv4.conf.all.arp_notify").unwrap_err();
        assert!(
            text.starts_with("Sysctl net.ipv4.conf.all.arp_notify is not allowed. Only the following"),
            "{text}"
        );
    }

    #[test]
    fn no_file_permits_all_and_an_empty_one_nothing() {
        assert_eq!(check(&Allowlist(None), "net.core.somaxconn"), Ok(()));
        assert!(check(&Allowlist::parse("\n").unwrap(), "net.core.somaxconn").is_err());
    }

    #[test]
    fn a_broken_line_is_named() {
        let text = Allowlist::parse("ok\n(\n").unwrap_err().to_string();
        assert!(text.contains("the line \"(\" is not a regular expression"), "{text}");
    }
}
