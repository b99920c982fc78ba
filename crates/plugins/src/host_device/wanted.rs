//! Which device is wanted: by its name, its hardware address, its place in the kernel's tree or its id on a bus.

use std::path::PathBuf;

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{capability, json, Dns};
use podwire_kernel::rt::link;
use podwire_kernel::{Host, Link};
use serde::Deserialize;

use super::sysfs::{self, Sysfs};

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
pub enum Wanted {
    /// The link of this name.
    Name(String),
    /// The link with this hardware address.
    Hardware(Vec<u8>),
    /// The link of the device at this path in the kernel's tree.
    Path(String),
    /// The link of the device with this id on its bus; the key that named it.
    Bus(&'static str, String),
}

impl Wanted {
    /// Reads which one. What the runtime chose for this pod comes before what the config says of all pods.
    pub fn read(req: &Request<'_>, conf: &Conf) -> Result<Wanted> {
        let chosen = capability::read::<String>(&req.config, "deviceID")?.filter(|id| !id.is_empty());
        match chosen {
            Some(id) => Ok(Wanted::Bus("runtimeConfig.deviceID", id)),
            None if !conf.device.is_empty() => Ok(Wanted::Name(conf.device.clone())),
            None if !conf.hwaddr.is_empty() => hardware_address(&conf.hwaddr).map(Wanted::Hardware),
            None if !conf.kernelpath.is_empty() => Ok(Wanted::Path(conf.kernelpath.clone())),
            None if !conf.pci_bus_id.is_empty() => Ok(Wanted::Bus("pciBusID", conf.pci_bus_id.clone())),
            None => invalid("specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"".into()),
        }
    }

    /// Whether the runtime will name a device for each pod, so that a config without one is fine until then.
    pub fn comes_later(req: &Request<'_>, conf: &Conf) -> bool {
        let asked = json::get(&req.config, "capabilities").and_then(|all| json::get(all, "deviceID"));
        let none = [&conf.device, &conf.hwaddr, &conf.kernelpath, &conf.pci_bus_id];
        asked.is_some_and(|asked| asked == true) && none.iter().all(|key| key.is_empty())
    }

    /// Finds it on the node. One that a driver keeps for a program has no link that could be given to a pod: `None`.
    pub fn find(&self, node: &mut Host, sysfs: &Sysfs) -> Result<Option<Link>> {
        match self {
            Wanted::Name(name) => match node.find_link(name)? {
                Some(link) => Ok(Some(link)),
                None => missing(format!("there is no {name:?} on the node")),
            },
            Wanted::Hardware(mac) => by_hardware_address(node, mac).map(Some),
            Wanted::Path(path) => match sysfs.by_path(path) {
                Some(folder) => of_device(node, "kernelpath", path, folder),
                None => invalid(format!(
                    "kernelpath: kernel device path {path:?} must be absolute and begin with /sys/devices/"
                )),
            },
            Wanted::Bus(key, id) => match sysfs.find(id) {
                Some(folder) => of_device(node, key, id, folder),
                None => {
                    invalid(format!("{key}: device {id:?} is neither on the PCI nor on the auxiliary bus"))
                }
            },
        }
    }

    /// Whether `link`, with the name that it had on the node as its alias, is this device; `None` if that cannot
    /// be told from the link.
    pub fn is(&self, link: &Link) -> Option<bool> {
        let is_pci = |id: &str| id.contains(':');
        match self {
            Wanted::Name(name) => Some(link.alias == *name),
            Wanted::Hardware(mac) => Some(link.mac == *mac || link.permanent_mac == *mac),
            Wanted::Path(path) if path.rsplit('/').next() == Some(&link.parent) => Some(true),
            Wanted::Bus(_, id) if link.parent == *id => Some(true),
            // A virtio device's parent has a number of its own.
            Wanted::Bus(_, id) if is_pci(id) && is_pci(&link.parent) => Some(false),
            _ => None,
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Name(text) | Wanted::Path(text) | Wanted::Bus(_, text) => f.write_str(text),
            Wanted::Hardware(mac) => f.write_str(&link::mac_text(mac)),
        }
    }
}

fn of_device(node: &mut Host, key: &str, id: &str, folder: PathBuf) -> Result<Option<Link>> {
    if sysfs::user_space_driver(&folder).is_some() {
        return Ok(None);
    }
    for name in sysfs::links(&folder) {
        // The folder tells of the namespace in which /sys was mounted.
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

/// A bridge takes over a port's address, a VLAN its parent's: the device itself is meant, which no driver made up.
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
        0 => missing(format!("no link on the node has hardware address {text}")),
        1 => Ok(all.remove(0)),
        _ => {
            let names: Vec<_> = all.iter().map(|link| link.name.as_str()).collect();
            invalid(format!("hwaddr: {text} is the address of several links: {}", names.join(", ")))
        }
    }
}

/// Six bytes, or eight or twenty for other than Ethernet.
fn hardware_address(text: &str) -> Result<Vec<u8>> {
    let byte = |part: &str| match part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => u8::from_str_radix(part, 16).ok(),
        false => None,
    };
    match text.split([':', '-']).map(byte).collect::<Option<Vec<u8>>>() {
        Some(bytes) if [6, 8, 20].contains(&bytes.len()) => Ok(bytes),
        _ => {
            invalid(format!("hwaddr: failed to parse MAC address {text:?}, write it like 02:00:5e:10:00:01"))
        }
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

fn missing<T>(text: String) -> Result<T> {
    let hint = "is it in another pod? A device can be in one place only";
    Err(podwire_cni_spec::Error::internal(format!("failed to find host device: {text}"))
        .with_details(hint)
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_of_every_kind_are_read() {
        assert_eq!(hardware_address("02:00:5E:10:00:01").unwrap(), [2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(hardware_address(&["0a"; 20].join(":")).unwrap(), [10; 20]);
        for bad in ["", "02:00", "02:00:5e:10:00:01:02", "+2:00:5e:10:00:01", "2:0:5e:10:0:1"] {
            assert!(hardware_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_device_in_a_pod_is_recognized_if_the_link_tells() {
        let link = |alias: &str, parent: &str| Link {
            alias: alias.into(),
            parent: parent.into(),
            ..Link::default()
        };
        let by_name = Wanted::Name("ens1".into());
        assert_eq!(by_name.is(&link("ens1", "")), Some(true));
        assert_eq!(by_name.is(&link("ens2", "")), Some(false));
        let by_id = Wanted::Bus("pciBusID", "0000:00:19.0".into());
        assert_eq!(by_id.is(&link("ens1", "0000:00:19.0")), Some(true));
        assert_eq!(by_id.is(&link("ens1", "0000:00:1a.0")), Some(false));
        assert_eq!(by_id.is(&link("ens1", "virtio0")), None);
        assert_eq!(by_id.is(&link("ens1", "")), None);
    }
}
