//! The socket on which plugins send their requests.

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::addresses::{Request, Response};
use tracing::info;

use super::{BlockAllocator, Error};

/// Serves requests on the socket until the program ends.
pub fn serve(path: &Path, allocator: BlockAllocator) -> Result<(), Error> {
    let handler = move |request: std::io::Result<Request>| match request {
        Ok(request) => respond(&allocator, request).unwrap_or_else(|error| error.response()),
        Err(error) => Error::Request(error.to_string()).response(),
    };
    podwire_agent_ipc::server::serve(path, handler).map_err(Error::file("listen on", path))?;
    info!(socket = %path.display(), "serving addresses");
    Ok(())
}

fn respond(allocator: &BlockAllocator, request: Request) -> Result<Response, Error> {
    match request {
        Request::Pod { .. } | Request::PodCidrs { .. } => {
            return Ok(allocator.respond_about_cluster(&request))
        }
        Request::Publish { endpoint } => allocator.publish(&endpoint)?,
        Request::Join { endpoint } => {
            return Ok(Response::Joined { endpoint: allocator.join(&endpoint)?.map(Box::new) });
        }
        Request::Withdraw { endpoint } => allocator.withdraw(&endpoint)?,
        Request::Assign { owner, addresses, timeout_ms } => {
            let addresses = allocator.assign(&owner, &addresses, Duration::from_millis(timeout_ms))?;
            return Ok(Response::Assigned { addresses });
        }
        Request::Inspect { owner } => {
            let addresses = allocator.lease(&owner).map(|lease| lease.addresses).unwrap_or_default();
            return Ok(Response::Assigned { addresses });
        }
        Request::Release { owner, legacy_handle } => allocator.release(&owner, legacy_handle.as_deref())?,
        Request::Collect { network, valid } => allocator.collect(&network, &valid)?,
        Request::Ping => allocator.check_ready()?,
    }
    Ok(Response::Done)
}
