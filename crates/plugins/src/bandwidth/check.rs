//! CHECK of a pod's limits: both token buckets, the ifb device, and the redirect to it.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_kernel::rt::link;
use podwire_kernel::{shaping, Host, Link};

use super::limits::{Destinations, Limit, Limits};
use super::{ifb_device, node_end};
use crate::inspection::{change_node, on_node};

/// Compares the limits with the kernel's state.
pub(crate) fn inspect<'p>(req: &Request<'p>, limits: &Limits) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded_or("must be called as a chained plugin")?;
    if limits.is_none() {
        return Ok(Vec::new());
    }
    let mut node = Host::here()?;
    let end = node_end::get(req, &mut node, recorded)?;
    let mut findings = Vec::new();
    if let Some(limit) = limits.into_pod {
        findings.extend(bucket(req, &mut node, &end, limit, &limits.destinations)?);
    }
    if let Some(limit) = limits.out_of_pod {
        findings.extend(out_of_pod(req, &mut node, &end, limit, &limits.destinations)?);
    }
    Ok(findings)
}

fn differs<'p>(req: &Request<'p>, text: &str) -> Finding<'p> {
    Finding::new(format!("the limits of {} differ: {text}", req.ifname))
}

/// The token bucket on `link` with its parameters. The repair replaces it.
fn bucket<'p>(
    req: &Request<'p>,
    node: &mut Host,
    link: &Link,
    limit: Limit,
    destinations: &Destinations,
) -> Result<Option<Finding<'p>>> {
    let wrong = match destinations.limit(limit) {
        None => shaping::find(node, link)?.map(|found| shaping::differences(&limit.bucket(), &found)),
        Some(some) => {
            shaping::find_some(node, link)?.map(|found| shaping::differences_of_some(&some, &found))
        }
    };
    let text = match wrong {
        None => format!("{} has no token bucket", link.name),
        Some(wrong) if wrong.is_empty() => return Ok(None),
        Some(wrong) => format!("{}: {}", link.name, wrong.join(", ")),
    };
    let (link, destinations) = (link.clone(), destinations.clone());
    Ok(Some(
        differs(req, &text).repaired_by(on_node(move |node| limit_again(node, &link, limit, &destinations))),
    ))
}

fn limit_again(node: &mut Host, link: &Link, limit: Limit, destinations: &Destinations) -> Result<()> {
    match destinations.limit(limit) {
        None => shaping::limit_again(node, link, limit.bucket())?,
        Some(some) => shaping::limit_some(node, link, &some)?,
    }
    Ok(())
}

/// The ifb device, its token bucket, and the redirect. The repair creates the redirect last, so that no packet passes
/// an incomplete device.
fn out_of_pod<'p>(
    req: &Request<'p>,
    node: &mut Host,
    end: &Link,
    limit: Limit,
    destinations: &Destinations,
) -> Result<Vec<Finding<'p>>> {
    let Some(found) = ifb_device::all_of(node, req)?.into_iter().next() else {
        let text = format!("the device {} is missing", ifb_device::names(&req.owner())[0]);
        let (req_again, end, destinations) = (req.clone(), end.clone(), destinations.clone());
        return Ok(vec![differs(req, &text).repaired_by(on_node(move |node| {
            let ifb = ifb_device::ensure(node, &req_again.owner(), end.mtu)?;
            limit_again(node, &ifb, limit, &destinations)?;
            ifb_device::redirect(node, &end, &ifb)
        }))]);
    };
    let mut findings = Vec::new();
    findings.extend(bucket(req, node, &found, limit, destinations)?);
    if !found.is_up() {
        let down = differs(req, &format!("{} is down", found.name));
        findings.push(down.repaired_by(change_node(link::up(&found))));
    }
    if !shaping::is_redirected_only(node, end, &found)? {
        let text = format!("what the pod sends to {} is not redirected to {}", end.name, found.name);
        let end = end.clone();
        findings.push(
            differs(req, &text).repaired_by(on_node(move |node| ifb_device::redirect(node, &end, &found))),
        );
    }
    Ok(findings)
}
