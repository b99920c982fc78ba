//! Addresses that are the node's, in the store as well, and that no pod has yet.

use std::collections::VecDeque;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_block_ipam::{IpFamily, Request, Rules};

use crate::Error;

/// The addresses, those that have been there for the longest time first.
#[derive(Debug, Default)]
pub(crate) struct Stock(VecDeque<IpNet>);

impl Stock {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts addresses in that are not there yet.
    pub(crate) fn add(&mut self, addresses: impl IntoIterator<Item = IpNet>) {
        for address in addresses {
            if !self.0.contains(&address) {
                self.0.push_back(address);
            }
        }
    }

    /// Forgets those that are not among `there`.
    pub(crate) fn keep_only(&mut self, there: &[IpNet]) {
        self.0.retain(|address| there.contains(address));
    }

    /// Takes one that a request may be served with.
    pub(crate) fn take(&mut self, rules: &Rules, request: &Request) -> Result<Option<IpNet>, Error> {
        let networks = rules.networks_for(request)?;
        let fits = |address: &IpNet| {
            networks.iter().any(|(network, _)| network.contains(address))
                && !rules.reservations.contains(address.addr())
        };
        Ok(self.0.iter().position(fits).and_then(|place| self.0.remove(place)))
    }

    /// Takes this very one.
    pub(crate) fn take_address(&mut self, ip: IpAddr) -> Option<IpNet> {
        let place = self.0.iter().position(|address| address.addr() == ip)?;
        self.0.remove(place)
    }

    /// Takes those that are not fit to be kept.
    pub(crate) fn take_unfit(&mut self, is_fit: impl Fn(IpAddr) -> bool) -> Vec<IpNet> {
        let (fit, unfit): (Vec<IpNet>, Vec<IpNet>) =
            self.0.iter().partition(|address| is_fit(address.addr()));
        self.0 = fit.into();
        unfit
    }

    /// How many of the family there are that a request may be served with.
    pub(crate) fn count(&self, rules: &Rules, request: &Request) -> Result<usize, Error> {
        let networks = rules.networks_for(request)?;
        let fits = |address: &&IpNet| networks.iter().any(|(network, _)| network.contains(*address));
        Ok(self.0.iter().filter(|one| IpFamily::of(one.addr()) == request.family).filter(fits).count())
    }
}
