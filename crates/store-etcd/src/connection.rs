//! The connection to etcd.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use podwire_block_ipam::store::{Revision, StoreError};
use tokio::runtime::{Builder, Runtime};

use crate::tls::TlsFiles;

/// The time limit of a request, which may need a quorum of members.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of a connection attempt to a member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects, and creates the runtime of the connection.
pub(crate) fn connect(
    endpoints: &[String],
    tls: Option<&TlsFiles>,
    options: ConnectOptions,
) -> Result<(Runtime, Client), StoreError> {
    let fail = |why: String| StoreError::Unavailable {
        store: endpoints.join(","),
        verb: "open",
        key: String::new(),
        why,
    };
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|error| fail(error.to_string()))?;
    let mut options = options.with_connect_timeout(CONNECT_TIMEOUT);
    if let Some(files) = tls {
        options = options.with_tls(files.read().map_err(fail)?);
    }
    let client = runtime.block_on(Client::connect(endpoints, Some(options)));
    let client = client.map_err(|error| fail(describe(&error)))?;
    Ok((runtime, client))
}

/// etcd counts revisions from 1, so the number is never negative.
pub(crate) fn revision(number: i64) -> Revision {
    Revision(number.unsigned_abs())
}

/// The error of etcd with all its causes.
pub(crate) fn describe(error: &Error) -> String {
    if let Error::GRpcStatus(status) = error {
        return format!("{} ({:?})", status.message(), status.code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text += &format!(": {deeper}");
        cause = deeper.source();
    }
    text
}
