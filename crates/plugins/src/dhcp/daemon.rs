//! `dhcp daemon`: the units of the field start the daemon by the plugin's name. The daemon is a part of the program
//! `podwire`, which replaces this process: the process id stays, and so does a socket that systemd passed.

mod flags;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use self::flags::Usage;
use crate::podwire_program::{self, PROGRAM};

/// Whether the program was called as `dhcp daemon`.
pub fn is_called(name: &str, argument: Option<&OsStr>) -> bool {
    name == "dhcp" && argument.is_some_and(|argument| argument == "daemon")
}

/// Executes `podwire dhcp daemon` with the meaning of the flags that follow `daemon`. Returns only if that is not
/// possible: prints the reason and returns the exit status of a Go program.
pub fn execute(arguments: impl Iterator<Item = OsString>) -> u8 {
    let reason = match flags::options(arguments) {
        Ok(options) => start(&options),
        Err(Usage::Help) => {
            eprint!("{}", flags::usage());
            return 0;
        }
        Err(Usage::Mistake(text)) => {
            eprint!("{text}\n{}", flags::usage());
            return 2;
        }
    };
    eprintln!("dhcp daemon: {reason}");
    1
}

/// Replaces this process. Returns only if that fails, with the reason.
fn start(options: &[OsString]) -> String {
    let Some(program) = podwire_program::find(&[]) else {
        return format!(
            "the DHCP daemon is a part of the program {PROGRAM}, which is not found: install it beside this plugin, in \
             PATH, in /usr/local/bin or in /usr/bin; the daemon is then also started by `{PROGRAM} dhcp daemon`"
        );
    };
    let error = Command::new(&program).args(["dhcp", "daemon"]).args(options).exec();
    format!("execute {}: {error}", program.display())
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
}
