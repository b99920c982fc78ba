//! Devices in /sys: the driver of each, and its network links.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// User-space drivers (DPDK): a device that is bound to one has no network link.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// The buses on which network devices have an id.
const BUSES: [&str; 2] = ["pci", "auxiliary"];

/// The device tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Sysfs {
        Sysfs { root: "/sys".into() }
    }
}

impl Sysfs {
    /// The folder of the device `id`, on one of the buses.
    pub fn find(&self, id: &str) -> Option<PathBuf> {
        if !is_plain(id) {
            return None;
        }
        let folder = |bus: &&str| self.root.join("bus").join(bus).join("devices").join(id);
        BUSES.iter().map(folder).find(|folder| folder.is_dir())
    }

    /// The folder of a device by its path below /sys/devices.
    pub fn by_path(&self, path: &str) -> Option<PathBuf> {
        let inside = Path::new(path).strip_prefix("/sys").ok()?;
        let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        (is_plain && inside.starts_with("devices")).then(|| self.root.join(inside))
    }
}

/// The driver that the device in `folder` is bound to.
pub fn driver(folder: &Path) -> Option<String> {
    let target = fs::read_link(folder.join("driver")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The driver, if it is a user-space driver.
pub fn user_space_driver(folder: &Path) -> Option<String> {
    driver(folder).filter(|driver| USER_SPACE_DRIVERS.contains(&driver.as_str()))
}

/// The names of the links of the device in `folder`. The links of a virtio device are one folder deeper.
pub fn links(folder: &Path) -> Vec<String> {
    let own = names(&folder.join("net"));
    if !own.is_empty() {
        return own;
    }
    let inner = names(folder).into_iter().filter(|name| name.starts_with("virtio"));
    inner.flat_map(|name| names(&folder.join(name).join("net"))).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    all
}

/// Whether `id` is a single path component that does not leave its folder.
fn is_plain(id: &str) -> bool {
    let mut parts = Path::new(id).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == id)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(name: &str) -> Sysfs {
        let root = std::env::temp_dir().join(format!("podwire-sysfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in [
            "bus/pci/devices/0000:00:19.0/net/ens1",
            "bus/pci/devices/0000:00:1a.0/virtio3/net/ens2",
            "bus/pci/devices/0000:00:1b.0",
            "bus/auxiliary/devices/mlx5_core.sf.4/net/sf4",
            "devices/pci0000:00/0000:00:19.0/net/ens1",
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (device, driver) in [("0000:00:19.0", "e1000e"), ("0000:00:1b.0", "vfio-pci")] {
            let at = root.join("bus/pci/devices").join(device).join("driver");
            symlink(format!("../../../../bus/pci/drivers/{driver}"), at).unwrap();
        }
        Sysfs { root }
    }

    #[test]
    fn devices_are_found_on_their_bus_with_their_links_and_drivers() {
        let sysfs = tree("find");
        for (id, expected, user_space) in [
            ("0000:00:19.0", vec!["ens1"], None),
            ("0000:00:1a.0", vec!["ens2"], None),
            ("0000:00:1b.0", vec![], Some("vfio-pci")),
            ("mlx5_core.sf.4", vec!["sf4"], None),
        ] {
            let folder = sysfs.find(id).unwrap();
            assert_eq!(links(&folder), expected, "{id}");
            assert_eq!(user_space_driver(&folder).as_deref(), user_space, "{id}");
        }
        assert_eq!(driver(&sysfs.find("0000:00:19.0").unwrap()).as_deref(), Some("e1000e"));
        fs::remove_dir_all(sysfs.root).unwrap();
    }

    #[test]
    fn ids_and_paths_cannot_leave_the_tree() {
        let sysfs = tree("out");
        for id in ["", ".", "..", "../devices/0000:00:19.0", "0000:00:19.0/net", "/etc", "0000:00:ff.0"] {
            assert_eq!(sysfs.find(id), None, "{id}");
        }
        for path in
            ["/etc", "devices/pci0000:00", "/sys/class/net", "/sys/devices/../../etc", "/sysdevices/x"]
        {
            assert_eq!(sysfs.by_path(path), None, "{path}");
        }
        let folder = sysfs.by_path("/sys/devices/pci0000:00/0000:00:19.0").unwrap();
        assert_eq!(links(&folder), ["ens1"]);
        fs::remove_dir_all(sysfs.root).unwrap();
    }
}
