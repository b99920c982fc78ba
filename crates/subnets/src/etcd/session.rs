//! A connection to one of the endpoints, and the few questions that are asked over it.

use std::time::{Duration, SystemTime};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue, PutOptions,
    TlsOptions, Txn, TxnOp,
};

use super::lease::Record;
use super::Etcd;
use crate::{Error, NetConf, Result};
use podwire_kubernetes::error_chain;

/// How long an endpoint may take to answer before the next is tried.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a silent connection is asked whether it is still there. etcd takes more than one in five seconds for an attack.
const PULSE: Duration = Duration::from_secs(10);

/// A connection that has answered once.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) endpoint: String,
    etcd: Etcd,
}

impl Etcd {
    /// The first endpoint that answers.
    pub(super) async fn connect(&self) -> Result<Session> {
        let mut refusals = Vec::new();
        let endpoints = self
            .options
            .endpoints
            .iter()
            .map(|endpoint| endpoint.trim())
            .filter(|endpoint| !endpoint.is_empty());
        for endpoint in endpoints.clone() {
            let tried = tokio::time::timeout(PATIENCE, self.try_endpoint(endpoint)).await;
            match tried {
                Ok(Ok(client)) => {
                    return Ok(Session { client, endpoint: endpoint.into(), etcd: self.clone() });
                }
                Ok(Err(Error::Etcd { why, .. })) => refusals.push((endpoint, why)),
                Ok(Err(other)) => return Err(other),
                Err(_) => refusals.push((endpoint, format!("no answer in {} s", PATIENCE.as_secs()))),
            }
        }
        let why = match &refusals[..] {
            [(_, only)] => only.clone(),
            all => {
                all.iter().map(|(endpoint, why)| format!("{endpoint}: {why}")).collect::<Vec<_>>().join("; ")
            }
        };
        Err(Error::Etcd { endpoints: endpoints.collect::<Vec<_>>().join(","), doing: "connect".into(), why })
    }

    /// Connects, and asks for the config's key: an endpoint without a leader, or one that does not know the user, fails here.
    async fn try_endpoint(&self, endpoint: &str) -> Result<Client> {
        let options = self.connect_options(endpoint).await?;
        let failed = failed(endpoint, "connect");
        let mut client = Client::connect([endpoint], Some(options)).await.map_err(&failed)?;
        let key_only = GetOptions::new().with_keys_only();
        client.get(self.keys.config(), Some(key_only)).await.map_err(&failed)?;
        Ok(client)
    }

    /// Files are read at each connection: certificates are renewed while agents run.
    async fn connect_options(&self, endpoint: &str) -> Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(PATIENCE)
            .with_keep_alive(PULSE, PATIENCE)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((name, password)) = &self.options.user {
            options = options.with_user(name, password);
        }
        if endpoint.starts_with("http://") {
            return Ok(options);
        }
        let read =
            async |path: &std::path::PathBuf| tokio::fs::read(path).await.map_err(Error::file("read", path));
        let mut tls = TlsOptions::new();
        if let Some(path) = &self.options.ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(path).await?));
        }
        if let Some((cert, key)) = self.options.cert_file.as_ref().zip(self.options.key_file.as_ref()) {
            tls = tls.identity(Identity::from_pem(read(cert).await?, read(key).await?));
        }
        // An address without a scheme is https if we have been told anything about TLS.
        let wanted = endpoint.starts_with("https://")
            || self.options.ca_file.is_some()
            || self.options.cert_file.is_some();
        Ok(if wanted { options.with_tls(tls) } else { options })
    }
}

impl Session {
    /// The network's config, and the revision at which it was last changed.
    pub(super) async fn config(&mut self) -> Result<(NetConf, i64)> {
        let key = self.etcd.keys.config();
        let found = self.get(&key).await?.ok_or_else(|| Error::NoConfig {
            place: format!("etcd store, key {key}"),
            hint: format!("Did you create your config using etcdv3 API? etcdctl put {key} '{{\"Network\": \"10.244.0.0/16\", \"Backend\": {{\"Type\": \"vxlan\"}}}}'"),
        })?;
        let conf = NetConf::parse(&format!("etcd key {key}"), &String::from_utf8_lossy(found.value()))?;
        Ok((conf, found.mod_revision()))
    }

    pub(super) async fn get(&mut self, key: &str) -> Result<Option<KeyValue>> {
        let asked = patiently(self.client.get(key, None)).await;
        let mut answer = asked.map_err(self.failed(format!("get {key}")))?;
        Ok(answer.take_kvs().pop())
    }

    /// All nodes' keys, and the revision at which they were so.
    pub(super) async fn list(&mut self) -> Result<(Vec<Record>, i64)> {
        let key = self.etcd.keys.subnets();
        let asked = patiently(self.client.get(key.clone(), Some(GetOptions::new().with_prefix()))).await;
        let answer = asked.map_err(self.failed(format!("list {key}")))?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((answer.kvs().iter().map(|kv| Record::read(&self.etcd.keys, kv)).collect(), revision))
    }

    /// Deletes a key, unless somebody has changed it since it was read.
    pub(super) async fn delete(&mut self, record: &Record) -> Result<()> {
        let unchanged = Compare::mod_revision(record.key.as_str(), CompareOp::Equal, record.changed);
        let delete = TxnOp::delete(record.key.as_str(), None);
        let done = patiently(self.client.txn(Txn::new().when([unchanged]).and_then([delete]))).await;
        done.map(|_| ()).map_err(self.failed(format!("delete {}", record.key)))
    }

    /// When a lease ends, if it still lives.
    pub(super) async fn left(&mut self, lease: i64) -> Result<Option<Duration>> {
        let asked = patiently(self.client.lease_time_to_live(lease, None)).await;
        let left = asked.map_err(self.failed("ask how long a lease lives".into()))?.ttl();
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// Writes a value under a new lease (or, for a reservation, under none) if everything in `only_if` is so. Returns when
    /// the lease ends; `None` if something was not so.
    pub(super) async fn put(
        &mut self,
        (key, value): (&str, &str),
        leased: bool,
        only_if: Vec<Compare>,
    ) -> Result<Option<Option<SystemTime>>> {
        let ttl = i64::try_from(self.etcd.options.ttl.as_secs()).unwrap_or(i64::MAX);
        let lease = match leased {
            true => {
                let granted = patiently(self.client.lease_grant(ttl, None)).await;
                Some(granted.map_err(self.failed("grant a lease".into()))?)
            }
            false => None,
        };
        let options = lease.as_ref().map(|lease| PutOptions::new().with_lease(lease.id()));
        let put = TxnOp::put(key, value, options);
        let done = patiently(self.client.txn(Txn::new().when(only_if).and_then([put]))).await;
        // Without an answer nobody knows whether it was done. If it was, the key hangs on the lease, which must live; if not,
        // the lease ends by itself.
        let succeeded = done.map_err(self.failed(format!("put {key}")))?.succeeded();
        if let Some(lease) = lease.as_ref().filter(|_| !succeeded) {
            let _ = patiently(self.client.lease_revoke(lease.id())).await;
        }
        let end = |seconds: i64| SystemTime::now() + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(succeeded.then(|| lease.map(|lease| end(lease.ttl()))))
    }

    pub(super) fn failed(&self, doing: String) -> impl Fn(etcd_client::Error) -> Error + use<> {
        failed(&self.endpoint, doing)
    }
}

/// A question that is answered soon, or has failed.
pub(super) async fn patiently<T>(
    question: impl std::future::Future<Output = std::result::Result<T, etcd_client::Error>>,
) -> std::result::Result<T, etcd_client::Error> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(answer) => answer,
        Err(_) => Err(etcd_client::Error::Internal(format!("no answer in {} s", PATIENCE.as_secs()))),
    }
}

fn failed(endpoint: &str, doing: impl ToString) -> impl Fn(etcd_client::Error) -> Error {
    let (endpoints, doing) = (endpoint.to_string(), doing.to_string());
    move |error| Error::Etcd { endpoints: endpoints.clone(), doing: doing.clone(), why: told(&error) }
}

/// The server's or the kernel's words, without the library's wrapping.
fn told(error: &etcd_client::Error) -> String {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => match std::error::Error::source(status) {
            Some(cause) => error_chain(cause),
            None => status.message().to_string(),
        },
        E::TransportError(error) => error_chain(error),
        E::IoError(error) => error_chain(error),
        E::Internal(text) | E::WatchError(text) | E::InvalidArgs(text) => text.clone(),
        other => other.to_string(),
    }
}
