//! Where the lab's nodes are known: made, and changed from outside as an operator or an accident would.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_netlink::sys;
use podwire_subnets::{Embedded, Etcd, EtcdOptions, Source};
use rusqlite::Connection;
use serde_json::{json, Value};
use std::os::fd::AsFd;

use crate::machine::SHARED;
use crate::plan::ROUTER;
use crate::{Error, Lab, Result, Store};

/// flannel's keys.
const PREFIX: &str = "/coreos.com/network";
/// What a node is called that takes somebody else's range.
pub(crate) const INTRUDER: &str = "intruder";
/// etcd answers within a second of its start.
const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(50);

fn failed<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Error + '_ {
    move |error| Error::Store { doing: doing.into(), why: error.to_string() }
}

impl Lab {
    /// Makes the store, with the network's config or the pools in it.
    pub(crate) fn open_store(&mut self) -> Result<()> {
        if self.state.plan.is_routed() {
            if self.state.plan.store == Store::Etcd {
                self.start_etcd()?;
            }
            return self.make_pools();
        }
        let path = self.home.shared().join("net-conf.json");
        let conf = self.state.plan.net_conf().to_string();
        fs::write(&path, &conf).map_err(Error::file("write", &path))?;
        match self.state.plan.store {
            // The first agent makes it.
            Store::Embedded => Ok(()),
            Store::Static => self.write_list(&self.state.plan.node_names().collect::<Vec<_>>()),
            Store::Etcd => {
                self.start_etcd()?;
                self.put(&format!("{PREFIX}/config"), &conf)
            }
        }
    }

    /// Starts etcd on the router, and waits until it answers.
    pub(crate) fn start_etcd(&mut self) -> Result<()> {
        let client = self.state.plan.etcd();
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
        let process =
            etcd.open().ok().flatten().ok_or_else(|| failed("start etcd")(self.home.last_words("etcd")))?;
        let start = Instant::now();
        loop {
            let answered = self.with_etcd(async |client| client.status().await.map(drop));
            match answered {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => {}
            }
            // It tells nobody when it listens; that it ended is told at once.
            let ended = sys::readable(&[process.as_fd()], AGAIN).map_err(Error::file("wait for", "etcd"))?;
            if ended == [true] {
                return Err(failed("start etcd")(self.home.last_words("etcd")));
            }
        }
    }

    /// Does something with etcd, from the router.
    fn with_etcd<T>(
        &self,
        work: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T> {
        let endpoint = self.state.plan.etcd();
        let doing = format!("ask etcd at {endpoint}");
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

    fn write_list(&self, nodes: &[String]) -> Result<()> {
        self.put_list(&self.state.plan.list(nodes))
    }

    /// In one step: an agent that reads half of it would complain.
    fn put_list(&self, list: &Value) -> Result<()> {
        let (draft, path) = (self.home.shared().join(".nodes.json"), self.home.shared().join("nodes.json"));
        let written = fs::write(&draft, list.to_string()).and_then(|()| fs::rename(&draft, &path));
        written.map_err(Error::file("write", &path))
    }

    /// The nodes of the list are those that are there.
    pub(crate) fn refresh_list(&self) -> Result<()> {
        match self.state.plan.store {
            Store::Static => self.write_list(&self.nodes()),
            Store::Embedded | Store::Etcd => Ok(()),
        }
    }

    /// A node that is no more is forgotten: an operator takes it out.
    pub(crate) fn forget(&self, node: &str) -> Result<()> {
        if self.state.plan.is_routed() {
            return self.release(node);
        }
        let addresses: Vec<IpAddr> = self.seat(node)?.sides.iter().map(|side| side.0).collect();
        match self.state.plan.store {
            Store::Static => self.refresh_list(),
            Store::Embedded => runtime()?.block_on(async {
                let store = Embedded::open(self.home.shared().join("cluster.db")).await;
                let store = store.map_err(failed("open the store"))?;
                store.release(node).await.map_err(failed("take the node out of the store"))
            }),
            Store::Etcd => {
                let endpoints = vec![self.state.plan.etcd()];
                let done = self.netns(ROUTER)?.run(|| {
                    runtime()?.block_on(async {
                        let options = EtcdOptions { endpoints, ..EtcdOptions::default() };
                        let source = Source::Etcd(Etcd::new(options).map_err(failed("reach etcd"))?);
                        let (nodes, _) = source.watch().known().await;
                        let is_it = |one: &&podwire_subnets::Node| {
                            one.underlay.v4.is_some_and(|ip| addresses.contains(&IpAddr::V4(ip)))
                        };
                        match nodes.iter().find(is_it) {
                            Some(found) => {
                                source.release(found).await.map_err(failed("take the node out of etcd"))
                            }
                            None => Ok(()),
                        }
                    })
                })?;
                done
            }
        }
    }

    /// Somebody who is nowhere claims half of a node's range.
    pub(crate) fn plant(&self, ranges: &[String]) -> Result<()> {
        let claimed = claim(ranges)?;
        let plan = &self.state.plan;
        let underlay = plan.intruder();
        match plan.store {
            Store::Static => {
                let mut list = plan.list(&self.nodes());
                if let Some(nodes) = list["nodes"].as_array_mut() {
                    nodes.push(plan.list_entry(INTRUDER, &[claimed.to_string()], &underlay));
                }
                self.put_list(&list)
            }
            Store::Embedded => {
                let (v4, v6) = match claimed {
                    IpNet::V4(_) => (Some(claimed.to_string()), None),
                    IpNet::V6(_) => (None, Some(claimed.to_string())),
                };
                let at = |v4: bool| underlay.iter().find(|ip| ip.is_ipv4() == v4).map(ToString::to_string);
                let (data, data_v6) = plan.vteps(INTRUDER);
                let text = |value: Option<Value>| value.map(|value| value.to_string());
                let columns = "name, v4, v6, underlay_v4, underlay_v6, backend, data, data_v6";
                let doing = format!("INSERT INTO node ({columns}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
                let row = rusqlite::params![
                    INTRUDER,
                    v4,
                    v6,
                    at(true),
                    at(false),
                    plan.kind(),
                    text(data),
                    text(data_v6)
                ];
                self.sql(&doing, row)
            }
            Store::Etcd => {
                let (data, data_v6) = plan.vteps(INTRUDER);
                let mut value =
                    json!({ "PublicIP": underlay.first(), "PublicIPv6": null, "BackendType": plan.kind() });
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

    /// He is gone.
    pub(crate) fn pull_out(&self, ranges: &[String]) -> Result<()> {
        match self.state.plan.store {
            Store::Static => self.refresh_list(),
            Store::Embedded => self.sql("DELETE FROM node WHERE name = ?1", [INTRUDER]),
            Store::Etcd => {
                let key = key(claim(ranges)?);
                self.with_etcd(async |client| client.delete(key, None).await.map(drop))
            }
        }
    }

    fn sql(&self, what: &str, values: impl rusqlite::Params) -> Result<()> {
        let connection = Connection::open(self.home.shared().join("cluster.db"));
        let done = connection.and_then(|connection| {
            connection.busy_timeout(PATIENCE)?;
            connection.execute(what, values)
        });
        done.map(drop).map_err(failed("change the embedded store"))
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed("start a runtime"))
}

/// The first half of a node's first range: not the same text, which no store would take, and the same addresses.
fn claim(ranges: &[String]) -> Result<IpNet> {
    let first: Option<IpNet> = ranges.first().and_then(|range| range.parse().ok());
    let half = first.and_then(|range| IpNet::new(range.network(), range.prefix_len() + 1).ok());
    half.ok_or_else(|| failed("plant a range")("the node has none: is its agent running?"))
}

fn key(range: IpNet) -> String {
    format!("{PREFIX}/subnets/{}-{}", range.network(), range.prefix_len())
}

/// Whether a program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    found
}
