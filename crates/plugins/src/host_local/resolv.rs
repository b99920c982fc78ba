//! Name servers from a file like `/etc/resolv.conf`.

use podwire_cni_spec::Dns;

/// Parses the keywords of resolv.conf(5) that a result can hold, and skips the others.
pub(super) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(keyword), Some(first)) = (words.next(), words.next()) else { continue };
        match keyword.as_str() {
            "nameserver" => dns.nameservers.push(first),
            "domain" => dns.domain = first,
            "search" => dns.search.extend(std::iter::once(first).chain(words)),
            "options" => dns.options.extend(std::iter::once(first).chain(words)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_keywords_are_read() {
        let text = "# made by hand\n; so\nnameserver 192.0.2.53\n nameserver\t2001:db8::53\ndomain example.net\n\
                    search a.example b.example\nsearch c.example\noptions ndots:5 edns0\nsortlist 10.0.0.0\nnameserver\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["192.0.2.53", "2001:db8::53"]);
        assert_eq!(dns.domain, "example.net");
        assert_eq!(dns.search, ["a.example", "b.example", "c.example"]);
        assert_eq!(dns.options, ["ndots:5", "edns0"]);
        assert!(parse("").is_empty());
    }
}
