//! The interface that another one hangs on.

use podwire_cni_plugin::{Context, Error, Result};
use podwire_kernel::child;
use podwire_kernel::rt::{link, route};
use podwire_kernel::{Host, Link};

/// What an interface hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Master {
    /// The interface of that name on the node.
    OnNode(String),
    /// The interface of the node's default route, at the time of ADD.
    DefaultRoute,
    /// What a plugin before in the chain names, at the time of ADD.
    FromChain,
    /// The interface of that name in the pod; if no name is given, that of the pod's default route.
    InPod(Option<String>),
    /// It hangs on nothing.
    Nothing,
}

impl Master {
    /// As the keys `master` and `linkInContainer` say it. No `master` means the default route's.
    pub fn read(master: &str, in_pod: bool) -> Result<Master> {
        if !master.is_empty() {
            podwire_cni_spec::IfName::parse(master)
                .map_err(|error| podwire_cni_spec::Error::invalid_config(format!("master: {}", error.msg)))?;
        }
        Ok(match (master.is_empty(), in_pod) {
            (false, false) => Master::OnNode(master.into()),
            (false, true) => Master::InPod(Some(master.into())),
            (true, false) => Master::DefaultRoute,
            (true, true) => Master::InPod(None),
        })
    }

    /// The link, which must be there; `None` if it hangs on nothing.
    pub(super) fn find(&self, node: &mut Host, pod: &mut Host) -> Result<Option<Link>> {
        match self {
            Master::OnNode(name) => by_name(node, name, "on the node").map(Some),
            Master::DefaultRoute | Master::FromChain => of_default_route(node, "the node").map(Some),
            Master::InPod(Some(name)) => by_name(pod, name, "in the pod").map(Some),
            Master::InPod(None) => of_default_route(pod, "the pod").map(Some),
            Master::Nothing => Ok(None),
        }
    }

    /// Where it is, for the kernel.
    pub(super) fn place(&self, found: Option<&Link>) -> child::Master {
        match (self, found) {
            (_, None) | (Master::Nothing, _) => child::Master::None,
            (Master::InPod(_), Some(link)) => child::Master::InPod(link.index),
            (_, Some(link)) => child::Master::OnNode(link.index),
        }
    }

    /// The one that the config names, if it does and it is there now.
    pub(super) fn named(&self, node: &mut Host, pod: &mut Host) -> Result<Option<Link>> {
        match self {
            Master::OnNode(name) => Ok(node.find_link(name)?),
            Master::InPod(Some(name)) => Ok(pod.find_link(name)?),
            _ => Ok(None),
        }
    }

    /// STATUS: whether the next ADD will find it, as far as that can be told without a pod.
    pub(super) fn status(&self, node: &mut Host, must_be_up: bool) -> Result<Option<Link>> {
        let found = match self {
            Master::OnNode(name) => by_name(node, name, "on the node"),
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

/// What ADD would complain of, as STATUS says it.
fn not_available(error: Error) -> Error {
    podwire_cni_spec::Error { code: podwire_cni_spec::code::NOT_AVAILABLE, ..error.to_cni() }.into()
}

fn by_name(place: &mut Host, name: &str, wher: &str) -> Result<Link> {
    let missing = || {
        let text = format!("failed to lookup master {name:?}: there is no such interface {wher}");
        podwire_cni_spec::Error::invalid_config(text)
            .with_details("correct `master`, or bring that interface back")
            .into()
    };
    let found = place.find_link(name).doing(|| format!("failed to lookup master {name:?}"))?;
    found.ok_or_else(missing)
}

/// The default route that wins: of IPv4, if there is one, with the smallest metric.
fn of_default_route(place: &mut Host, whose: &str) -> Result<Link> {
    let routes = route::list(&mut place.route)?;
    let defaults = routes.iter().filter(|route| route.is_default() && route.table == route::MAIN);
    let best = defaults
        .filter_map(|route| Some((route.dst.is_ipv6(), route.priority.unwrap_or(0), route.link?)))
        .min();
    let Some((_, _, index)) = best else {
        let text = format!("master: no default route interface found: {whose} has no default route");
        return Err(podwire_cni_spec::Error::invalid_config(text)
            .with_details("name the interface in `master`")
            .into());
    };
    Ok(link::by_index(&mut place.route, index)?)
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
