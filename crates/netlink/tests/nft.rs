//! nf_tables transactions with the running kernel, read back with `nft`. Each test has its own network namespace. Needs
//! root.

use std::net::IpAddr;
use std::process::Command;

use podwire_netlink::nflog::{self, LoggedPacket};
use podwire_netlink::nft::{
    self, Base, ChainKind, Data, Element, Family, Field, Hook, Policy, Rule, Set, Table, Transaction, Type,
    Value, Verdict, MAX_COMMENT,
};
use podwire_netlink::{sys, Socket};

const TABLE: Table = Table::named(Family::Inet, "example");

/// Runs `test` in a thread with a fresh network namespace.
fn in_namespace(test: impl FnOnce(&mut Socket) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let inside = move || {
        sys::new_network_namespace().expect("a new network namespace");
        test(&mut Socket::netfilter().expect("a netfilter socket"));
    };
    if let Err(panic) = std::thread::spawn(inside).join() {
        std::panic::resume_unwind(panic);
    }
}

/// The output of `nft list ruleset`, without indentation and empty lines.
fn listed() -> Vec<String> {
    let output = Command::new("nft").args(["list", "ruleset"]).output().expect("nft runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| line.trim().to_string()).filter(|line| !line.is_empty()).collect()
}

fn lists(wanted: &str) {
    let listed = listed();
    assert!(listed.iter().any(|line| line == wanted), "no line {wanted:?} in {listed:#?}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn pods(change: &mut Transaction) {
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::of("pods", &[Type::Ipv4]));
}

#[test]
fn sets_and_maps_print_with_their_types_elements_and_comments() {
    in_namespace(|socket| {
        let mut change = Transaction::new();
        change.create_table(&TABLE);
        change.create_chain(&TABLE, "web");
        change.create_set(&TABLE, &Set::of("macs", &[Type::IfName, Type::Mac]));
        change.create_set(&TABLE, &Set::of("devices", &[Type::IfName]));
        change
            .create_set(&TABLE, &Set::map("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
        let at_host = [Type::Ipv6, Type::Protocol, Type::Port];
        change.create_set(&TABLE, &Set::map("ports6", &at_host, &[Type::Ipv6, Type::Port]));
        change.create_set(&TABLE, &Set::verdicts("sources", &[Type::Ipv4]));
        let mac = Value::ifname("veth0").and_mac([2, 0, 0, 0, 0, 0x1f]);
        change.create_element(&TABLE, "macs", &Element::key(mac));
        change.create_element(&TABLE, "devices", &Element::key(Value::ifname("br0")).comment("a/b/c"));
        let port = Element::key(Value::protocol(6).and_port(8080)).to(Value::ip(ip("10.0.0.2")).and_port(80));
        change.create_element(&TABLE, "ports", &port.comment("net/pod/eth0"));
        let port = Element::key(Value::ip(ip("fd00::1")).and_protocol(17).and_port(53));
        change.create_element(&TABLE, "ports6", &port.to(Value::ip(ip("fd00::2")).and_port(5353)));
        let source = Element::key(Value::ip(ip("10.0.0.2"))).verdict(Verdict::Jump("web".into()));
        change.create_element(&TABLE, "sources", &source);
        change.commit(socket).expect("committed");
        for line in [
            "type ifname . ether_addr",
            "elements = { \"veth0\" . 02:00:00:00:00:1f }",
            "type ifname",
            "elements = { \"br0\" comment \"a/b/c\" }",
            "type inet_proto . inet_service : ipv4_addr . inet_service",
            "elements = { tcp . 8080 comment \"net/pod/eth0\" : 10.0.0.2 . 80 }",
            "type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
            "elements = { fd00::1 . udp . 53 : fd00::2 . 5353 }",
            "type ipv4_addr : verdict",
            "elements = { 10.0.0.2 : jump web }",
        ] {
            lists(line);
        }
        let json = Command::new("nft").args(["-j", "list", "ruleset"]).output().expect("nft runs");
        assert!(json.status.success() && String::from_utf8_lossy(&json.stdout).contains("8080"));
    });
}

#[test]
fn rules_print_like_those_of_nft() {
    in_namespace(|socket| {
        let mut change = Transaction::new();
        change.create_table(&TABLE);
        change.create_set(&TABLE, &Set::verdicts("sources", &[Type::Ipv4]));
        change.create_set(&TABLE, &Set::of("devices", &[Type::IfName, Type::IfName]));
        change
            .create_set(&TABLE, &Set::map("ports", &[Type::Protocol, Type::Port], &[Type::Ipv4, Type::Port]));
        let at_host = [Type::Ipv6, Type::Protocol, Type::Port];
        change.create_set(&TABLE, &Set::map("ports6", &at_host, &[Type::Ipv6, Type::Port]));
        change.create_set(&TABLE, &Set::of("known", &[Type::IfIndex, Type::Ipv4]));
        change.create_chain(&TABLE, "other");
        change.create_base_chain(&TABLE, "out", &Base::new(ChainKind::Nat, Hook::Postrouting, 100));
        change.create_base_chain(&TABLE, "in", &Base::new(ChainKind::Nat, Hook::Prerouting, -100));
        let drop = Base { policy: Policy::Drop, ..Base::new(ChainKind::Filter, Hook::Forward, -1) };
        change.create_base_chain(&TABLE, "through", &drop);

        let v4 = || Rule::new().family(Family::Ip);
        change.add_rule(&TABLE, "out", &v4().verdict_map(&[Field::Ip4Source], "sources"));
        change.add_rule(&TABLE, "out", &v4().prefix(Field::Ip4Source, ip("10.1.2.3"), 20, true).leave());
        let v6 = Rule::new().family(Family::Ip6).prefix(Field::Ip6Destination, ip("ff00::"), 8, false);
        change.add_rule(&TABLE, "out", &v6.masquerade().comment("ours"));
        change.add_rule(&TABLE, "out", &Rule::new().any_bit(Field::CtStatus, Rule::DNAT).jump("other"));
        let local = || Rule::new().to_this_host();
        let port = [Field::Protocol, Field::PortDestination];
        change.add_rule(&TABLE, "in", &local().dnat_map(Family::Ip, &port, "ports"));
        let port6 = [Field::Ip6Destination, Field::Protocol, Field::PortDestination];
        let v6 = local().family(Family::Ip6);
        change.add_rule(&TABLE, "in", &v6.dnat_map(Family::Ip6, &port6, "ports6"));
        let known = Rule::new().any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED);
        change.add_rule(&TABLE, "through", &known.accept());
        let pair = [Field::InterfaceIn, Field::InterfaceOut];
        change.add_rule(&TABLE, "through", &Rule::new().not_in_set(&pair, "devices").drop());
        let known = v4().in_set(&[Field::IndexIn, Field::Ip4Source], "known");
        change.add_rule(&TABLE, "through", &known.accept());
        let at_loopback = Element::key(Value::ifindex(1).and_ip(ip("127.0.0.1")));
        change.create_element(&TABLE, "known", &at_loopback);
        change.add_rule(
            &TABLE,
            "through",
            &Rule::new().interface(Field::InterfaceIn, "lo", false).set_mark_bits(1 << 24),
        );
        change.insert_rule(&TABLE, "through", &Rule::new().all_bits(Field::Mark, 1 << 24).counter().accept());
        change.add_rule(&TABLE, "through", &v4().prefix(Field::Ip4Source, ip("10.1.2.3"), 32, true).drop());
        change.commit(socket).expect("committed");
        for line in [
            "type nat hook postrouting priority srcnat; policy accept;",
            "type filter hook forward priority filter - 1; policy drop;",
            "ip saddr vmap @sources",
            "ip saddr 10.1.0.0/20 return",
            "ip6 daddr != ff00::/8 masquerade comment \"ours\"",
            "ct status dnat jump other",
            "fib daddr type local dnat ip to meta l4proto . th dport map @ports",
            "fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @ports6",
            "ct state established,related accept",
            "iifname . oifname != @devices drop",
            "iif . ip saddr @known accept",
            "elements = { \"lo\" . 127.0.0.1 }",
            "iifname != \"lo\" meta mark set meta mark | 0x01000000",
            "meta mark & 0x01000000 == 0x01000000 counter packets 0 bytes 0 accept",
            "ip saddr 10.1.2.3 drop",
        ] {
            lists(line);
        }
    });
}

#[test]
fn rules_that_choose_remember_and_reject_print_and_compare() {
    in_namespace(|socket| {
        let frontend = [Type::Ipv6, Type::Protocol, Type::Port];
        let key = [Type::Ipv6, Type::Protocol, Type::Port, Type::Mark];
        let client = [Type::Ipv6, Type::Ipv6, Type::Protocol, Type::Port];
        let endpoint = [Type::Ipv6, Type::Port];
        let fields = [Field::Ip6Destination, Field::Protocol, Field::PortDestination];
        let original = [Field::OriginalIp6Destination, Field::Protocol, Field::OriginalPortDestination];
        let remembered = [Field::Ip6Source, original[0], original[1], original[2]];
        let hour = std::time::Duration::from_secs(3600);
        let six = || Rule::new().family(Family::Ip6);
        let mut change = Transaction::new();
        change.add_table(&TABLE);
        change.add_set(&TABLE, &Set::of("frontends", &frontend));
        change.add_set(&TABLE, &Set::map("endpoints", &key, &endpoint));
        change.add_set(&TABLE, &Set::map("clients", &client, &endpoint).forgetting(hour).dynamic(1000));
        change.add_base_chain(&TABLE, "nat", &Base::new(ChainKind::Nat, Hook::Prerouting, -100));
        change.flush_chain(&TABLE, "nat");
        change.add_rule(&TABLE, "nat", &six().dnat_random(Family::Ip6, &fields, 7..10, "endpoints"));
        change.add_base_chain(&TABLE, "input", &Base::new(ChainKind::Filter, Hook::Input, 0));
        change.flush_chain(&TABLE, "input");
        let data = [Field::Ip6Destination, Field::PortDestination];
        let found = six().any_bit(Field::CtState, Rule::NEW).in_set(&original, "frontends");
        change.add_rule(&TABLE, "input", &found.update_map(&remembered, &data, "clients", hour));
        change.add_rule(&TABLE, "input", &six().from_this_host().reject());
        let value = Value::ip(ip("fd00::1")).and_protocol(6).and_port(80).and_mark(9);
        let to = Value::ip(ip("fd00::2")).and_port(8080);
        change.add_element(&TABLE, "endpoints", &Element::key(value).to(to));
        change.clone().commit(socket).expect("committed");
        for line in [
            "dnat ip6 to ip6 daddr . meta l4proto . th dport . numgen random mod 3 offset 7 map @endpoints",
            "elements = { fd00::1 . tcp . 80 . 0x00000009 : fd00::2 . 8080 }",
            "flags dynamic,timeout",
            "timeout 1h",
            "size 1000",
            "meta nfproto ipv6 fib saddr type local reject",
        ] {
            lists(line);
        }
        let update = "update @clients { ip6 saddr . ct original ip6 daddr . meta l4proto . ct original proto-dst timeout 1h";
        assert!(listed().iter().any(|line| line.contains(update)), "{:#?}", listed());
        assert!(change.absent(socket).unwrap().is_empty());
        let mut other = Transaction::new();
        other.add_chain(&TABLE, "nat");
        other.flush_chain(&TABLE, "nat");
        other.add_rule(&TABLE, "nat", &six().dnat_random(Family::Ip6, &fields, 7..11, "endpoints"));
        assert!(!other.absent(socket).unwrap().is_empty());
    });
}

#[test]
fn elements_are_found_by_key_and_listed() {
    in_namespace(|socket| {
        let key = |n: u8| Value::ip(ip(&format!("10.0.{}.{}", n / 200, n % 200)));
        assert_eq!(nft::get_element(socket, &TABLE, "pods", &key(1)).unwrap(), None);
        assert_eq!(nft::list_elements(socket, &TABLE, "pods").unwrap(), []);
        let mut change = Transaction::new();
        pods(&mut change);
        for n in 0..=255 {
            let text = format!("{n}{}", "x".repeat(usize::from(n)));
            change.create_element(&TABLE, "pods", &Element::key(key(n)).comment(text));
        }
        change.commit(socket).expect("committed");
        let found = nft::get_element(socket, &TABLE, "pods", &key(7)).unwrap().expect("an element");
        assert_eq!(found, Element::key(key(7)).comment("7xxxxxxx"));
        assert_eq!(nft::get_element(socket, &TABLE, "pods", &Value::ip(ip("10.9.9.9"))).unwrap(), None);
        let all = nft::list_elements(socket, &TABLE, "pods").unwrap();
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|e| e.data == Data::None && e.comment.is_some()));
        let longest = all.iter().filter_map(|e| e.comment.as_ref()).map(String::len).max();
        assert_eq!(longest, Some(MAX_COMMENT));
    });
}

#[test]
fn a_failed_change_reverts_the_transaction_and_is_named() {
    in_namespace(|socket| {
        let mut first = Transaction::new();
        pods(&mut first);
        let web = Element::key(Value::ip(ip("10.0.0.5"))).comment("web");
        first.create_element(&TABLE, "pods", &web);
        first.commit(socket).expect("committed");

        let mut again = Transaction::new();
        let other = Element::key(Value::ip(ip("10.0.0.6")));
        again.create_element(&TABLE, "pods", &other);
        again.create_element(&TABLE, "pods", &web);
        let error = again.commit(socket).expect_err("the key is there");
        assert!(error.is_exists());
        assert_eq!(error.to_string(), "add 10.0.0.5 to set pods of table inet example: file exists");
        assert_eq!(nft::list_elements(socket, &TABLE, "pods").unwrap().len(), 1);

        let mut missing = Transaction::new();
        missing.create_element(&Table::named(Family::Ip, "none"), "pods", &other);
        assert!(missing.commit(socket).expect_err("no such table").is_gone());

        let mut replace = Transaction::new();
        replace.delete_element(&TABLE, "pods", &web);
        replace.create_element(&TABLE, "pods", &Element::key(web.key.clone()).comment("new"));
        replace.commit(socket).expect("replaced in one transaction");
        lists("elements = { 10.0.0.5 comment \"new\" }");
    });
}

#[test]
fn a_transaction_at_an_older_generation_fails() {
    in_namespace(|socket| {
        let before = nft::generation(socket).expect("a generation");
        let mut change = Transaction::at_generation(before);
        pods(&mut change);
        change.commit(socket).expect("no concurrent change");
        let mut late = Transaction::at_generation(before);
        late.delete_table(&TABLE);
        let error = late.commit(socket).expect_err("the rules changed");
        assert!(nft::changed_meanwhile(&error), "{error}");
        assert!(nft::has_table(socket, &TABLE).unwrap());
        let mut now = Transaction::at_generation(nft::generation(socket).unwrap());
        now.delete_table(&TABLE);
        now.commit(socket).expect("deleted");
        assert!(!nft::has_table(socket, &TABLE).unwrap());
        Transaction::new().commit(socket).expect("nothing to do");
    });
}

#[test]
fn foreign_chains_and_rules_are_read_and_deleted() {
    in_namespace(|socket| {
        let script = "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; chain PODS { }; }; \
             add rule ip filter FORWARD ip saddr 10.0.0.5 jump PODS comment \"one\"; add rule ip filter FORWARD accept";
        let status = Command::new("nft").arg(script).status().expect("nft runs");
        assert!(status.success());
        let table = Table::named(Family::Ip, "filter");
        assert_eq!(nft::list_tables(socket, None).unwrap(), std::slice::from_ref(&table));
        assert_eq!(nft::list_tables(socket, Some(Family::Bridge)).unwrap(), []);
        let chain = nft::get_chain(socket, &table, "FORWARD").unwrap().expect("a chain");
        let base = chain.base.expect("a base chain");
        assert_eq!((base.hook, base.policy, base.priority), (Hook::Forward, Policy::Drop, 0));
        assert_eq!(nft::get_chain(socket, &table, "NONE").unwrap(), None);
        assert_eq!(nft::list_chains(socket, Some(Family::Ip)).unwrap().len(), 2);

        let rules = nft::list_rules(socket, &table, "FORWARD").unwrap();
        assert_eq!(rules.len(), 2);
        assert!(rules[0].jumps_to("PODS") && rules[0].compares_with(&[10, 0, 0, 5]));
        assert_eq!(rules[0].comment.as_deref(), Some("one"));
        assert_eq!(rules[1].verdicts().collect::<Vec<_>>(), [Verdict::Accept]);
        let mut change = Transaction::new();
        change.delete_rule(&table, "FORWARD", rules[0].handle);
        change.delete_chain(&table, "PODS");
        change.flush_chain(&table, "FORWARD");
        change.commit(socket).expect("deleted");
        assert_eq!(nft::list_rules(socket, &table, "FORWARD").unwrap(), []);
        assert_eq!(nft::list_rules(socket, &table, "NONE").unwrap(), []);
        assert_eq!(nft::list_sets(socket, &table).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn missing_objects_of_a_transaction_are_named() {
    in_namespace(|socket| {
        let whole = || {
            let mut change = Transaction::new();
            pods(&mut change);
            change.add_chain(&TABLE, "web");
            change.add_base_chain(&TABLE, "out", &Base::new(ChainKind::Nat, Hook::Postrouting, 100));
            change.flush_chain(&TABLE, "out");
            let leaves = Rule::new().family(Family::Ip).in_set(&[Field::Ip4Source], "pods");
            let leaves = leaves.prefix(Field::Ip4Destination, ip("10.1.0.0"), 16, false);
            change.add_rule(&TABLE, "out", &leaves.masquerade());
            let marked = Rule::new().all_bits(Field::Mark, 0x10).clear_mark_bits(0x10);
            change.add_rule(&TABLE, "out", &marked.jump("web"));
            change
        };
        assert_eq!(whole().absent(socket).expect("a look"), ["table inet example is missing"]);
        whole().commit(socket).expect("commit");
        assert_eq!(whole().absent(socket).expect("a look"), [""; 0]);
        for (damage, missing) in [
            ("flush chain inet example out", "chain out of table inet example is empty"),
            ("add rule inet example out drop", "chain out of table inet example has other rules"),
            (
                "chain inet example out { policy drop; }",
                "chain out of table inet example has another hook, priority or policy",
            ),
            (
                "flush chain inet example out; delete chain inet example out",
                "chain out of table inet example is missing",
            ),
            ("delete table inet example", "table inet example is missing"),
        ] {
            let done = Command::new("nft").arg(damage).output().expect("nft runs");
            assert!(done.status.success(), "{damage}: {}", String::from_utf8_lossy(&done.stderr));
            assert_eq!(whole().absent(socket).expect("a look"), [missing], "{damage}");
            whole().commit(socket).expect("commit");
            assert_eq!(whole().absent(socket).expect("a look"), [""; 0], "{damage}");
        }
    });
}

#[test]
fn elements_count_and_packets_are_logged() {
    in_namespace(|socket| {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs").success());
        let mut change = Transaction::new();
        change.add_table(&TABLE);
        change.add_set(&TABLE, &Set::of("marks", &[Type::Mark]).counting());
        change.create_element(&TABLE, "marks", &Element::key(Value::mark(77)).comment("a reason"));
        change.add_chain(&TABLE, "end");
        change.add_base_chain(&TABLE, "out", &Base::new(ChainKind::Filter, Hook::Output, 0));
        let to_port = Rule::new().is(Field::Protocol, &[17]).is(Field::PortDestination, &9u16.to_be_bytes());
        change.flush_chain(&TABLE, "end");
        change.add_rule(&TABLE, "end", &Rule::new().in_set(&[Field::Mark], "marks"));
        change.add_rule(&TABLE, "end", &Rule::new().limit(1, 6).log(300, "an end"));
        change.add_rule(&TABLE, "end", &Rule::new().drop());
        change.add_rule(&TABLE, "out", &to_port.set_mark(77).goto("end"));
        change.clone().commit(socket).expect("committed");
        lists("limit rate 1/second burst 6 packets log prefix \"an end\" group 300");
        lists("udp dport 9 meta mark set 0x0000004d goto end");
        assert_eq!(change.absent(socket).expect("compared"), Vec::<String>::new());

        let mut listener = Socket::netfilter().expect("a netfilter socket");
        nflog::listen(&mut listener, 300).expect("listening");
        let second = nflog::listen(&mut Socket::netfilter().expect("a netfilter socket"), 300);
        assert_eq!(second.expect_err("one listener").errno(), Some(libc::EPERM));
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for _ in 0..50 {
            let _ = sender.send_to(b"hello", "127.0.0.1:9");
        }
        let mut shown = Vec::new();
        assert!(listener.drain(|frame| shown.extend(LoggedPacket::decode(frame))).expect("notices"));
        assert!((6..10).contains(&shown.len()), "{}", shown.len());
        let first = &shown[0];
        assert_eq!((first.prefix.as_str(), first.mark, first.protocol), ("an end", 77, 0x0800));
        assert_eq!((&first.bytes[16..20], &first.bytes[28..]), (&[127, 0, 0, 1][..], &b"hello"[..]));
        let counts = nft::list_counts(socket, &TABLE, "marks").expect("counts");
        let (element, count) = &counts[0];
        assert_eq!(element.comment.as_deref(), Some("a reason"));
        assert_eq!((count.packets, count.bytes), (50, 50 * 33));
    });
}
