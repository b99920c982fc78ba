//! Passwords of sessions (TCP MD5 signatures): files in a folder, `SECRET/KEY`, as Kubernetes mounts a Secret and as anybody can make them. They are
//! read whenever the config is made, so that one that is changed there is another in BIRD a moment later.
//!
//! A password stands in BIRD's config and nowhere else: no text that is logged or told has it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde_json::Value;

/// TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const LONGEST: usize = 80;

/// Where passwords are.
pub(super) struct Passwords {
    folder: Option<PathBuf>,
}

/// A password that BIRD's config can hold.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(String);

impl Password {
    /// BIRD's strings know no escapes: what would end one is in no password.
    fn parse(text: &str) -> Result<Password, &'static str> {
        // Editors and echo leave it at the end.
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.is_empty() {
            return Err("is empty");
        }
        if text.len() > LONGEST {
            return Err("is longer than the 80 bytes that the kernel takes");
        }
        match text.chars().any(|c| c == '"' || c.is_control()) {
            true => Err("has a quote, a line's end or another character that BIRD's config cannot hold"),
            false => Ok(Password(text.into())),
        }
    }

    /// As BIRD reads it.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Passwords {
    pub(super) fn new(folder: Option<PathBuf>) -> Passwords {
        Passwords { folder }
    }

    /// The password that an object means by `{"secretKeyRef": {"name": …, "key": …}}`.
    pub(super) fn find(&self, wanted: &Value) -> Result<Password, String> {
        let part = |field: &str| wanted["secretKeyRef"][field].as_str().filter(|text| is_name(text));
        let (Some(name), Some(key)) = (part("name"), part("key")) else {
            return Err("its password has no secretKeyRef with a name and a key".into());
        };
        let secret = format!("its password, key {key} of secret {name},");
        let Some(folder) = &self.folder else {
            return Err(format!(
                "{secret} is known to nobody: name a folder of passwords with --bgp-passwords"
            ));
        };
        let path = folder.join(name).join(key);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{secret} is not there: {} is missing", path.display()),
            _ => format!("{secret} cannot be read: {}: {error}", path.display()),
        })?;
        Password::parse(&text).map_err(|why| format!("{secret} {why}"))
    }
}

/// What Secrets and their keys may be called; no name leads out of the folder.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_would_end_birds_string_is_refused_and_not_told() {
        let told = |text: &str| Password::parse(text).map(|password| password.quoted());
        assert_eq!(told("geheim #1; {x}\n"), Ok("\"geheim #1; {x}\"".into()));
        for bad in ["", "\n", "a\"; } protocol static { ", "a\nb", "a\r", "a\n\n", &"x".repeat(81)] {
            let why = told(bad).unwrap_err();
            assert!(bad.trim().len() < 2 || !why.contains(bad.trim()), "{why}");
        }
    }

    #[test]
    fn what_is_missing_is_named_and_no_name_leads_out_of_the_folder() {
        let folder = std::env::temp_dir().join(format!("podwire-passwords-{}", std::process::id()));
        fs::create_dir_all(folder.join("bgp")).unwrap();
        fs::write(folder.join("bgp/tor"), "geheim\n").unwrap();
        fs::write(folder.join("outside"), "geheim").unwrap();
        let wanted = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
        let passwords = Passwords::new(Some(folder.join("")));
        assert!(passwords.find(&wanted("bgp", "tor")) == Ok(Password("geheim".into())));
        for (name, key, words) in [
            ("bgp", "other", "key other of secret bgp, is not there"),
            ("bgp", "../outside", "no secretKeyRef with a name and a key"),
            ("..", "passwd", "no secretKeyRef"),
            ("", "tor", "no secretKeyRef"),
        ] {
            let why = passwords.find(&wanted(name, key)).err().unwrap();
            assert!(why.contains(words) && !why.contains("geheim"), "{why}");
        }
        let why = Passwords::new(None).find(&wanted("bgp", "tor")).err().unwrap();
        assert!(why.contains("key tor of secret bgp") && why.contains("--bgp-passwords"), "{why}");
        fs::remove_dir_all(folder).unwrap();
    }
}
