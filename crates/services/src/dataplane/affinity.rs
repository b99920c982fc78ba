//! The endpoints that clients keep. Rules remember them; entries whose endpoint is no longer used are deleted, so that
//! their clients get another one.

use std::net::SocketAddr;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{self, Data, Element, Transaction};
use podwire_netlink::Result;

use super::found::{frontend, socket_addr};
use super::kernel::Kernel;
use super::sets::{SetId, TABLE};
use crate::{Backend, Desired};

/// How often entries are listed again because one has expired before it was deleted, or because other rules changed.
const ATTEMPTS: usize = 100;

/// Whether entries of a frontend may be obsolete after it changed from `before` to `after`.
pub(super) fn is_affected(before: &Backend, after: Option<&Backend>) -> bool {
    let keeps = |endpoint: &SocketAddr| after.is_some_and(|after| keeps(after, endpoint));
    before.affinity.is_some() && !before.endpoints.iter().chain(&before.local_endpoints).all(keeps)
}

fn keeps(backend: &Backend, endpoint: &SocketAddr) -> bool {
    let used = || backend.endpoints.contains(endpoint) || backend.local_endpoints.contains(endpoint);
    backend.affinity.is_some() && used()
}

/// Deletes the entries whose frontend or endpoint is gone. Returns their number.
pub(super) fn delete_obsolete(kernel: &mut Kernel, desired: &Desired) -> Result<usize> {
    let mut deleted = 0;
    // Twice: a packet that looked up its endpoint before the first deletion may have added it again.
    for family in IpFamily::ALL.into_iter().chain(IpFamily::ALL) {
        deleted += delete_of_family(kernel, family, desired)?;
    }
    Ok(deleted)
}

fn delete_of_family(kernel: &mut Kernel, family: IpFamily, desired: &Desired) -> Result<usize> {
    let (set, client) = (SetId::Affinity.name(family), usize::from(family.bits() / 8));
    let is_valid = |element: &Element| {
        let frontend = element.key.bytes().get(client..).and_then(|bytes| frontend(bytes, family));
        let backend = frontend.and_then(|frontend| desired.frontends.get(&frontend));
        let Data::Value(endpoint) = &element.data else { return false };
        let endpoint = socket_addr(endpoint.bytes(), family);
        backend.zip(endpoint).is_some_and(|(backend, endpoint)| keeps(backend, &endpoint))
    };
    let mut attempt = 1;
    loop {
        let generation = kernel.generation()?;
        let mut obsolete = nft::list_elements(kernel.socket(), &TABLE, &set)?;
        obsolete.retain(|element| !is_valid(element));
        let mut change = Transaction::new();
        change.delete_elements(&TABLE, &set, &obsolete);
        match kernel.commit(generation, change) {
            Ok(_) => return Ok(obsolete.len()),
            Err(error) if (error.is_gone() || nft::changed_meanwhile(&error)) && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
