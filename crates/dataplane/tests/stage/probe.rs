//! Many questions at once: who reaches whom, by real packets.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use policy::Protocol;

use super::{ask_tcp_for, ask_udp_for, Answer, Place};

/// Patience with the first question; one that should be answered is asked again with more.
const IMPATIENCE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether a packet from a place to an address should arrive.
#[derive(Clone, Debug)]
pub struct Question {
    pub from: String,
    pub ip: String,
    pub protocol: Protocol,
    pub port: u16,
    pub allowed: bool,
}

/// Asks all questions at once, each in its place, and panics if any is answered otherwise.
pub fn ask(title: &str, questions: &[Question], places: &BTreeMap<String, Place>) {
    let wrong: Vec<Question> = thread::scope(|scope| {
        let asked = places.iter().map(|(name, place)| {
            let mine: Vec<&Question> = questions.iter().filter(|question| question.from == *name).collect();
            scope.spawn(move || place.within(|| wrong(&mine)))
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "{title}: {wrong:#?}");
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
