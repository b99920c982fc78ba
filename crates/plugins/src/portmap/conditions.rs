//! `conditionsV4` and `conditionsV6`: which packets a network's port maps apply to, in the syntax of nft
//! (`ip daddr != 192.0.2.0/24`, `iifname eth0`) or of iptables (`! -d 192.0.2.0/24`, `-i eth0`).

use ipnet::IpNet;
use podwire_cni_plugin::Result;
use podwire_ip::IpFamily;
use podwire_kernel::firewall::hostports::{Condition, Part};

/// Parses the conditions for packets of one family.
pub(super) fn parse(key: &str, words: &[String], family: IpFamily) -> Result<Vec<Condition>> {
    // An element of the list may hold several words.
    let words: Vec<&str> = words.iter().flat_map(|word| word.split_whitespace()).collect();
    let mut rest = words.as_slice();
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (condition, left) = one(rest).ok_or_else(|| {
            let text = format!("{key}: {:?} is not understood", rest.join(" "));
            let known = "supported are [!] -s|-d PREFIX, [!] -i DEVICE, ip|ip6 saddr|daddr [!=] PREFIX, iifname [!=] DEVICE";
            podwire_cni_spec::Error::invalid_config(text).with_details(known)
        })?;
        if let Part::Source(net) | Part::Destination(net) = &condition.part {
            if IpFamily::of_net(*net) != family {
                let text =
                    format!("{key}: {net} is not an {family} network, the condition can never be true");
                return Err(podwire_cni_spec::Error::invalid_config(text).into());
            }
        }
        all.push(condition);
        rest = left;
    }
    Ok(all)
}

fn one<'w>(words: &'w [&'w str]) -> Option<(Condition, &'w [&'w str])> {
    match words {
        ["!", option, value, rest @ ..] => {
            Some((Condition { part: part(option, value)?, negated: true }, rest))
        }
        ["ip" | "ip6", rest @ ..] => one(rest),
        [field, "!=", value, rest @ ..] => {
            Some((Condition { part: part(field, value)?, negated: true }, rest))
        }
        [field, "==", value, rest @ ..] | [field, value, rest @ ..] => {
            Some((Condition { part: part(field, value)?, negated: false }, rest))
        }
        _ => None,
    }
}

fn part(field: &str, value: &str) -> Option<Part> {
    let prefix =
        || value.parse::<IpNet>().ok().or_else(|| value.parse::<std::net::IpAddr>().ok().map(IpNet::from));
    match field {
        "-s" | "--source" | "--src" | "saddr" => prefix().map(Part::Source),
        "-d" | "--destination" | "--dst" | "daddr" => prefix().map(Part::Destination),
        "-i" | "--in-interface" | "iifname" | "iif" => {
            let name = value.trim_matches('"');
            podwire_cni_spec::IfName::parse(name).ok().map(|name| Part::Interface(name.to_string()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
        Ok(parse("conditionsV4", &words, IpFamily::V4)?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_syntax_of_nft_and_of_iptables_is_parsed() {
        assert_eq!(read(&["!", "-d", "192.0.2.0/24"]).unwrap(), ["daddr != 192.0.2.0/24"]);
        assert_eq!(read(&["ip daddr != 192.0.2.7"]).unwrap(), ["daddr != 192.0.2.7/32"]);
        assert_eq!(read(&["-s", "10.0.0.0/8", "-i", "eth0"]).unwrap(), ["saddr 10.0.0.0/8", "iifname eth0"]);
        assert_eq!(read(&[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn invalid_conditions_are_quoted() {
        let error = read(&["-m", "physdev"]).unwrap_err().to_cni();
        assert_eq!(error.code, 7);
        assert!(error.msg.contains("-m physdev"), "{}", error.msg);
        assert!(read(&["!"]).is_err() && read(&["-d", "nowhere"]).is_err());
        assert!(read(&["-d", "fd00::/64"]).unwrap_err().to_string().contains("conditionsV4: fd00::/64"));
    }
}
