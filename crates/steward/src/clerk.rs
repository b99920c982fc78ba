//! The one who speaks to the store: a thread that carries out orders, tells what was given and what came back, and stocks up.

mod stocking;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent_ipc::addresses::Lease;
use podwire_block_ipam::moment::Moment;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Error as Blocks, HandOver, HandedOver, Handle, Owner, Release, Rules};
use tracing::{error, info, warn};

use crate::desk::{Choice, Desk, Order, Reply, Work};
use crate::{stale, Error, Opener};

/// How old what was read of pools and settings may be when something new is done.
const FRESH: Duration = Duration::from_secs(5);
/// A store that does not answer is asked again after this, and after twice of it, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);
/// So often it looks whether pools have changed, and compares what is believed here with the store.
const ROUND: Duration = Duration::from_secs(60);
/// So long it lets work come together, unless a pod waits: what comes within it goes to the store in one write, and the one who brought it has the
/// processors for himself.
const GATHER: Duration = Duration::from_millis(10);
/// After its start it looks this soon: plugins that found nobody at the door may have left notes while it was being opened.
const SOON: Duration = Duration::from_secs(2);

/// What it is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, as the store knows it.
    pub node: String,
    /// How many addresses of each family are kept in stock. A quarter of a block at most.
    pub stock: usize,
}

/// Hires the clerk.
pub(crate) fn hire(desk: Arc<Desk>, settings: Settings, opener: Opener) -> Result<(), Error> {
    let work = move || {
        let mut clerk = Clerk {
            stock: Handle::of_stock(&settings.node),
            desk,
            settings,
            opener,
            store: None,
            known: None,
            audited: None,
            has_settled: false,
            dry: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        clerk.live();
    };
    let hired = std::thread::Builder::new().name("clerk".into()).spawn(work);
    hired.map(drop).map_err(Error::file("start", "the clerk's thread"))
}

struct Clerk {
    desk: Arc<Desk>,
    settings: Settings,
    /// The handle of the stock.
    stock: String,
    opener: Opener,
    store: Option<Box<dyn Store>>,
    /// What was read of pools, settings and the node's labels, and when.
    known: Option<(Rules, Labels, Instant)>,
    /// When what is believed here was last compared with the store.
    audited: Option<Instant>,
    /// Whether it has looked for notes once more since its start.
    has_settled: bool,
    /// Until when networks of which nothing is left are not asked for again. Who waits for an address asks all the same.
    dry: BTreeMap<Vec<IpNet>, Instant>,
    /// What pods have asked for beside the pools for everybody, by the networks that it is: their stock is kept, too.
    asked: BTreeMap<Vec<IpNet>, Choice>,
}

impl Clerk {
    fn live(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.round() {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    if self.desk.trouble().is_some() {
                        info!("the store of addresses answers");
                        self.desk.set_trouble(None);
                    }
                    let rest = if self.has_settled { ROUND } else { SOON };
                    self.has_settled |= self.desk.await_work(rest);
                    self.desk.gather(GATHER);
                }
                Err(error) => {
                    // What was written and not answered is in the store's stock, and not in ours.
                    self.audited = None;
                    let text = error.to_string();
                    if self.desk.trouble().as_ref() != Some(&text) {
                        warn!(error = text, "the store of addresses does not answer; it is asked again");
                    }
                    self.desk.set_trouble(Some(text));
                    self.desk.await_order(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Everything that is to be done, once. An error means that the store has to be asked again.
    fn round(&mut self) -> Result<(), Blocks> {
        let store = match self.store.take() {
            Some(store) => store,
            None => (self.opener)()?,
        };
        let done = self.round_with(&*store);
        // Who does not answer is reached anew: by a new token, or a new certificate.
        self.store = Some(store).filter(|_| done.is_ok());
        done
    }

    fn round_with(&mut self, store: &dyn Store) -> Result<(), Blocks> {
        let (rules, labels) = self.learn(store)?;
        let allocator = Allocator::new(store, Moment::now);
        // Somebody may have released by hand what is ours, and a store from a backup does not know what it knew.
        let is_audit = self.audited.is_none_or(|when| when.elapsed() >= ROUND);
        if is_audit {
            if let Err(error) = self.desk.endpoints.look_for_cables() {
                warn!(%error, "pods that are gone cannot be noted");
            }
            self.count(&allocator)?;
        }
        // Before anything comes in: a pod fetches what it has ordered a moment after it is there.
        self.clear_out(&allocator, &rules, &labels)?;
        let Work { orders, untold, legacy, swept } = self.desk.work(is_audit);
        // Who wants a very address may want the one that its sandbox before has given back.
        let orders = match orders.iter().any(|(order, _)| matches!(order, Order::Address(_))) {
            true => self.after_giving_back(&allocator, &rules, orders)?,
            false => orders,
        };
        self.carry_out(&allocator, (&rules, &labels), orders)?;
        self.tell(&allocator, &rules, &untold, is_audit)?;
        if is_audit {
            self.audited = Some(Instant::now());
        }
        // Before somebody else can have an address, nobody is to take it for the pod's that is gone. But a server that does not let us tell
        // keeps no address back.
        let endpoints = &self.desk.endpoints;
        let withdrawn = endpoints.tell_of_the_gone(store, &self.settings.node);
        let withdrawn = withdrawn.inspect_err(|_| endpoints.look_again());
        self.give_back(&allocator, &rules, &legacy).inspect_err(|_| self.desk.releases_are_left())?;
        self.stock_up(&allocator, &rules, &labels)?;
        // Who cannot be withdrawn keeps nobody from being told of. Pods that wait come first: what is left is told in the next round.
        let is_needed_elsewhere = || self.desk.has_orders();
        let told = self.desk.endpoints.tell(store, &self.settings.node, is_needed_elsewhere);
        // The last, since it reads all blocks. What it notes is done in the next round.
        let swept = swept.iter().try_for_each(|(network, valid)| self.sweep(&allocator, network, valid));
        told.and(withdrawn).and(swept)
    }

    /// The orders, when what is noted was given back. If the store does not answer, they wait on.
    fn after_giving_back(
        &self,
        allocator: &Allocator<'_>,
        rules: &Rules,
        orders: Vec<(Order, Reply)>,
    ) -> Result<Vec<(Order, Reply)>, Blocks> {
        match self.give_back(allocator, rules, &[]) {
            Ok(()) => Ok(orders),
            Err(error) => {
                self.desk.put_back(orders);
                self.desk.releases_are_left();
                Err(error)
            }
        }
    }

    /// Finds the stock of an earlier life, or of a write whose answer was lost. What is to be given back was a pod's, whether the store knows or not.
    fn count(&self, allocator: &Allocator<'_>) -> Result<(), Blocks> {
        match allocator.in_stock(&self.stock) {
            Err(error @ Blocks::Store(_)) => return Err(error),
            Err(error) => self.report([&error]),
            Ok(there) => self.desk.recount(there),
        }
        Ok(())
    }

    /// Pools, settings and labels, as they are or were a moment ago.
    fn learn(&mut self, store: &dyn Store) -> Result<(Rules, Labels), Blocks> {
        if let Some((rules, labels, when)) = &self.known {
            if when.elapsed() < FRESH {
                return Ok((rules.clone(), labels.clone()));
            }
        }
        let read = Rules::load_readable(store)
            .and_then(|(rules, bad)| Ok((rules, bad, Rules::node_labels(store, &self.settings.node)?)));
        let last = self.known.as_ref().map(|(rules, labels, _)| (rules.clone(), labels.clone()));
        let (rules, labels) = match (read, last) {
            (Err(error @ Blocks::Store(_)), _) => return Err(error),
            // Of what makes no sense the last that did holds, as for roads.
            (Err(error), Some(last)) => {
                self.report([&error]);
                last
            }
            (read, last) => {
                let (rules, bad, labels) = read?;
                self.report(&bad);
                last.filter(|_| !bad.is_empty()).unwrap_or((rules, labels))
            }
        };
        self.desk.rules(&rules, &labels);
        self.known = Some((rules.clone(), labels.clone(), Instant::now()));
        Ok((rules, labels))
    }

    /// Tells who has got what.
    fn tell(
        &self,
        allocator: &Allocator<'_>,
        rules: &Rules,
        leases: &[Lease],
        are_all: bool,
    ) -> Result<(), Blocks> {
        let gifts: Vec<HandOver> = leases.iter().flat_map(|lease| self.gifts(lease)).collect();
        let HandedOver { mut lost, mut aside } = allocator.hand_over(&self.stock, &gifts)?;
        if self.reclaim(allocator, rules, &lost)? {
            let again = allocator.hand_over(&self.stock, &lost)?;
            lost = again.lost;
            aside.extend(again.aside);
        }
        if !lost.is_empty() {
            // Then more of the stock may be somebody else's.
            self.count(allocator)?;
        }
        let named = lost.iter().map(|lost| format!("{} of {}", lost.address.addr(), lost.handle)).collect();
        for lost in self.desk.note_lost(named, are_all) {
            error!(
                lost,
                "a pod has an address that the store gave to somebody else: was it released by hand? Restart the pod"
            );
        }
        self.report(aside.iter().map(|(_, error)| error));
        let is_aside = |lease: &Lease| aside.iter().any(|(gift, _)| lease.addresses.contains(&gift.address));
        let (aside, told): (Vec<Lease>, Vec<Lease>) = leases.iter().cloned().partition(is_aside);
        self.desk.set_aside(&aside);
        self.desk.told(&told);
        Ok(())
    }

    /// Claims the blocks that are not there any more, of addresses that are in use: somebody has given them up for us, or the store is one
    /// from a backup. Whether that was worth a try.
    fn reclaim(&self, allocator: &Allocator<'_>, rules: &Rules, lost: &[HandOver]) -> Result<bool, Blocks> {
        let blocks: BTreeSet<IpNet> = lost.iter().map(|gift| gift.address.trunc()).collect();
        let is_of_pool = |block: &&IpNet| rules.pools.iter().any(|pool| pool.cidr().contains(*block));
        let mut claimed = false;
        for block in blocks.iter().filter(is_of_pool) {
            match allocator.claim(&Owner::host(&self.settings.node), *block) {
                Err(Blocks::NotOwner { .. }) => {}
                done => claimed |= self.is_done(done)?,
            }
        }
        Ok(claimed)
    }

    /// Tells of blocks and handles that make no sense, once.
    fn report<'a>(&self, unreadable: impl IntoIterator<Item = &'a Blocks>) {
        for error in unreadable {
            if self.desk.is_unreadable(error.to_string()) {
                error!(%error, hint = error.hint(), "it is left alone, and the others go on");
            }
        }
    }

    /// Whether it was done. What concerns one lease alone is told; only a store that does not answer ends the round.
    fn is_done<T>(&self, done: Result<T, Blocks>) -> Result<bool, Blocks> {
        match done {
            Ok(_) => Ok(true),
            Err(error @ Blocks::Store(_)) => Err(error),
            Err(error) => {
                self.report([&error]);
                Ok(false)
            }
        }
    }

    fn gifts(&self, lease: &Lease) -> Vec<HandOver> {
        let attributes = attributes(&self.settings.node, &lease.namespace, &lease.pod);
        let handle = Handle::id(&lease.owner.network, &lease.owner.container);
        let gift = |address: &IpNet| HandOver {
            address: *address,
            handle: handle.clone(),
            attributes: attributes.clone(),
        };
        lease.addresses.iter().map(gift).collect()
    }

    /// Gives back what is noted. Whether the store ever knew of a lease is not noted: so it is told before. What cannot be given back because
    /// a record makes no sense stays noted, and is looked at again when there is time.
    fn give_back(&self, allocator: &Allocator<'_>, rules: &Rules, legacy: &[String]) -> Result<(), Blocks> {
        let over = self.desk.released();
        let gifts: Vec<HandOver> = over.iter().flat_map(|note| self.gifts(&note.lease)).collect();
        let HandedOver { lost, aside } = allocator.hand_over(&self.stock, &gifts)?;
        self.report(aside.iter().map(|(_, error)| error));
        let is_aside = |address: &IpNet| aside.iter().any(|(gift, _)| gift.address == *address);
        let is_held = |gift: &&HandOver| !lost.contains(gift) && !is_aside(&gift.address);
        let releases: Vec<Release> = gifts.iter().filter(is_held).map(release).collect();
        // All in one write for each block. If one of them cannot be given back, each by itself.
        let at_once = self.is_done(allocator.release(rules, &releases))?;
        for note in over.iter().filter(|note| !note.lease.addresses.iter().any(is_aside)) {
            let lease = &note.lease;
            let is_its = |release: &&Release| lease.addresses.iter().any(|one| one.addr() == release.ip);
            let own: Vec<Release> = releases.iter().filter(is_its).cloned().collect();
            let handle = Handle::id(&lease.owner.network, &lease.owner.container);
            let is_done = match lease.addresses.is_empty() {
                true => self.is_done(self.release_unleased(allocator, rules, &handle))?,
                false => at_once || self.is_done(allocator.release(rules, &own))?,
            };
            if is_done {
                self.desk.shelf.forget(note);
            }
        }
        for handle in legacy {
            if self.is_done(allocator.release_handle(rules, handle))? {
                self.desk.legacy_is_released(handle);
            }
        }
        Ok(())
    }

    /// Notes what is to be withdrawn and given back of a network's containers that have no lease here and are not valid. Who came since that
    /// was asked for has a lease.
    fn sweep(
        &self,
        allocator: &Allocator<'_>,
        network: &str,
        valid: &stale::Attachments,
    ) -> Result<(), Blocks> {
        for (handle, gone) in stale::handles(allocator, &self.settings.node, network, valid)? {
            match self.desk.see_off(&handle, &gone) {
                Ok(true) => info!(handle, "nobody has this any more: it is given back"),
                Ok(false) => {}
                Err(error) => warn!(%error, handle, "what nobody has any more cannot be noted"),
            }
        }
        self.desk.has_swept(network, valid);
        Ok(())
    }

    /// Releases what a handle has and no lease names: another interface of the container, or the container come again, may live.
    fn release_unleased(&self, allocator: &Allocator<'_>, rules: &Rules, handle: &str) -> Result<(), Blocks> {
        let kept = self.desk.leased(handle);
        if kept.is_empty() {
            return allocator.release_handle(rules, handle).map(drop);
        }
        let over = allocator.addresses_of(handle)?.into_iter().filter(|ip| !kept.contains(ip));
        let over: Vec<Release> =
            over.map(|ip| Release { ip, handle: Some(handle.to_owned()), sequence: None }).collect();
        allocator.release(rules, &over).map(drop)
    }
}

/// A pod's address is to be given back, if it is still the pod's.
fn release(gift: &HandOver) -> Release {
    Release { ip: gift.address.addr(), handle: Some(gift.handle.clone()), sequence: None }
}

/// What a block says about who has an address, in Calico's words.
pub(crate) fn attributes(node: &str, namespace: &str, pod: &str) -> BTreeMap<String, String> {
    let known = [
        ("namespace", namespace.to_owned()),
        ("node", node.to_owned()),
        ("pod", pod.to_owned()),
        ("timestamp", Moment::now().timestamp()),
    ];
    let told = known.into_iter().filter(|(_, value)| !value.is_empty());
    told.map(|(key, value)| (key.to_owned(), value)).collect()
}
