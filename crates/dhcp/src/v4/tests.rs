use super::*;
use std::time::Duration;

pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

pub(crate) fn codec() -> Codec {
    let id = [&[0][..], b"c1/lan/eth0"].concat();
    Codec {
        mac: MAC,
        id,
        requested: vec![121, 1, 3],
        provided: vec![ProvidedOption { code: 12, value: b"web".to_vec() }],
        previous: None,
    }
}

/// A server's message: `options` on top of the kind and the server's name.
pub(crate) fn message(kind: MessageType, xid: u32, address: [u8; 4], options: Vec<DhcpOption>) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(xid, none, address.into(), none, none, &MAC);
    message.set_opcode(dhcproto::v4::Opcode::BootReply);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    message.opts_mut().insert(DhcpOption::ServerIdentifier(SERVER));
    for option in options {
        message.opts_mut().insert(option);
    }
    message.to_vec().unwrap()
}

pub(crate) fn lease(seconds: u32) -> Vec<DhcpOption> {
    vec![
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::AddressLeaseTime(seconds),
        DhcpOption::Router(vec![SERVER]),
    ]
}

fn granted(more: Vec<DhcpOption>) -> Grant {
    let options = lease(120).into_iter().chain(more).collect();
    match codec().decode(&message(MessageType::Ack, 7, [10, 0, 0, 9], options), 7) {
        Some(Received::Grant(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

fn routes_of(grant: &Grant) -> Vec<String> {
    let via = |route: &Route| route.gateway.map_or("link".into(), |gateway| gateway.to_string());
    grant.routes.iter().map(|route| format!("{} {}", route.dst, via(route))).collect()
}

fn encoded(kind: MessageKind, grant: Option<&Grant>) -> Message {
    let outgoing = Outgoing { kind, xid: 7, elapsed: Duration::from_secs(3), grant };
    Message::decode(&mut Decoder::new(&codec().encode(&outgoing))).unwrap()
}

#[test]
fn discover_has_the_client_id_and_the_requested_options() {
    let discover = encoded(MessageKind::Discover, None);
    let options = discover.opts();
    assert_eq!((discover.xid(), discover.secs(), discover.chaddr()), (7, 3, &MAC[..]));
    assert!(discover.flags().broadcast() && options.has_msg_type(MessageType::Discover));
    assert_eq!(options.get(OptionCode::ClientIdentifier), Some(&DhcpOption::ClientIdentifier(codec().id)));
    assert_eq!(options.get(OptionCode::Hostname), Some(&DhcpOption::Hostname("web".into())));
    let wanted = [OptionCode::ClasslessStaticRoute, OptionCode::SubnetMask, OptionCode::Router];
    let list = DhcpOption::ParameterRequestList(wanted.to_vec());
    assert_eq!(options.get(OptionCode::ParameterRequestList), Some(&list));
    assert_eq!(options.get(OptionCode::RequestedIpAddress), None);
}

#[test]
fn each_message_has_its_address_where_the_rfc_requires_it() {
    let grant = granted(Vec::new());
    let own = Ipv4Addr::new(10, 0, 0, 9);
    // MessageKind, whether the address is in the header, whether it is asked for, whether the server is named.
    for (kind, header, asked, named) in [
        (MessageKind::Discover, false, true, false),
        (MessageKind::Request, false, true, true),
        (MessageKind::Renew, true, false, false),
        (MessageKind::Rebind, true, false, false),
        (MessageKind::Release, true, false, true),
    ] {
        let message = encoded(kind, Some(&grant));
        assert_eq!(message.ciaddr() == own, header, "{kind:?}");
        assert_eq!(message.opts().contains(OptionCode::RequestedIpAddress), asked, "{kind:?}");
        assert_eq!(message.opts().contains(OptionCode::ServerIdentifier), named, "{kind:?}");
        assert_eq!(message.opts().contains(OptionCode::ParameterRequestList), kind != MessageKind::Release);
    }
}

#[test]
fn all_options_of_a_grant_are_decoded() {
    let names = ["one.test.", "two.test."].map(|name| name.parse().unwrap()).to_vec();
    let grant = granted(vec![
        DhcpOption::DomainNameServer(vec![[10, 0, 0, 53].into(), Ipv4Addr::UNSPECIFIED]),
        DhcpOption::DomainName("Pods.test".into()),
        DhcpOption::DomainSearch(names),
        DhcpOption::InterfaceMtu(1400),
        DhcpOption::Renewal(10),
        DhcpOption::Rebinding(20),
    ]);
    assert_eq!(grant.address, "10.0.0.9/24".parse().unwrap());
    assert_eq!((grant.gateway, routes_of(&grant)), (Some(SERVER.into()), vec!["0.0.0.0/0 10.0.0.1".into()]));
    assert_eq!(grant.nameservers, [IpAddr::from([10, 0, 0, 53])]);
    assert_eq!((grant.domain.as_str(), grant.search.join(" ")), ("pods.test", "one.test two.test".into()));
    assert_eq!((grant.mtu, grant.times), (Some(1400), Times { renew: 10, rebind: 20, end: 120 }));
    assert_eq!(granted(vec![DhcpOption::InterfaceMtu(68)]).mtu, None);
}

#[test]
fn classless_routes_replace_static_routes_and_the_router() {
    let old = DhcpOption::StaticRoutingTable(vec![
        ([172, 16, 0, 0].into(), [10, 0, 0, 2].into()),
        ([192, 0, 2, 9].into(), [10, 0, 0, 3].into()),
        (Ipv4Addr::UNSPECIFIED, [10, 0, 0, 4].into()),
    ]);
    let grant = granted(vec![old.clone()]);
    assert_eq!(routes_of(&grant), ["172.16.0.0/16 10.0.0.2", "192.0.2.9/32 10.0.0.3", "0.0.0.0/0 10.0.0.1"]);
    let classless = |routes: &[(&str, [u8; 4])]| {
        let routes = routes.iter().map(|(dst, router)| (dst.parse().unwrap(), (*router).into())).collect();
        DhcpOption::ClasslessStaticRoute(routes)
    };
    let grant =
        granted(vec![old, classless(&[("192.0.2.0/25", [0; 4]), ("198.51.100.0/24", [10, 0, 0, 5])])]);
    assert_eq!(routes_of(&grant), ["192.0.2.0/25 link", "198.51.100.0/24 10.0.0.5"]);
    assert_eq!(grant.gateway, None);
    let grant = granted(vec![classless(&[("0.0.0.0/0", [10, 0, 0, 6]), ("10.9.0.0/16", [127, 0, 0, 1])])]);
    assert_eq!(
        (grant.gateway, routes_of(&grant)),
        (Some([10, 0, 0, 6].into()), vec!["0.0.0.0/0 10.0.0.6".into()])
    );
}

#[test]
fn messages_for_other_clients_are_ignored() {
    let good = message(MessageType::Ack, 7, [10, 0, 0, 9], lease(120));
    assert!(matches!(codec().decode(&good, 7), Some(Received::Grant(_))));
    assert_eq!(codec().decode(&good, 8), None, "another transaction");
    let other = Codec { mac: [2, 0, 0, 0, 0, 8], ..codec() };
    assert_eq!(other.decode(&good, 7), None, "another's hardware address");
    let mut foreign = lease(120);
    foreign.push(DhcpOption::ClientIdentifier(vec![0, 1]));
    let foreign = message(MessageType::Ack, 7, [10, 0, 0, 9], foreign);
    assert_eq!(codec().decode(&foreign, 7), None, "another's identifier");
    let mut nameless = good.clone();
    let at = nameless.windows(2).position(|pair| pair == [54, 4]).unwrap();
    nameless[at] = 200;
    assert_eq!(codec().decode(&nameless, 7), None, "a server without a name");
}

#[test]
fn an_invalid_message_has_a_reason() {
    let reason = |address: [u8; 4], options: Vec<DhcpOption>| match codec()
        .decode(&message(MessageType::Ack, 7, address, options), 7)
    {
        Some(Received::Invalid(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason([127, 0, 0, 1], lease(120)).contains("127.0.0.1"));
    assert!(reason([255, 255, 255, 255], lease(120)).contains("not a host address"));
    let mask = |mask: [u8; 4]| vec![DhcpOption::SubnetMask(mask.into()), DhcpOption::AddressLeaseTime(120)];
    assert!(reason([10, 0, 0, 9], mask([255, 0, 255, 0])).contains("255.0.255.0"));
    assert_eq!(
        reason([10, 0, 0, 9], vec![DhcpOption::AddressLeaseTime(9)]),
        "DHCP option Subnet Mask not found in DHCPACK"
    );
    let endless = vec![DhcpOption::SubnetMask([255, 0, 0, 0].into())];
    assert_eq!(reason([10, 0, 0, 9], endless), "DHCP option Lease Time not found in DHCPACK");
    assert!(reason([10, 0, 0, 9], lease(1)).contains("too short"));
}

#[test]
fn a_refusal_has_the_servers_text() {
    let no = message(MessageType::Nak, 7, [0; 4], vec![DhcpOption::Message("wrong\nnetwork".into())]);
    let server = Server { id: SERVER.octets().to_vec(), mac: None };
    assert_eq!(codec().decode(&no, 7), Some(Received::Refusal { server, reason: "wrongnetwork".into() }));
}

/// Randomly changed packets decode to another message or to none; nothing panics.
#[test]
fn random_packets_never_panic() {
    let mut options = lease(120);
    options
        .push(DhcpOption::DomainSearch(vec!["one.test.".parse().unwrap(), "two.one.test.".parse().unwrap()]));
    options.push(DhcpOption::ClasslessStaticRoute(vec![(
        "192.0.2.0/25".parse().unwrap(),
        [10, 0, 0, 5].into(),
    )]));
    options.push(DhcpOption::DomainName("pods.test".into()));
    let good = message(MessageType::Ack, 7, [10, 0, 0, 9], options);
    let mut rng = crate::retransmit::Rng::seeded(42);
    let mut understood = 0;
    for _ in 0..60_000 {
        let mut bad = good.clone();
        for _ in 0..1 + rng.next_u64() % 4 {
            // Mostly among the options: the rest is fields of a fixed length.
            let from = if rng.next_u64().is_multiple_of(4) { 0 } else { 236 };
            let at = from + rng.next_u64() as usize % (bad.len() - from);
            match rng.next_u64() % 4 {
                0 => bad[at] = rng.next_u64() as u8,
                1 => bad[at] ^= 1 << (rng.next_u64() % 8),
                2 => drop(bad.remove(at)),
                _ => bad.insert(at, [0, 255, 1, 121, 119, 80, 82][rng.next_u64() as usize % 7]),
            }
        }
        if rng.next_u64().is_multiple_of(16) {
            bad.truncate(rng.next_u64() as usize % bad.len());
        }
        understood += usize::from(codec().decode(&bad, 7).is_some());
    }
    assert!((10_000..60_000).contains(&understood), "{understood}");
}
