//! What comes into the stock, for pods that wait and for those that will come, and what leaves it again.

use std::collections::VecDeque;
use std::time::Instant;

use ipnet::IpNet;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::{Allocator, Error as Blocks, IpFamily, Release, Request, Rules};
use tracing::{info, warn};

use super::{Clerk, ROUND};
use crate::desk::{Choice, Order, Reply};

impl Clerk {
    /// Gets what pods are waiting for. Those whose wish cannot be granted are told why; if the store does not answer, all wait on.
    pub(super) fn carry_out(
        &mut self,
        allocator: &Allocator<'_>,
        (rules, labels): (&Rules, &Labels),
        orders: Vec<(Order, Reply)>,
    ) -> Result<(), Blocks> {
        let mut left = VecDeque::from(orders);
        while let Some((order, reply)) = left.pop_front() {
            // Those who want the same are served at once.
            let is_same = |(other, _): &(Order, Reply)| matches!(order, Order::Any(_)) && *other == order;
            let (same, others): (VecDeque<_>, VecDeque<_>) = left.into_iter().partition(is_same);
            left = others;
            let replies: Vec<Reply> =
                std::iter::once(reply).chain(same.into_iter().map(|(_, reply)| reply)).collect();
            match self.get(allocator, (rules, labels), &order, replies.len()) {
                Ok((addresses, shortage)) => {
                    let there = addresses.len();
                    self.desk.stock_up(addresses);
                    self.remember(rules, labels, &order);
                    for (number, reply) in replies.iter().enumerate() {
                        let missing = shortage.as_ref().filter(|_| number >= there);
                        reply.send(missing.map_or(Ok(()), |why| Err(why.clone().into())));
                    }
                }
                Err(error @ Blocks::Store(_)) => {
                    let unserved = replies.into_iter().map(|reply| (order.clone(), reply));
                    self.desk.put_back(unserved.chain(left).collect());
                    return Err(error);
                }
                Err(error) => replies.iter().for_each(|reply| reply.send(Err(error.clone().into()))),
            }
        }
        Ok(())
    }

    /// What one pod has asked for, others will, too.
    fn remember(&mut self, rules: &Rules, labels: &Labels, order: &Order) {
        let Order::Any(choice) = order else { return };
        if *choice != Choice::for_everybody(choice.family) {
            if let Ok(networks) = rules.networks_for(&choice.request(&self.settings.node, labels)) {
                self.asked.insert(cidrs(&networks), choice.clone());
            }
        }
    }

    /// Addresses for the stock: so many, as they are ordered, and why there are not more.
    fn get(
        &self,
        allocator: &Allocator<'_>,
        (rules, labels): (&Rules, &Labels),
        order: &Order,
        count: usize,
    ) -> Result<(Vec<IpNet>, Option<Blocks>), Blocks> {
        let node = &self.settings.node;
        match order {
            Order::Address(ip) => {
                let wish = Choice::for_everybody(IpFamily::of(*ip)).request(node, labels);
                allocator.assign_address(rules, &wish, *ip).map(|address| (vec![address], None))
            }
            Order::Any(choice) => {
                let wish = Request { count, ..choice.request(node, labels) };
                let assigned = allocator.assign_serialized(rules, &wish)?;
                self.report(&assigned.unreadable);
                Ok((assigned.addresses, assigned.shortage))
            }
        }
    }

    /// Gives back what is in stock of pools that give nothing to pods here any more, or that is reserved now.
    pub(super) fn clear_out(
        &mut self,
        allocator: &Allocator<'_>,
        rules: &Rules,
        labels: &Labels,
    ) -> Result<(), Blocks> {
        let networks =
            |choice: &Choice| rules.networks_for(&choice.request(&self.settings.node, labels)).ok();
        let asked: Vec<IpNet> =
            self.asked.values().filter_map(networks).flat_map(|networks| cidrs(&networks)).collect();
        let unfit = self.desk.take_unfit(|ip| rules.allows_warm_address(ip, labels, &asked));
        let handle = Some(self.stock.clone());
        let over: Vec<Release> = unfit
            .iter()
            .map(|address| Release { ip: address.addr(), handle: handle.clone(), sequence: None })
            .collect();
        if over.is_empty() {
            return Ok(());
        }
        match self.is_done(allocator.release(rules, &over))? {
            true => info!(addresses = over.len(), "stock of pools that are not for pods here was given back"),
            // It is the node's still, and is found again.
            false => self.audited = None,
        }
        Ok(())
    }

    /// Fills the stock, if half of it is gone.
    /// Nothing is borrowed for it: that is for pods.
    pub(super) fn stock_up(
        &mut self,
        allocator: &Allocator<'_>,
        rules: &Rules,
        labels: &Labels,
    ) -> Result<(), Blocks> {
        let for_everybody = [IpFamily::V4, IpFamily::V6].map(Choice::for_everybody);
        let choices: Vec<Choice> = for_everybody.into_iter().chain(self.asked.values().cloned()).collect();
        for choice in choices {
            let mut wish = choice.request(&self.settings.node, labels);
            // A family without a pool for this node has no stock, and that is nothing to tell.
            let Ok(networks) = rules.networks_for(&wish) else { continue };
            let these = cidrs(&networks);
            if self.dry.get(&these).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            let quarter = networks.iter().map(|(_, block)| block / 4).min().unwrap_or(0);
            let wanted = self.settings.stock.min(usize::try_from(quarter).unwrap_or(usize::MAX)).max(1);
            let there = self.desk.in_stock(rules, &wish).unwrap_or(0);
            if there * 2 > wanted {
                continue;
            }
            (wish.count, wish.may_borrow) = (wanted - there, false);
            match allocator.assign_serialized(rules, &wish) {
                Ok(assigned) => {
                    if assigned.shortage.is_some() {
                        self.dry.insert(these, Instant::now() + ROUND);
                    }
                    self.report(&assigned.unreadable);
                    self.desk.stock_up(assigned.addresses);
                }
                Err(error @ Blocks::Store(_)) => return Err(error),
                Err(error) => warn!(%error, hint = error.hint(), "no stock of {}", choice.family.name()),
            }
        }
        Ok(())
    }
}

fn cidrs(networks: &[(IpNet, u64)]) -> Vec<IpNet> {
    networks.iter().map(|(network, _)| *network).collect()
}
