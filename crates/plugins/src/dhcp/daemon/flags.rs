//! The flags of the Go daemon, read as Go's package flag reads them, and passed on as the options of
//! `podwire dhcp daemon`.
//!
//! A flag has one dash or two. Its value follows `=` or is the next argument; a boolean's value follows `=` only. The
//! flags end at the first argument that is none, or after `--`; Go's daemon ignores what follows. The last of two equal
//! flags counts. A duration needs a unit.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// Why the daemon does not start.
#[derive(Debug, PartialEq, Eq)]
pub enum Usage {
    /// `-h` or `-help`.
    Help,
    /// The mistake, in the words of Go's package flag.
    Mistake(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Path,
    /// A duration that must be positive: with none, no request is ever answered.
    Limit,
    /// The longest delay between two requests. Less than [`FIRST_DELAY`] means, as in Go, that delays do not grow.
    Delay,
}

struct Flag {
    name: &'static str,
    /// The same option of `podwire dhcp daemon`.
    option: &'static str,
    kind: Kind,
    about: &'static str,
}

/// The daemon's delay after its first request.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// In the order of their names, as Go prints them.
const FLAGS: [Flag; 7] = [
    flag("broadcast", "--broadcast", Kind::Bool, "ask for answers by broadcast (the daemon always does)"),
    flag("hostprefix", "--host-prefix", Kind::Path, "prefix of the paths of namespaces, socket and leases"),
    flag("pidfile", "--pid-file", Kind::Path, "file for the process id, an absolute path"),
    flag("resendmax", "--resend-max", Kind::Delay, "longest delay between two requests (default 1m2s)"),
    flag("resendtimeout", "--resend-timeout", Kind::Limit, "longest time of an ADD (default 3m28s)"),
    flag("socketpath", "--socket-path", Kind::Path, "socket for plugins (default /run/cni/dhcp.sock)"),
    flag("timeout", "--timeout", Kind::Limit, "longest wait for the answer to a request (default 10s)"),
];

const fn flag(name: &'static str, option: &'static str, kind: Kind, about: &'static str) -> Flag {
    Flag { name, option, kind, about }
}

/// The options of `podwire dhcp daemon` with the meaning of `arguments`.
pub fn options(arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, Usage> {
    let mut options = BTreeMap::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let Some(body) = flag_body(argument.as_bytes()) else { break };
        let (name, value) = split(&argument, body)?;
        let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
            return Err(unknown(&name));
        };
        let value = match (flag.kind, value) {
            (_, Some(value)) => value,
            (Kind::Bool, None) => "true".into(),
            (_, None) => {
                arguments.next().ok_or_else(|| mistake(format!("flag needs an argument: -{name}")))?
            }
        };
        options.insert(flag.name, (flag.option, flag.kind.parse(flag.name, value)?));
    }
    // An empty path is the default, as in Go.
    let given = options.into_values().filter(|(_, value)| !value.is_empty());
    let joined = given.map(|(option, value)| [option.as_bytes(), b"=", value.as_bytes()].concat());
    Ok(joined.map(OsString::from_vec).collect())
}

/// What follows the dashes of a flag. `None` where flags end.
fn flag_body(argument: &[u8]) -> Option<&[u8]> {
    let body = argument.strip_prefix(b"-").filter(|body| !body.is_empty())?;
    match body.strip_prefix(b"-") {
        Some(b"") => None,
        Some(body) => Some(body),
        None => Some(body),
    }
}

/// The name, and the value after `=`.
fn split(argument: &OsStr, body: &[u8]) -> Result<(String, Option<OsString>), Usage> {
    if body.is_empty() || body.starts_with(b"-") || body.starts_with(b"=") {
        return Err(mistake(format!("bad flag syntax: {}", argument.to_string_lossy())));
    }
    let (name, value) = match body.iter().position(|byte| *byte == b'=') {
        Some(at) => (&body[..at], Some(OsStr::from_bytes(&body[at + 1..]).to_owned())),
        None => (body, None),
    };
    Ok((String::from_utf8_lossy(name).into_owned(), value))
}

fn unknown(name: &str) -> Usage {
    match name {
        "h" | "help" => Usage::Help,
        _ => mistake(format!("flag provided but not defined: -{name}")),
    }
}

fn mistake(text: String) -> Usage {
    Usage::Mistake(text)
}

impl Kind {
    /// The value for the option of `podwire`.
    fn parse(self, name: &str, value: OsString) -> Result<OsString, Usage> {
        let text = value.to_string_lossy();
        let invalid = |why: &str| mistake(format!("invalid value {text:?} for flag -{name}: {why}"));
        match self {
            Kind::Path => Ok(value),
            Kind::Bool => match boolean(&text) {
                Some(value) => Ok(value.to_string().into()),
                None => Err(mistake(format!("invalid boolean value {text:?} for -{name}: parse error"))),
            },
            Kind::Delay => {
                let delay = duration(&text).ok_or_else(|| invalid("parse error"))?;
                Ok(seconds(delay.max(FIRST_DELAY)))
            }
            Kind::Limit => match duration(&text) {
                None => Err(invalid("parse error")),
                Some(Duration::ZERO) => Err(invalid("must be longer than 0")),
                Some(limit) => Ok(seconds(limit)),
            },
        }
    }
}

/// What Go's `strconv.ParseBool` accepts.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn seconds(duration: Duration) -> OsString {
    format!("{}.{:09}s", duration.as_secs(), duration.subsec_nanos()).into()
}

/// What Go's `time.ParseDuration` accepts. A negative duration counts as 0.
fn duration(text: &str) -> Option<Duration> {
    let negated = text.strip_prefix('-');
    let unsigned = negated.or_else(|| text.strip_prefix('+')).unwrap_or(text);
    if unsigned == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut nanoseconds) = (unsigned, 0_f64);
    loop {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        nanoseconds += number.parse::<f64>().ok()? * unit_nanoseconds(unit)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    // Go's durations are nanoseconds in 63 bits.
    if nanoseconds > i64::MAX as f64 {
        return None;
    }
    Some(if negated.is_some() { Duration::ZERO } else { Duration::from_nanos(nanoseconds as u64) })
}

fn unit_nanoseconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        // Both letters that look like the Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

/// The text that Go's package flag prints for `-help` and after a mistake.
pub fn usage() -> String {
    let mut text = "Usage of daemon:\n".to_owned();
    for Flag { name, kind, about, .. } in &FLAGS {
        let value = match kind {
            Kind::Bool => "",
            Kind::Path => " string",
            Kind::Limit | Kind::Delay => " duration",
        };
        let _ = writeln!(text, "  -{name}{value}\n    \t{about}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str) -> Result<String, Usage> {
        let options = options(arguments.split_whitespace().map(OsString::from))?;
        Ok(options.iter().map(|option| option.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn flags_have_the_meaning_of_go() {
        let mut wrong = Vec::new();
        for (given, expected) in [
            ("", ""),
            ("-socketpath /run/s", "--socket-path=/run/s"),
            ("--socketpath=/run/s", "--socket-path=/run/s"),
            ("-socketpath= -pidfile /run/p", "--pid-file=/run/p"),
            ("-hostprefix=/a=b", "--host-prefix=/a=b"),
            ("-pidfile -timeout", "--pid-file=-timeout"),
            ("-pidfile /a -pidfile /b", "--pid-file=/b"),
            ("-broadcast", "--broadcast=true"),
            ("--broadcast=T -pidfile /p", "--broadcast=true --pid-file=/p"),
            ("-broadcast=0", "--broadcast=false"),
            ("-broadcast=FALSE", "--broadcast=false"),
            // A boolean takes no second argument: flags end there.
            ("-broadcast false -pidfile /p", "--broadcast=true"),
            ("-timeout 5s extra -pidfile /p", "--timeout=5.000000000s"),
            ("-timeout 5s -- -pidfile /p", "--timeout=5.000000000s"),
            ("- -pidfile /p", ""),
            ("-timeout 1m30s", "--timeout=90.000000000s"),
            ("-timeout=250ms", "--timeout=0.250000000s"),
            ("-timeout +1.5h", "--timeout=5400.000000000s"),
            ("-timeout .5s", "--timeout=0.500000000s"),
            ("-timeout 7us", "--timeout=0.000007000s"),
            ("-resendtimeout 3m28s", "--resend-timeout=208.000000000s"),
            ("-resendmax 62s", "--resend-max=62.000000000s"),
            // Delays do not grow.
            ("-resendmax 0", "--resend-max=1.000000000s"),
            ("-resendmax -3s", "--resend-max=1.000000000s"),
        ] {
            let options = parse(given);
            if options.as_deref() != Ok(expected) {
                wrong.push(format!("{given}: {options:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn mistakes_have_the_texts_of_go() {
        let mut wrong = Vec::new();
        for (given, expected) in [
            ("-nonsense", "flag provided but not defined: -nonsense"),
            ("--socket-path=/s", "flag provided but not defined: -socket-path"),
            ("-pidfile", "flag needs an argument: -pidfile"),
            ("---pidfile /p", "bad flag syntax: ---pidfile"),
            ("-=x", "bad flag syntax: -=x"),
            ("-broadcast=yes", "invalid boolean value \"yes\" for -broadcast: parse error"),
            ("-broadcast=", "invalid boolean value \"\" for -broadcast: parse error"),
            ("-timeout 5", "invalid value \"5\" for flag -timeout: parse error"),
            ("-timeout=", "invalid value \"\" for flag -timeout: parse error"),
            ("-timeout 2d", "invalid value \"2d\" for flag -timeout: parse error"),
            ("-timeout 1.2.3s", "invalid value \"1.2.3s\" for flag -timeout: parse error"),
            ("-timeout .s", "invalid value \".s\" for flag -timeout: parse error"),
            ("-resendmax 1m3", "invalid value \"1m3\" for flag -resendmax: parse error"),
            ("-resendmax 9999999h", "invalid value \"9999999h\" for flag -resendmax: parse error"),
            ("-resendtimeout 0s", "invalid value \"0s\" for flag -resendtimeout: must be longer than 0"),
            ("-timeout -1s", "invalid value \"-1s\" for flag -timeout: must be longer than 0"),
        ] {
            let options = parse(given);
            if options != Err(Usage::Mistake(expected.to_owned())) {
                wrong.push(format!("{given}: {options:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(parse("-pidfile /p -h"), Err(Usage::Help));
        assert_eq!(parse("--help"), Err(Usage::Help));
    }

    #[test]
    fn usage_lists_the_flags_in_the_order_of_their_names() {
        let text = usage();
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  -")).collect();
        assert_eq!(names.len(), FLAGS.len());
        assert!(names.is_sorted(), "{text}");
        assert!(text.starts_with("Usage of daemon:\n  -broadcast\n    \task"), "{text}");
    }
}
