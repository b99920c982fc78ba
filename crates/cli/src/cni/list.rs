//! `podwire cni list`: networks, attachments and their problems.

use clap::Args;
use podwire_cni_runtime::{Network, Record};
use serde_json::{json, Value};

use super::records::{addresses, label, pod_json, ports};
use super::runtime_flags::RuntimeFlags;
use super::warnings::{problem_json, problem_lines, warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::publish;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni list
  podwire cni list --json | jq '.attachments[] | select(.netnsExists | not)'

The list contains the attachments of every runtime that uses the same cache directory. A container
has the name of its pod, if the runtime passed it, else its short id; --json has all ids.";

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

/// An interface of an attachment on the host.
struct HostInterface {
    name: String,
    /// `podwire`, `bridge` or `other`; `None` if the interface does not exist.
    maker: Option<&'static str>,
}

impl List {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (loaded, listing) = (self.flags.configs().load(), self.flags.cache().list());
        let paint = Paint::stdout();
        let mut text = networks(&loaded.networks, paint);
        if loaded.networks.is_empty() {
            text = format!("no network in {}\n", self.flags.configs().path().display());
        }
        if !listing.records.is_empty() {
            text += &format!("\n{}", attachments(&listing.records, paint));
        }
        let problems: Vec<_> = loaded.problems.iter().chain(&listing.problems).collect();
        if !problems.is_empty() {
            text += &format!("\n{}", problem_lines(problems.iter().copied(), paint));
        }
        let runtime = self.flags.runtime();
        let warnings: Vec<_> =
            loaded.networks.iter().flat_map(|network| runtime.lint(network, &loaded.networks)).collect();
        if !warnings.is_empty() {
            text += &format!("\n{}", warning_lines(&warnings, paint));
        }
        let json = json!({
            "networks": loaded.networks.iter().map(network_json).collect::<Vec<_>>(),
            "attachments": listing.records.iter().map(attachment_json).collect::<Vec<_>>(),
            "problems": problems.into_iter().map(problem_json).collect::<Vec<_>>(),
            "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
        });
        Ok(Output::new(text, json))
    }
}

fn plugin_names(network: &Network) -> Vec<String> {
    let name = |plugin: &podwire_cni_spec::PluginConfig| match &plugin.ipam {
        Some(ipam) => format!("{}({ipam})", plugin.kind),
        None => plugin.kind.clone(),
    };
    network.list.plugins.iter().map(name).collect()
}

fn networks(networks: &[Network], paint: Paint) -> String {
    let row = |network: &Network| {
        let (name, version) = (network.list.name.to_string(), network.list.version.to_string());
        vec![name, version, plugin_names(network).join(" "), network.path.display().to_string()]
    };
    table(&["NETWORK", "VERSION", "PLUGINS", "FILE"], &networks.iter().map(row).collect::<Vec<_>>(), paint)
}

fn network_json(network: &Network) -> Value {
    let capabilities: Vec<_> = network.list.plugins.iter().flat_map(|plugin| &plugin.capabilities).collect();
    json!({
        "name": network.list.name,
        "cniVersion": network.list.version,
        "plugins": network.list.plugins.iter().map(|plugin| &plugin.kind).collect::<Vec<_>>(),
        "capabilities": capabilities,
        "file": network.path,
    })
}

fn attachments(records: &[Record], paint: Paint) -> String {
    let row = |record: &Record| {
        let ends = host_interfaces(record).into_iter().map(|end| match end.maker {
            Some(maker) => format!("{} ({maker})", end.name),
            None => format!("{} ({})", end.name, paint.bad("gone")),
        });
        let namespace = match (&record.netns, namespace_exists(record)) {
            (None, _) => "not recorded".to_owned(),
            (Some(path), true) => path.display().to_string(),
            (Some(path), false) => format!("{} ({})", path.display(), paint.bad("gone")),
        };
        let addresses = match record.result {
            Some(_) => addresses(record).join(" "),
            None => paint.bad("not finished"),
        };
        let names = [record.network.clone(), label(record), record.ifname.clone(), addresses];
        let rest = [publish::text(&ports(record)), namespace, ends.collect::<Vec<_>>().join(" ")];
        names.into_iter().chain(rest).collect()
    };
    let head = ["NETWORK", "CONTAINER", "INTERFACE", "ADDRESSES", "PORTS", "NAMESPACE", "ON HOST"];
    table(&head, &records.iter().map(row).collect::<Vec<_>>(), paint)
}

fn attachment_json(record: &Record) -> Value {
    let ends = host_interfaces(record)
        .into_iter()
        .map(|end| json!({ "name": end.name, "exists": end.maker.is_some(), "madeBy": end.maker }));
    json!({
        "network": record.network,
        "container": record.container,
        "pod": pod_json(record),
        "ifname": record.ifname,
        "addresses": addresses(record),
        "ports": ports(record),
        "netns": record.netns,
        "netnsExists": namespace_exists(record),
        "hostInterfaces": ends.collect::<Vec<_>>(),
        "finished": record.result.is_some(),
        "record": record.path,
    })
}

fn namespace_exists(record: &Record) -> bool {
    let netns = record.identity().ok().and_then(|identity| identity.netns);
    netns.is_some_and(|path| matches!(podwire_kernel::Netns::find(path), Ok(Some(_))))
}

/// The interfaces that ADD created on the host. Podwire sets the owner as their alias (see `ip link`). A bridge belongs to
/// no single container and has no alias.
fn host_interfaces(record: &Record) -> Vec<HostInterface> {
    let interfaces = record.attachment().map(|attachment| attachment.interfaces).unwrap_or_default();
    let on_host = interfaces.into_iter().filter(|interface| interface.sandbox.is_empty());
    let owner = podwire_kernel::Owner::new(&*record.network, &*record.container, &*record.ifname).comment();
    let mut host = podwire_kernel::Host::here().ok();
    let mut end = |name: String| {
        let link = host.as_mut().and_then(|host| host.find_link(&name).ok().flatten());
        let maker = link.map(|link| match (link.alias == owner, link.kind.as_str()) {
            (true, _) => "podwire",
            (false, "bridge") => "bridge",
            (false, _) => "other",
        });
        HostInterface { name, maker }
    };
    on_host.map(|interface| end(interface.name)).collect()
}
