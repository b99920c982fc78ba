//! The state machine of a lease: which message to send when, and what an answer means. It has no sockets and no clock: time and
//! packets go in, packets and changes come out.
//!
//! ```text
//!             ┌──────────── refused, or nothing for long ───────────┐
//!             ▼                                                     │
//!        discovering ── offer ──▶ requesting ── granted ──▶ bound   │
//!             ▲                                          T1 │  ▲    │
//!             │                                             ▼  │ granted
//!             └── refused, or ended ── rebinding ◀─ T2 ── renewing
//! ```

use std::time::Duration;

use crate::grant::{BootTime, Grant, Lease};
use crate::message::{MessageKind, Outgoing, Received};
use crate::protocol::Protocol;
use crate::retransmit::{Rng, Waits};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Looks for a server.
    Discovering,
    /// Has requested an offer.
    Requesting,
    /// Has a lease, and waits for T1.
    Bound,
    /// Asks its server for more time (after T1).
    Renewing,
    /// Asks any server for more time (after T2).
    Rebinding,
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to all servers.
    Broadcast(Vec<u8>),
    /// Send this from the leased address to its server.
    SendToServer(Vec<u8>, Box<Grant>),
    /// Configure the interface for a new or renewed lease.
    Install {
        /// The grant before.
        old: Option<Box<Grant>>,
        /// The grant now.
        new: Box<Grant>,
    },
    /// Remove the configuration of a lease that ended.
    Remove(Box<Grant>),
}

/// One lease of one interface.
#[derive(Clone, Debug)]
pub struct Machine {
    protocol: Protocol,
    rng: Rng,
    waits: Waits,
    state: State,
    xid: u32,
    /// When the transaction began.
    began: BootTime,
    /// When the state began.
    since: BootTime,
    /// When the last message was sent.
    sent_at: BootTime,
    /// How often it was sent.
    sent: u32,
    /// When to call [`tick`](Machine::tick).
    due: Option<BootTime>,
    /// How often a lease was lost or refused since the last success.
    failures: u32,
    offer: Option<Grant>,
    lease: Option<Lease>,
    /// The last grant, to ask for the same address again.
    last: Option<Grant>,
    problem: Option<String>,
}

impl Machine {
    /// A machine that has not started.
    pub fn new(protocol: Protocol, rng: Rng, waits: Waits) -> Machine {
        Machine {
            protocol,
            rng,
            waits,
            state: State::Discovering,
            xid: 0,
            began: BootTime::ZERO,
            since: BootTime::ZERO,
            sent_at: BootTime::ZERO,
            sent: 0,
            due: None,
            failures: 0,
            offer: None,
            lease: None,
            last: None,
            problem: None,
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The lease, if there is one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The protocol.
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// When to call [`tick`](Self::tick).
    pub fn due(&self) -> Option<BootTime> {
        self.due
    }

    /// Whether it expects an answer.
    pub fn expects_answer(&self) -> bool {
        self.state != State::Bound
    }

    /// What was wrong with the last answer that could not be used.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Starts to look for a server.
    pub fn begin(&mut self, now: BootTime) -> Vec<Action> {
        self.start(State::Discovering, now);
        self.offer = None;
        self.transmit(now)
    }

    /// Continues a lease that an earlier daemon process acquired.
    pub fn resume(&mut self, lease: Lease, now: BootTime) -> Vec<Action> {
        let is_past = |moment: Option<BootTime>| moment.is_some_and(|moment| moment <= now);
        let (renew, rebind, end) = (lease.renew(), lease.rebind(), lease.end());
        self.lease = Some(lease);
        if is_past(end) {
            return self.lose(now);
        }
        if is_past(rebind) {
            self.start(State::Rebinding, now);
        } else if is_past(renew) {
            self.start(State::Renewing, now);
        } else {
            self.state = State::Bound;
            self.due = renew;
            return Vec::new();
        }
        self.transmit(now)
    }

    /// Acts on everything that is due at `now`.
    pub fn tick(&mut self, now: BootTime) -> Vec<Action> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let is_past = |moment: Option<BootTime>| moment.is_some_and(|moment| moment <= now);
        let (rebind, end) = self.lease.as_ref().map_or((None, None), |lease| (lease.rebind(), lease.end()));
        match self.state {
            // The server does not confirm its offer: another server may.
            State::Requesting if self.sent >= self.backoff().tries || self.gives_up_at() <= now => {
                return self.begin(now)
            }
            State::Discovering | State::Requesting => {}
            _ if is_past(end) => return self.lose(now),
            State::Bound | State::Renewing if is_past(rebind) => self.start(State::Rebinding, now),
            State::Bound => self.start(State::Renewing, now),
            State::Renewing | State::Rebinding => {}
        }
        self.transmit(now)
    }

    /// Handles a received packet; `from` is the sender's MAC address, if it is known.
    pub fn receive(&mut self, message: &[u8], from: Option<[u8; 6]>, now: BootTime) -> Vec<Action> {
        if !self.expects_answer() || self.sent == 0 {
            return Vec::new();
        }
        match (self.state, self.protocol.decode(message, self.xid)) {
            (State::Discovering, Some(Received::Offer(mut offer))) => {
                offer.server.mac = from;
                self.offer = Some(offer);
                let (xid, began) = (self.xid, self.began);
                self.start(State::Requesting, now);
                // DHCPv4 continues the transaction, DHCPv6 starts another.
                if self.is_v4() {
                    self.xid = xid;
                }
                self.began = began;
                self.transmit(now)
            }
            (State::Discovering, Some(Received::Invalid(problem))) => self.note(problem),
            (State::Requesting | State::Renewing | State::Rebinding, Some(received)) => {
                self.handle_answer(received, from, now)
            }
            _ => Vec::new(),
        }
    }

    /// Ends the lease; returns the message for the server.
    pub fn release(&mut self) -> Option<Action> {
        let lease = self.lease.take()?;
        let xid = self.next_xid();
        let kind = MessageKind::Release;
        let outgoing = Outgoing { kind, xid, elapsed: Duration::ZERO, grant: Some(&lease.grant) };
        let message = self.protocol.encode(&outgoing);
        (self.state, self.due) = (State::Bound, None);
        Some(if self.is_v4() {
            Action::SendToServer(message, Box::new(lease.grant))
        } else {
            Action::Broadcast(message)
        })
    }

    fn is_v4(&self) -> bool {
        self.protocol.family().is_v4()
    }

    fn handle_answer(&mut self, received: Received, from: Option<[u8; 6]>, now: BootTime) -> Vec<Action> {
        // A request to one server is answered by that server only.
        let expected = match self.state {
            State::Requesting => self.offer.as_ref().map(|offer| &offer.server.id),
            State::Renewing => self.lease.as_ref().map(|lease| &lease.grant.server.id),
            _ => None,
        };
        let is_expected = |id: &Vec<u8>| expected.is_none_or(|expected| expected == id);
        match received {
            Received::Grant(mut grant) if is_expected(&grant.server.id) => {
                let old = self.lease.take().map(|lease| Box::new(lease.grant));
                // The MAC address is not always known; the same server keeps the one that it had.
                let before = old.as_deref().or(self.offer.as_ref()).map(|grant| &grant.server);
                let known =
                    before.filter(|server| server.id == grant.server.id).and_then(|server| server.mac);
                grant.server.mac = from.or(known);
                let lease = Lease { grant: grant.clone(), since: self.sent_at };
                (self.state, self.due, self.failures) = (State::Bound, lease.renew(), 0);
                (self.offer, self.last, self.problem) = (None, Some(grant.clone()), None);
                self.lease = Some(lease);
                vec![Action::Install { old, new: Box::new(grant) }]
            }
            Received::Refusal { server, reason } if is_expected(&server.id) => {
                self.problem = Some(format!("the DHCP server refused: {reason}"));
                self.last = None;
                self.lose(now)
            }
            Received::Invalid(problem) => self.note(problem),
            _ => Vec::new(),
        }
    }

    fn note(&mut self, problem: String) -> Vec<Action> {
        self.problem = Some(problem);
        Vec::new()
    }

    /// Drops the lease and looks for another. After repeated failures it waits before the next attempt.
    fn lose(&mut self, now: BootTime) -> Vec<Action> {
        let mut actions: Vec<_> =
            self.lease.take().map(|lease| Action::Remove(Box::new(lease.grant))).into_iter().collect();
        self.failures += 1;
        if self.failures == 1 {
            actions.extend(self.begin(now));
        } else {
            self.start(State::Discovering, now);
            self.offer = None;
            let wait = self.backoff().wait(self.failures - 1, &mut self.rng);
            self.due = Some(now + wait);
        }
        actions
    }

    /// Starts a new transaction.
    fn start(&mut self, state: State, now: BootTime) {
        self.state = state;
        self.xid = self.next_xid();
        (self.began, self.since, self.sent) = (now, now, 0);
    }

    /// When the wait for the confirmation of an offer ends.
    fn gives_up_at(&self) -> BootTime {
        self.since + self.waits.answer
    }

    fn next_xid(&mut self) -> u32 {
        self.rng.next_u64() as u32
    }

    fn kind(&self) -> MessageKind {
        match self.state {
            State::Discovering => MessageKind::Discover,
            State::Requesting => MessageKind::Request,
            State::Bound | State::Renewing => MessageKind::Renew,
            State::Rebinding => MessageKind::Rebind,
        }
    }

    fn backoff(&self) -> crate::retransmit::Backoff {
        self.protocol.backoff(self.kind(), self.waits.max)
    }

    /// Sends the message of the state and schedules its retransmission.
    fn transmit(&mut self, now: BootTime) -> Vec<Action> {
        let grant = match self.state {
            State::Discovering => self.last.as_ref(),
            State::Requesting => self.offer.as_ref(),
            _ => self.lease.as_ref().map(|lease| &lease.grant),
        };
        let elapsed = now.saturating_sub(self.began);
        let message = self.protocol.encode(&Outgoing { kind: self.kind(), xid: self.xid, elapsed, grant });
        let action = match (self.state, grant) {
            (State::Renewing, Some(grant)) if self.is_v4() => {
                Action::SendToServer(message, Box::new(grant.clone()))
            }
            _ => Action::Broadcast(message),
        };
        self.sent += 1;
        self.sent_at = now;
        let again = now + self.backoff().wait(self.sent, &mut self.rng);
        // Half of the remaining time, but not sooner than the backoff, and never after the next state change.
        let change = match (self.state, &self.lease) {
            (State::Renewing, Some(lease)) => lease.rebind(),
            (State::Rebinding, Some(lease)) => lease.end(),
            _ => None,
        };
        self.due = Some(match change {
            Some(change) => change.min(again.max(now + change.saturating_sub(now) / 2)),
            None if self.state == State::Requesting => again.min(self.gives_up_at()),
            None => again,
        });
        vec![action]
    }
}

#[cfg(test)]
mod tests;
