//! The backend of the network config (`Backend` of net-conf.json).

use podwire_ip::IpFamily;
use podwire_overlay::{Alloc, Backend as Overlay, HostGw, Ipip, VtepMac, Vxlan, Wireguard};
use podwire_subnets::NetConf;
use serde::Deserialize;
use serde_json::Value;

use crate::flannel::extension::Extension;
use crate::flannel::settings::Settings;
use crate::{Error, Result};

/// The backends of flannel that this agent supports.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Vxlan(Vxlan),
    HostGw,
    Ipip(Ipip),
    Wireguard(Box<Wireguard>),
    Alloc,
    Extension(Box<Extension>),
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Options {
    #[serde(rename = "VNI")]
    vni: Option<u32>,
    port: u16,
    #[serde(rename = "MTU")]
    mtu: u32,
    #[serde(rename = "GBP")]
    gbp: bool,
    learning: bool,
    direct_routing: bool,
    #[serde(rename = "PSK")]
    psk: String,
    listen_port: Option<u16>,
    #[serde(rename = "ListenPortV6")]
    listen_port_v6: Option<u16>,
    mode: String,
    persistent_keepalive_interval: u16,
    pre_startup_command: String,
    post_startup_command: String,
    subnet_add_command: String,
    subnet_remove_command: String,
}

const KNOWN: &str = "vxlan, direct-or-vxlan, host-gw, ipip, wireguard, alloc, extension";
/// A VNI has 24 bits.
const MAX_VNI: u32 = (1 << 24) - 1;

impl Backend {
    /// Reads the backend of a network config.
    pub fn read(conf: &NetConf, settings: &Settings) -> Result<Backend> {
        let kind = conf.backend_type.as_str();
        let invalid = |why: String| Error::Backend { kind: kind.into(), why };
        let options: Options = podwire_cni_spec::json::decode(&Value::Object(conf.backend.clone()))
            .map_err(|error| invalid(error.msg))?;
        let mtu = (options.mtu > 0).then_some(options.mtu);
        let direct = options.direct_routing;
        Ok(match kind {
            "vxlan" | "direct-or-vxlan" => {
                let vni = options.vni.unwrap_or(1);
                if vni == 0 || vni > MAX_VNI {
                    return Err(invalid(format!("VNI is {vni}: it must be 1 to {MAX_VNI}")));
                }
                let mac = if settings.derived_mac { VtepMac::Derived } else { VtepMac::Keep };
                let (port, gbp, learning) = (options.port, options.gbp, options.learning);
                let direct = direct || kind == "direct-or-vxlan";
                Backend::Vxlan(Vxlan { vni, port, mtu, gbp, learning, direct, mac, ..Vxlan::default() })
            }
            "host-gw" => Backend::HostGw,
            "ipip" => Backend::Ipip(Ipip { mtu, direct }),
            "wireguard" => Backend::Wireguard(Box::new(wireguard(&options, settings, invalid)?)),
            "alloc" => Backend::Alloc,
            "extension" => Backend::Extension(Box::new(Extension {
                pre_startup: options.pre_startup_command,
                post_startup: options.post_startup_command,
                add: options.subnet_add_command,
                remove: options.subnet_remove_command,
                record: settings.extension_record.clone(),
            })),
            "udp" => {
                let why = "it passes every packet through a process and is not supported; use vxlan. \
                     (flannel uses udp if the config names no Backend.)";
                return Err(invalid(why.into()));
            }
            _ => return Err(invalid(format!("it is unknown; supported are {KNOWN}"))),
        })
    }

    /// What computes the routes and tunnels.
    pub fn overlay(&self) -> &dyn Overlay {
        match self {
            Backend::Vxlan(vxlan) => vxlan,
            Backend::HostGw => &HostGw,
            Backend::Ipip(ipip) => ipip,
            Backend::Wireguard(wireguard) => wireguard.as_ref(),
            // The administrator's commands create the routes.
            Backend::Alloc | Backend::Extension(_) => &Alloc,
        }
    }

    /// The names of the tunnel devices.
    pub fn devices(&self) -> Vec<String> {
        match self {
            Backend::Vxlan(vxlan) => vec![vxlan.device(IpFamily::V4), vxlan.device(IpFamily::V6)],
            Backend::Ipip(_) => vec!["flannel.ipip".into()],
            Backend::Wireguard(_) => vec!["flannel-wg".into(), "flannel-wg-v6".into()],
            Backend::HostGw | Backend::Alloc | Backend::Extension(_) => Vec::new(),
        }
    }
}

fn wireguard(options: &Options, settings: &Settings, invalid: impl Fn(String) -> Error) -> Result<Wireguard> {
    use podwire_overlay::wireguard::{parse_key, private_key, Mode};
    let mode = match options.mode.as_str() {
        "" | "separate" => Mode::Separate,
        "auto" => Mode::Auto,
        "ipv4" => Mode::Ipv4,
        "ipv6" => Mode::Ipv6,
        other => return Err(invalid(format!("Mode is {other:?}: it must be separate, auto, ipv4 or ipv6"))),
    };
    let preshared_key = match options.psk.as_str() {
        "" => None,
        text => {
            Some(parse_key(text).ok_or_else(|| invalid("PSK is not a key of 32 bytes in base64".into()))?)
        }
    };
    let defaults = Wireguard::new(private_key(&settings.wireguard_key)?);
    Ok(Wireguard {
        mode,
        preshared_key,
        port: options.listen_port.unwrap_or(defaults.port),
        port_v6: options.listen_port_v6.unwrap_or(defaults.port_v6),
        keepalive: options.persistent_keepalive_interval,
        mtu: (options.mtu > 0).then_some(options.mtu),
        ..defaults
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(backend: &str) -> Result<Backend> {
        let text = format!("{{\"Network\": \"10.244.0.0/16\"{backend}}}");
        Backend::read(&NetConf::parse("test", &text).unwrap(), &Settings::new("one"))
    }

    fn refusal(backend: &str) -> String {
        read(backend).unwrap_err().to_string()
    }

    #[test]
    fn flannels_configs_are_read() {
        let Backend::Vxlan(plain) = read(r#", "Backend": {"Type": "vxlan"}"#).unwrap() else { panic!() };
        assert_eq!(plain, Vxlan::default());
        let options = r#", "backend": {"type": "vxlan", "vni": 7, "port": 4789, "mtu": 1400, "directrouting": true, "GBP": true}"#;
        let Backend::Vxlan(vxlan) = read(options).unwrap() else { panic!() };
        assert_eq!(
            (vxlan.vni, vxlan.port, vxlan.mtu, vxlan.direct, vxlan.gbp),
            (7, 4789, Some(1400), true, true)
        );
        let Backend::Vxlan(either) = read(r#", "Backend": {"Type": "direct-or-vxlan"}"#).unwrap() else {
            panic!()
        };
        assert!(either.direct);
        assert!(matches!(read(r#", "Backend": {"Type": "host-gw"}"#).unwrap(), Backend::HostGw));
        assert!(matches!(read(r#", "Backend": {"Type": "alloc"}"#).unwrap(), Backend::Alloc));
        let commands = r#", "Backend": {"Type": "extension", "PreStartupCommand": "echo me", "SubnetAddCommand": "add $SUBNET"}"#;
        let Backend::Extension(extension) = read(commands).unwrap() else { panic!() };
        assert_eq!((extension.pre_startup.as_str(), extension.add.as_str()), ("echo me", "add $SUBNET"));
    }

    #[test]
    fn an_unsupported_backend_is_rejected_with_a_hint() {
        assert!(refusal("").contains("use vxlan"));
        assert!(
            refusal(r#", "Backend": {"Type": "carrier-pigeon"}"#).contains("vxlan, direct-or-vxlan, host-gw")
        );
        assert!(refusal(r#", "Backend": {"Type": "vxlan", "VNI": 16777216}"#).contains("VNI is 16777216"));
        assert!(refusal(r#", "Backend": {"Type": "vxlan", "Port": "x"}"#).contains("Port"));
    }
}
