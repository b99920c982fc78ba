//! What the administrators of a cluster have decided: settings, pools, reservations. An agent reads it once and then follows
//! the store's notices, so that a pod's start does not have to read it again.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::reservation::Reservation;
use super::{key, AssignmentMode, Config, Error, Pool, Record, Request, Reservations, Use};
use crate::selector::Labels;
use crate::store::Store;

/// Settings, pools in the order of their names, and reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Settings.
    pub config: Config,
    /// All pools, enabled or not.
    pub pools: Vec<Pool>,
    /// What nobody gets without asking for it.
    pub reservations: Reservations,
}

impl Rules {
    /// Reads them.
    pub fn load(store: &dyn Store) -> Result<Rules, Error> {
        let (rules, unreadable) = Rules::load_readable(store)?;
        unreadable.into_iter().next().map_or(Ok(rules), Err)
    }

    /// Reads them, without the pools that make no sense, and what is the matter with those. Settings and reservations have to make sense: an
    /// address that nobody is to have may be given without them.
    pub fn load_readable(store: &dyn Store) -> Result<(Rules, Vec<Error>), Error> {
        let config =
            Record::<Config>::find(store, key::CONFIG)?.map(|record| record.value).unwrap_or_default();
        config.validate()?;
        let (mut pools, mut unreadable) = (Vec::new(), Vec::new());
        for pool in Record::<Pool>::list(store, key::POOLS)? {
            match pool {
                Ok(record) => pools.push(record.value),
                Err(error) => unreadable.push(error),
            }
        }
        let mut networks = Vec::new();
        for reservation in Record::<Reservation>::list(store, key::RESERVATIONS)? {
            let Record { key, value, .. } = reservation?;
            networks.extend(value.networks().map_err(|why| Error::Malformed { key, why })?);
        }
        Ok((Rules { config, pools, reservations: Reservations::new(networks) }, unreadable))
    }

    /// The labels of a node, as Calico's object of it has them; none if there is none.
    pub fn node_labels(store: &dyn Store, node: &str) -> Result<Labels, Error> {
        #[derive(Deserialize)]
        struct Node {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            labels: Option<Labels>,
        }
        let key = format!("{}{node}", key::NODES);
        let Some(entry) = store.get(&key)? else {
            return Ok(Labels::new());
        };
        let node: Node = serde_json::from_slice(&entry.value)
            .map_err(|error| Error::Malformed { key, why: error.to_string() })?;
        Ok(node.metadata.labels.unwrap_or_default())
    }

    /// The pools that a request may be served from. Pools that are asked for by name are taken as they are; else mode,
    /// selectors and uses decide.
    pub(super) fn qualified(&self, request: &Request) -> Result<Vec<&Pool>, Error> {
        let family = request.family.name();
        let enabled: Vec<&Pool> =
            self.pools.iter().filter(|pool| pool.is_enabled() && pool.family() == request.family).collect();
        let mut chosen = Vec::new();
        for wanted in &request.pools {
            let is_meant = |pool: &&&Pool| pool.name() == wanted || pool.cidr().to_string() == *wanted;
            let pool = enabled.iter().find(is_meant);
            chosen.push(*pool.ok_or_else(|| Error::UnknownPool { pool: wanted.clone(), family })?);
        }
        let mut why = "is there";
        if request.pools.is_empty() {
            for pool in &enabled {
                if pool.assignment_mode() == AssignmentMode::Automatic
                    && pool.selects_node(&request.node_labels)?
                    && pool.selects_namespace(&request.namespace_labels)?
                {
                    chosen.push(*pool);
                }
            }
            why = if enabled.is_empty() { why } else { "selects this node and namespace" };
        }
        let selected = chosen.len();
        chosen.retain(|pool| pool.allows(request.intended_use));
        if chosen.is_empty() {
            let why = match selected {
                0 => why.to_owned(),
                _ => format!("allows {}", request.intended_use.name()),
            };
            let node = request.owner.name().to_owned();
            return Err(Error::NoPool { node, family, pools: enabled.len(), why });
        }
        Ok(chosen)
    }

    /// The networks that a request may be served from, and how many addresses a block of them has.
    pub fn networks_for(&self, request: &Request) -> Result<Vec<(IpNet, u64)>, Error> {
        let size = |pool: &Pool| 1 << (pool.cidr().max_prefix_len() - pool.block_size()).min(32);
        Ok(self.qualified(request)?.into_iter().map(|pool| (pool.cidr(), size(pool))).collect())
    }

    /// Whether the labels of namespaces matter for who gets an address of which pool.
    pub fn use_namespace_labels(&self) -> bool {
        let chooses = |pool: &&Pool| pool.is_enabled() && pool.assignment_mode() == AssignmentMode::Automatic;
        self.pools.iter().filter(chooses).any(Pool::has_namespace_selector)
    }

    /// Whether a node with these labels, whose pods have asked for addresses of these networks by name, may have an address for pods that may come.
    pub fn allows_warm_address(&self, ip: IpAddr, node_labels: &Labels, asked: &[IpNet]) -> bool {
        let is_for_node = |pool: &Pool| {
            pool.assignment_mode() == AssignmentMode::Manual
                || pool.selects_node(node_labels).unwrap_or(true)
                || asked.contains(&pool.cidr())
        };
        self.pool_of(ip, Use::Workload).is_ok_and(is_for_node) && !self.reservations.contains(ip)
    }

    /// The enabled pool that an address lies in and that may give it.
    pub(super) fn pool_of(&self, ip: IpAddr, intended_use: Use) -> Result<&Pool, Error> {
        let holds =
            |pool: &&Pool| pool.is_enabled() && pool.cidr().contains(&ip) && pool.allows(intended_use);
        self.pools.iter().find(holds).ok_or(Error::OutsideOfPools { ip, allowed: intended_use.name() })
    }
}
