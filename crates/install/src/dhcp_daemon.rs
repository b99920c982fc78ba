//! Whether the DHCP daemon that a network needs is there: the dhcp plugin only asks it for a lease, so that every ADD of
//! the network fails without it.
//!
//! On this node a socket has to listen. In an image a systemd unit has to be enabled, or the socket's file be there,
//! where the image is the root of a running node.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use podwire_cni_spec::{json, NetworkList};
use serde_json::Value;

use crate::Root;

/// Where the plugin looks for the daemon.
const SOCKET: &str = "/run/cni/dhcp.sock";
/// systemd's directories of units, in the order of precedence.
const UNIT_DIRS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// The flag of a listening socket in /proc/net/unix (`__SO_ACCEPTCON`, linux/net.h).
const LISTENS: u32 = 1 << 16;

/// The sockets at which the plugins of a network look for the DHCP daemon.
pub fn dhcp_sockets(list: &NetworkList) -> Vec<PathBuf> {
    let plugins = list.plugins.iter().filter(|plugin| plugin.ipam.as_deref() == Some("dhcp"));
    let socket = |raw: Value| {
        let path = json::get(&raw, "ipam").and_then(|ipam| json::get(ipam, "daemonSocketPath"));
        let path = path.and_then(Value::as_str).filter(|path| !path.is_empty());
        PathBuf::from(path.unwrap_or(SOCKET))
    };
    let mut sockets: Vec<_> = plugins.map(|plugin| socket(Value::Object(plugin.raw.clone()))).collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

/// The warning about `networks`, which use the daemon at `socket`. `None` if the daemon is there.
pub fn dhcp_warning(root: &Root, socket: &Path, networks: &[String]) -> Option<String> {
    let units = units(root, socket);
    let unit = units.keys().find(|unit| unit.ends_with(".socket")).or_else(|| units.keys().next());
    let fault = if root.is_of_this_process() {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        if listens(&sockets, socket) {
            return None;
        }
        format!("no DHCP daemon listens at {}", socket.display())
    } else if root.has(socket) || units.values().any(|is_enabled| *is_enabled) {
        return None;
    } else if unit.is_some() {
        "no unit of the DHCP daemon is enabled".to_owned()
    } else {
        "no unit of the DHCP daemon is installed".to_owned()
    };
    let advice = match unit {
        Some(unit) if root.is_of_this_process() => format!("start it with `systemctl enable --now {unit}`"),
        Some(unit) => format!("enable it with `systemctl --root=DIR enable {unit}`"),
        None => "run `podwire dhcp daemon`, or enable podwire-dhcp.socket, which `make install` installs"
            .to_owned(),
    };
    let networks = networks.join(", ");
    Some(format!("{networks}: the network uses the dhcp plugin, and {fault}: {advice}"))
}

/// The units that serve `socket`, and whether systemd starts them.
fn units(root: &Root, socket: &Path) -> BTreeMap<String, bool> {
    let mut units = BTreeMap::new();
    for (name, path) in UNIT_DIRS.iter().flat_map(|dir| files(&root.target(Path::new(dir)))) {
        let is_unit = name.ends_with(".socket") || name.ends_with(".service");
        if is_unit && serves(&fs::read_to_string(&path).unwrap_or_default(), socket) {
            units.entry(name).or_insert(false);
        }
    }
    for (unit, is_enabled) in &mut units {
        *is_enabled = UNIT_DIRS
            .iter()
            .flat_map(|dir| files(&root.target(Path::new(dir))))
            .any(|(name, dir)| name.ends_with(".wants") && fs::symlink_metadata(dir.join(unit)).is_ok());
    }
    units
}

/// Whether a unit has the socket or starts a daemon for it.
fn serves(unit: &str, socket: &Path) -> bool {
    let socket = socket.to_string_lossy();
    unit.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| match key.trim() {
        "ListenStream" => value.trim() == socket,
        "ExecStart" => {
            let words: Vec<&str> = value.split_whitespace().collect();
            let is_daemon = words.windows(2).any(|pair| pair[0].ends_with("dhcp") && pair[1] == "daemon");
            // Without a path the daemon has its default socket, or that of a .socket unit.
            is_daemon && (value.contains(&*socket) || (socket == SOCKET && !value.contains("socket")))
        }
        _ => false,
    })
}

fn files(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}

/// Whether `table`, which is /proc/net/unix, has a listening socket at `path`. A connection would start the daemon.
fn listens(table: &str, path: &Path) -> bool {
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(3);
        let flags = columns.next().and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
        let at = columns.skip(3).collect::<Vec<_>>().join(" ");
        flags & LISTENS != 0 && Path::new(&at) == path
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_sockets_are_those_of_the_configs() {
        let list = |ipam: &str| {
            let text = format!(
                r#"{{"cniVersion":"1.0.0","name":"lan","plugins":[{{"type":"bridge","ipam":{ipam}}}]}}"#
            );
            dhcp_sockets(&NetworkList::parse(text.as_bytes()).unwrap())
        };
        assert_eq!(list(r#"{"type": "dhcp"}"#), [PathBuf::from("/run/cni/dhcp.sock")]);
        assert_eq!(list(r#"{"type": "dhcp", "daemonSocketpath": "/run/x"}"#), [PathBuf::from("/run/x")]);
        assert!(list(r#"{"type": "host-local"}"#).is_empty());
    }

    #[test]
    fn only_a_listening_socket_counts() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/cni/dhcp.sock\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 22 /run/connected.sock\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 23\n";
        assert!(listens(table, Path::new("/run/cni/dhcp.sock")));
        assert!(!listens(table, Path::new("/run/connected.sock")));
        assert!(!listens(table, Path::new("/run/cni")));
    }

    #[test]
    fn an_image_needs_an_enabled_unit() {
        let scratch = Scratch::new();
        let warning = |socket: &str| dhcp_warning(&scratch.root(), Path::new(socket), &["lan".into()]);
        let text = warning(SOCKET).unwrap();
        assert!(text.starts_with(
            "lan: the network uses the dhcp plugin, and no unit of the DHCP daemon is installed"
        ));
        scratch.write(
            "/usr/lib/systemd/system/podwire-dhcp.socket",
            "[Socket]\nListenStream=/run/cni/dhcp.sock\n",
        );
        scratch
            .write("/etc/systemd/system/cni-dhcp.service", "[Service]\nExecStart=/opt/cni/bin/dhcp daemon\n");
        let text = warning(SOCKET).unwrap();
        assert!(
            text.contains("enabled: enable it with `systemctl --root=DIR enable podwire-dhcp.socket`"),
            "{text}"
        );
        scratch.write("/etc/systemd/system/sockets.target.wants/other.socket", "");
        assert!(warning(SOCKET).is_some());
        let link = scratch.path("/etc/systemd/system/sockets.target.wants/podwire-dhcp.socket");
        symlink("/usr/lib/systemd/system/podwire-dhcp.socket", link).unwrap();
        assert_eq!(warning(SOCKET), None);
        assert!(warning("/run/other.sock").unwrap().contains("is installed"));
    }

    #[test]
    fn a_service_serves_the_socket_of_its_flags() {
        let serves = |start: &str, socket: &str| serves(&format!("ExecStart={start}"), Path::new(socket));
        assert!(serves("/usr/local/bin/podwire dhcp daemon", SOCKET));
        assert!(serves("/opt/cni/bin/dhcp daemon -socketpath /run/x", "/run/x"));
        assert!(!serves("/opt/cni/bin/dhcp daemon -socketpath /run/x", SOCKET));
        assert!(!serves("/usr/sbin/dhcpd", SOCKET));
    }
}
