//! Blocks in the API server's etcd, beside its own keys.

use std::collections::BTreeSet;

use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Node, Pool, Request, Rules};
use podwire_store_etcd::EtcdStore;

use crate::cluster::Cluster;

pub struct Blocks(String);

impl Blocks {
    pub fn new(cluster: &Cluster) -> Blocks {
        Blocks(cluster.server.etcd().url())
    }

    /// Runs an action on the store, which blocks: not on a thread of the runtime.
    async fn with<T: Send + 'static>(&self, act: impl FnOnce(&EtcdStore) -> T + Send + 'static) -> T {
        let url = self.0.clone();
        let work = move || act(&EtcdStore::connect(&[url], None).unwrap());
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    /// Assigns an address of a node, for a pod unless `pod` is empty.
    pub async fn assign(&self, node: &str, handle: &str, pod: &str) -> String {
        let mut request = Request::new(AffinityOwner::host(node), handle);
        if !pod.is_empty() {
            request.attributes.insert("namespace".into(), "default".into());
            request.attributes.insert("pod".into(), pod.into());
        }
        self.with(move |store| {
            let allocator = Allocator::new(store, now);
            let pool = Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28);
            // It may exist already.
            let _ = allocator.add_pool(&pool);
            let assigned = allocator.assign(&Rules::load(store).unwrap(), &request).unwrap();
            assigned.addresses[0].addr().to_string()
        })
        .await
    }

    /// All handles, sorted.
    pub async fn handles(&self) -> Vec<String> {
        let handles = self.with(|store| Allocator::new(store, now).handles().unwrap()).await;
        handles.into_iter().map(|(handle, _)| handle).collect()
    }

    /// The nodes that have blocks.
    pub async fn owners(&self) -> Vec<String> {
        self.with(|store| {
            let allocator = Allocator::new(store, now);
            let mut owners: BTreeSet<AffinityOwner> =
                allocator.blocks().unwrap().into_iter().filter_map(|block| block.unwrap().owner()).collect();
            owners.extend(allocator.affinities(None).unwrap().into_iter().map(|(owner, ..)| owner));
            owners.into_iter().map(|owner| owner.name().to_owned()).collect()
        })
        .await
    }

    /// Creates the object of a node that is a Kubernetes node.
    pub async fn register(&self, node: &str) {
        let name = node.to_owned();
        self.with(move |store| Node::update(store, &name, Node::set_kubernetes_name).unwrap()).await;
    }

    /// The nodes that have objects.
    pub async fn nodes(&self) -> Vec<String> {
        let nodes = self.with(|store| Node::list(store).unwrap()).await;
        nodes.into_iter().map(|(name, _)| name).collect()
    }

    pub async fn clear(&self) {
        self.with(|store| {
            for entry in store.list("/calico/").unwrap() {
                store.delete(&entry.key, entry.revision).unwrap();
            }
        })
        .await;
    }
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_unix_nanos(since.as_nanos() as u64)
}
