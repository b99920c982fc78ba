//! The faults that can be injected, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A fault. Each is a real change inside the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The agent is killed.
    KillAgent,
    /// The tunnel devices are deleted.
    DeleteDevice,
    /// The routes to other nodes are deleted.
    FlushRoutes,
    /// All nftables tables are deleted.
    FlushRules,
    /// Neighbour entries are wrong, forwarding entries are deleted.
    PoisonNeighbours,
    /// The node gets other addresses.
    ChangeAddress,
    /// The uplink goes down.
    LinkDown,
    /// The node is rebooted and gets another MAC address.
    RebootNode,
    /// The node is removed, also from the store.
    RemoveNode,
    /// etcd is killed.
    StopStore,
    /// Another node claims the node's pod CIDR.
    DuplicateRange,
    /// The conflist of another network sorts before Podwire's.
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

    /// The name of the fault.
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

    /// The change that the fault makes.
    pub fn description(self) -> &'static str {
        match self {
            Fault::KillAgent => "kill -9 of the agent",
            Fault::DeleteDevice => "ip link del of the tunnel devices",
            Fault::FlushRoutes => "ip route flush of all routes to other nodes",
            Fault::FlushRules => "nft flush ruleset",
            Fault::PoisonNeighbours => "wrong MAC addresses for all peers and no forwarding entries",
            Fault::ChangeAddress => "the node gets other underlay addresses",
            Fault::LinkDown => "ip link set down of the uplink, which removes its IPv6 addresses and routes",
            Fault::RebootNode => "the node reboots, with an empty /run and another MAC address",
            Fault::RemoveNode => "the node is switched off and removed from the store",
            Fault::StopStore => "kill -9 of etcd",
            Fault::DuplicateRange => "another node claims half of the node's pod CIDR in the store",
            Fault::ForeignConfig => "the conflist of another network sorts before Podwire's",
        }
    }

    /// What `podwire lab heal` does; `None` if the agents repair the fault.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Fault::KillAgent => Some("start the agent"),
            Fault::ChangeAddress => Some("restore the old addresses; without it, agents learn the new ones"),
            Fault::LinkDown => Some("set the uplink up, with addresses and routes"),
            Fault::RemoveNode => Some("start the node again"),
            Fault::StopStore => Some("start etcd"),
            Fault::DuplicateRange => Some("remove the claim"),
            Fault::ForeignConfig => Some("remove the file"),
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
            Error::input(format!("unknown fault {text:?}"), format!("choose one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_json_of_faults_are_equal() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse::<Fault>().unwrap(), fault);
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
        assert!("carrier-pigeon".parse::<Fault>().unwrap_err().hint().contains("kill-agent"));
    }
}
