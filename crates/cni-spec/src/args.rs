//! `CNI_ARGS`: the `KEY=VALUE;KEY=VALUE` pairs that a runtime passes beside the config.

use std::fmt;

use crate::Error;

/// The parsed value of `CNI_ARGS`, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Splits at `;`; every part must have exactly one `=` (code 4). The empty string has no pairs. As in the
    /// reference library a `;` at the end is an error, because an empty pair follows it.
    pub fn parse(text: &str) -> Result<Args, Error> {
        if text.is_empty() {
            return Ok(Args::default());
        }
        let read = |part: &str| {
            pair(part).ok_or_else(|| {
                Error::env(format!("ARGS: invalid pair {part:?}"))
                    .with_hint(format!("CNI_ARGS must read KEY=VALUE;KEY=VALUE but is {text:?}"))
            })
        };
        text.split(';').map(read).collect::<Result<_, _>>().map(Args)
    }

    /// The valid pairs, for DEL and GC, which must not fail because of the arguments.
    pub fn parse_readable(text: &str) -> Args {
        Args(text.split(';').filter_map(pair).collect())
    }

    /// Args of a runtime. Pairs that a plugin could not parse are an error.
    pub fn from_pairs<K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Result<Args, Error>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        match pairs.iter().find(|(key, value)| key.contains([';', '=']) || value.contains([';', '='])) {
            Some((key, value)) => {
                Err(Error::env(format!("ARGS: invalid pair {:?}", format!("{key}={value}")))
                    .with_details("neither ';' nor '=' may be in a key or a value"))
            }
            None => Ok(Args(pairs)),
        }
    }

    /// The value of a key, exactly as spelled. The last one wins when it is given twice.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Every pair, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> + '_ {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses keys outside `known` (code 4), unless the caller said `IgnoreUnknown=1` or `=true`. Kubernetes
    /// runtimes always say so, because they send `K8S_POD_NAME` and its kin to every plugin.
    pub fn check_known(&self, known: &[&str]) -> Result<(), Error> {
        if self.ignores_unknown()? {
            return Ok(());
        }
        let is_unknown = |(key, _): &(&str, &str)| *key != IGNORE_UNKNOWN && !known.contains(key);
        let unknown: Vec<_> = self.iter().filter(is_unknown).map(|(k, v)| format!("\"{k}={v}\"")).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::env(format!("ARGS: unknown args [{}]", unknown.join(" "))).with_hint(format!(
            "known are {}; IgnoreUnknown=1 skips the others",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )))
    }

    fn ignores_unknown(&self) -> Result<bool, Error> {
        match self.get(IGNORE_UNKNOWN).map(str::to_ascii_lowercase).as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(Error::env(format!(
                "ARGS: error parsing value of pair \"{IGNORE_UNKNOWN}={other}\": expected 1, true, 0 or false"
            ))),
        }
    }
}

const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

fn pair(part: &str) -> Option<(String, String)> {
    let (key, value) = part.split_once('=').filter(|(_, value)| !value.contains('='))?;
    Some((key.to_owned(), value.to_owned()))
}

impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (key, value)) in self.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    #[test]
    fn kubernetes_args_go_in_and_out() {
        let text = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;IP=";
        let args = Args::parse(text).unwrap();
        assert_eq!(args.get("K8S_POD_NAME"), Some("web-0"));
        assert_eq!(args.get("k8s_pod_name"), None, "keys keep their case");
        assert_eq!(args.get("IP"), Some(""));
        assert_eq!(args.to_string(), text);
        assert_eq!(Args::from_pairs(args.iter()).unwrap(), args);
        assert_eq!(args.check_known(&[]), Ok(()));
    }

    #[test]
    fn the_last_of_two_wins() {
        assert_eq!(Args::parse("IP=1;IP=2").unwrap().get("IP"), Some("2"));
    }

    #[test]
    fn the_empty_string_has_no_pairs() {
        let args = Args::parse("").unwrap();
        assert!(args.is_empty());
        assert_eq!(args.to_string(), "");
    }

    #[test]
    fn broken_pairs_are_named() {
        for (text, part) in [("a", "a"), ("a=1;", ""), (";", ""), ("a=1;b=c=d", "b=c=d"), ("a=1;;b=2", "")] {
            let error = Args::parse(text).unwrap_err();
            assert_eq!(error.code, code::INVALID_ENV);
            assert_eq!(error.msg, format!("ARGS: invalid pair {part:?}"), "{text}");
        }
        assert_eq!(Args::parse_readable(";a=1;b;c=d=e;f=;").to_string(), "a=1;f=");
        assert!(Args::parse_readable("").is_empty());
        assert!(Args::from_pairs([("a", "b;c")]).is_err());
        assert!(Args::from_pairs([("a=", "b")]).is_err());
    }

    #[test]
    fn unknown_keys_are_refused_unless_ignored() {
        let known = ["IP", "MAC"];
        let args = |text| Args::parse(text).unwrap();
        assert_eq!(args("IP=10.0.0.5;IgnoreUnknown=0").check_known(&known), Ok(()));
        assert_eq!(args("X=1;IgnoreUnknown=TRUE").check_known(&known), Ok(()));
        let error = args("X=1;IP=2;y=3").check_known(&known).unwrap_err();
        assert_eq!(error.msg, "ARGS: unknown args [\"X=1\" \"y=3\"]");
        assert_eq!(error.code, code::INVALID_ENV);
        assert!(args("IgnoreUnknown=maybe").check_known(&known).is_err());
    }
}
