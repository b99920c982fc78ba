//! What the door and the clerk both look at: the stock, the leases, and what the store has not been told yet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{AddressRequest, Lease};
use podwire_agent_ipc::pods::Endpoint;
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::{AffinityOwner as Node, Handle, IpFamily, Request, Rules};

use crate::endpoints::Endpoints;
use crate::shelf::{Note, Shelf};
use crate::stock::Stock;
use crate::{families, Error, State};

/// What a wish found.
pub(crate) enum Taken {
    /// All of it.
    Lease(Lease),
    /// Not this: the store has to be asked.
    Missing(Order),
}

/// Which pools an address may be of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) family: IpFamily,
    /// By name or CIDR; none: those that are for this node and the namespace.
    pub(crate) pools: Vec<String>,
    /// The labels of the pod's namespace.
    pub(crate) namespace: Labels,
}

impl Choice {
    /// Those that are for everybody on this node.
    pub(crate) fn for_everybody(family: IpFamily) -> Choice {
        Choice { family, pools: Vec::new(), namespace: Labels::new() }
    }

    /// What it means for a node: a wish for its own stock.
    pub(crate) fn request(&self, node: &str, labels: &Labels) -> Request {
        Request {
            family: self.family,
            pools: self.pools.clone(),
            node_labels: labels.clone(),
            namespace_labels: self.namespace.clone(),
            ..Request::new(Node::host(node), Handle::for_warm_pool(node))
        }
    }
}

/// An address that is to come into the stock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One of a family.
    Any(Choice),
    /// This one.
    Address(IpAddr),
}

/// Who waits for an order, and until when.
pub(crate) struct Reply {
    pub(crate) to: Sender<Result<(), Error>>,
    pub(crate) until: Instant,
}

impl Reply {
    pub(crate) fn send(&self, done: Result<(), Error>) {
        let _ = self.to.send(done);
    }

    /// Whether nobody waits any more: then nothing is to be had from the store.
    fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

pub(crate) struct Desk {
    pub(crate) node: String,
    pub(crate) shelf: Shelf,
    pub(crate) endpoints: Endpoints,
    papers: Mutex<Papers>,
    /// Something is there for the clerk to do.
    work: Condvar,
}

#[derive(Default)]
struct Papers {
    stock: Stock,
    /// As they were read last; none before the store has answered once.
    rules: Option<(Rules, Labels)>,
    leases: BTreeMap<Owner, Lease>,
    /// Of whom the store does not know yet.
    untold: BTreeSet<Owner>,
    orders: Vec<(Order, Reply)>,
    /// The very addresses that pods wait for. One that has come stays in stock until the pod's others have come, too.
    expected: Vec<IpAddr>,
    /// Whether an order has come since the clerk last found that the store does not answer.
    has_new_order: bool,
    /// Handles of old releases of Calico, which may have addresses of those who are gone.
    legacy: BTreeSet<String>,
    has_releases: bool,
    /// The networks in whose blocks is to be looked for what has no lease, with the attachments that are valid.
    swept: BTreeMap<String, Vec<ValidAttachment>>,
    /// Those whose blocks make no sense: to be tried again when there is time.
    aside: BTreeSet<Owner>,
    unreadable: BTreeSet<String>,
    /// What pods have and the store has given to somebody else.
    lost: BTreeSet<String>,
    trouble: Option<String>,
}

/// What the clerk takes from the desk.
pub(crate) struct Work {
    pub(crate) orders: Vec<(Order, Reply)>,
    pub(crate) untold: Vec<Lease>,
    pub(crate) legacy: Vec<String>,
    pub(crate) swept: BTreeMap<String, Vec<ValidAttachment>>,
}

/// Addresses that somebody waits for.
pub(crate) struct Expected<'d> {
    desk: &'d Desk,
    ips: &'d [IpAddr],
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut papers = self.desk.papers();
        for ip in self.ips {
            let at = papers.expected.iter().position(|one| one == ip);
            at.map(|at| papers.expected.swap_remove(at));
        }
    }
}

impl Desk {
    /// With what is on the shelf. Whether the store knows of it, nobody knows: it is told again.
    pub(crate) fn new(node: String, shelf: Shelf, endpoints: Endpoints) -> Result<Desk, Error> {
        let leases: BTreeMap<Owner, Lease> =
            shelf.leases()?.into_iter().map(|lease| (lease.owner.clone(), lease)).collect();
        let untold = leases.keys().cloned().collect();
        let papers = Papers { leases, untold, has_releases: true, ..Papers::default() };
        Ok(Desk { node, shelf, endpoints, papers: Mutex::new(papers), work: Condvar::new() })
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what an attachment wishes out of the stock and writes it down. Who asks again gets what it has.
    pub(crate) fn take(
        &self,
        owner: &Owner,
        wish: &AddressRequest,
        namespace: &Labels,
    ) -> Result<Taken, Error> {
        let mut papers = self.papers();
        match papers.leases.get(owner) {
            Some(lease) if self.shelf.has(owner) => return Ok(Taken::Lease(lease.clone())),
            // Its plugin has noted by itself that it is gone.
            Some(_) => {
                papers.forget(owner);
                papers.has_releases = true;
            }
            None => {}
        }
        let mut addresses = Vec::new();
        let mut wanted: Vec<Order> = wish.ips.iter().copied().map(Order::Address).collect();
        if wanted.is_empty() {
            let choice = |(family, pools)| Choice { family, pools, namespace: namespace.clone() };
            wanted = families(wish).into_iter().map(choice).map(Order::Any).collect();
        }
        for order in wanted {
            match papers.find(&self.node, &order) {
                Ok(Some(address)) => addresses.push(address),
                other => {
                    papers.stock.add(addresses);
                    return other.map(|_| Taken::Missing(order));
                }
            }
        }
        let lease = Lease {
            owner: owner.clone(),
            addresses,
            namespace: wish.namespace.clone(),
            pod: wish.pod.clone(),
            boot_id: self.shelf.boot().to_owned(),
        };
        if let Err(error) = self.shelf.write(&lease) {
            papers.stock.add(lease.addresses);
            return Err(error);
        }
        papers.leases.insert(owner.clone(), lease.clone());
        papers.untold.insert(owner.clone());
        self.work.notify_one();
        Ok(Taken::Lease(lease))
    }

    /// Somebody waits for these very addresses, for as long as this is held.
    pub(crate) fn expect<'d>(&'d self, ips: &'d [IpAddr]) -> Expected<'d> {
        self.papers().expected.extend(ips);
        Expected { desk: self, ips }
    }

    pub(crate) fn order(&self, order: Order, reply: Reply) {
        let mut papers = self.papers();
        papers.orders.push((order, reply));
        papers.has_new_order = true;
        self.work.notify_one();
    }

    /// An attachment is gone. What it has is moved to what is to be given back; if it has nothing from here, by its handle.
    pub(crate) fn give_back(&self, owner: &Owner, legacy: Option<&str>) -> Result<(), Error> {
        let mut papers = self.papers();
        self.shelf.give_back(owner)?;
        papers.forget(owner);
        papers.legacy.extend(legacy.map(str::to_owned));
        papers.has_releases = true;
        self.work.notify_one();
        Ok(())
    }

    /// A pod that asks for its address again, in another sandbox, may have it: the one before is gone, or will be.
    pub(crate) fn free_for_successor(&self, owner: &Owner, wish: &AddressRequest) -> Result<(), Error> {
        let is_former = |lease: &&Lease| {
            !wish.pod.is_empty()
                && (&lease.namespace, &lease.pod) == (&wish.namespace, &wish.pod)
                && lease.owner != *owner
                && lease.addresses.iter().any(|address| wish.ips.contains(&address.addr()))
        };
        let former: Vec<Owner> =
            self.papers().leases.values().filter(is_former).map(|lease| lease.owner.clone()).collect();
        former.iter().try_for_each(|owner| self.give_back(owner, None))
    }

    /// In a network's blocks is to be looked for what has no lease and is not valid.
    pub(crate) fn look_for_stale(&self, network: &str, valid: &[ValidAttachment]) {
        self.papers().swept.insert(network.to_owned(), valid.to_vec());
        self.wake_clerk();
    }

    /// A container that is gone, if no lease names its handle: what it has is to be withdrawn and given back. Whether that was so.
    pub(crate) fn see_off(&self, handle: &str, gone: &Endpoint) -> Result<bool, Error> {
        let mut papers = self.papers();
        let is_stale = papers.leased(handle).is_empty();
        if is_stale {
            self.endpoints.note_gone(gone)?;
            self.shelf.give_back(&gone.owner)?;
            papers.has_releases = true;
        }
        Ok(is_stale)
    }

    /// That was done, unless it is to be done again with others.
    pub(crate) fn has_swept(&self, network: &str, valid: &[ValidAttachment]) {
        let mut papers = self.papers();
        if papers.swept.get(network).is_some_and(|wanted| wanted == valid) {
            papers.swept.remove(network);
        }
    }

    /// A pod is connected: the store is to hear of it.
    pub(crate) fn publish(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.endpoints.note(endpoint)?;
        self.wake_clerk();
        Ok(())
    }

    /// A container's interface gets one more network.
    pub(crate) fn join(&self, guest: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let joined = self.endpoints.join(guest)?;
        self.wake_clerk();
        Ok(joined)
    }

    /// A pod is connected no longer.
    pub(crate) fn withdraw(&self, gone: &Endpoint) -> Result<(), Error> {
        self.endpoints.note_gone(gone)?;
        self.wake_clerk();
        Ok(())
    }

    /// With the papers in hand: a clerk who has just found nothing to do is asleep then, or has not looked yet.
    fn wake_clerk(&self) {
        let _papers = self.papers();
        self.work.notify_one();
    }

    pub(crate) fn lease(&self, owner: &Owner) -> Option<Lease> {
        self.papers().leases.get(owner).cloned()
    }

    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.papers().leases.keys().cloned().collect()
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.papers().trouble.clone()
    }

    pub(crate) fn state(&self) -> State {
        let papers = self.papers();
        State {
            leases: papers.leases.len(),
            stock: papers.stock.len(),
            untold: papers.untold.len() + papers.aside.len() + self.endpoints.untold(),
            trouble: papers.trouble.clone(),
            unreadable: papers.unreadable.iter().cloned().collect(),
            lost: papers.lost.iter().cloned().collect(),
        }
    }

    /// Waits until there is something to do. If there is nothing for that long, what was set aside is looked at again,
    /// and `true` is returned.
    pub(crate) fn await_work(&self, at_most: Duration) -> bool {
        let idle = |papers: &mut Papers| {
            papers.orders.is_empty()
                && papers.untold.is_empty()
                && !papers.has_releases
                && papers.swept.is_empty()
                && !self.endpoints.has_news()
        };
        let waited = self.work.wait_timeout_while(self.papers(), at_most, idle);
        let (mut papers, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let Papers { aside, untold, unreadable, .. } = &mut *papers;
            untold.append(aside);
            unreadable.clear();
            papers.has_releases = true;
            self.endpoints.look_again();
        }
        waited.timed_out()
    }

    /// What is to be given back. A plugin that found nobody at the door has moved a lease by itself: then it is none any more.
    pub(crate) fn released(&self) -> Vec<Note> {
        let mut papers = self.papers();
        let over = self.shelf.released();
        for owner in over.iter().map(|note| &note.lease.owner).filter(|owner| !self.shelf.has(owner)) {
            papers.forget(owner);
        }
        over
    }

    /// Waits until somebody more waits for an order, but no longer than that.
    pub(crate) fn await_order(&self, at_most: Duration) {
        self.papers().orders.retain(|(_, reply)| !reply.is_over());
        let waited = self.work.wait_timeout_while(self.papers(), at_most, |papers| !papers.has_new_order);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_new_order = false;
    }

    /// Waits for more work, or until somebody waits for an address.
    pub(crate) fn gather(&self, at_most: Duration) {
        drop(self.work.wait_timeout_while(self.papers(), at_most, |papers| papers.orders.is_empty()));
    }

    /// Whether somebody waits for an address.
    pub(crate) fn has_orders(&self) -> bool {
        !self.papers().orders.is_empty()
    }

    /// What is to be told to the store now: of what it does not know, or of all leases. It stays on the desk until it was told.
    pub(crate) fn work(&self, of_all: bool) -> Work {
        let mut papers = self.papers();
        papers.has_releases = false;
        papers.has_new_order = false;
        if of_all {
            // Somebody has given them back without us.
            let is_gone = |owner: &&Owner| !self.shelf.has(owner);
            let gone: Vec<Owner> = papers.leases.keys().filter(is_gone).cloned().collect();
            gone.iter().for_each(|owner| papers.forget(owner));
        }
        let untold = match of_all {
            true => papers.leases.values().cloned().collect(),
            false => papers.untold.iter().filter_map(|owner| papers.leases.get(owner)).cloned().collect(),
        };
        let legacy = papers.legacy.iter().cloned().collect();
        let swept = papers.swept.clone();
        let mut orders = std::mem::take(&mut papers.orders);
        orders.retain(|(_, reply)| !reply.is_over());
        Work { orders, untold, legacy, swept }
    }

    /// Orders that could not be carried out wait for the next try.
    pub(crate) fn put_back(&self, orders: Vec<(Order, Reply)>) {
        self.papers().orders.extend(orders);
    }

    /// The store knows of these leases.
    pub(crate) fn told(&self, leases: &[Lease]) {
        let mut papers = self.papers();
        for lease in leases {
            papers.untold.remove(&lease.owner);
        }
    }

    /// The store cannot be told of these leases before their blocks are mended.
    pub(crate) fn set_aside(&self, leases: &[Lease]) {
        let mut papers = self.papers();
        for lease in leases {
            if papers.untold.remove(&lease.owner) {
                papers.aside.insert(lease.owner.clone());
            }
        }
    }

    /// A block makes no sense. Whether that is news.
    pub(crate) fn is_unreadable(&self, why: String) -> bool {
        self.papers().unreadable.insert(why)
    }

    /// Addresses that pods have and the store has given to somebody else: more of them, or all that there are. Returns those that are news.
    pub(crate) fn note_lost(&self, lost: BTreeSet<String>, are_all: bool) -> Vec<String> {
        let mut papers = self.papers();
        let news = lost.difference(&papers.lost).cloned().collect();
        if are_all {
            papers.lost.clear();
        }
        papers.lost.extend(lost);
        news
    }

    /// The addresses of a handle that leases name.
    pub(crate) fn leased(&self, handle: &str) -> BTreeSet<IpAddr> {
        self.papers().leased(handle)
    }

    pub(crate) fn legacy_is_released(&self, handle: &str) {
        self.papers().legacy.remove(handle);
    }

    /// Something is still to be given back, and is to be tried again.
    pub(crate) fn releases_are_left(&self) {
        self.papers().has_releases = true;
    }

    pub(crate) fn rules(&self, rules: &Rules, labels: &Labels) {
        self.papers().rules = Some((rules.clone(), labels.clone()));
    }

    /// Whether it has to be known which labels a namespace has. As long as nothing was read, it may.
    pub(crate) fn looks_at_namespaces(&self) -> bool {
        self.papers().rules.as_ref().is_none_or(|(rules, _)| rules.use_namespace_labels())
    }

    /// Takes out of the stock what is not to be kept for pods any more.
    pub(crate) fn take_unfit(&self, is_fit: impl Fn(IpAddr) -> bool) -> Vec<IpNet> {
        let mut papers = self.papers();
        let Papers { stock, expected, .. } = &mut *papers;
        stock.take_unfit(|ip| expected.contains(&ip) || is_fit(ip))
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        self.papers().trouble = trouble;
    }

    /// The stock as the store tells it, and nothing else: without what pods have, and without what they had and the store is to be told of. That is looked at after the
    /// store was read, with the papers in hand.
    pub(crate) fn recount(&self, there: Vec<IpNet>) {
        let mut papers = self.papers();
        papers.stock.keep_only(&there);
        self.add_to_stock(&mut papers, there);
    }

    /// Puts what the store has given into the stock; what pods have, or had and is to be given back, is no stock.
    pub(crate) fn stock_up(&self, addresses: Vec<IpNet>) {
        self.add_to_stock(&mut self.papers(), addresses);
    }

    fn add_to_stock(&self, papers: &mut Papers, addresses: Vec<IpNet>) {
        let over = self.shelf.released();
        let leases = papers.leases.values().chain(over.iter().map(|note| &note.lease));
        let used: BTreeSet<IpNet> = leases.flat_map(|lease| lease.addresses.clone()).collect();
        papers.stock.add(addresses.into_iter().filter(|address| !used.contains(address)));
    }

    /// How many addresses of a family are in stock.
    pub(crate) fn in_stock(&self, rules: &Rules, request: &Request) -> Result<usize, Error> {
        self.papers().stock.count(rules, request)
    }
}

impl Papers {
    fn leased(&self, handle: &str) -> BTreeSet<IpAddr> {
        let is_its = |lease: &&Lease| Handle::id(&lease.owner.network, &lease.owner.container) == handle;
        let its = self.leases.values().filter(is_its);
        its.flat_map(|lease| lease.addresses.iter().map(IpNet::addr)).collect()
    }

    fn forget(&mut self, owner: &Owner) {
        self.leases.remove(owner);
        self.untold.remove(owner);
        self.aside.remove(owner);
    }

    fn find(&mut self, node: &str, order: &Order) -> Result<Option<IpNet>, Error> {
        match (order, &self.rules) {
            (_, None) => Ok(None),
            (Order::Address(ip), _) => Ok(self.stock.take_address(*ip)),
            (Order::Any(choice), Some((rules, labels))) => {
                self.stock.take(rules, &choice.request(node, labels))
            }
        }
    }
}
