//! Connections that were ended: what still comes of them is dropped.
//!
//! Rules let pass what belongs to a connection that the kernel knows. One that it is made to forget is judged anew by its next
//! packet, and there is a trap: if the one who answered sends first, that packet looks like the beginning of a connection the other
//! way, which may well be allowed, and everything goes on. So TCP connections that were ended are remembered here, in both
//! directions. Only packets that open no connection are held against them (they have an ACK), and only if the
//! kernel does not know theirs: what is established pays nothing, and a new connection between the same ports is judged as any other.

use std::net::SocketAddr;
use std::time::Duration;

use podwire_netlink::nft::{self, Element, Field, Rule, Transaction, Type, Value};
use podwire_policy::{Direction, Protocol};

use super::base_chains::TABLE;
use super::desired::{Half, Holds, Wanted, HALVES};
use super::drop_chains::Reasons;
use super::{Nftables, ATTEMPTS};
use crate::dataplane::{Error, Result};

/// Both ends with their ports.
const ENDED: &str = "ended";
/// Why that is dropped.
pub(super) const CUT: &str = "of a connection that was cut because policies no longer allow it";
/// As long as the kernel itself would have known a silent connection (`nf_conntrack_tcp_timeout_established`).
const REMEMBERED: Duration = Duration::from_secs(5 * 24 * 3600);

/// The sets of ended connections.
pub(super) fn build(wanted: &mut Wanted) {
    for half in HALVES {
        let ends = vec![half.address, Type::Port, half.address, Type::Port];
        wanted.set(half.name(ENDED), Holds::Passing(ends, REMEMBERED), Vec::new());
    }
}

/// What is behind the rule for established connections.
pub(super) fn rules(direction: Direction, reasons: &Reasons) -> Vec<Rule> {
    let rule = |half: Half| {
        let of_tcp = Rule::new().family(half.family).is(Field::Protocol, &[Protocol::Tcp.number()]);
        let ends = [half.source(), Field::PortSource, half.destination(), Field::PortDestination];
        let late = of_tcp.any_bit(Field::TcpFlags, Rule::ACK).in_set(&ends, &half.name(ENDED));
        reasons.drop(late, direction, CUT).comment(CUT)
    };
    HALVES.map(rule).into()
}

impl Nftables {
    /// From now on nothing of these TCP connections passes that the kernel does not know to be established: whoever calls this
    /// makes it forget them next. The last program must have been applied with [`ends`](crate::dataplane::Premises::ends).
    pub fn end(&mut self, connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let mut transaction = Transaction::at_generation(generation);
            for half in HALVES {
                let mine = connections.iter().filter(|(from, _)| half.has(&from.ip()));
                let both = mine.flat_map(|(from, to)| [element(*from, *to), element(*to, *from)]);
                transaction.add_elements(&TABLE, &half.name(ENDED), &both.collect::<Vec<_>>());
            }
            if transaction.is_empty() {
                return Ok(());
            }
            match transaction.commit(&mut self.socket) {
                Ok(()) => {
                    let now = nft::generation(&mut self.socket)?;
                    // Nothing of what is compared was changed by it.
                    self.last = self
                        .last
                        .take()
                        .filter(|(at, _)| *at == generation)
                        .and_then(|(_, last)| (now == generation.wrapping_add(1)).then_some((now, last)));
                    return Ok(());
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }
}

fn element(from: SocketAddr, to: SocketAddr) -> Element {
    let key = Value::ip(from.ip()).and_port(from.port()).and_ip(to.ip()).and_port(to.port());
    Element::key(key)
}
