//! The life of a lease: what to say when, and what an answer means. No sockets and no clock: time and packets come in,
//! packets and changes go out.
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

use crate::dialect::{Dialect, Heard, Saying, Word};
use crate::grant::{Grant, Held, Moment};
use crate::pace::Dice;

/// Where in its life a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Looking for a server.
    Discovering,
    /// Took an offer, and waits for it.
    Requesting,
    /// Has an address, and nothing to do.
    Bound,
    /// Asks its server for more time.
    Renewing,
    /// Asks any server for more time.
    Rebinding,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to everyone on the wire.
    Shout(Vec<u8>),
    /// Send this from the address that is held to the server that gave it.
    Tell(Vec<u8>, Box<Grant>),
    /// The lease holds from now on, or goes on, perhaps with changes.
    Install {
        /// What was held before.
        old: Option<Box<Grant>>,
        /// What is held now.
        new: Box<Grant>,
    },
    /// The lease does not hold any more.
    Withdraw(Box<Grant>),
}

/// One lease of one interface.
#[derive(Clone, Debug)]
pub struct Machine {
    dialect: Dialect,
    dice: Dice,
    /// The longest wait between two tries.
    longest: Duration,
    state: State,
    xid: u32,
    /// When the conversation began.
    began: Moment,
    /// When the last word was said.
    said_at: Moment,
    /// How often it was said.
    said: u32,
    /// When something is to be done.
    due: Option<Moment>,
    /// How often it began anew without success.
    rounds: u32,
    offer: Option<Grant>,
    held: Option<Held>,
    /// The last address, to ask for it again.
    last: Option<Grant>,
    trouble: Option<String>,
}

impl Machine {
    /// A machine that has not begun.
    pub fn new(dialect: Dialect, dice: Dice, longest: Duration) -> Machine {
        Machine {
            dialect,
            dice,
            longest,
            state: State::Discovering,
            xid: 0,
            began: Moment::ZERO,
            said_at: Moment::ZERO,
            said: 0,
            due: None,
            rounds: 0,
            offer: None,
            held: None,
            last: None,
            trouble: None,
        }
    }

    /// Where in its life it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it holds.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Which protocol it speaks.
    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// When [`tick`](Self::tick) wants to be called.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Whether it waits for an answer.
    pub fn listens(&self) -> bool {
        self.state != State::Bound
    }

    /// What was wrong with the last answer that was of no use.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Looks for a server.
    pub fn begin(&mut self, now: Moment) -> Vec<Action> {
        self.converse(State::Discovering, now);
        self.offer = None;
        self.speak(now)
    }

    /// Goes on with a lease that was acquired by an earlier life of the daemon.
    pub fn resume(&mut self, held: Held, now: Moment) -> Vec<Action> {
        let has_come = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= now);
        let (renew, rebind, end) = (held.renew(), held.rebind(), held.end());
        self.held = Some(held);
        if has_come(end) {
            return self.lose(now);
        }
        match (has_come(rebind), has_come(renew)) {
            (true, _) => self.converse(State::Rebinding, now),
            (_, true) => self.converse(State::Renewing, now),
            _ => {
                self.state = State::Bound;
                self.due = renew;
                return Vec::new();
            }
        }
        self.speak(now)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Moment) -> Vec<Action> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let has_come = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= now);
        let (rebind, end) = self.held.as_ref().map_or((None, None), |held| (held.rebind(), held.end()));
        match self.state {
            // Nobody does what was promised: whoever else is there may.
            State::Requesting if self.said >= self.pace().times => return self.begin(now),
            State::Discovering | State::Requesting => {}
            _ if has_come(end) => return self.lose(now),
            State::Bound | State::Renewing if has_come(rebind) => self.converse(State::Rebinding, now),
            State::Bound => self.converse(State::Renewing, now),
            State::Renewing | State::Rebinding => {}
        }
        self.speak(now)
    }

    /// A message came, from the hardware address `from` if it is known.
    pub fn hear(&mut self, message: &[u8], from: Option<[u8; 6]>, now: Moment) -> Vec<Action> {
        if !self.listens() || self.said == 0 {
            return Vec::new();
        }
        match (self.state, self.dialect.understand(message, self.xid)) {
            (State::Discovering, Some(Heard::Offer(mut offer))) => {
                offer.server.mac = from;
                self.offer = Some(offer);
                let (xid, began) = (self.xid, self.began);
                self.converse(State::Requesting, now);
                // DHCPv4 goes on in the same conversation, DHCPv6 begins another.
                if self.dialect.is_v4() {
                    self.xid = xid;
                }
                self.began = began;
                self.speak(now)
            }
            (State::Discovering, Some(Heard::Useless(why))) => self.note(why),
            (State::Requesting | State::Renewing | State::Rebinding, Some(heard)) => {
                self.judge(heard, from, now)
            }
            _ => Vec::new(),
        }
    }

    /// Gives back what is held: the message, for the server.
    pub fn release(&mut self) -> Option<Action> {
        let held = self.held.take()?;
        let xid = self.throw();
        let word = Word::Release;
        let saying = Saying { word, xid, elapsed: Duration::ZERO, grant: Some(&held.grant) };
        let message = self.dialect.say(&saying);
        (self.state, self.due) = (State::Bound, None);
        Some(match self.dialect.is_v4() {
            true => Action::Tell(message, Box::new(held.grant)),
            false => Action::Shout(message),
        })
    }

    fn judge(&mut self, heard: Heard, from: Option<[u8; 6]>, now: Moment) -> Vec<Action> {
        // Whoever asks one server listens to that one.
        let asked = match self.state {
            State::Requesting => self.offer.as_ref().map(|offer| &offer.server.id),
            State::Renewing => self.held.as_ref().map(|held| &held.grant.server.id),
            _ => None,
        };
        let is_asked = |id: &Vec<u8>| asked.is_none_or(|asked| asked == id);
        match heard {
            Heard::Grant(mut grant) if is_asked(&grant.server.id) => {
                let old = self.held.take().map(|held| Box::new(held.grant));
                // Not every way tells where an answer came from; the same server is where it was.
                let before = old.as_deref().or(self.offer.as_ref()).map(|grant| &grant.server);
                let known =
                    before.filter(|server| server.id == grant.server.id).and_then(|server| server.mac);
                grant.server.mac = from.or(known);
                let held = Held { grant: grant.clone(), since: self.said_at };
                (self.state, self.due, self.rounds) = (State::Bound, held.renew(), 0);
                (self.offer, self.last, self.trouble) = (None, Some(grant.clone()), None);
                self.held = Some(held);
                vec![Action::Install { old, new: Box::new(grant) }]
            }
            Heard::Refusal { server, why } if is_asked(&server.id) => {
                self.trouble = Some(format!("the DHCP server refused: {why}"));
                self.last = None;
                self.lose(now)
            }
            Heard::Useless(why) => self.note(why),
            _ => Vec::new(),
        }
    }

    fn note(&mut self, why: String) -> Vec<Action> {
        self.trouble = Some(why);
        Vec::new()
    }

    /// What was held is not any more; look for another. Whoever is refused again and again waits between.
    fn lose(&mut self, now: Moment) -> Vec<Action> {
        let mut actions: Vec<_> =
            self.held.take().map(|held| Action::Withdraw(Box::new(held.grant))).into_iter().collect();
        self.rounds += 1;
        if self.rounds == 1 {
            actions.extend(self.begin(now));
        } else {
            self.converse(State::Discovering, now);
            self.offer = None;
            let wait = self.pace().wait(self.rounds - 1, &mut self.dice);
            self.due = Some(now + wait);
        }
        actions
    }

    /// A new conversation, in which nothing was said.
    fn converse(&mut self, state: State, now: Moment) {
        self.state = state;
        self.xid = self.throw();
        (self.began, self.said) = (now, 0);
    }

    fn throw(&mut self) -> u32 {
        self.dice.throw() as u32
    }

    fn word(&self) -> Word {
        match self.state {
            State::Discovering => Word::Discover,
            State::Requesting => Word::Request,
            State::Bound | State::Renewing => Word::Renew,
            State::Rebinding => Word::Rebind,
        }
    }

    fn pace(&self) -> crate::pace::Pace {
        self.dialect.pace(self.word(), self.longest)
    }

    /// Says the state's word (again), and plans when to say it next.
    fn speak(&mut self, now: Moment) -> Vec<Action> {
        let grant = match self.state {
            State::Discovering => self.last.as_ref(),
            State::Requesting => self.offer.as_ref(),
            _ => self.held.as_ref().map(|held| &held.grant),
        };
        let elapsed = now.saturating_sub(self.began);
        let message = self.dialect.say(&Saying { word: self.word(), xid: self.xid, elapsed, grant });
        let action = match (self.state, grant) {
            (State::Renewing, Some(grant)) if self.dialect.is_v4() => {
                Action::Tell(message, Box::new(grant.clone()))
            }
            _ => Action::Shout(message),
        };
        self.said += 1;
        self.said_at = now;
        let again = now + self.pace().wait(self.said, &mut self.dice);
        // Half of the time that is left, but not more often than the pace; and never past the next turn.
        let turn = match (self.state, &self.held) {
            (State::Renewing, Some(held)) => held.rebind(),
            (State::Rebinding, Some(held)) => held.end(),
            _ => None,
        };
        self.due = Some(turn.map_or(again, |turn| turn.min(again.max(now + turn.saturating_sub(now) / 2))));
        vec![action]
    }
}

#[cfg(test)]
mod tests;
