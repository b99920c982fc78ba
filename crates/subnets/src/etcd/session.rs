//! A connection to one of the endpoints, and the requests over it.

use std::time::{Duration, SystemTime};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue, PutOptions,
    TlsOptions, Txn, TxnOp,
};

use podwire_etcd::{List, MAX_MESSAGE};
use podwire_fs::FileError;
use podwire_kubernetes::error_chain;

use super::record::{check_size, Record};
use super::Etcd;
use crate::error::{Error, Result};
use crate::netconf::NetConf;

/// The time limit of a request, and of a connection attempt before the next endpoint is tried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of keep-alive pings. etcd closes connections with more than one ping in five seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A write of a key. Without a lease it is a reservation.
pub(super) struct Put<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
    pub(super) is_leased: bool,
}

/// A connection to an endpoint that has answered once.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) endpoint: String,
    etcd: Etcd,
}

impl Etcd {
    /// Connects to the first endpoint that answers.
    pub(super) async fn connect(&self) -> Result<Session> {
        let mut failures = Vec::new();
        let endpoints = self
            .options
            .endpoints
            .iter()
            .map(|endpoint| endpoint.trim())
            .filter(|endpoint| !endpoint.is_empty());
        for endpoint in endpoints.clone() {
            let tried = tokio::time::timeout(REQUEST_TIMEOUT, self.try_endpoint(endpoint)).await;
            match tried {
                Ok(Ok(client)) => {
                    return Ok(Session { client, endpoint: endpoint.into(), etcd: self.clone() });
                }
                Ok(Err(Error::Etcd { why, .. })) => failures.push((endpoint, why)),
                Ok(Err(other)) => return Err(other),
                Err(_) => {
                    failures.push((endpoint, format!("no response within {} s", REQUEST_TIMEOUT.as_secs())))
                }
            }
        }
        let why = match &failures[..] {
            [(_, only)] => only.clone(),
            all => {
                all.iter().map(|(endpoint, why)| format!("{endpoint}: {why}")).collect::<Vec<_>>().join("; ")
            }
        };
        Err(Error::Etcd { endpoints: endpoints.collect::<Vec<_>>().join(","), doing: "connect".into(), why })
    }

    /// Connects and reads the key of the config, so that an endpoint without a leader or without this user fails here.
    async fn try_endpoint(&self, endpoint: &str) -> Result<Client> {
        let options = self.connect_options(endpoint).await?;
        let failed = failed(endpoint, "connect");
        let mut client = Client::connect([endpoint], Some(options)).await.map_err(&failed)?;
        let key_only = GetOptions::new().with_keys_only();
        client.get(self.keys.config(), Some(key_only)).await.map_err(&failed)?;
        Ok(client)
    }

    /// Reads the TLS files for each connection: certificates are renewed while agents run.
    async fn connect_options(&self, endpoint: &str) -> Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(REQUEST_TIMEOUT)
            .with_keep_alive(KEEP_ALIVE, REQUEST_TIMEOUT)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((name, password)) = &self.options.user {
            options = options.with_user(name, password);
        }
        if endpoint.starts_with("http://") {
            return Ok(options);
        }
        let read = async |path: &std::path::PathBuf| {
            tokio::fs::read(path).await.map_err(FileError::at("read", path))
        };
        let mut tls = TlsOptions::new();
        if let Some(path) = &self.options.ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(path).await?));
        }
        if let Some((cert, key)) = self.options.cert_file.as_ref().zip(self.options.key_file.as_ref()) {
            tls = tls.identity(Identity::from_pem(read(cert).await?, read(key).await?));
        }
        // An endpoint without a scheme uses TLS if TLS files are configured.
        let uses_tls = endpoint.starts_with("https://")
            || self.options.ca_file.is_some()
            || self.options.cert_file.is_some();
        Ok(if uses_tls { options.with_tls(tls) } else { options })
    }
}

impl Session {
    /// The network config, and the revision of its last change.
    pub(super) async fn config(&mut self) -> Result<(NetConf, i64)> {
        let key = self.etcd.keys.config();
        let found = self.get(&key).await?.ok_or_else(|| Error::NoConfig {
            place: format!("etcd store, key {key}"),
            hint: format!("Did you create your config using etcdv3 API? etcdctl put {key} '{{\"Network\": \"10.244.0.0/16\", \"Backend\": {{\"Type\": \"vxlan\"}}}}'"),
        })?;
        let origin = format!("etcd key {key}");
        check_size(found.value()).map_err(|why| Error::Config { origin: origin.clone(), why })?;
        let conf = NetConf::parse(&origin, &String::from_utf8_lossy(found.value()))?;
        Ok((conf, found.mod_revision()))
    }

    pub(super) async fn get(&mut self, key: &str) -> Result<Option<KeyValue>> {
        let response = with_timeout(self.client.get(key, None)).await;
        let mut response = response.map_err(self.failed(format!("get {key}")))?;
        Ok(response.take_kvs().pop())
    }

    /// The records of all nodes, and the revision of the list.
    pub(super) async fn list(&mut self) -> Result<(Vec<Record>, i64)> {
        let key = self.etcd.keys.subnets();
        let list = List { prefix: &key, keys_only: false, revision: None, timeout: REQUEST_TIMEOUT };
        let mut client = self.client.kv_client().max_decoding_message_size(MAX_MESSAGE);
        let listed = podwire_etcd::list(&mut client, list, |kv| Record::parse(&self.etcd.keys, kv)).await;
        listed.map_err(self.failed(format!("list {key}")))
    }

    /// Deletes a key, unless it has changed since it was read.
    pub(super) async fn delete(&mut self, record: &Record) -> Result<()> {
        let unchanged = Compare::mod_revision(record.key.as_str(), CompareOp::Equal, record.revision);
        let delete = TxnOp::delete(record.key.as_str(), None);
        let done = with_timeout(self.client.txn(Txn::new().when([unchanged]).and_then([delete]))).await;
        done.map(|_| ()).map_err(self.failed(format!("delete {}", record.key)))
    }

    /// The remaining time of a lease, if it still exists.
    pub(super) async fn time_to_live(&mut self, lease: i64) -> Result<Option<Duration>> {
        let response = with_timeout(self.client.lease_time_to_live(lease, None)).await;
        let left = response.map_err(self.failed("get the time to live of a lease".into()))?.ttl();
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// Writes a value if all conditions in `only_if` hold. Returns the end of the lease, if there is one; `None` if a
    /// condition does not hold.
    pub(super) async fn put(
        &mut self,
        Put { key, value, is_leased }: Put<'_>,
        only_if: Vec<Compare>,
    ) -> Result<Option<Option<SystemTime>>> {
        let ttl = i64::try_from(self.etcd.options.ttl.as_secs()).unwrap_or(i64::MAX);
        let lease = if is_leased {
            let granted = with_timeout(self.client.lease_grant(ttl, None)).await;
            Some(granted.map_err(self.failed("grant a lease".into()))?)
        } else {
            None
        };
        let options = lease.as_ref().map(|lease| PutOptions::new().with_lease(lease.id()));
        let put = TxnOp::put(key, value, options);
        let done = with_timeout(self.client.txn(Txn::new().when(only_if).and_then([put]))).await;
        // Without a response, the write may have been done. Then the key needs its lease; if not, the lease ends by
        // itself.
        let succeeded = done.map_err(self.failed(format!("put {key}")))?.succeeded();
        if let Some(lease) = lease.as_ref().filter(|_| !succeeded) {
            let _ = with_timeout(self.client.lease_revoke(lease.id())).await;
        }
        let end = |seconds: i64| SystemTime::now() + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(succeeded.then(|| lease.map(|lease| end(lease.ttl()))))
    }

    pub(super) fn failed(&self, doing: String) -> impl Fn(etcd_client::Error) -> Error + use<> {
        failed(&self.endpoint, doing)
    }
}

/// Limits the time of a request.
pub(super) async fn with_timeout<T>(
    request: impl std::future::Future<Output = std::result::Result<T, etcd_client::Error>>,
) -> std::result::Result<T, etcd_client::Error> {
    podwire_etcd::with_timeout(REQUEST_TIMEOUT, request).await
}

fn failed(endpoint: &str, doing: impl ToString) -> impl Fn(etcd_client::Error) -> Error {
    let (endpoints, doing) = (endpoint.to_string(), doing.to_string());
    move |error| Error::Etcd { endpoints: endpoints.clone(), doing: doing.clone(), why: describe(&error) }
}

/// The server's or the kernel's error, without the library's wrapping.
fn describe(error: &etcd_client::Error) -> String {
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
