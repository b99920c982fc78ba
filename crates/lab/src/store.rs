//! The store of the lab's nodes: creates it, and changes it as an operator or an error would.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_fs::FileError;
use podwire_ip::IpFamily;
use podwire_netlink::sys;
use podwire_subnets::{Embedded, Etcd, EtcdOptions, Source};
use rusqlite::Connection;
use serde_json::{json, Value};
use std::os::fd::AsFd;

use crate::machine::SHARED;
use crate::spec::ROUTER;
use crate::{Error, Lab, Result, Store};

/// The prefix of flannel's keys.
const PREFIX: &str = "/coreos.com/network";
/// The name of the node that claims a duplicate pod CIDR.
const INTRUDER: &str = "intruder";
/// Generous, for a busy machine: etcd answers within a second of its start.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn failed<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Error + '_ {
    move |error| Error::Store { doing: doing.into(), why: error.to_string() }
}

impl Lab {
    /// Creates the store, with the network config or the pools in it.
    pub(crate) fn create_store(&mut self) -> Result<()> {
        if self.state.spec.is_calico() {
            if self.state.spec.store == Store::Etcd {
                self.start_etcd()?;
            }
            return self.create_pools();
        }
        let path = self.directory.shared().join("net-conf.json");
        let conf = self.state.spec.net_conf().to_string();
        fs::write(&path, &conf).map_err(FileError::at("write", &path))?;
        match self.state.spec.store {
            // The first agent creates the file.
            Store::Embedded => Ok(()),
            Store::Static => self.write_node_list(&self.state.spec.node_names().collect::<Vec<_>>()),
            Store::Etcd => {
                self.start_etcd()?;
                self.put(&format!("{PREFIX}/config"), &conf)
            }
        }
    }

    /// Starts etcd on the router, and waits until it answers.
    pub(crate) fn start_etcd(&mut self) -> Result<()> {
        let client = self.state.spec.etcd();
        let words = [
            "etcd",
            "--data-dir",
            &format!("{SHARED}/etcd"),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--logger",
            "zap",
        ];
        let etcd = self.start(ROUTER, "etcd", &words.map(String::from))?;
        self.state.etcd = Some(etcd);
        self.save()?;
        let process = etcd
            .open()
            .ok()
            .flatten()
            .ok_or_else(|| failed("start etcd")(self.directory.log_tail("etcd")))?;
        let start = Instant::now();
        loop {
            let answered = self.with_etcd(async |client| client.status().await.map(drop));
            match answered {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > TIMEOUT => return Err(error),
                Err(_) => {}
            }
            // etcd does not notify that it listens, so it is polled. Its end is noticed at once.
            let ended = sys::readable(&[process.as_fd()], POLL_INTERVAL)
                .map_err(FileError::at("wait for", "etcd"))?;
            if ended == [true] {
                return Err(failed("start etcd")(self.directory.log_tail("etcd")));
            }
        }
    }

    /// Runs a request to etcd, from the router.
    fn with_etcd<T>(
        &self,
        work: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T> {
        let endpoint = self.state.spec.etcd();
        let doing = format!("request to etcd at {endpoint}");
        let done = self.netns(ROUTER)?.run(|| {
            runtime()?.block_on(async {
                let mut client =
                    etcd_client::Client::connect([&endpoint], None).await.map_err(failed(&doing))?;
                work(&mut client).await.map_err(failed(&doing))
            })
        })?;
        done
    }

    fn put(&self, key: &str, value: &str) -> Result<()> {
        self.with_etcd(async |client| client.put(key, value, None).await.map(drop))
    }

    fn write_node_list(&self, nodes: &[String]) -> Result<()> {
        self.replace_node_list(&self.state.spec.node_list(nodes))
    }

    fn replace_node_list(&self, list: &Value) -> Result<()> {
        let path = self.directory.shared().join("nodes.json");
        let written = podwire_fs::replace(&path, list.to_string().as_bytes(), 0o644);
        Ok(written.map_err(FileError::at("write", &path))?)
    }

    /// Writes the existing nodes to the static store.
    pub(crate) fn refresh_node_list(&self) -> Result<()> {
        match self.state.spec.store {
            Store::Static => self.write_node_list(&self.nodes()),
            Store::Embedded | Store::Etcd => Ok(()),
        }
    }

    /// Removes a node from the store.
    pub(crate) fn remove_from_store(&self, node: &str) -> Result<()> {
        if self.state.spec.is_calico() {
            return self.release(node);
        }
        let addresses = self.uplink(node)?.ips();
        match self.state.spec.store {
            Store::Static => self.refresh_node_list(),
            Store::Embedded => runtime()?.block_on(async {
                let store = Embedded::open(self.directory.shared().join("cluster.db")).await;
                let store = store.map_err(failed("open the store"))?;
                store.release(node).await.map_err(failed("remove the node from the store"))
            }),
            Store::Etcd => {
                let endpoints = vec![self.state.spec.etcd()];
                let done = self.netns(ROUTER)?.run(|| {
                    runtime()?.block_on(async {
                        let options = EtcdOptions { endpoints, ..EtcdOptions::default() };
                        let source = Source::Etcd(Etcd::new(options).map_err(failed("connect to etcd"))?);
                        let (nodes, _) = source.watch().known().await;
                        let is_node = |one: &&podwire_subnets::Node| {
                            one.underlay.v4.is_some_and(|ip| addresses.contains(&IpAddr::V4(ip)))
                        };
                        match nodes.iter().find(is_node) {
                            Some(found) => {
                                source.release(found).await.map_err(failed("remove the node from etcd"))
                            }
                            None => Ok(()),
                        }
                    })
                })?;
                done
            }
        }
    }

    /// Adds a node that does not exist and that claims half of another node's pod CIDR.
    pub(crate) fn add_intruder(&self, pod_cidrs: &[String]) -> Result<()> {
        let claimed = claimed_cidr(pod_cidrs)?;
        let spec = &self.state.spec;
        let underlay = spec.intruder();
        match spec.store {
            Store::Static => {
                let mut list = spec.node_list(&self.nodes());
                if let Some(nodes) = list["nodes"].as_array_mut() {
                    nodes.push(spec.node_list_entry(INTRUDER, &[claimed.to_string()], &underlay));
                }
                self.replace_node_list(&list)
            }
            Store::Embedded => {
                let (v4, v6) = match claimed {
                    IpNet::V4(_) => (Some(claimed.to_string()), None),
                    IpNet::V6(_) => (None, Some(claimed.to_string())),
                };
                let at = |family: IpFamily| {
                    let ip = underlay.iter().find(|ip| IpFamily::of(**ip) == family);
                    ip.map(ToString::to_string)
                };
                let (data, data_v6) = spec.vteps(INTRUDER);
                let text = |value: Option<Value>| value.map(|value| value.to_string());
                let columns = "name, v4, v6, underlay_v4, underlay_v6, backend, data, data_v6";
                let statement =
                    format!("INSERT INTO node ({columns}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
                let row = rusqlite::params![
                    INTRUDER,
                    v4,
                    v6,
                    at(IpFamily::V4),
                    at(IpFamily::V6),
                    spec.backend_type(),
                    text(data),
                    text(data_v6)
                ];
                self.sql(&statement, row)
            }
            Store::Etcd => {
                let (data, data_v6) = spec.vteps(INTRUDER);
                let mut value = json!({ "PublicIP": underlay.first(), "PublicIPv6": null, "BackendType": spec.backend_type() });
                if let Some(data) = data {
                    value["BackendData"] = data;
                }
                if let Some(data) = data_v6 {
                    value["BackendV6Data"] = data;
                }
                self.put(&key(claimed), &value.to_string())
            }
        }
    }

    /// Removes the node that claims a duplicate pod CIDR.
    pub(crate) fn remove_intruder(&self, pod_cidrs: &[String]) -> Result<()> {
        match self.state.spec.store {
            Store::Static => self.refresh_node_list(),
            Store::Embedded => self.sql("DELETE FROM node WHERE name = ?1", [INTRUDER]),
            Store::Etcd => {
                let key = key(claimed_cidr(pod_cidrs)?);
                self.with_etcd(async |client| client.delete(key, None).await.map(drop))
            }
        }
    }

    fn sql(&self, what: &str, values: impl rusqlite::Params) -> Result<()> {
        let connection = Connection::open(self.directory.shared().join("cluster.db"));
        let done = connection.and_then(|connection| {
            connection.busy_timeout(TIMEOUT)?;
            connection.execute(what, values)
        });
        done.map(drop).map_err(failed("change the embedded store"))
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed("start a runtime"))
}

/// The first half of a node's first pod CIDR: the stores refuse a second node with the same CIDR, but not an overlapping one.
fn claimed_cidr(pod_cidrs: &[String]) -> Result<IpNet> {
    let first: Option<IpNet> = pod_cidrs.first().and_then(|cidr| cidr.parse().ok());
    let half = first.and_then(|cidr| IpNet::new(cidr.network(), cidr.prefix_len() + 1).ok());
    half.ok_or_else(|| failed("claim a pod CIDR")("the node has none: check that its agent runs"))
}

fn key(cidr: IpNet) -> String {
    format!("{PREFIX}/subnets/{}-{}", cidr.network(), cidr.prefix_len())
}

/// Whether a program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    found
}
