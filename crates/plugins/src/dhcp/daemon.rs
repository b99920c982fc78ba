//! `dhcp daemon`: the units of the field start the daemon by the plugin's name. The daemon is a part of the program
//! `podwire`, which replaces this process: the process id stays, and so does a socket that systemd passed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::podwire_program::{self, PROGRAM};

/// Whether the program was called as `dhcp daemon`.
pub fn is_called(name: &str, argument: Option<&OsStr>) -> bool {
    name == "dhcp" && argument.is_some_and(|argument| argument == "daemon")
}

/// Executes `podwire dhcp daemon`. `arguments` are the flags after `daemon`. Returns only if that is not possible, with
/// the reason.
pub fn execute(arguments: impl Iterator<Item = OsString>) -> String {
    let Some(program) = podwire_program::find(&[]) else {
        return format!(
            "the DHCP daemon is a part of the program {PROGRAM}, which is not found: install it beside this plugin, in \
             PATH, in /usr/local/bin or in /usr/bin; the daemon is then also started by `{PROGRAM} dhcp daemon`"
        );
    };
    let error = Command::new(&program).args(["dhcp", "daemon"]).args(arguments.map(long)).exec();
    format!("execute {}: {error}", program.display())
}

/// A flag with two dashes: Go's programs accept one or two.
fn long(argument: OsString) -> OsString {
    let bytes = argument.as_bytes();
    if bytes.len() > 1 && bytes[0] == b'-' && bytes[1] != b'-' {
        return OsString::from_vec([b"-", bytes].concat());
    }
    argument
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dhcp_with_the_argument_is_the_daemon() {
        assert!(is_called("dhcp", Some("daemon".as_ref())));
        assert!(!is_called("dhcp", None) && !is_called("dhcp", Some("x".as_ref())));
        assert!(!is_called("bridge", Some("daemon".as_ref())));
    }

    #[test]
    fn flags_have_two_dashes() {
        for (given, passed) in [
            ("-socketpath", "--socketpath"),
            ("-timeout=5s", "--timeout=5s"),
            ("--resendmax", "--resendmax"),
            ("/run/s", "/run/s"),
            ("-", "-"),
            ("", ""),
        ] {
            assert_eq!(long(given.into()), passed);
        }
    }
}
