//! Selects a device: by name, hardware address, path in the kernel's device tree, or id on a bus.

use std::path::PathBuf;

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{capability, json, Dns};
use podwire_kernel::rt::link;
use podwire_kernel::{Host, Link};
use serde::Deserialize;

use super::sysfs::{self, Sysfs};

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] =
    &["device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig.deviceID", "useInterfaceNetwork"];

/// The config.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    /// Whether the pod gets the addresses and routes that the device has on the node.
    pub use_interface_network: bool,
    /// Name servers for the result.
    pub dns: Dns,
}

/// The device that the config or the runtime names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The link of this name.
    Name(String),
    /// The link with this hardware address.
    Hardware(Vec<u8>),
    /// The link of the device at this path in the kernel's tree.
    Path(String),
    /// The link of the device with this id on its bus; the key that named it.
    Bus(&'static str, String),
}

impl Selector {
    /// Reads the selector. The runtime's device for this pod overrides the config's for all pods.
    pub fn read(req: &Request<'_>, conf: &Conf) -> Result<Selector> {
        let chosen = capability::read::<String>(&req.config, "deviceID")?.filter(|id| !id.is_empty());
        match chosen {
            Some(id) => Ok(Selector::Bus("runtimeConfig.deviceID", id)),
            None if !conf.device.is_empty() => Ok(Selector::Name(conf.device.clone())),
            None if !conf.hwaddr.is_empty() => hardware_address(&conf.hwaddr).map(Selector::Hardware),
            None if !conf.kernelpath.is_empty() => Ok(Selector::Path(conf.kernelpath.clone())),
            None if !conf.pci_bus_id.is_empty() => Ok(Selector::Bus("pciBusID", conf.pci_bus_id.clone())),
            None => invalid("specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"".into()),
        }
    }

    /// Whether the runtime names a device for each pod at ADD, so that the config needs none.
    pub fn is_from_runtime(req: &Request<'_>, conf: &Conf) -> bool {
        let capability = json::get(&req.config, "capabilities").and_then(|all| json::get(all, "deviceID"));
        let keys = [&conf.device, &conf.hwaddr, &conf.kernelpath, &conf.pci_bus_id];
        capability.is_some_and(|is_on| is_on == true) && keys.iter().all(|key| key.is_empty())
    }

    /// Finds the device on the node. `None` if it has a user-space driver, and so no link.
    pub fn find(&self, node: &mut Host, sysfs: &Sysfs) -> Result<Option<Link>> {
        match self {
            Selector::Name(name) => match node.find_link(name)? {
                Some(link) => Ok(Some(link)),
                None => not_found("Link not found", format!("there is no {name:?} on the node")),
            },
            Selector::Hardware(mac) => by_hardware_address(node, mac).map(Some),
            Selector::Path(path) => match sysfs.by_path(path) {
                Some(folder) => of_device(node, "kernelpath", path, folder),
                None => invalid(format!(
                    "failed to find host device: kernel device path {path:?} must be absolute and begin with \
                     /sys/devices/"
                )),
            },
            Selector::Bus(key, id) => match sysfs.find(id) {
                Some(folder) => of_device(node, key, id, folder),
                None => {
                    invalid(format!("{key}: device {id:?} is neither on the PCI nor on the auxiliary bus"))
                }
            },
        }
    }

    /// Whether `link` is this device; its alias holds its name on the node. `None` if unknown.
    pub fn matches(&self, link: &Link) -> Option<bool> {
        let is_pci = |id: &str| id.contains(':');
        match self {
            Selector::Name(name) => Some(link.alias == *name),
            Selector::Hardware(mac) => Some(link.mac == *mac || link.permanent_mac == *mac),
            Selector::Path(path) if path.rsplit('/').next() == Some(&link.parent) => Some(true),
            Selector::Bus(_, id) if link.parent == *id => Some(true),
            // The parent of a virtio link is a virtio device, not the PCI device.
            Selector::Bus(_, id) if is_pci(id) && is_pci(&link.parent) => Some(false),
            _ => None,
        }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selector::Name(text) | Selector::Path(text) | Selector::Bus(_, text) => f.write_str(text),
            Selector::Hardware(mac) => f.write_str(&link::mac_text(mac)),
        }
    }
}

fn of_device(node: &mut Host, key: &str, id: &str, folder: PathBuf) -> Result<Option<Link>> {
    if sysfs::user_space_driver(&folder).is_some() {
        return Ok(None);
    }
    for name in sysfs::links(&folder) {
        // The folder shows the links of the namespace in which /sys was mounted.
        if let Some(link) = node.find_link(&name)? {
            return Ok(Some(link));
        }
    }
    match sysfs::driver(&folder) {
        None if !folder.is_dir() => invalid(format!("{key}: there is no device {id:?}")),
        None => missing(format!("device {id} has no driver, and so no link")),
        Some(driver) => missing(format!("device {id}, of driver {driver}, has no link on the node")),
    }
}

/// The physical link with this hardware address. Bridges copy the address of a port and VLANs that of their parent, so
/// links without a kind, and links with this permanent address, are preferred.
fn by_hardware_address(node: &mut Host, mac: &[u8]) -> Result<Link> {
    let mut all = link::list(&mut node.route)?;
    all.retain(|link| link.mac == mac);
    if all.iter().any(|link| link.kind.is_empty()) {
        all.retain(|link| link.kind.is_empty());
    }
    if all.iter().any(|link| link.permanent_mac == mac) {
        all.retain(|link| link.permanent_mac == mac);
    }
    let text = link::mac_text(mac);
    match all.len() {
        0 => {
            let why = format!("no link on the node has hardware address {text}");
            not_found("failed to find physical interface", why)
        }
        1 => Ok(all.remove(0)),
        _ => {
            let names: Vec<_> = all.iter().map(|link| link.name.as_str()).collect();
            invalid(format!("hwaddr: {text} is the address of several links: {}", names.join(", ")))
        }
    }
}

/// Parses a hardware address: six bytes for Ethernet, eight or twenty for other links.
fn hardware_address(text: &str) -> Result<Vec<u8>> {
    let byte = |part: &str| {
        let is_hex = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(part, 16).ok())?
    };
    match text.split([':', '-']).map(byte).collect::<Option<Vec<u8>>>() {
        Some(bytes) if [6, 8, 20].contains(&bytes.len()) => Ok(bytes),
        _ => {
            let problem = "failed to find host device: failed to parse MAC address";
            let text = format!("{problem} {text:?}: address {text}: invalid MAC address");
            let hint = "write hwaddr like 02:00:5e:10:00:01";
            Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into())
        }
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

/// The Go plugin's text for a device that is not on the node.
fn not_found<T>(text: &str, why: String) -> Result<T> {
    let error = podwire_cni_spec::Error::internal(format!("failed to find host device: {text}"));
    Err(error.with_hint(format!("{why}; {IN_ANOTHER_POD}")).into())
}

const IN_ANOTHER_POD: &str = "is the device in another pod? It can be in one namespace only";

fn missing<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::internal(format!("failed to find host device: {text}"))
        .with_details(IN_ANOTHER_POD)
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_of_every_length_are_parsed() {
        assert_eq!(hardware_address("02:00:5E:10:00:01").unwrap(), [2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(hardware_address(&["0a"; 20].join(":")).unwrap(), [10; 20]);
        for bad in ["", "02:00", "02:00:5e:10:00:01:02", "+2:00:5e:10:00:01", "2:0:5e:10:0:1"] {
            assert!(hardware_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_device_in_a_pod_is_recognized() {
        let link = |alias: &str, parent: &str| Link {
            alias: alias.into(),
            parent: parent.into(),
            ..Link::default()
        };
        let by_name = Selector::Name("ens1".into());
        assert_eq!(by_name.matches(&link("ens1", "")), Some(true));
        assert_eq!(by_name.matches(&link("ens2", "")), Some(false));
        let by_id = Selector::Bus("pciBusID", "0000:00:19.0".into());
        assert_eq!(by_id.matches(&link("ens1", "0000:00:19.0")), Some(true));
        assert_eq!(by_id.matches(&link("ens1", "0000:00:1a.0")), Some(false));
        assert_eq!(by_id.matches(&link("ens1", "virtio0")), None);
        assert_eq!(by_id.matches(&link("ens1", "")), None);
    }
}
