//! Many questions at once: who reaches whom, by real packets. Who is kept from another hears nothing, not even an error.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use podwire_policy::Protocol;

use super::ears::{Ears, SCTP};
use super::{ask_tcp_for, ask_udp_for, Answer, Place};

/// Patience with the first question; one that should be answered is asked again with more.
const IMPATIENCE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(3);
/// A question by SCTP is known by the port that it comes from, which no other had for a while.
const PORTS: std::ops::Range<u16> = 20_000..60_000;

/// Whether a packet from a place to an address should arrive.
#[derive(Clone, Debug)]
pub struct Question {
    pub from: String,
    pub ip: String,
    pub protocol: Protocol,
    pub port: u16,
    pub allowed: bool,
}

/// Places that ask each other.
pub struct Probe<'a> {
    places: &'a BTreeMap<String, Place>,
    ears: BTreeMap<&'a String, Ears>,
    next_port: Cell<u16>,
}

impl<'a> Probe<'a> {
    pub fn new(places: &'a BTreeMap<String, Place>) -> Probe<'a> {
        let ears = places.iter().map(|(name, place)| (name, Ears::of(place))).collect();
        Probe { places, ears, next_port: Cell::new(PORTS.start) }
    }

    /// Asks all questions at once, each in its place, and panics if any is answered otherwise.
    pub fn ask(&self, title: &str, questions: &[Question]) {
        self.ears.values().for_each(|ears| drop((ears.inits(), ears.turned_away())));
        let (by_hand, by_socket): (Vec<_>, Vec<_>) =
            questions.iter().partition(|question| question.protocol == Protocol::Sctp);
        let mut wrong: Vec<Question> = thread::scope(|scope| {
            let asked = self.places.iter().map(|(name, place)| {
                let mine: Vec<&Question> =
                    by_socket.iter().copied().filter(|question| question.from == *name).collect();
                scope.spawn(move || if mine.is_empty() { Vec::new() } else { place.within(|| wrong(&mine)) })
            });
            let asked: Vec<_> = asked.collect();
            let by_hand = self.wrong_by_hand(&by_hand);
            asked.into_iter().flat_map(|thread| thread.join().expect("no panic")).chain(by_hand).collect()
        });
        wrong.extend(self.turned_away(questions));
        assert!(wrong.is_empty(), "{title}: {wrong:#?}");
    }

    /// Questions by SCTP that arrive or not, other than they should. What arrives is seen where it arrives.
    fn wrong_by_hand(&self, questions: &[&Question]) -> Vec<Question> {
        if questions.is_empty() {
            return Vec::new();
        }
        let many = questions.len() as u16;
        let first = self.next_port.get();
        let first = if first < PORTS.end - many { first } else { PORTS.start };
        self.next_port.set(first + many);
        let port_of = |number: usize| first + number as u16;
        let mut arrived = BTreeSet::new();
        let is_missing = |number: usize, arrived: &BTreeSet<(u16, u16)>| {
            questions[number].allowed && !arrived.contains(&(port_of(number), questions[number].port))
        };
        let begin = Instant::now();
        let mut waited = Duration::ZERO;
        while waited < PATIENCE {
            for (number, question) in questions.iter().enumerate() {
                if waited.is_zero() || is_missing(number, &arrived) {
                    let to = question.ip.parse().expect("an address");
                    self.ears[&question.from].sends_init(to, port_of(number), question.port);
                }
            }
            thread::sleep(IMPATIENCE);
            self.ears.values().for_each(|ears| arrived.extend(ears.inits()));
            if !(0..questions.len()).any(|number| is_missing(number, &arrived)) {
                break;
            }
            waited = begin.elapsed();
        }
        let is_wrong = |(number, question): (usize, &&Question)| {
            let reached = arrived.contains(&(port_of(number), question.port));
            (reached != question.allowed).then(|| (*question).clone())
        };
        questions.iter().enumerate().filter_map(is_wrong).collect()
    }

    /// Denied questions that were not left without a word.
    fn turned_away(&self, questions: &[Question]) -> Vec<Question> {
        let errors: BTreeMap<_, _> =
            self.ears.iter().map(|(name, ears)| (*name, ears.turned_away())).collect();
        let is_told = |question: &&Question| {
            let ip: IpAddr = question.ip.parse().expect("an address");
            let protocol = match question.protocol {
                Protocol::Tcp => 6,
                Protocol::Udp => 17,
                Protocol::Sctp => SCTP,
            };
            !question.allowed && errors[&question.from].contains(&(ip, protocol, question.port))
        };
        questions.iter().filter(is_told).cloned().collect()
    }
}

/// Those of a place's questions that are answered otherwise. Threads are born in the namespace of their maker.
fn wrong(mine: &[&Question]) -> Vec<Question> {
    thread::scope(|scope| {
        let asked = mine.iter().map(|question| {
            let question: Question = (*question).clone();
            scope.spawn(move || (reaches(&question) != question.allowed).then_some(question))
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Nobody listens: a refusal comes from the other pod, so it was reached.
fn reaches(question: &Question) -> bool {
    let Question { ip, protocol, port, allowed, .. } = question;
    let ask = |patience| match protocol {
        Protocol::Udp => ask_udp_for(patience, ip, *port, 1),
        _ => ask_tcp_for(patience, ip, *port),
    };
    let first = ask(IMPATIENCE) != Answer::Silence;
    if *allowed && !first {
        return ask(PATIENCE) != Answer::Silence;
    }
    first
}
