//! Passwords of sessions (TCP MD5 signatures): files `SECRET/KEY` in a directory, as Kubernetes mounts a Secret. They
//! are read each time the configuration is built, so BIRD gets a changed password within seconds.
//!
//! A password is written to BIRD's configuration only. No log line and no error text contains it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde_json::Value;

/// TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const MAX_LENGTH: usize = 80;

/// The directory of passwords.
pub(crate) struct Passwords {
    dir: Option<PathBuf>,
}

/// A password that BIRD's configuration can contain.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl Password {
    /// BIRD's strings have no escapes, so a password must not contain a quote or a control character.
    fn parse(text: &str) -> Result<Password, &'static str> {
        // Editors and echo add it.
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.is_empty() {
            return Err("is empty");
        }
        if text.len() > MAX_LENGTH {
            return Err("is longer than 80 bytes, the maximum of the kernel");
        }
        if text.chars().any(|c| c == '"' || c.is_control()) {
            return Err("contains a quote or a control character, which BIRD's configuration cannot contain");
        }
        Ok(Password(text.into()))
    }

    /// The password in quotes.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Passwords {
    pub(crate) fn new(dir: Option<PathBuf>) -> Passwords {
        Passwords { dir }
    }

    /// The password that an object refers to by `{"secretKeyRef": {"name": …, "key": …}}`.
    pub(crate) fn find(&self, reference: &Value) -> Result<Password, String> {
        let part = |field: &str| reference["secretKeyRef"][field].as_str().filter(|text| is_name(text));
        let (Some(name), Some(key)) = (part("name"), part("key")) else {
            return Err("its password has no secretKeyRef with a name and a key".into());
        };
        let secret = format!("its password, key {key} of secret {name},");
        let Some(dir) = &self.dir else {
            return Err(format!(
                "{secret} cannot be read: set the directory of passwords with --bgp-passwords"
            ));
        };
        let path = dir.join(name).join(key);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{secret} does not exist: {} is missing", path.display()),
            _ => format!("{secret} cannot be read: {}: {error}", path.display()),
        })?;
        Password::parse(&text).map_err(|why| format!("{secret} {why}"))
    }
}

/// Whether this is a valid name of a Secret or its key. No such name leads out of the directory.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_password_that_birds_string_cannot_contain_is_rejected_and_not_shown() {
        let parse = |text: &str| Password::parse(text).map(|password| password.quoted());
        assert_eq!(parse("geheim #1; {x}\n"), Ok("\"geheim #1; {x}\"".into()));
        for bad in ["", "\n", "a\"; } protocol static { ", "a\nb", "a\r", "a\n\n", &"x".repeat(81)] {
            let why = parse(bad).unwrap_err();
            assert!(bad.trim().len() < 2 || !why.contains(bad.trim()), "{why}");
        }
    }

    #[test]
    fn a_missing_password_is_named_and_no_name_leads_out_of_the_directory() {
        let dir = std::env::temp_dir().join(format!("podwire-passwords-{}", std::process::id()));
        fs::create_dir_all(dir.join("bgp")).unwrap();
        fs::write(dir.join("bgp/tor"), "geheim\n").unwrap();
        fs::write(dir.join("outside"), "geheim").unwrap();
        let wanted = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
        let passwords = Passwords::new(Some(dir.join("")));
        assert!(passwords.find(&wanted("bgp", "tor")) == Ok(Password("geheim".into())));
        for (name, key, words) in [
            ("bgp", "other", "key other of secret bgp, does not exist"),
            ("bgp", "../outside", "no secretKeyRef with a name and a key"),
            ("..", "passwd", "no secretKeyRef"),
            ("", "tor", "no secretKeyRef"),
        ] {
            let why = passwords.find(&wanted(name, key)).err().unwrap();
            assert!(why.contains(words) && !why.contains("geheim"), "{why}");
        }
        let why = Passwords::new(None).find(&wanted("bgp", "tor")).err().unwrap();
        assert!(why.contains("key tor of secret bgp") && why.contains("--bgp-passwords"), "{why}");
        fs::remove_dir_all(dir).unwrap();
    }
}
