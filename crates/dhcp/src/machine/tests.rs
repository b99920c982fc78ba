use super::*;
use crate::v4::tests::{codec as codec4, lease, message as message4};
use crate::v6::tests::{address, codec as codec6, message as message6};
use dhcproto::v4::{DhcpOption, Message, MessageType};
use dhcproto::v6::MessageType as MessageType6;
use dhcproto::{Decodable, Decoder};

const ADDRESS: [u8; 4] = [10, 0, 0, 9];
const FROM: Option<[u8; 6]> = Some([2, 0, 0, 0, 0, 1]);

const WAITS: Waits = Waits { max: Duration::from_secs(62), answer: Duration::from_secs(10) };

fn at(seconds: u64) -> BootTime {
    BootTime::from_secs(seconds)
}

fn machine() -> Machine {
    Machine::new(Protocol::V4(codec4()), Rng::seeded(3), WAITS)
}

/// The only action: a message to all servers.
#[track_caller]
fn broadcast(actions: &[Action]) -> Message {
    match actions {
        [Action::Broadcast(bytes)] => Message::decode(&mut Decoder::new(bytes)).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The only action: a message to the server.
#[track_caller]
fn sent_to_server(actions: &[Action]) -> Message {
    match actions {
        [Action::SendToServer(bytes, _)] => Message::decode(&mut Decoder::new(bytes)).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn answer(machine: &Machine, kind: MessageType, options: Vec<DhcpOption>) -> Vec<u8> {
    message4(kind, machine.xid, ADDRESS, options)
}

/// A machine that got a lease of 120 s at second 1: renewal at 61, rebinding at 106, end at 121.
fn bound() -> Machine {
    let mut machine = machine();
    machine.begin(at(0));
    machine.receive(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(1));
    let actions = machine.receive(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(2));
    assert!(matches!(&actions[..], [Action::Install { old: None, .. }]), "{actions:?}");
    machine
}

#[test]
fn an_address_is_discovered_offered_requested_and_granted() {
    let mut machine = machine();
    let discover = broadcast(&machine.begin(at(0)));
    assert!(discover.opts().has_msg_type(MessageType::Discover));
    let offer = answer(&machine, MessageType::Offer, lease(120));
    let request = broadcast(&machine.receive(&offer, FROM, at(1)));
    assert!(request.opts().has_msg_type(MessageType::Request));
    assert_eq!(request.xid(), discover.xid());
    assert!(machine.receive(&offer, FROM, at(1)).is_empty(), "another offer is too late");
    let actions = machine.receive(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(2));
    let [Action::Install { old: None, new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((new.address, new.server.mac), ("10.0.0.9/24".parse().unwrap(), FROM));
    // The lease starts when the request was sent.
    assert_eq!((machine.state(), machine.due()), (State::Bound, Some(at(61))));
    assert!(!machine.expects_answer());
}

#[test]
fn discover_is_retransmitted_with_backoff() {
    let mut machine = machine();
    let first = broadcast(&machine.begin(at(0)));
    let mut waits = Vec::new();
    let mut now = at(0);
    for _ in 0..10 {
        let due = machine.due().unwrap();
        assert!(machine.tick(due - Duration::from_millis(1)).is_empty());
        waits.push((due - now).as_secs_f64());
        now = due;
        assert_eq!(broadcast(&machine.tick(now)).xid(), first.xid());
    }
    assert!(waits[0] < 1.3 && waits[1] > 1.5 && waits[2] > 3.0, "{waits:?}");
    assert!(waits[9] <= 62.0 * 1.2 && waits[9] > 40.0, "{waits:?}");
}

#[test]
fn an_offer_that_is_not_confirmed_is_given_up() {
    let mut machine = machine();
    machine.begin(at(0));
    machine.receive(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(0));
    let kinds: Vec<_> =
        (0..5).map(|_| broadcast(&machine.tick(machine.due().unwrap())).opts().msg_type().unwrap()).collect();
    let (request, discover) = (MessageType::Request, MessageType::Discover);
    assert_eq!(kinds, [request, request, request, discover, discover]);
}

#[test]
fn an_offer_is_given_up_after_the_time_for_an_answer() {
    let waits = Waits { answer: Duration::from_secs(2), ..WAITS };
    let mut machine = Machine::new(Protocol::V4(codec4()), Rng::seeded(3), waits);
    machine.begin(at(0));
    machine.receive(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(5));
    let again = broadcast(&machine.tick(machine.due().unwrap()));
    assert!(again.opts().has_msg_type(MessageType::Request));
    assert_eq!(machine.due(), Some(at(7)));
    assert!(broadcast(&machine.tick(at(7))).opts().has_msg_type(MessageType::Discover));
}

#[test]
fn only_the_server_of_the_offer_can_grant_or_refuse_it() {
    let mut machine = machine();
    machine.begin(at(0));
    machine.receive(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(0));
    for kind in [MessageType::Ack, MessageType::Nak] {
        let mut options = lease(120);
        options.push(DhcpOption::ServerIdentifier([10, 0, 0, 66].into()));
        assert!(machine.receive(&answer(&machine, kind, options), FROM, at(1)).is_empty());
    }
    assert_eq!(machine.state(), State::Requesting);
}

#[test]
fn the_lease_is_renewed_at_t1() {
    let mut machine = bound();
    assert!(machine.tick(at(60)).is_empty());
    let renewal = sent_to_server(&machine.tick(at(61)));
    assert_eq!((renewal.ciaddr(), machine.state()), (ADDRESS.into(), State::Renewing));
    let actions = machine.receive(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(62));
    let [Action::Install { old: Some(old), new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(old, new);
    assert_eq!((machine.state(), machine.due()), (State::Bound, Some(at(121))));
}

#[test]
fn the_lease_is_rebound_at_t2_and_removed_at_its_end() {
    let mut machine = bound();
    sent_to_server(&machine.tick(at(61)));
    assert_eq!(machine.due(), Some(at(106)), "not more than once in a minute");
    let rebinding = broadcast(&machine.tick(at(106)));
    assert_eq!((rebinding.ciaddr(), machine.state()), (ADDRESS.into(), State::Rebinding));
    assert_eq!(machine.due(), Some(at(121)));
    let mut again = machine.clone();
    let mut options = lease(120);
    options.push(DhcpOption::ServerIdentifier([10, 0, 0, 2].into()));
    let actions = again.receive(&answer(&machine, MessageType::Ack, options), FROM, at(110));
    assert!(matches!(&actions[..], [Action::Install { .. }]), "{actions:?}");
    let actions = machine.tick(at(121));
    let [Action::Remove(gone), Action::Broadcast(_)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(gone.address, "10.0.0.9/24".parse().unwrap());
    assert_eq!((machine.state(), machine.lease()), (State::Discovering, None));
}

#[test]
fn a_refused_renewal_removes_the_address_at_once() {
    let mut machine = bound();
    machine.tick(at(61));
    let actions = machine.receive(&answer(&machine, MessageType::Nak, vec![]), FROM, at(62));
    assert!(matches!(&actions[..], [Action::Remove(_), Action::Broadcast(_)]), "{actions:?}");
    assert_eq!(machine.problem(), Some("the DHCP server refused: "));
}

#[test]
fn requests_slow_down_if_a_server_refuses_its_own_offers() {
    let mut machine = machine();
    let (mut now, mut rounds) = (at(0), 0);
    machine.begin(now);
    while now < at(60) {
        machine.receive(&answer(&machine, MessageType::Offer, lease(120)), FROM, now);
        let silent = machine.receive(&answer(&machine, MessageType::Nak, vec![]), FROM, now).is_empty();
        rounds += 1;
        if silent {
            now = machine.due().unwrap();
            broadcast(&machine.tick(now));
        }
    }
    assert!(rounds < 12, "{rounds} in a minute");
}

#[test]
fn a_renewal_reports_changed_options() {
    let mut machine = bound();
    machine.tick(at(61));
    let mut options = lease(600);
    options.push(DhcpOption::InterfaceMtu(1300));
    let actions = machine.receive(&answer(&machine, MessageType::Ack, options), FROM, at(62));
    let [Action::Install { old: Some(old), new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((old.mtu, new.mtu, machine.due()), (None, Some(1300), Some(at(361))));
}

#[test]
fn a_lease_continues_after_a_restart() {
    let lease = bound().lease().unwrap().clone();
    let resumed = |now: u64| {
        let mut machine = machine();
        let actions = machine.resume(lease.clone(), at(now));
        (machine.state(), actions)
    };
    assert_eq!(resumed(30), (State::Bound, vec![]));
    let (state, actions) = resumed(70);
    assert_eq!((state, sent_to_server(&actions).ciaddr()), (State::Renewing, ADDRESS.into()));
    let (state, actions) = resumed(110);
    assert_eq!((state, broadcast(&actions).ciaddr()), (State::Rebinding, ADDRESS.into()));
    let (state, actions) = resumed(500);
    assert_eq!(state, State::Discovering);
    assert!(matches!(&actions[..], [Action::Remove(_), Action::Broadcast(_)]), "{actions:?}");
    let mut machine = machine();
    machine.resume(lease.clone(), at(30));
    assert_eq!(machine.due(), Some(at(61)));
}

#[test]
fn an_infinite_lease_is_never_renewed() {
    let mut machine = machine();
    machine.begin(at(0));
    let endless = || lease(crate::grant::FOREVER);
    machine.receive(&answer(&machine, MessageType::Offer, endless()), FROM, at(0));
    machine.receive(&answer(&machine, MessageType::Ack, endless()), FROM, at(0));
    assert_eq!((machine.state(), machine.due()), (State::Bound, None));
}

#[test]
fn a_release_is_sent_to_the_server_once() {
    let mut machine = bound();
    let release = sent_to_server(&[machine.release().unwrap()]);
    assert!(release.opts().has_msg_type(MessageType::Release));
    assert_eq!(release.ciaddr(), std::net::Ipv4Addr::from(ADDRESS));
    assert_eq!((machine.release(), machine.due()), (None, None));
}

#[test]
fn the_problem_of_an_invalid_answer_is_kept() {
    let mut machine = machine();
    machine.begin(at(0));
    let bare = answer(&machine, MessageType::Offer, vec![DhcpOption::AddressLeaseTime(9)]);
    assert!(machine.receive(&bare, FROM, at(0)).is_empty());
    assert_eq!(machine.problem(), Some("DHCP option Subnet Mask not found in DHCPACK"));
}

#[test]
fn dhcpv6_has_the_same_states() {
    let mut machine = Machine::new(Protocol::V6(codec6()), Rng::seeded(3), WAITS);
    let answer = |machine: &Machine, kind| message6(kind, machine.xid & 0xff_ffff, vec![address(100)]);
    machine.begin(at(0));
    let solicited = machine.xid;
    assert!(matches!(
        &machine.receive(&answer(&machine, MessageType6::Advertise), None, at(0))[..],
        [Action::Broadcast(_)]
    ));
    assert_ne!(machine.xid, solicited, "each message of DHCPv6 has its own transaction id");
    let actions = machine.receive(&answer(&machine, MessageType6::Reply), None, at(0));
    assert!(matches!(&actions[..], [Action::Install { old: None, .. }]), "{actions:?}");
    assert_eq!(machine.due(), Some(at(50)));
    assert!(matches!(&machine.tick(at(50))[..], [Action::Broadcast(_)]), "renewals go to all servers");
    assert_eq!(machine.state(), State::Renewing);
    machine.receive(&answer(&machine, MessageType6::Reply), None, at(51));
    assert!(matches!(machine.release(), Some(Action::Broadcast(_))));
}
