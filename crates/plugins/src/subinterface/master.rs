//! The interface below a subinterface.

use podwire_cni_plugin::{Context, Error, Result};
use podwire_kernel::child;
use podwire_kernel::rt::{link, route};
use podwire_kernel::{Host, Link};

/// The interface below a subinterface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Master {
    /// The interface of that name on the node.
    OnNode(String),
    /// The interface of the node's default route, at the time of ADD.
    DefaultRoute,
    /// The interface that the previous plugin of the chain names, at the time of ADD.
    FromChain,
    /// The interface of that name in the pod; without a name, that of the pod's default route.
    InPod(Option<String>),
    /// None (dummy).
    Nothing,
}

impl Master {
    /// Reads the keys `master` and `linkInContainer`. Without `master` it is the interface of the default route.
    pub fn read(master: &str, in_pod: bool) -> Result<Master> {
        if !master.is_empty() {
            podwire_cni_spec::IfName::parse(master)
                .map_err(|error| podwire_cni_spec::Error::invalid_config(format!("master: {}", error.msg)))?;
        }
        let name = Some(master.to_owned()).filter(|name| !name.is_empty());
        if in_pod {
            return Ok(Master::InPod(name));
        }
        Ok(name.map_or(Master::DefaultRoute, Master::OnNode))
    }

    /// The link below an interface of the driver `kind`; `None` for [`Master::Nothing`]. Fails if it does not exist.
    pub(super) fn find(&self, kind: &str, node: &mut Host, pod: &mut Host) -> Result<Option<Link>> {
        // Go's macvlan and vlan first read the master's MTU, and add nothing to the error of that.
        let text = |name: &str| match kind {
            "macvlan" | "vlan" => "Link not found".to_owned(),
            _ => lookup_failed(name),
        };
        match self {
            Master::OnNode(name) => by_name(node, name, "on the node", text).map(Some),
            Master::DefaultRoute | Master::FromChain => of_default_route(node, "the node").map(Some),
            Master::InPod(Some(name)) => by_name(pod, name, "in the pod", text).map(Some),
            Master::InPod(None) => of_default_route(pod, "the pod").map(Some),
            Master::Nothing => Ok(None),
        }
    }

    /// The master as the kernel crate takes it.
    pub(super) fn in_kernel(&self, found: Option<&Link>) -> child::Master {
        match (self, found) {
            (_, None) | (Master::Nothing, _) => child::Master::None,
            (Master::InPod(_), Some(link)) => child::Master::InPod(link.index),
            (_, Some(link)) => child::Master::OnNode(link.index),
        }
    }

    /// The link, if the config names it and it exists now.
    pub(super) fn named(&self, node: &mut Host, pod: &mut Host) -> Result<Option<Link>> {
        match self {
            Master::OnNode(name) => Ok(node.find_link(name)?),
            Master::InPod(Some(name)) => Ok(pod.find_link(name)?),
            _ => Ok(None),
        }
    }

    /// STATUS: checks that the next ADD will find the master, as far as possible without a pod.
    pub(super) fn status(&self, node: &mut Host, must_be_up: bool) -> Result<Option<Link>> {
        let found = match self {
            Master::OnNode(name) => by_name(node, name, "on the node", lookup_failed),
            Master::DefaultRoute => of_default_route(node, "the node"),
            Master::FromChain | Master::InPod(_) | Master::Nothing => return Ok(None),
        };
        let link = found.map_err(not_available)?;
        if must_be_up && !link.is_up() {
            let error = podwire_cni_spec::Error::invalid_config(format!("master: {} is down", link.name));
            return Err(not_available(error.with_details(format!("bring {} up", link.name)).into()));
        }
        Ok(Some(link))
    }
}

/// An error of ADD with the code of STATUS.
fn not_available(error: Error) -> Error {
    podwire_cni_spec::Error { code: podwire_cni_spec::code::NOT_AVAILABLE, ..error.to_cni() }.into()
}

fn lookup_failed(name: &str) -> String {
    format!("failed to lookup master {name:?}: Link not found")
}

fn by_name(host: &mut Host, name: &str, location: &str, text: impl Fn(&str) -> String) -> Result<Link> {
    let missing = || {
        let hint = format!("there is no interface {name:?} {location}: correct `master`, or create it");
        podwire_cni_spec::Error::invalid_config(text(name)).with_hint(hint).into()
    };
    let found = host.find_link(name).doing(|| format!("failed to lookup master {name:?}"))?;
    found.ok_or_else(missing)
}

/// The interface of the default route with the smallest metric, of IPv4 if there is one.
fn of_default_route(host: &mut Host, whose: &str) -> Result<Link> {
    let routes = route::list(&mut host.route)?;
    let defaults = routes.iter().filter(|route| route.is_default() && route.table == route::MAIN);
    let best = defaults
        .filter_map(|route| Some((route.dst.is_ipv6(), route.priority.unwrap_or(0), route.link?)))
        .min();
    let Some((_, _, index)) = best else {
        let hint = format!("master: {whose} has no default route, so name the interface");
        let error = podwire_cni_spec::Error::invalid_config("no default route interface found");
        return Err(error.with_hint(hint).into());
    };
    Ok(link::by_index(&mut host.route, index)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_named_or_follows_from_the_default_route() {
        assert_eq!(Master::read("eth1", false).unwrap(), Master::OnNode("eth1".into()));
        assert_eq!(Master::read("eth1", true).unwrap(), Master::InPod(Some("eth1".into())));
        assert_eq!(Master::read("", false).unwrap(), Master::DefaultRoute);
        assert_eq!(Master::read("", true).unwrap(), Master::InPod(None));
        for bad in ["a/b", "0123456789abcdef", ".."] {
            let error = Master::read(bad, false).unwrap_err().to_cni();
            assert!(error.code == 7 && error.msg.starts_with("master: "), "{error:?}");
        }
    }
}
