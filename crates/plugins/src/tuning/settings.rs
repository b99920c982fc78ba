//! The settings, from the config, `CNI_ARGS`, the runtime's `mac` capability, and `args.cni`. Later ones override
//! earlier ones.

use std::collections::BTreeMap;
use std::path::PathBuf;

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{capability, Error};
use podwire_kernel::Mac;
use serde::Deserialize;

use super::duplicates::DUPLICATED;
use crate::subinterface;

/// The default folder of backups.
pub const DATA_DIR: &str = "/run/cni/tuning";

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "sysctl",
    "mac",
    "mtu",
    "promisc",
    "allmulti",
    "txQLen",
    "dataDir",
    "args.cni.sysctl",
    "args.cni.mac",
    "args.cni.mtu",
    "args.cni.promisc",
    "args.cni.allmulti",
    "args.cni.txQLen",
    "runtimeConfig.mac",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    sysctl: BTreeMap<String, String>,
    mac: String,
    mtu: u32,
    promisc: bool,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue: Option<u32>,
    #[serde(rename = "dataDir")]
    data_dir: String,
    args: Args,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Overrides,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overrides {
    sysctl: BTreeMap<String, String>,
    mac: Option<String>,
    mtu: Option<u32>,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue: Option<u32>,
}

/// The settings of an interface; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// Whether it receives every frame.
    pub promisc: Option<bool>,
    /// Whether it receives every multicast frame.
    pub allmulti: Option<bool>,
    /// The length of the transmit queue in packets.
    pub tx_queue: Option<u32>,
}

impl LinkSettings {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == LinkSettings::default()
    }
}

/// All settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Values by the sysctl's path under `/proc/sys`.
    pub sysctl: BTreeMap<String, String>,
    /// The sysctls' names as written.
    pub written_keys: Vec<String>,
    /// The interface.
    pub link: LinkSettings,
}

impl Settings {
    /// Reads the settings of a request.
    pub fn read(req: &Request<'_>) -> Result<Settings> {
        let conf: Conf = req.config()?;
        req.args.check_known(&["MAC"])?;
        if conf.data_dir.contains('\0') {
            let text = format!("dataDir: {:?} is not a path, it contains a NUL byte", conf.data_dir);
            return Err(Error::invalid_config(text).into());
        }
        let overrides = conf.args.cni;
        let from_env = req.args.get("MAC").filter(|mac| !mac.is_empty()).map(str::to_string);
        let mac = overrides.mac.or(capability::mac(&req.config)?).or(from_env).unwrap_or(conf.mac);
        let link = LinkSettings {
            mac: Some(mac).filter(|mac| !mac.is_empty()).map(|mac| usable(&mac)).transpose()?,
            mtu: Some(overrides.mtu.unwrap_or(conf.mtu)).filter(|mtu| *mtu > 0),
            promisc: overrides.promisc.or(Some(conf.promisc)).filter(|on| *on),
            allmulti: overrides.allmulti.or(conf.allmulti),
            tx_queue: overrides.tx_queue.or(conf.tx_queue),
        };
        let mut sysctl = sysctls(&conf.sysctl, &req.ifname)?;
        sysctl.extend(sysctls(&overrides.sysctl, &req.ifname)?);
        let written_keys = conf.sysctl.into_keys().chain(overrides.sysctl.into_keys()).collect();
        Ok(Settings { sysctl, written_keys, link })
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sysctl.is_empty() && self.link.is_empty()
    }
}

/// The folder of the backups, even if the rest of the config is invalid: DEL and GC need nothing else.
pub fn data_dir(req: &Request<'_>) -> PathBuf {
    let configured = podwire_cni_spec::json::get(&req.config, "dataDir").and_then(|value| value.as_str());
    PathBuf::from(configured.filter(|path| !path.is_empty()).unwrap_or(DATA_DIR))
}

fn usable(text: &str) -> Result<Mac> {
    let wrong = |why: String| Error::invalid_config(format!("invalid args {text} for MAC addr: {why}"));
    let mac = text.parse::<Mac>().map_err(|error| subinterface::invalid_mac(text, &error))?;
    if !mac.is_usable() {
        return Err(wrong("it is all zero or the address of a group".into()).into());
    }
    Ok(mac)
}

/// The sysctls by their paths. Fails for the same sysctl in two spellings.
fn sysctls(written: &BTreeMap<String, String>, ifname: &str) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (key, value) in written {
        if all.insert(path_of(key, ifname)?, value.clone()).is_some() {
            let hint = format!("{key:?} is there in another spelling, too");
            return Err(Error::invalid_config(DUPLICATED).with_hint(hint).into());
        }
    }
    Ok(all)
}

/// `net.ipv4.conf.IFNAME.arp_notify` → `net/ipv4/conf/eth0/arp_notify`. Every dot becomes a slash before the
/// interface's name is inserted, so `..` cannot leave the folder, and an interface's name may contain dots.
fn path_of(key: &str, ifname: &str) -> Result<String> {
    let path: Vec<&str> = key.split(['.', '/']).filter(|part| !part.is_empty()).collect();
    if key.contains('\0') {
        return Err(Error::invalid_config(format!("sysctl: {key:?} contains a NUL byte")).into());
    }
    // Only /proc/sys/net belongs to the namespace; the rest is the node's.
    if path.len() < 2 || path[0] != "net" {
        let text = format!("invalid net sysctl key: {key:?}");
        return Err(Error::invalid_config(text)
            .with_hint("only sysctls under net. are per namespace")
            .into());
    }
    Ok(path.join("/").replacen("IFNAME", ifname, 1))
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::{Command, Registry};
    use serde_json::{json, Value};

    use super::*;

    fn read(mut config: Value, args: &str) -> Result<Settings> {
        config["name"] = json!("net");
        config["cniVersion"] = json!("1.0.0");
        let mut req = Request::new(Command::Gc, &Default::default(), config, Registry::none())?;
        req.ifname = "eth0.7".into();
        req.args = podwire_cni_spec::Args::parse(args)?;
        Settings::read(&req)
    }

    #[test]
    fn keys_become_paths_that_stay_under_net() {
        assert_eq!(
            path_of("net.ipv4.conf.IFNAME.arp_notify", "eth0.7").unwrap(),
            "net/ipv4/conf/eth0.7/arp_notify"
        );
        assert_eq!(path_of("/net/core/somaxconn", "eth0").unwrap(), "net/core/somaxconn");
        assert_eq!(path_of("net.core.IFNAME.IFNAME", "eth0").unwrap(), "net/core/eth0/IFNAME");
        // Dots become slashes, and empty parts are dropped.
        assert_eq!(path_of("net/../kernel/panic", "eth0").unwrap(), "net/kernel/panic");
        for bad in ["", "net", "kernel.panic", "network.x", "../../etc/passwd", "IFNAME.x"] {
            let text = path_of(bad, "net").unwrap_err().to_string();
            assert!(text.starts_with("invalid net sysctl key: "), "{bad}: {text}");
        }
    }

    #[test]
    fn args_cni_overrides_the_hardware_address() {
        let mac = |config: Value, args: &str| read(config, args).unwrap().link.mac.map(|mac| mac.0[5]);
        let mut config = json!({"mac": "02:00:00:00:00:01"});
        assert_eq!(mac(config.clone(), ""), Some(1));
        assert_eq!(mac(config.clone(), "MAC=02:00:00:00:00:02"), Some(2));
        config["runtimeConfig"] = json!({"mac": "02:00:00:00:00:03"});
        assert_eq!(mac(config.clone(), "MAC=02:00:00:00:00:02"), Some(3));
        config["args"] = json!({"cni": {"mac": "02:00:00:00:00:04"}});
        assert_eq!(mac(config, "MAC=02:00:00:00:00:02"), Some(4));
    }

    #[test]
    fn args_cni_overrides_the_other_settings() {
        let config = json!({
            "sysctl": {"net.core.somaxconn": "1"}, "promisc": true, "mtu": 1500, "allmulti": true, "txQLen": 1,
            "args": {"cni": {"sysctl": {"net/core/somaxconn": "2", "net.a.b": "3"},
                "promisc": false, "mtu": 1400, "allmulti": false, "txQLen": 0}},
        });
        let settings = read(config, "").unwrap();
        let values: Vec<_> = settings.sysctl.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(values, [("net/a/b", "3"), ("net/core/somaxconn", "2")]);
        let link =
            LinkSettings { mtu: Some(1400), allmulti: Some(false), tx_queue: Some(0), ..Default::default() };
        assert_eq!(settings.link, link);
        assert!(read(json!({"promisc": false, "mac": "", "args": null}), "").unwrap().is_empty());
    }

    #[test]
    fn invalid_settings_are_refused() {
        let error = |config: Value, args: &str| read(config, args).unwrap_err().to_string();
        assert!(error(json!({"mac": "xx"}), "").starts_with("invalid args xx for MAC addr: "));
        assert!(error(json!({"mac": "01:00:00:00:00:00"}), "").contains("address of a group"));
        let twice = json!({"sysctl": {"net.core.somaxconn": "1", "net/core/somaxconn": "2"}});
        assert!(error(twice, "").starts_with("duplicated sysctl keys are not allowed"));
        assert!(error(json!({}), "FOO=1").contains("unknown args"));
        assert!(read(json!({}), "FOO=1;IgnoreUnknown=1").is_ok());
    }
}
