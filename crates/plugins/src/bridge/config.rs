//! The bridge plugin's config.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{capability, Dns};
use podwire_kernel::bridge::{Bridge, Vlans};
use podwire_kernel::Mac;
use serde::Deserialize;

use crate::{masquerade, veth_pair};

const MAX_VLAN: i64 = 4094;
const VLAN_IDS: std::ops::RangeInclusive<i64> = 1..=MAX_VLAN;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "bridge",
    "isGateway",
    "isDefaultGateway",
    "forceAddress",
    "ipMasq",
    "ipMasqBackend",
    "mtu",
    "hairpinMode",
    "promiscMode",
    "vlan",
    "vlanTrunk[].id",
    "vlanTrunk[].minID",
    "vlanTrunk[].maxID",
    "preserveDefaultVlan",
    "macspoofchk",
    "enabledad",
    "disableContainerInterface",
    "portIsolation",
    "args.cni.mac",
    "runtimeConfig.mac",
];

/// The config as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Conf {
    pub bridge: String,
    pub is_gateway: bool,
    pub is_default_gateway: bool,
    pub force_address: bool,
    pub ip_masq: bool,
    pub ip_masq_backend: Option<String>,
    pub mtu: u32,
    pub hairpin_mode: bool,
    pub promisc_mode: bool,
    pub vlan: i64,
    pub vlan_trunk: Vec<Trunk>,
    pub preserve_default_vlan: bool,
    pub macspoofchk: bool,
    pub enabledad: bool,
    pub disable_container_interface: bool,
    pub port_isolation: bool,
    pub dns: Dns,
    pub ipam: Option<Ipam>,
    args: Option<Args>,
    /// The VLANs of `vlanTrunk`, checked.
    #[serde(skip)]
    pub trunk: Vec<Vlans>,
}

/// One entry of `vlanTrunk`: an id, or a range, or both.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Trunk {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ipam {
    r#type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Option<ArgsCni>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ArgsCni {
    mac: String,
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

/// With a text of the Go plugin.
fn refuse<T>(text: impl Into<String>, hint: impl Into<String>) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into())
}

impl Conf {
    /// Reads and checks the config.
    pub fn read(req: &Request<'_>) -> Result<Conf> {
        let mut conf: Conf = req.config()?;
        if conf.bridge.is_empty() {
            conf.bridge = "cni0".into();
        }
        podwire_cni_spec::IfName::parse(&conf.bridge)
            .map_err(|error| podwire_cni_spec::Error::invalid_config(format!("bridge: {}", error.msg)))?;
        conf.is_gateway |= conf.is_default_gateway;
        masquerade::check_backend(&conf.ip_masq_backend)?;
        veth_pair::check_mtu(conf.mtu)?;
        if conf.hairpin_mode && conf.promisc_mode {
            return refuse(
                "cannot set hairpin mode and promiscuous mode at the same time",
                "remove hairpinMode or promiscMode",
            );
        }
        if !(0..=MAX_VLAN).contains(&conf.vlan) {
            let text = format!("invalid VLAN ID {} (must be between 0 and {MAX_VLAN})", conf.vlan);
            return refuse(text, "correct vlan");
        }
        if conf.disable_container_interface && conf.has_ipam() {
            return refuse(
                "cannot use IPAM when DisableContainerInterface flag is set",
                "remove ipam or disableContainerInterface",
            );
        }
        for (n, trunk) in conf.vlan_trunk.iter().enumerate() {
            conf.trunk.extend(trunk.vlans(n)?);
        }
        if let Some(name) = conf.gateway_link_name() {
            podwire_cni_spec::IfName::parse(&name).map_err(|error| {
                let text = format!("bridge, vlan: the VLAN's gateway would be {name:?}: {}", error.msg);
                podwire_cni_spec::Error::invalid_config(text)
            })?;
        }
        conf.mac(req)?;
        Ok(conf)
    }

    pub fn has_ipam(&self) -> bool {
        self.ipam.as_ref().is_some_and(|ipam| !ipam.r#type.is_empty())
    }

    /// Whether pods may send frames with a VLAN tag.
    pub fn is_trunk(&self) -> bool {
        !self.vlan_trunk.is_empty()
    }

    pub fn uses_vlans(&self) -> bool {
        self.vlan != 0 || !self.trunk.is_empty()
    }

    /// The name of the link that has the gateway's address of a VLAN, if the config asks for one.
    pub fn gateway_link_name(&self) -> Option<String> {
        (self.is_gateway && self.vlan != 0).then(|| format!("{}.{}", self.bridge, self.vlan))
    }

    /// The desired bridge.
    pub fn bridge(&self) -> Bridge<'_> {
        Bridge {
            name: &self.bridge,
            mtu: self.mtu,
            promiscuous: self.promisc_mode,
            vlan_filtering: self.uses_vlans(),
        }
    }

    /// The requested hardware address: from the runtime, from `args`, or from `CNI_ARGS`, in this order.
    pub fn mac(&self, req: &Request<'_>) -> Result<Option<Mac>> {
        let by_runtime = capability::mac(&req.config)?.filter(|mac| !mac.is_empty());
        let by_args = self.args.as_ref().and_then(|args| args.cni.as_ref()).map(|cni| cni.mac.clone());
        let wanted = by_runtime
            .or(by_args.filter(|mac| !mac.is_empty()))
            .or_else(|| req.args.get("MAC").map(str::to_string))
            .filter(|mac| !mac.is_empty());
        let Some(text) = wanted else { return Ok(None) };
        match text.parse::<Mac>() {
            Ok(mac) if mac.is_usable() => Ok(Some(mac)),
            Ok(mac) => invalid(format!("mac: {mac} is a group's address, an interface cannot have it")),
            Err(error) => invalid(format!("mac: {error}")),
        }
    }
}

impl Trunk {
    fn vlans(&self, n: usize) -> Result<Vec<Vlans>> {
        let key = format!("vlanTrunk[{n}]");
        let range = format!("it must be 1 to {MAX_VLAN}");
        let between = match (self.min_id, self.max_id) {
            (Some(min), _) if !VLAN_IDS.contains(&min) => {
                return refuse("incorrect trunk minID parameter", format!("{key}.minID is {min}: {range}"))
            }
            (_, Some(max)) if !VLAN_IDS.contains(&max) => {
                return refuse("incorrect trunk maxID parameter", format!("{key}.maxID is {max}: {range}"))
            }
            (Some(min), Some(max)) if min <= max => Some((min, max)),
            (Some(min), Some(max)) => {
                let hint = format!("{key}: minID is {min}, maxID is {max}");
                return refuse("minID is greater than maxID in trunk parameter", hint);
            }
            (None, None) => None,
            (min, _) => {
                let missing = if min.is_none() { "minID" } else { "maxID" };
                let text =
                    format!("minID and maxID should be configured simultaneously, {missing} is missing");
                return refuse(text, key);
            }
        };
        if let Some(id) = self.id.filter(|id| !VLAN_IDS.contains(id)) {
            return refuse("incorrect trunk id parameter", format!("{key}.id is {id}: {range}"));
        }
        let ids: Vec<_> = self.id.map(|id| (id, id)).into_iter().chain(between).collect();
        if ids.is_empty() {
            return invalid(format!("{key}: give id, or minID and maxID"));
        }
        Ok(ids
            .iter()
            .map(|(first, last)| Vlans { first: *first as u16, last: *last as u16, native: false })
            .collect())
    }
}
