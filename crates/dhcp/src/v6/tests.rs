use super::*;
use dhcproto::v6::StatusCode;
use std::time::Duration;

pub(crate) fn codec() -> Codec {
    Codec::named("c1/lan/eth0")
}

pub(crate) fn address(valid: u32) -> DhcpOption {
    let opts = DhcpOptions::new();
    DhcpOption::IAAddr(IAAddr {
        addr: "fd00::9".parse().unwrap(),
        preferred_life: valid,
        valid_life: valid,
        opts,
    })
}

/// A server's message with an identity association of `inside`.
pub(crate) fn message(kind: MessageType, xid: u32, inside: Vec<DhcpOption>) -> Vec<u8> {
    let [_, xid @ ..] = xid.to_be_bytes();
    let mut message = Message::new_with_id(kind, xid);
    let options = message.opts_mut();
    options.insert(DhcpOption::ClientId(codec().duid));
    options.insert(DhcpOption::ServerId(vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 1]));
    options.insert(DhcpOption::DomainNameServers(vec!["fd00::53".parse().unwrap(), Ipv6Addr::UNSPECIFIED]));
    options.insert(DhcpOption::DomainSearchList(vec!["pods.test.".parse().unwrap()]));
    let opts = inside.into_iter().collect();
    options.insert(DhcpOption::IANA(IANA { id: IA_ID, t1: 0, t2: 0, opts }));
    message.to_vec().unwrap()
}

fn status(status: Status) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: "so it is".into() })
}

fn granted() -> Grant {
    match codec().decode(&message(MessageType::Reply, 7, vec![address(100)]), 7) {
        Some(Received::Grant(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_options_of_a_grant_are_decoded() {
    let grant = granted();
    assert_eq!(grant.address, "fd00::9/128".parse().unwrap());
    assert_eq!(grant.nameservers, ["fd00::53".parse::<IpAddr>().unwrap()]);
    assert_eq!(grant.search, ["pods.test"]);
    assert_eq!(grant.times, Times { renew: 50, rebind: 80, end: 100 });
    let offer = codec().decode(&message(MessageType::Advertise, 7, vec![address(100)]), 7);
    assert!(matches!(offer, Some(Received::Offer(_))), "{offer:?}");
}

#[test]
fn each_message_names_its_server_and_address() {
    let grant = granted();
    for (kind, expected, named) in [
        (MessageKind::Discover, MessageType::Solicit, false),
        (MessageKind::Request, MessageType::Request, true),
        (MessageKind::Renew, MessageType::Renew, true),
        (MessageKind::Rebind, MessageType::Rebind, false),
        (MessageKind::Release, MessageType::Release, true),
    ] {
        let outgoing =
            Outgoing { kind, xid: 0xff00_0007, elapsed: Duration::from_secs(3600), grant: Some(&grant) };
        let encoded = Message::decode(&mut Decoder::new(&codec().encode(&outgoing))).unwrap();
        assert_eq!((encoded.msg_type(), encoded.xid()), (expected, [0, 0, 7]));
        assert_eq!(encoded.opts().get(OptionCode::ServerId).is_some(), named, "{kind:?}");
        assert_eq!(encoded.opts().get(OptionCode::ElapsedTime), Some(&DhcpOption::ElapsedTime(u16::MAX)));
        let Some(DhcpOption::IANA(association)) = encoded.opts().get(OptionCode::IANA) else {
            panic!("{kind:?}")
        };
        assert!(association.opts.get(OptionCode::IAAddr).is_some(), "{kind:?}");
    }
}

#[test]
fn messages_for_other_clients_are_ignored() {
    let good = message(MessageType::Reply, 7, vec![address(100)]);
    assert_eq!(codec().decode(&good, 8), None);
    assert_eq!(Codec::named("c2/lan/eth0").decode(&good, 7), None);
    assert_eq!(codec().decode(&message(MessageType::Renew, 7, vec![address(100)]), 7), None);
}

#[test]
fn a_status_is_not_an_address() {
    let decoded = |kind, inside| codec().decode(&message(kind, 7, inside), 7);
    let full = decoded(MessageType::Advertise, vec![status(Status::NoAddrsAvail)]);
    assert_eq!(full, Some(Received::Invalid("the server answered NoAddrsAvail".into())));
    let unknown = decoded(MessageType::Reply, vec![status(Status::NoBinding)]);
    assert!(matches!(unknown, Some(Received::Refusal { .. })), "{unknown:?}");
    assert!(matches!(decoded(MessageType::Reply, vec![address(0)]), Some(Received::Invalid(_))));
    assert!(matches!(decoded(MessageType::Reply, vec![]), Some(Received::Invalid(_))));
}

#[test]
fn random_packets_never_panic() {
    let good = message(MessageType::Reply, 7, vec![address(100), status(Status::Success)]);
    let mut rng = crate::retransmit::Rng::seeded(7);
    let mut understood = 0;
    for _ in 0..40_000 {
        let mut bad = good.clone();
        for _ in 0..1 + rng.next_u64() % 3 {
            let at = rng.next_u64() as usize % bad.len();
            match rng.next_u64() % 4 {
                0 => bad[at] = rng.next_u64() as u8,
                1 => bad[at] ^= 1 << (rng.next_u64() % 8),
                2 if bad.len() > 1 => drop(bad.remove(at)),
                _ => bad.insert(at, rng.next_u64() as u8),
            }
        }
        understood += usize::from(codec().decode(&bad, 7).is_some());
    }
    assert!(understood > 1000, "{understood}");
}
