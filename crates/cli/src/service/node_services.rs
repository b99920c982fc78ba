//! The Services of this node: from the kernel, and from the source if one is named.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cni_spec::Error;
use podwire_netlink::{rt, Socket};
use podwire_services::{dataplane, Compiler, Desired, Frontend, ObjectName, ServiceDetails};

use super::service_name;
use super::source_flags::SourceFlags;
use super::view::ServiceView;
use crate::failure::Failure;

/// All Services of this node.
pub(super) struct NodeServices {
    pub installed: Desired,
    /// The addresses of this node.
    pub node: BTreeSet<IpAddr>,
    source: Option<Compiler>,
    /// The mistakes in the objects of the source.
    pub problems: Vec<String>,
}

impl NodeServices {
    /// Reads the kernel, and the source if one is named.
    pub(super) fn read(flags: &SourceFlags, what: &str) -> Result<NodeServices, Failure> {
        let installed =
            dataplane::installed().map_err(|error| Failure::new(what, Error::internal(error.to_string())))?;
        let Some(installed) = installed else {
            let text = "no agent serves Services here: there is no table inet podwire_services";
            let hint = "start the agent of the node with `--services kubernetes` or `--services files:DIR`";
            let error = Error::new(podwire_cni_spec::code::NOT_AVAILABLE, text).with_details(hint);
            return Err(Failure::new(what, error));
        };
        let addresses = Socket::route().and_then(|mut socket| rt::address::list(&mut socket, 0));
        let addresses = addresses.map_err(|error| Failure::new(what, Error::internal(error.to_string())))?;
        let mut source = flags.read(what)?;
        let problems = source.as_mut().map(|source| source.desired().problems.clone()).unwrap_or_default();
        Ok(NodeServices {
            installed,
            node: addresses.into_iter().map(|address| address.ip).collect(),
            source,
            problems: problems.iter().map(ToString::to_string).collect(),
        })
    }

    /// All Services, in the kernel or in the source.
    pub(super) fn names(&self) -> Vec<ObjectName> {
        let installed = self.installed.frontends.values();
        let mut names: BTreeSet<ObjectName> =
            installed.map(|backend| service_name::split(&backend.service).0).collect();
        if let Some(source) = &self.source {
            names.extend(source.services().filter(|name| source.details(name).is_some()).cloned());
        }
        names.into_iter().collect()
    }

    /// The Services, each with its frontends. One pass over all frontends.
    pub(super) fn all(&self) -> Vec<ServiceView> {
        let mut frontends: BTreeMap<ObjectName, Vec<Frontend>> =
            self.names().into_iter().map(|name| (name, Vec::new())).collect();
        for (frontend, backend) in &self.installed.frontends {
            frontends.entry(service_name::split(&backend.service).0).or_default().push(*frontend);
        }
        frontends.into_iter().map(|(name, frontends)| self.view(name, frontends)).collect()
    }

    /// One Service.
    pub(super) fn get(&self, name: &ObjectName) -> Result<ServiceView, Error> {
        let frontends: Vec<Frontend> = self
            .installed
            .frontends
            .iter()
            .filter(|(_, backend)| service_name::split(&backend.service).0 == *name)
            .map(|(frontend, _)| *frontend)
            .collect();
        let is_unserved =
            |source: &Compiler| source.services().any(|one| one == name) && source.details(name).is_none();
        if self.source.as_ref().is_some_and(is_unserved) {
            let text = format!("Service {name} is not served by nodes");
            let hint =
                "it is headless or an ExternalName, has no cluster IP yet, or belongs to another proxy";
            return Err(Error::invalid_config(text).with_details(hint));
        }
        if frontends.is_empty() && !self.names().contains(name) {
            return Err(service_name::unknown(name, &self.names()));
        }
        Ok(self.view(name.clone(), frontends))
    }

    fn view(&self, name: ObjectName, frontends: Vec<Frontend>) -> ServiceView {
        let details: Option<ServiceDetails> = self.source.as_ref().and_then(|source| source.details(&name));
        ServiceView::new(self, name, frontends, details)
    }

    /// Whether an endpoint is on this node, as far as its slice says.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.installed.local_endpoint_ips.contains(&ip)
    }
}
