//! The warm pool: addresses that the store assigns to this node and that no pod has yet.

use std::collections::VecDeque;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_block_ipam::{IpFamily, Request, Rules};

use super::error::Error;

/// The addresses, the oldest first.
#[derive(Debug, Default)]
pub(super) struct WarmPool(VecDeque<IpNet>);

impl WarmPool {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds addresses that are not in the pool yet.
    pub(super) fn add(&mut self, addresses: impl IntoIterator<Item = IpNet>) {
        for address in addresses {
            if !self.0.contains(&address) {
                self.0.push_back(address);
            }
        }
    }

    /// Removes all addresses that are not in `kept`.
    pub(super) fn retain(&mut self, kept: &[IpNet]) {
        self.0.retain(|address| kept.contains(address));
    }

    /// Takes an address that satisfies a request.
    pub(super) fn take(&mut self, rules: &Rules, request: &Request) -> Result<Option<IpNet>, Error> {
        let networks = rules.networks_for(request)?;
        let satisfies = |address: &IpNet| {
            networks.iter().any(|(network, _)| network.contains(address))
                && !rules.reservations.contains(address.addr())
        };
        Ok(self.0.iter().position(satisfies).and_then(|at| self.0.remove(at)))
    }

    /// Takes a particular address.
    pub(super) fn take_address(&mut self, ip: IpAddr) -> Option<IpNet> {
        let at = self.0.iter().position(|address| address.addr() == ip)?;
        self.0.remove(at)
    }

    /// Removes and returns all addresses that may not stay in the pool.
    pub(super) fn evict_disallowed(&mut self, is_allowed: impl Fn(IpAddr) -> bool) -> Vec<IpNet> {
        let (allowed, disallowed): (Vec<IpNet>, Vec<IpNet>) =
            self.0.iter().partition(|address| is_allowed(address.addr()));
        self.0 = allowed.into();
        disallowed
    }

    /// The number of addresses of the request's family that satisfy it.
    pub(super) fn count(&self, rules: &Rules, request: &Request) -> Result<usize, Error> {
        let networks = rules.networks_for(request)?;
        let satisfies = |address: &&IpNet| networks.iter().any(|(network, _)| network.contains(*address));
        let of_family = self.0.iter().filter(|one| IpFamily::of_net(**one) == request.family);
        Ok(of_family.filter(satisfies).count())
    }
}
