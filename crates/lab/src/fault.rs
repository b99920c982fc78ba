//! What can be broken, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A fault. Each is the real thing, done inside of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The agent is killed.
    KillAgent,
    /// The tunnel's device is deleted.
    DeleteDevice,
    /// The roads are deleted.
    FlushRoutes,
    /// Every nftables rule is deleted.
    FlushRules,
    /// Neighbours are wrong, forwarding entries gone.
    PoisonNeighbours,
    /// The node gets other addresses.
    ChangeAddress,
    /// The uplink goes down.
    LinkDown,
    /// The machine is started anew, with another hardware address.
    RebootNode,
    /// The machine is taken away, and out of the store.
    RemoveNode,
    /// etcd is killed.
    StopStore,
    /// Somebody claims the node's range.
    DuplicateRange,
    /// The list of plugins of another network stands before ours.
    ForeignConfig,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 12] = [
        Fault::KillAgent,
        Fault::DeleteDevice,
        Fault::FlushRoutes,
        Fault::FlushRules,
        Fault::PoisonNeighbours,
        Fault::ChangeAddress,
        Fault::LinkDown,
        Fault::RebootNode,
        Fault::RemoveNode,
        Fault::StopStore,
        Fault::DuplicateRange,
        Fault::ForeignConfig,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Fault::KillAgent => "kill-agent",
            Fault::DeleteDevice => "delete-device",
            Fault::FlushRoutes => "flush-routes",
            Fault::FlushRules => "flush-rules",
            Fault::PoisonNeighbours => "poison-neighbours",
            Fault::ChangeAddress => "change-address",
            Fault::LinkDown => "link-down",
            Fault::RebootNode => "reboot-node",
            Fault::RemoveNode => "remove-node",
            Fault::StopStore => "stop-store",
            Fault::DuplicateRange => "duplicate-range",
            Fault::ForeignConfig => "foreign-config",
        }
    }

    /// What is done.
    pub fn what(self) -> &'static str {
        match self {
            Fault::KillAgent => "kill -9 of the node's agent",
            Fault::DeleteDevice => "ip link del of the tunnel's devices",
            Fault::FlushRoutes => "ip route flush of all roads to other nodes",
            Fault::FlushRules => "nft flush ruleset",
            Fault::PoisonNeighbours => "wrong hardware addresses for all peers, and no forwarding entries",
            Fault::ChangeAddress => "other underlay addresses for the node",
            Fault::LinkDown => "ip link set down of the node's uplink: its addresses and routes go too",
            Fault::RebootNode => "the machine starts anew, with an empty /run and another hardware address",
            Fault::RemoveNode => "the machine is gone, and an operator took it out of the store",
            Fault::StopStore => "kill -9 of etcd",
            Fault::DuplicateRange => "somebody claims half of the node's range in the store",
            Fault::ForeignConfig => "the list of plugins of another network stands before ours",
        }
    }

    /// What `heal` does about it; none if it heals by itself.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Fault::KillAgent => Some("the agent is started"),
            Fault::ChangeAddress => {
                Some("the old addresses come back; that works by itself, too: the others are told")
            }
            Fault::LinkDown => Some("the uplink comes up, with addresses and routes"),
            Fault::RemoveNode => Some("the machine joins again"),
            Fault::StopStore => Some("etcd is started"),
            Fault::DuplicateRange => Some("the claim is taken back"),
            Fault::ForeignConfig => Some("the file is removed"),
            Fault::DeleteDevice
            | Fault::FlushRoutes
            | Fault::FlushRules
            | Fault::PoisonNeighbours
            | Fault::RebootNode => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fault, Error> {
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
            Error::input(format!("there is no fault {text:?}"), format!("there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_found_by_the_name_that_it_is_kept_under() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse::<Fault>().unwrap(), fault);
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
        assert!("carrier-pigeon".parse::<Fault>().unwrap_err().hint().contains("kill-agent"));
    }
}
