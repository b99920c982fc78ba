//! Keeping pods apart: the warden of this node, its source and its door.

use std::path::Path;

use ipnet::IpNet;
use podwire_kubernetes::Backoff;
use podwire_warden::{Source, Warden};
use tracing::error;

use crate::Result;

/// Starts it; `cuts` connections that policies no longer allow. It is asked at its door at once, and answers when its source has told everything.
/// `guarded`: the networks of pods that an agent before this one guarded. They are guarded from the first moment on: what this one will have is not known yet.
pub(crate) fn enforce(node_name: &str, source: Source, cuts: bool, guarded: Vec<IpNet>) -> Result<Warden> {
    let warden = Warden::start(node_name, source.lists_pods(), cuts)?;
    warden.guard(guarded, Vec::new())?;
    podwire_warden::open_door(Path::new(podwire_warden::SOCKET), warden.clone())?;
    let follower = warden.clone();
    tokio::spawn(async move {
        let mut backoff = Backoff::new();
        loop {
            if let Err(error) = source.clone().follow(follower.clone()).await {
                error!("policies stay as they are: {error}");
            }
            backoff.wait().await;
        }
    });
    Ok(warden)
}
