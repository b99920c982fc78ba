//! Addresses from the IPAM plugin that the config names.

use podwire_cni_plugin::{delegate, Error, Finding, Request, Result};
use podwire_cni_spec::{Attachment, Dns};
use podwire_kernel::Undo;

use crate::address_holder;
use crate::calico_ipam::{self, Assigned, PendingAssignment};

/// Runs ADD of the IPAM plugin. `undo` releases the addresses if the caller's ADD fails.
pub fn obtain<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Attachment> {
    let kind = kind(req)?;
    let lease = delegate::add(req, kind)?;
    undo.push(move || drop(delegate::del(req, kind)));
    if kind == "host-local" {
        address_holder::refuse_taken(req, &lease)?;
    }
    require_address(lease, kind)
}

/// Fails if the IPAM plugin returned no address.
fn require_address(lease: Attachment, kind: &str) -> Result<Attachment> {
    if lease.ips.is_empty() {
        let error = podwire_cni_spec::Error::internal("IPAM plugin returned missing IP config");
        return Err(error.with_hint(format!("the IPAM plugin is {kind}")).into());
    }
    Ok(lease)
}

/// Addresses that were requested from the IPAM plugin.
pub(crate) enum Lease {
    /// The IPAM plugin has answered.
    Ready(Attachment),
    /// The agent was asked and has not answered yet.
    Pending(PendingAssignment),
}

/// Requests addresses from the IPAM plugin. Only `calico-ipam` of this program runs in the background: its agent looks
/// for addresses while the caller does something else. Every other IPAM plugin is waited for.
pub(crate) fn begin<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Lease> {
    match kind(req)? {
        kind @ "calico-ipam" if delegate::is_own(req, kind) => calico_ipam::begin(req).map(Lease::Pending),
        _ => obtain(req, undo).map(Lease::Ready),
    }
}

impl Lease {
    /// Waits for the addresses. `undo` releases them if the caller's ADD fails. Call this even if another step has
    /// failed: the agent assigns the addresses in any case.
    pub(crate) fn obtain<'a>(self, req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Assigned> {
        match self {
            Lease::Ready(lease) => Ok(Assigned { lease, connection: None }),
            Lease::Pending(pending) => {
                let assigned = pending.wait(req)?;
                undo.push(move || drop(release(req)));
                Ok(Assigned { lease: require_address(assigned.lease, kind(req)?)?, ..assigned })
            }
        }
    }
}

/// Checks `ipam.type` before an ADD changes anything.
pub fn check_kind(req: &Request<'_>) -> Result<()> {
    delegate::refuse_circle(req, kind(req)?)
}

/// The IPAM plugin that the config names.
fn kind<'v>(req: &'v Request<'_>) -> Result<&'v str> {
    let kind = delegate::ipam(req).ok_or_else(missing)?;
    if podwire_cni_spec::json::get(&req.config, "type").and_then(|own| own.as_str()) == Some(kind) {
        let text = format!("ipam.type: {kind} is not an IPAM plugin, such as host-local");
        return Err(podwire_cni_spec::Error::invalid_config(text).into());
    }
    Ok(kind)
}

fn missing() -> Error {
    podwire_cni_spec::Error::invalid_config("ipam.type: an IPAM plugin is required, such as host-local")
        .into()
}

/// Releases the addresses. A network without IPAM has none.
pub fn release(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::del(req, kind))
}

/// Releases a DHCP lease while the pod's interface still exists: the DHCPRELEASE is sent through it. The caller runs
/// [`release`] for every IPAM plugin after the interface is deleted.
pub fn release_through_interface(req: &Request<'_>) -> Result<()> {
    match delegate::ipam(req) {
        Some("dhcp") => release(req),
        _ => Ok(()),
    }
}

/// The findings of the IPAM plugin.
pub fn inspect<'p>(req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
    delegate::ipam(req).map_or(Ok(Vec::new()), |kind| delegate::inspect(req, kind))
}

/// GC of the IPAM plugin.
pub fn collect(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::gc(req, kind))
}

/// STATUS of the IPAM plugin.
pub fn status(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::status(req, kind))
}

/// The `dns` of the config if it is set, else that of the IPAM plugin. An empty list counts as set, as in the Go plugins: a
/// network can keep the IPAM plugin's name servers from its pods.
pub fn choose_dns(req: &Request<'_>, configured: &Dns, leased: Dns) -> Dns {
    let section = podwire_cni_spec::json::get(&req.config, "dns");
    let is_set = |key| section.is_some_and(|section| podwire_cni_spec::json::get(section, key).is_some());
    if !configured.domain.is_empty() || ["nameservers", "search", "options"].into_iter().any(is_set) {
        return configured.clone();
    }
    leased
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::{Command, Registry};
    use serde_json::{json, Value};

    use super::*;

    fn chosen(dns: Value) -> Vec<String> {
        let config = json!({"cniVersion": "1.1.0", "name": "net", "dns": dns});
        let configured: Option<Dns> = serde_json::from_value(dns).unwrap();
        let req = Request::new(Command::Gc, &Default::default(), config, Registry::none()).unwrap();
        let leased = Dns { nameservers: vec!["192.0.2.53".into()], ..Dns::default() };
        choose_dns(&req, &configured.unwrap_or_default(), leased).nameservers
    }

    #[test]
    fn an_empty_list_of_the_config_replaces_the_leased_name_servers() {
        let leased = ["192.0.2.53"];
        for unset in [json!(null), json!({}), json!({"domain": ""})] {
            assert_eq!(chosen(unset.clone()), leased, "{unset}");
        }
        assert_eq!(chosen(json!({"nameservers": ["198.51.100.1"]})), ["198.51.100.1"]);
        for empty in [
            json!({"nameservers": []}),
            json!({"search": []}),
            json!({"options": [], "domain": ""}),
            json!({"domain": "a.example"}),
        ] {
            assert!(chosen(empty.clone()).is_empty(), "{empty}");
        }
    }
}
