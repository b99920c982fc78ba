//! Chains. Base chains are attached to a hook of the packet path; rules jump to the others.

use super::abi::*;
use super::table::{message, Family, Table, HEADER};
use crate::attr;
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Accepts or drops packets.
    Filter,
    /// Decides about address translation on the first packet of a connection.
    Nat,
    /// Reroutes packets whose mark or header changes.
    Route,
}

impl ChainKind {
    fn name(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
            ChainKind::Route => "route",
        }
    }

    fn from_name(name: &str) -> Option<ChainKind> {
        [ChainKind::Filter, ChainKind::Nat, ChainKind::Route].into_iter().find(|kind| kind.name() == name)
    }
}

/// The hooks, in the order of the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Incoming, before routing.
    Prerouting,
    /// Addressed to this host.
    Input,
    /// Forwarded.
    Forward,
    /// Sent by this host.
    Output,
    /// Outgoing, after routing.
    Postrouting,
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Hook::Prerouting => NF_INET_PRE_ROUTING,
            Hook::Input => NF_INET_LOCAL_IN,
            Hook::Forward => NF_INET_FORWARD,
            Hook::Output => NF_INET_LOCAL_OUT,
            Hook::Postrouting => NF_INET_POST_ROUTING,
        }
    }

    fn from_number(number: u32) -> Option<Hook> {
        use Hook::*;
        [Prerouting, Input, Forward, Output, Postrouting].into_iter().find(|hook| hook.number() == number)
    }
}

/// The verdict for packets that no rule of a base chain decides about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Accept.
    #[default]
    Accept,
    /// Drop.
    Drop,
}

/// The attachment of a base chain. Chains with a lower priority see a packet earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The type.
    pub kind: ChainKind,
    /// The hook.
    pub hook: Hook,
    /// The priority among the chains of the hook.
    pub priority: i32,
    /// The policy.
    pub policy: Policy,
}

impl Base {
    /// A base chain with policy accept.
    pub const fn new(kind: ChainKind, hook: Hook, priority: i32) -> Base {
        Base { kind, hook, priority, policy: Policy::Accept }
    }

    /// Reads the attachment from a chain's attributes.
    pub(super) fn decode(body: &[u8]) -> Option<Base> {
        let hook = attr::find(body, NFTA_CHAIN_HOOK)?;
        let number = |kind| attr::find(hook.value, kind)?.be32();
        let policy = attr::find(body, NFTA_CHAIN_POLICY).and_then(|a| a.be32());
        Some(Base {
            kind: ChainKind::from_name(&attr::find(body, NFTA_CHAIN_TYPE)?.string())?,
            hook: Hook::from_number(number(NFTA_HOOK_HOOKNUM)?)?,
            priority: number(NFTA_HOOK_PRIORITY)? as i32,
            policy: if policy == Some(0) { Policy::Drop } else { Policy::Accept },
        })
    }

    pub(super) fn encode(&self, message: Message) -> Message {
        message
            .nest(NFTA_CHAIN_HOOK, |m| {
                m.be32(NFTA_HOOK_HOOKNUM, self.hook.number()).be32(NFTA_HOOK_PRIORITY, self.priority as u32)
            })
            .be32(NFTA_CHAIN_POLICY, (self.policy == Policy::Accept).into())
            .string(NFTA_CHAIN_TYPE, self.kind.name())
    }
}

/// A chain as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// The table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// Its handle.
    pub handle: u64,
    /// The attachment, if it is a base chain with a known type and hook.
    pub base: Option<Base>,
}

impl ChainInfo {
    fn decode(frame: &Frame<'_>) -> Option<ChainInfo> {
        let family = Family::from_number(*frame.body.first()?)?;
        let body = frame.body.get(HEADER..)?;
        let text = |kind| attr::find(body, kind).map(|a| a.string());
        Some(ChainInfo {
            table: Table::new(family, text(NFTA_CHAIN_TABLE)?),
            name: text(NFTA_CHAIN_NAME)?,
            handle: attr::find(body, NFTA_CHAIN_HANDLE)?.be64()?,
            base: Base::decode(body),
        })
    }
}

/// The chain of this name, if the table and the chain exist.
pub fn get_chain(socket: &mut Socket, table: &Table, name: &str) -> Result<Option<ChainInfo>> {
    let doing = format!("look for chain {name} of table {table}");
    let request = message(NFT_MSG_GETCHAIN, 0, table.family.number(), doing)
        .string(NFTA_CHAIN_TABLE, &table.name)
        .string(NFTA_CHAIN_NAME, name);
    found(socket.query(request, |frame| ChainInfo::decode(&frame)))
}

/// All chains, of one family or of all.
pub fn list_chains(socket: &mut Socket, family: Option<Family>) -> Result<Vec<ChainInfo>> {
    let number = family.map_or(0, Family::number);
    let request = message(NFT_MSG_GETCHAIN, 0, number, "list the chains of nf_tables");
    socket.list(request, |frame| ChainInfo::decode(&frame))
}
