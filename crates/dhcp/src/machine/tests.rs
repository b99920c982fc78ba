use super::*;
use crate::v4::tests::{client as client4, lease, message as message4};
use crate::v6::tests::{address, client as client6, message as message6};
use dhcproto::v4::{DhcpOption, Message, MessageType};
use dhcproto::v6::MessageType as MessageType6;
use dhcproto::{Decodable, Decoder};

const ADDRESS: [u8; 4] = [10, 0, 0, 9];
const FROM: Option<[u8; 6]> = Some([2, 0, 0, 0, 0, 1]);

fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn machine() -> Machine {
    Machine::new(Dialect::V4(client4()), Dice::seeded(3), Duration::from_secs(62))
}

/// The only action: a message to everyone.
#[track_caller]
fn shouted(actions: &[Action]) -> Message {
    match actions {
        [Action::Shout(bytes)] => Message::decode(&mut Decoder::new(bytes)).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The only action: a message to the server.
#[track_caller]
fn told(actions: &[Action]) -> Message {
    match actions {
        [Action::Tell(bytes, _)] => Message::decode(&mut Decoder::new(bytes)).unwrap(),
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
    machine.hear(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(1));
    let actions = machine.hear(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(2));
    assert!(matches!(&actions[..], [Action::Install { old: None, .. }]), "{actions:?}");
    machine
}

#[test]
fn an_address_is_discovered_offered_requested_and_granted() {
    let mut machine = machine();
    let discover = shouted(&machine.begin(at(0)));
    assert!(discover.opts().has_msg_type(MessageType::Discover));
    let offer = answer(&machine, MessageType::Offer, lease(120));
    let request = shouted(&machine.hear(&offer, FROM, at(1)));
    assert!(request.opts().has_msg_type(MessageType::Request));
    assert_eq!(request.xid(), discover.xid());
    assert!(machine.hear(&offer, FROM, at(1)).is_empty(), "another offer is too late");
    let actions = machine.hear(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(2));
    let [Action::Install { old: None, new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((new.address, new.server.mac), ("10.0.0.9/24".parse().unwrap(), FROM));
    // The time counts from when it was asked for.
    assert_eq!((machine.state(), machine.due()), (State::Bound, Some(at(61))));
    assert!(!machine.listens());
}

#[test]
fn a_silent_network_is_asked_again_more_and_more_seldom() {
    let mut machine = machine();
    let first = shouted(&machine.begin(at(0)));
    let mut waits = Vec::new();
    let mut now = at(0);
    for _ in 0..10 {
        let due = machine.due().unwrap();
        assert!(machine.tick(due - Duration::from_millis(1)).is_empty());
        waits.push((due - now).as_secs_f64());
        now = due;
        assert_eq!(shouted(&machine.tick(now)).xid(), first.xid());
    }
    assert!(waits[0] < 1.3 && waits[1] > 1.5 && waits[2] > 3.0, "{waits:?}");
    assert!(waits[9] <= 62.0 * 1.2 && waits[9] > 40.0, "{waits:?}");
}

#[test]
fn an_offer_that_is_not_kept_is_given_up() {
    let mut machine = machine();
    machine.begin(at(0));
    machine.hear(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(0));
    let kinds: Vec<_> =
        (0..5).map(|_| shouted(&machine.tick(machine.due().unwrap())).opts().msg_type().unwrap()).collect();
    let (request, discover) = (MessageType::Request, MessageType::Discover);
    assert_eq!(kinds, [request, request, request, discover, discover]);
}

#[test]
fn only_the_server_whose_offer_was_taken_can_grant_or_refuse_it() {
    let mut machine = machine();
    machine.begin(at(0));
    machine.hear(&answer(&machine, MessageType::Offer, lease(120)), FROM, at(0));
    for kind in [MessageType::Ack, MessageType::Nak] {
        let mut options = lease(120);
        options.push(DhcpOption::ServerIdentifier([10, 0, 0, 66].into()));
        assert!(machine.hear(&answer(&machine, kind, options), FROM, at(1)).is_empty());
    }
    assert_eq!(machine.state(), State::Requesting);
}

#[test]
fn half_way_the_server_is_asked_for_more_time() {
    let mut machine = bound();
    assert!(machine.tick(at(60)).is_empty());
    let renewal = told(&machine.tick(at(61)));
    assert_eq!((renewal.ciaddr(), machine.state()), (ADDRESS.into(), State::Renewing));
    let actions = machine.hear(&answer(&machine, MessageType::Ack, lease(120)), FROM, at(62));
    let [Action::Install { old: Some(old), new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(old, new);
    assert_eq!((machine.state(), machine.due()), (State::Bound, Some(at(121))));
}

#[test]
fn near_the_end_any_server_is_asked_and_at_the_end_the_address_goes() {
    let mut machine = bound();
    told(&machine.tick(at(61)));
    assert_eq!(machine.due(), Some(at(106)), "not more than once in a minute");
    let rebinding = shouted(&machine.tick(at(106)));
    assert_eq!((rebinding.ciaddr(), machine.state()), (ADDRESS.into(), State::Rebinding));
    assert_eq!(machine.due(), Some(at(121)));
    let mut again = machine.clone();
    let mut options = lease(120);
    options.push(DhcpOption::ServerIdentifier([10, 0, 0, 2].into()));
    let actions = again.hear(&answer(&machine, MessageType::Ack, options), FROM, at(110));
    assert!(matches!(&actions[..], [Action::Install { .. }]), "{actions:?}");
    let actions = machine.tick(at(121));
    let [Action::Withdraw(gone), Action::Shout(_)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(gone.address, "10.0.0.9/24".parse().unwrap());
    assert_eq!((machine.state(), machine.held()), (State::Discovering, None));
}

#[test]
fn a_refused_renewal_takes_the_address_at_once() {
    let mut machine = bound();
    machine.tick(at(61));
    let actions = machine.hear(&answer(&machine, MessageType::Nak, vec![]), FROM, at(62));
    assert!(matches!(&actions[..], [Action::Withdraw(_), Action::Shout(_)]), "{actions:?}");
    assert_eq!(machine.trouble(), Some("the DHCP server refused: "));
}

#[test]
fn a_server_that_refuses_what_it_offers_is_not_asked_without_end() {
    let mut machine = machine();
    let (mut now, mut rounds) = (at(0), 0);
    machine.begin(now);
    while now < at(60) {
        machine.hear(&answer(&machine, MessageType::Offer, lease(120)), FROM, now);
        let silent = machine.hear(&answer(&machine, MessageType::Nak, vec![]), FROM, now).is_empty();
        rounds += 1;
        if silent {
            now = machine.due().unwrap();
            shouted(&machine.tick(now));
        }
    }
    assert!(rounds < 12, "{rounds} in a minute");
}

#[test]
fn changed_options_are_told() {
    let mut machine = bound();
    machine.tick(at(61));
    let mut options = lease(600);
    options.push(DhcpOption::InterfaceMtu(1300));
    let actions = machine.hear(&answer(&machine, MessageType::Ack, options), FROM, at(62));
    let [Action::Install { old: Some(old), new }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((old.mtu, new.mtu, machine.due()), (None, Some(1300), Some(at(361))));
}

#[test]
fn a_lease_goes_on_where_it_was_after_a_restart() {
    let held = bound().held().unwrap().clone();
    let resumed = |now: u64| {
        let mut machine = machine();
        let actions = machine.resume(held.clone(), at(now));
        (machine.state(), actions)
    };
    assert_eq!(resumed(30), (State::Bound, vec![]));
    let (state, actions) = resumed(70);
    assert_eq!((state, told(&actions).ciaddr()), (State::Renewing, ADDRESS.into()));
    let (state, actions) = resumed(110);
    assert_eq!((state, shouted(&actions).ciaddr()), (State::Rebinding, ADDRESS.into()));
    let (state, actions) = resumed(500);
    assert_eq!(state, State::Discovering);
    assert!(matches!(&actions[..], [Action::Withdraw(_), Action::Shout(_)]), "{actions:?}");
    let mut machine = machine();
    machine.resume(held.clone(), at(30));
    assert_eq!(machine.due(), Some(at(61)));
}

#[test]
fn a_lease_for_ever_wants_nothing_more() {
    let mut machine = machine();
    machine.begin(at(0));
    let endless = || lease(crate::grant::FOREVER);
    machine.hear(&answer(&machine, MessageType::Offer, endless()), FROM, at(0));
    machine.hear(&answer(&machine, MessageType::Ack, endless()), FROM, at(0));
    assert_eq!((machine.state(), machine.due()), (State::Bound, None));
}

#[test]
fn what_is_released_is_told_to_its_server_once() {
    let mut machine = bound();
    let release = told(&[machine.release().unwrap()]);
    assert!(release.opts().has_msg_type(MessageType::Release));
    assert_eq!(release.ciaddr(), std::net::Ipv4Addr::from(ADDRESS));
    assert_eq!((machine.release(), machine.due()), (None, None));
}

#[test]
fn an_answer_that_is_of_no_use_is_remembered() {
    let mut machine = machine();
    machine.begin(at(0));
    let bare = answer(&machine, MessageType::Offer, vec![DhcpOption::AddressLeaseTime(9)]);
    assert!(machine.hear(&bare, FROM, at(0)).is_empty());
    assert_eq!(machine.trouble(), Some("DHCP option Subnet Mask not found in DHCPACK"));
}

#[test]
fn ipv6_has_the_same_life() {
    let mut machine = Machine::new(Dialect::V6(client6()), Dice::seeded(3), Duration::from_secs(62));
    let answer = |machine: &Machine, kind| message6(kind, machine.xid & 0xff_ffff, vec![address(100)]);
    machine.begin(at(0));
    let solicited = machine.xid;
    assert!(matches!(
        &machine.hear(&answer(&machine, MessageType6::Advertise), None, at(0))[..],
        [Action::Shout(_)]
    ));
    assert_ne!(machine.xid, solicited, "each message of DHCPv6 has its own number");
    let actions = machine.hear(&answer(&machine, MessageType6::Reply), None, at(0));
    assert!(matches!(&actions[..], [Action::Install { old: None, .. }]), "{actions:?}");
    assert_eq!(machine.due(), Some(at(50)));
    assert!(matches!(&machine.tick(at(50))[..], [Action::Shout(_)]), "renewals go to everyone");
    assert_eq!(machine.state(), State::Renewing);
    machine.hear(&answer(&machine, MessageType6::Reply), None, at(51));
    assert!(matches!(machine.release(), Some(Action::Shout(_))));
}
