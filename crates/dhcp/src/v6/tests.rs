use super::*;
use dhcproto::v6::StatusCode;
use std::time::Duration;

pub(crate) fn client() -> Client {
    Client::named("c1/lan/eth0")
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
    options.insert(DhcpOption::ClientId(client().duid));
    options.insert(DhcpOption::ServerId(vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 1]));
    options.insert(DhcpOption::DomainNameServers(vec!["fd00::53".parse().unwrap(), Ipv6Addr::UNSPECIFIED]));
    options.insert(DhcpOption::DomainSearchList(vec!["pods.test.".parse().unwrap()]));
    let opts = inside.into_iter().collect();
    options.insert(DhcpOption::IANA(IANA { id: ASSOCIATION, t1: 0, t2: 0, opts }));
    message.to_vec().unwrap()
}

fn status(status: Status) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: "so it is".into() })
}

fn granted() -> Grant {
    match client().understand(&message(MessageType::Reply, 7, vec![address(100)]), 7) {
        Some(Heard::Grant(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_that_came_with_an_address_is_read() {
    let grant = granted();
    assert_eq!(grant.address, "fd00::9/128".parse().unwrap());
    assert_eq!(grant.nameservers, ["fd00::53".parse::<IpAddr>().unwrap()]);
    assert_eq!(grant.search, ["pods.test"]);
    assert_eq!(grant.times, Times { renew: 50, rebind: 80, end: 100 });
    let offer = client().understand(&message(MessageType::Advertise, 7, vec![address(100)]), 7);
    assert!(matches!(offer, Some(Heard::Offer(_))), "{offer:?}");
}

#[test]
fn each_word_names_whom_it_is_for_and_what_is_held() {
    let grant = granted();
    for (word, kind, named) in [
        (Word::Discover, MessageType::Solicit, false),
        (Word::Request, MessageType::Request, true),
        (Word::Renew, MessageType::Renew, true),
        (Word::Rebind, MessageType::Rebind, false),
        (Word::Release, MessageType::Release, true),
    ] {
        let saying =
            Saying { word, xid: 0xff00_0007, elapsed: Duration::from_secs(3600), grant: Some(&grant) };
        let said = Message::decode(&mut Decoder::new(&client().say(&saying))).unwrap();
        assert_eq!((said.msg_type(), said.xid()), (kind, [0, 0, 7]));
        assert_eq!(said.opts().get(OptionCode::ServerId).is_some(), named, "{word:?}");
        assert_eq!(said.opts().get(OptionCode::ElapsedTime), Some(&DhcpOption::ElapsedTime(u16::MAX)));
        let Some(DhcpOption::IANA(held)) = said.opts().get(OptionCode::IANA) else { panic!("{word:?}") };
        assert!(held.opts.get(OptionCode::IAAddr).is_some(), "{word:?}");
    }
}

#[test]
fn what_is_not_for_this_client_is_not_heard() {
    let good = message(MessageType::Reply, 7, vec![address(100)]);
    assert_eq!(client().understand(&good, 8), None);
    assert_eq!(Client::named("c2/lan/eth0").understand(&good, 7), None);
    assert_eq!(client().understand(&message(MessageType::Renew, 7, vec![address(100)]), 7), None);
}

#[test]
fn a_status_is_no_address() {
    let heard = |kind, inside| client().understand(&message(kind, 7, inside), 7);
    let full = heard(MessageType::Advertise, vec![status(Status::NoAddrsAvail)]);
    assert_eq!(full, Some(Heard::Useless("the server said NoAddrsAvail".into())));
    let unknown = heard(MessageType::Reply, vec![status(Status::NoBinding)]);
    assert!(matches!(unknown, Some(Heard::Refusal { .. })), "{unknown:?}");
    assert!(matches!(heard(MessageType::Reply, vec![address(0)]), Some(Heard::Useless(_))));
    assert!(matches!(heard(MessageType::Reply, vec![]), Some(Heard::Useless(_))));
}

#[test]
fn no_packet_can_do_harm() {
    let good = message(MessageType::Reply, 7, vec![address(100), status(Status::Success)]);
    let mut dice = crate::pace::Dice::seeded(7);
    let mut understood = 0;
    for _ in 0..40_000 {
        let mut bad = good.clone();
        for _ in 0..1 + dice.throw() % 3 {
            let at = dice.throw() as usize % bad.len();
            match dice.throw() % 4 {
                0 => bad[at] = dice.throw() as u8,
                1 => bad[at] ^= 1 << (dice.throw() % 8),
                2 if bad.len() > 1 => drop(bad.remove(at)),
                _ => bad.insert(at, dice.throw() as u8),
            }
        }
        understood += usize::from(client().understand(&bad, 7).is_some());
    }
    assert!(understood > 1000, "{understood}");
}
