//! A pod's `resolv.conf`.
//!
//! The pod's own settings come first, then those that its networks' plugins returned. Without any server, the node's are used.
//! Resolvers read three servers; search domains are limited as kubelet limits them.

use std::net::IpAddr;

use podwire_cni_spec::Dns;

/// The number of servers that the C library reads (`MAXNS` in resolv.h).
const SERVERS: usize = 3;
/// The number of search domains that old resolvers read (`MAXDNSRCH` in resolv.h).
const OLD_SEARCHES: usize = 6;
/// Kubelet's limits.
const SEARCHES: usize = 32;
const SEARCH_CHARACTERS: usize = 2048;

/// A `resolv.conf`, with warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolv {
    pub(crate) text: String,
    pub(crate) warnings: Vec<String>,
}

/// Checks the settings of a pod.
pub(crate) fn check(dns: &Dns) -> Result<(), podwire_cni_spec::Error> {
    let fail = |text: String, hint: &str| Err(podwire_cni_spec::Error::env(text).with_details(hint));
    if let Some(bad) = dns.nameservers.iter().find(|server| server.parse::<IpAddr>().is_err()) {
        return fail(format!("DNS server {bad:?} is not an address"), "give an IPv4 or IPv6 address");
    }
    if let Some(bad) =
        dns.search.iter().chain(Some(&dns.domain).filter(|d| !d.is_empty())).find(|name| !is_domain(name))
    {
        return fail(
            format!("DNS search {bad:?} is not a domain"),
            "an example is default.svc.cluster.local",
        );
    }
    match dns
        .options
        .iter()
        .find(|option| option.is_empty() || option.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        Some(bad) => fail(format!("DNS option {bad:?} is invalid"), "an example is ndots:5"),
        None => Ok(()),
    }
}

/// Upper case and underscores are accepted, because they are in use; a single dot is the root.
fn is_domain(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word.len() <= 63
            && !word.starts_with('-')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    name == "." || (name.len() <= 253 && name.strip_suffix('.').unwrap_or(name).split('.').all(is_word))
}

/// The file of a pod with the settings `own`, the settings `given` of its plugins, and the node's file `node`.
pub(crate) fn compose(own: &Dns, given: &[Dns], node: &str) -> Resolv {
    let mut all = Dns::default();
    for dns in std::iter::once(own).chain(given) {
        append(&mut all.nameservers, &dns.nameservers);
        append(&mut all.search, &dns.search);
        append(&mut all.search, Some(&dns.domain).filter(|domain| !domain.is_empty()));
        append(&mut all.options, &dns.options);
    }
    if all.nameservers.is_empty() {
        let node = read(node);
        all.nameservers = node.nameservers;
        if all.search.is_empty() && all.options.is_empty() {
            (all.search, all.options) = (node.search, node.options);
        }
    }
    write(all)
}

fn append<'a>(to: &mut Vec<String>, from: impl IntoIterator<Item = &'a String>) {
    for text in from {
        if !to.contains(text) {
            to.push(text.clone());
        }
    }
}

/// Parses a file. A later search line replaces an earlier one, as in resolvers.
fn read(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.nameservers.extend(words.next()),
            Some("search" | "domain") => dns.search = words.collect(),
            Some("options") => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

fn write(mut dns: Dns) -> Resolv {
    let mut warnings = Vec::new();
    if dns.nameservers.len() > SERVERS {
        let cut = dns.nameservers.split_off(SERVERS);
        warnings.push(format!("resolvers read {SERVERS} DNS servers, left out: {}", cut.join(" ")));
    }
    let mut characters = 0;
    let fits = dns.search.iter().take(SEARCHES).take_while(|search| {
        characters += search.len() + usize::from(characters > 0);
        characters <= SEARCH_CHARACTERS
    });
    let fits = fits.count();
    if dns.search.len() > fits {
        let cut = dns.search.split_off(fits);
        let limits = format!("{SEARCHES} DNS searches with {SEARCH_CHARACTERS} characters");
        warnings.push(format!("at most {limits} are written, left out: {}", cut.join(" ")));
    }
    if dns.search.len() > OLD_SEARCHES {
        warnings.push(format!("old resolvers read the first {OLD_SEARCHES} DNS searches only"));
    }
    let mut text: String = dns.nameservers.iter().map(|server| format!("nameserver {server}\n")).collect();
    for (key, words) in [("search", &dns.search), ("options", &dns.options)] {
        if !words.is_empty() {
            text += &format!("{key} {}\n", words.join(" "));
        }
    }
    Resolv { text, warnings }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dns(servers: &[&str], search: &[&str], options: &[&str]) -> Dns {
        let owned = |all: &[&str]| all.iter().map(|one| one.to_string()).collect();
        Dns {
            nameservers: owned(servers),
            search: owned(search),
            options: owned(options),
            domain: String::new(),
        }
    }

    #[test]
    fn the_pods_own_settings_come_before_the_plugins() {
        let own = dns(&["10.0.0.10"], &["svc.local"], &["ndots:5"]);
        let given =
            Dns { domain: "lan".into(), ..dns(&["10.0.0.10", "fd00::1"], &["svc.local"], &["rotate"]) };
        let resolv = compose(&own, &[given], "nameserver 9.9.9.9\n");
        assert_eq!(
            resolv.text,
            "nameserver 10.0.0.10\nnameserver fd00::1\nsearch svc.local lan\noptions ndots:5 rotate\n"
        );
        assert!(resolv.warnings.is_empty());
    }

    #[test]
    fn without_a_server_the_nodes_are_used() {
        let node = "# mine\nsearch old\nnameserver 9.9.9.9\nsearch home\noptions edns0\n";
        let resolv = compose(&Dns::default(), &[], node);
        assert_eq!(resolv.text, "nameserver 9.9.9.9\nsearch home\noptions edns0\n");
        assert_eq!(compose(&dns(&[], &["mine"], &[]), &[], node).text, "nameserver 9.9.9.9\nsearch mine\n");
        assert_eq!(compose(&Dns::default(), &[], "").text, "");
    }

    #[test]
    fn entries_over_the_limits_are_left_out_with_a_warning() {
        let names: Vec<String> = (0..40).map(|n| format!("d{n}.example")).collect();
        let many: Vec<&str> = names.iter().map(String::as_str).collect();
        let resolv = compose(&dns(&["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"], &many, &[]), &[], "");
        assert_eq!(resolv.text.matches("nameserver").count(), 3);
        assert!(resolv.text.contains("d31.example\n") && !resolv.text.contains("d32"));
        assert_eq!(resolv.warnings.len(), 3, "{:?}", resolv.warnings);
        assert!(resolv.warnings[0].ends_with("left out: 4.4.4.4"));
        let long: Vec<String> =
            (0..20).map(|n| format!("{}{n}.{}", "x".repeat(60), "y".repeat(60))).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        let written = compose(&dns(&["1.1.1.1"], &long, &[]), &[], "").text;
        let searches = written.lines().find_map(|line| line.strip_prefix("search ")).unwrap().len();
        assert!(searches <= SEARCH_CHARACTERS && searches > SEARCH_CHARACTERS - 130, "{searches}");
    }

    #[test]
    fn invalid_settings_are_refused() {
        assert!(check(&dns(&["1.1.1.1", "fd00::1"], &["a.b.", ".", "_tcp.x"], &["ndots:5"])).is_ok());
        for bad in [
            dns(&["dns.example"], &[], &[]),
            dns(&["1.1.1"], &[], &[]),
            dns(&[], &["a b"], &[]),
            dns(&[], &["a..b"], &[]),
            dns(&[], &["a\nnameserver 6.6.6.6"], &[]),
            dns(&[], &[], &["a b"]),
            dns(&[], &[], &[""]),
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
