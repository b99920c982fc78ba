//! Endpoints of other machines. This process cannot enter their namespaces, but can probe them.
//!
//! Each node of a cluster starts the echo services of its endpoints for a while ([`answer`]) and prints their addresses. The
//! other nodes probe them ([`verify_with`](crate::verify_with)). If every node does, all pairs are verified.

use serde::{Deserialize, Serialize};

use crate::echo::{Echo, EchoAddress};
use crate::{Endpoint, Kind, Missing, Result};

/// An endpoint of another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteEndpoint {
    /// Its name in the report.
    pub name: String,
    /// Pod or node.
    pub kind: Kind,
    /// Its echo services.
    pub addresses: Vec<EchoAddress>,
    /// What its machine could not find of it: addresses, or all of it. Each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl RemoteEndpoint {
    /// An endpoint that should be there and is not.
    pub fn absent(missing: Missing) -> RemoteEndpoint {
        let Missing { name, kind, reason } = missing;
        RemoteEndpoint { name, kind, addresses: Vec::new(), missing: vec![reason] }
    }

    pub(crate) fn report_missing(&self) -> impl Iterator<Item = Missing> + '_ {
        self.missing.iter().map(|reason| Missing::new(&self.name, self.kind, reason))
    }
}

/// Running echo services; they end when this is dropped.
pub struct Answering {
    _echoes: Vec<Echo>,
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answering")
    }
}

/// Starts the echo services of endpoints; returns their addresses.
pub fn answer(endpoints: &[Endpoint]) -> Result<(Answering, Vec<RemoteEndpoint>)> {
    let echoes = endpoints.iter().map(Echo::start).collect::<Result<Vec<_>>>()?;
    let remote = endpoints.iter().zip(&echoes).map(|(endpoint, echo)| RemoteEndpoint {
        name: endpoint.name.clone(),
        kind: endpoint.kind,
        addresses: echo.addresses.clone(),
        missing: endpoint
            .report_missing()
            .chain(echo.report_missing(endpoint))
            .map(|one| one.reason)
            .collect(),
    });
    let remote = remote.collect();
    Ok((Answering { _echoes: echoes }, remote))
}
