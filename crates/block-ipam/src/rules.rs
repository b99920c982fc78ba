//! The administrator's rules: configuration, pools and reservations. An agent reads them once and then follows changes,
//! so that starting a pod does not read them again.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::reservation::Reservation;
use super::{key, AssignmentMode, Config, Error, Pool, Record, Request, Reservations, Use};
use crate::selector::Labels;
use crate::store::Store;

/// The configuration, the pools sorted by name, and the reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The configuration.
    pub config: Config,
    /// All pools, enabled or not.
    pub pools: Vec<Pool>,
    /// Reserved addresses.
    pub reservations: Reservations,
}

impl Rules {
    /// Reads the rules.
    pub fn load(store: &dyn Store) -> Result<Rules, Error> {
        let (rules, unreadable) = Rules::load_readable(store)?;
        unreadable.into_iter().next().map_or(Ok(rules), Err)
    }

    /// Reads the rules without malformed pools, and the errors of those. The configuration and the reservations must be
    /// valid: without them, a reserved address might be assigned.
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

    /// The labels in Calico's object of a node; empty if there is no object.
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

    /// The pools for a request: the requested ones, or those that match by assignment mode, selectors and allowed uses.
    pub(super) fn qualified(&self, request: &Request) -> Result<Vec<&Pool>, Error> {
        let family = request.family.name();
        let enabled: Vec<&Pool> =
            self.pools.iter().filter(|pool| pool.is_enabled() && pool.family() == request.family).collect();
        let mut chosen = Vec::new();
        for wanted in &request.pools {
            let is_requested = |pool: &&&Pool| pool.name() == wanted || pool.cidr().to_string() == *wanted;
            let pool = enabled.iter().find(is_requested);
            chosen.push(*pool.ok_or_else(|| Error::UnknownPool { pool: wanted.clone(), family })?);
        }
        let mut why = "exists";
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

    /// The networks for a request, each with the number of addresses of a block.
    pub fn networks_for(&self, request: &Request) -> Result<Vec<(IpNet, u64)>, Error> {
        let size = |pool: &Pool| 1 << (pool.cidr().max_prefix_len() - pool.block_size()).min(32);
        Ok(self.qualified(request)?.into_iter().map(|pool| (pool.cidr(), size(pool))).collect())
    }

    /// Whether a pool selects namespaces by their labels.
    pub fn use_namespace_labels(&self) -> bool {
        let chooses = |pool: &&Pool| pool.is_enabled() && pool.assignment_mode() == AssignmentMode::Automatic;
        self.pools.iter().filter(chooses).any(Pool::has_namespace_selector)
    }

    /// Whether a node with these labels may hold an address in its warm pool. Its pods have requested `requested`
    /// networks explicitly.
    pub fn allows_warm_address(&self, ip: IpAddr, node_labels: &Labels, requested: &[IpNet]) -> bool {
        let is_for_node = |pool: &Pool| {
            pool.assignment_mode() == AssignmentMode::Manual
                || pool.selects_node(node_labels).unwrap_or(true)
                || requested.contains(&pool.cidr())
        };
        self.pool_of(ip, Use::Workload).is_ok_and(is_for_node) && !self.reservations.contains(ip)
    }

    /// The enabled pool that contains an address and allows its use.
    pub(super) fn pool_of(&self, ip: IpAddr, intended_use: Use) -> Result<&Pool, Error> {
        let holds =
            |pool: &&Pool| pool.is_enabled() && pool.cidr().contains(&ip) && pool.allows(intended_use);
        self.pools.iter().find(holds).ok_or(Error::OutsideOfPools { ip, allowed: intended_use.name() })
    }
}
