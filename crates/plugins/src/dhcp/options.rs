//! DHCPv4 options of the config, by name or number: options to send and options to request.

use podwire_agent_ipc::dhcp::ProvidedOption;
use podwire_cni_plugin::Result;
use podwire_cni_spec::{Args, Error};
use serde::Deserialize;

/// An option to send.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Provide {
    option: String,
    value: String,
    /// The key of `CNI_ARGS` that holds the value.
    from_arg: String,
}

/// An option to request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Request {
    option: String,
    /// Request only the options that the config names.
    skip_default: bool,
}

/// The names that the Go plugin knows.
const NAMES: [(&str, u8); 6] = [
    ("dhcp-client-identifier", 61),
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
];

/// The options that the daemon uses. RFC 3442 requires classless routes before routers.
const DEFAULT: [u8; 8] = [121, 1, 3, 6, 15, 26, 33, 119];

/// Options that the daemon sets itself.
const RESERVED: [u8; 7] = [0, 50, 52, 53, 54, 55, 255];

fn number(option: &str, key: &str) -> Result<u8> {
    let named = NAMES.iter().find(|(name, _)| *name == option).map(|(_, number)| *number);
    match named.or_else(|| option.parse().ok()).filter(|number| !RESERVED.contains(number)) {
        Some(number) => Ok(number),
        None => {
            let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
            let hint = format!("write a number from 1 to 254, or one of {}", names.join(", "));
            let text = format!("{key}: Can not parse option {option:?}");
            Err(Error::invalid_config(text).with_details(hint).into())
        }
    }
}

/// The numbers of the options to request, each once.
pub(super) fn requested(wanted: &[Request]) -> Result<Vec<u8>> {
    let skip_default = wanted.iter().any(|one| one.skip_default);
    let mut all = if skip_default { Vec::new() } else { DEFAULT.to_vec() };
    for (i, one) in wanted.iter().enumerate().filter(|(_, one)| !one.option.is_empty()) {
        let number = number(&one.option, &format!("ipam.request[{i}].option"))?;
        if !all.contains(&number) {
            all.push(number);
        }
    }
    Ok(all)
}

/// The options to send. A value of `CNI_ARGS` overrides one of the config; without either the option is not sent.
pub(super) fn provided(given: &[Provide], args: &Args) -> Result<Vec<ProvidedOption>> {
    let mut all: Vec<ProvidedOption> = Vec::new();
    for (i, one) in given.iter().enumerate() {
        let number = number(&one.option, &format!("ipam.provide[{i}].option"))?;
        let from_args = Some(&one.from_arg).filter(|key| !key.is_empty()).and_then(|key| args.get(key));
        let value = from_args.unwrap_or(&one.value);
        if value.len() > 255 {
            let text = format!("ipam.provide[{i}]: value too long for option {:?}: {value:?}", one.option);
            return Err(Error::invalid_config(text).with_details("255 bytes at most").into());
        }
        if !value.is_empty() {
            all.retain(|other| other.code != number);
            all.push(ProvidedOption { code: number, value: value.as_bytes().to_vec() });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provide(option: &str, value: &str, from_arg: &str) -> Provide {
        Provide { option: option.into(), value: value.into(), from_arg: from_arg.into() }
    }

    fn option(code: u8, value: &str) -> ProvidedOption {
        ProvidedOption { code, value: value.as_bytes().to_vec() }
    }

    fn request(option: &str, skip_default: bool) -> Request {
        Request { option: option.into(), skip_default }
    }

    #[test]
    fn names_and_numbers_are_added_to_the_defaults() {
        assert_eq!(requested(&[]).unwrap(), DEFAULT);
        let more = requested(&[request("routers", false), request("42", false)]).unwrap();
        assert_eq!(more, [&DEFAULT[..], &[42]].concat());
        assert_eq!(requested(&[request("subnet-mask", true), request("3", false)]).unwrap(), [1, 3]);
        assert!(requested(&[request("", true)]).unwrap().is_empty());
    }

    #[test]
    fn values_come_from_the_config_or_from_the_arguments() {
        let args = Args::parse("K8S_POD_NAME=web-0;EMPTY=").unwrap();
        let sent = |given: &[Provide]| provided(given, &args).unwrap();
        assert_eq!(sent(&[provide("host-name", "", "K8S_POD_NAME")]), [option(12, "web-0")]);
        assert_eq!(sent(&[provide("host-name", "fixed", "K8S_POD_NAME")]), [option(12, "web-0")]);
        assert_eq!(sent(&[provide("12", "fixed", "NOT_THERE")]), [option(12, "fixed")]);
        assert_eq!(sent(&[provide("12", "", "NOT_THERE"), provide("12", "", "EMPTY")]), []);
        let twice = [provide("60", "a", ""), provide("vendor-class-identifier", "b", "")];
        assert_eq!(sent(&twice), [option(60, "b")]);
    }

    #[test]
    fn invalid_options_are_refused_with_their_key() {
        let refused = |option: &str| requested(&[request(option, false)]).unwrap_err().to_cni();
        for option in ["hostname", "256", "-1", "0", "255", "53", " 3"] {
            let error = refused(option);
            assert_eq!(
                (error.code, error.msg),
                (7, format!("ipam.request[0].option: Can not parse option {option:?}"))
            );
        }
        let long = provided(&[provide("60", "", ""), provide("60", &"x".repeat(256), "")], &Args::default());
        assert!(long
            .unwrap_err()
            .to_cni()
            .msg
            .starts_with("ipam.provide[1]: value too long for option \"60\""));
        let empty = provided(&[provide("", "x", "")], &Args::default());
        assert!(empty.unwrap_err().to_cni().msg.starts_with("ipam.provide[0].option"));
    }
}
