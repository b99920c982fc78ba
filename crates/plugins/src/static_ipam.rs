//! static: returns the addresses of the config or the runtime, and keeps no state.
//!
//! The administrator must ensure that no two pods have the same address. Sources of addresses, later ones override
//! earlier ones:
//! - `ipam.addresses`, each with its gateway;
//! - `CNI_ARGS`: `IP=` adds addresses (with prefix lengths, separated by commas), `GATEWAY=` sets the gateway of
//!   every address whose subnet it is in;
//! - `args.cni.ips`, then `runtimeConfig.ips`: replace all addresses.
//!
//! A replacement names no gateway. The reference plugin therefore leaves such pods without a default route. Here an
//! address keeps the gateway of the address that it replaces if both are in the same subnet.

use std::net::IpAddr;

use podwire_cni_plugin::{Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{addr, capability, Attachment, Dns, Error, Ip, Route, Version};
use serde::Deserialize;

/// The plugin.
#[derive(Debug)]
pub struct Static;

impl Plugin for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn about(&self) -> &'static str {
        "static: assigns the addresses of the config"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS, crate::keys::IPAM_ROUTES]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        read(req)
    }

    /// Keeps no state.
    fn del(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let (wanted, prev) = (read(req)?, req.recorded()?);
        let compared = wanted.ips.iter().map(|ip| compare(ip, prev, &req.ifname));
        // No repair: the config has another address now, which only a new attachment gets.
        Ok(compared.filter_map(Result::err).map(Finding::from).collect())
    }

    /// Keeps no state.
    fn gc(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        read(req).map(drop)
    }
}

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &[
    "ipam.addresses[].address",
    "ipam.addresses[].gateway",
    "args.cni.ips",
    "runtimeConfig.ips",
    "ipam.dns.nameservers",
    "ipam.dns.domain",
    "ipam.dns.search",
    "ipam.dns.options",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Section>,
    args: Option<Arguments>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Section {
    addresses: Vec<Address>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Deserialize)]
struct Address {
    #[serde(default)]
    address: String,
    #[serde(default, with = "addr::optional_ip")]
    gateway: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    cni: ForCni,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ForCni {
    ips: Vec<String>,
}

/// Combines the config, the arguments and the runtime's addresses.
fn read(req: &Request<'_>) -> Result<Attachment> {
    let document: Document = req.config()?;
    let missing = || Error::invalid_config("IPAM config missing 'ipam' key");
    let Section { addresses, routes, dns } = document.ipam.ok_or_else(missing)?;
    let mut ips = Vec::with_capacity(addresses.len());
    for (i, Address { address, gateway }) in addresses.iter().enumerate() {
        let ip = parse(address, ADDRESS, || format!("ipam.addresses[{i}].address"))?;
        ips.push(Ip { gateway: *gateway, ..ip });
    }
    add_arguments(req, &mut ips)?;
    let of_args = document.args.unwrap_or_default().cni.ips;
    for (key, texts) in [("args.cni.ips", of_args), ("runtimeConfig.ips", capability::ips(&req.config)?)] {
        replace(key, &texts, &mut ips)?;
    }
    one_of_each_family(req.version, &ips)?;
    Ok(Attachment { ips, routes, dns, ..Attachment::default() })
}

/// Adds the addresses and gateways of `CNI_ARGS`.
fn add_arguments(req: &Request<'_>, ips: &mut Vec<Ip>) -> Result<()> {
    req.args.check_known(&["IP", "GATEWAY"])?;
    let list = |key: &str| {
        req.args.get(key).filter(|list| !list.is_empty()).into_iter().flat_map(|list| list.split(','))
    };
    for text in list("IP") {
        ips.push(parse(text.trim(), IP, || "IP in CNI_ARGS".into())?);
    }
    for text in list("GATEWAY") {
        let refused = |_| {
            Error::env(format!("invalid gateway address: {text}")).with_hint("correct GATEWAY in CNI_ARGS")
        };
        let gateway = addr::parse_ip(text.trim()).map_err(refused)?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    Ok(())
}

/// Replaces all addresses, unless the list is empty.
fn replace(key: &str, texts: &[String], ips: &mut Vec<Ip>) -> Result<()> {
    if texts.is_empty() {
        return Ok(());
    }
    let mut replaced = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let ip = parse(text, IPS, || format!("{key}[{i}]"))?;
        replaced.push(Ip { gateway: inherited(&ip, ips), ..ip });
    }
    *ips = replaced;
    Ok(())
}

/// The gateway of a replaced address in the same subnet, else any gateway in the subnet.
fn inherited(ip: &Ip, replaced: &[Ip]) -> Option<IpAddr> {
    let is_same_subnet = |old: &&Ip| old.address.trunc() == ip.address.trunc();
    let is_usable = |gateway: &IpAddr| *gateway != ip.address.addr();
    let of_subnet = replaced.iter().filter(is_same_subnet).find_map(|old| old.gateway.filter(is_usable));
    let is_in_subnet = |gateway: &IpAddr| ip.address.contains(gateway) && is_usable(gateway);
    of_subnet.or_else(|| replaced.iter().find_map(|old| old.gateway.filter(is_in_subnet)))
}

/// The texts of the Go plugin for an address without a prefix length, by where it is written.
const ADDRESS: &str = "the 'address' field is expected to be in CIDR notation";
const IP: &str = "the 'ip' field is expected to be in CIDR notation";
const IPS: &str = "an entry in the 'ips' field is NOT in CIDR notation";

fn parse(text: &str, problem: &str, key: impl Fn() -> String) -> Result<Ip> {
    let refused = |error: Error| {
        Error::invalid_config(format!("{problem}, got: '{text}'")).with_hint(format!(
            "{}: {}",
            key(),
            error.msg
        ))
    };
    Ok(Ip::new(addr::parse_net(text).map_err(refused)?))
}

fn one_of_each_family(version: Version, ips: &[Ip]) -> Result<()> {
    let v4 = ips.iter().filter(|ip| ip.address.addr().is_ipv4()).count();
    if version >= Version::V0_3_0 || (v4 <= 1 && ips.len() - v4 <= 1) {
        return Ok(());
    }
    let text = format!("CNI version {version} does not support more than 1 address per family");
    Err(Error::invalid_config(text).with_hint("raise cniVersion to 0.3.0 or later").into())
}

/// Fails if an address of the config is not in the recorded result with its gateway.
fn compare(ip: &Ip, prev: &Attachment, ifname: &str) -> Result<()> {
    let address = ip.address.addr();
    let Some(found) = prev.ips.iter().find(|prev| prev.address.addr() == address) else {
        let text =
            format!("static: Failed to find address added by conf {} on interface {ifname}", ip.address);
        let hint = "the config may have changed since ADD: recreate the pod";
        return Err(Error::invalid_config(text).with_hint(hint).into());
    };
    match (ip.gateway, found.gateway) {
        (Some(wanted), found) if found != Some(wanted) => {
            let text = format!("static: Failed to match addr {address} on interface {ifname}");
            let found = found.map_or("none".into(), |gateway| gateway.to_string());
            let hint = format!("its gateway should be {wanted} and prevResult has {found}");
            Err(Error::invalid_config(text).with_hint(hint).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::{Command, Registry};
    use podwire_cni_spec::{Args, NetworkName};
    use serde_json::{json, Value};

    use super::*;

    fn request(config: Value, args: &str) -> Request<'static> {
        let version = config["cniVersion"].as_str().map_or(Some(Version::V1_0_0), Version::parse);
        Request {
            command: Command::Add,
            container: "c1".into(),
            ifname: "eth0".into(),
            netns: None,
            args: Args::parse(args).unwrap(),
            path: Vec::new(),
            network: NetworkName::parse("pods").unwrap(),
            version: version.unwrap(),
            prev: None,
            config: config.into(),
            registry: Registry::none(),
            busy: Vec::new(),
            signed_only: false,
            callers: Vec::new(),
            deadline: None,
            trace: Vec::new(),
        }
    }

    /// Each address with its gateway.
    fn ips(config: Value, args: &str) -> Vec<String> {
        let result = Static.add(&request(config, args)).unwrap();
        let gateway = |ip: &Ip| ip.gateway.map_or("-".to_owned(), |gateway| gateway.to_string());
        result.ips.iter().map(|ip| format!("{} {}", ip.address, gateway(ip))).collect()
    }

    fn refused(config: Value, args: &str) -> (u32, String) {
        let error = Static.add(&request(config, args)).unwrap_err().to_cni();
        (error.code, error.msg)
    }

    fn both() -> Value {
        json!({"name": "pods", "ipam": {"type": "static", "addresses": [
            {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"Address": "fd00::5/64", "Gateway": "fd00::1"},
        ]}})
    }

    #[test]
    fn the_config_is_the_result() {
        let mut config = both();
        config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}]);
        config["ipam"]["dns"] = json!({"nameservers": ["192.0.2.53"], "domain": "example.net"});
        let result = Static.add(&request(config, "")).unwrap().to_json(Version::V0_4_0).unwrap();
        assert_eq!(
            result,
            json!({
                "cniVersion": "0.4.0",
                "ips": [
                    {"version": "4", "address": "10.1.0.5/24", "gateway": "10.1.0.1"},
                    {"version": "6", "address": "fd00::5/64", "gateway": "fd00::1"},
                ],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}],
                "dns": {"nameservers": ["192.0.2.53"], "domain": "example.net"},
            })
        );
    }

    #[test]
    fn arguments_add_addresses_and_gateways() {
        let args = "IP=10.2.0.7/16, fd01::7/64;GATEWAY=10.2.0.1,fd01::1,10.1.0.254";
        let all =
            ["10.1.0.5/24 10.1.0.254", "fd00::5/64 fd00::1", "10.2.0.7/16 10.2.0.1", "fd01::7/64 fd01::1"];
        assert_eq!(ips(both(), args), all);
        assert_eq!(ips(json!({"ipam": {}}), "IP=10.2.0.7/16"), ["10.2.0.7/16 -"]);
        assert_eq!(ips(json!({"ipam": {}}), "IP=;IgnoreUnknown=1;X=1"), [""; 0]);
    }

    #[test]
    fn the_runtime_replaces_addresses_and_keeps_gateways_that_fit() {
        let mut config = both();
        config["args"] = json!({"cni": {"ips": ["10.1.0.8/24", "10.9.0.8/24"]}});
        assert_eq!(ips(config.clone(), ""), ["10.1.0.8/24 10.1.0.1", "10.9.0.8/24 -"]);
        config["runtimeConfig"] = json!({"ips": ["10.1.0.9/16"]});
        assert_eq!(ips(config, ""), ["10.1.0.9/16 10.1.0.1"]);
        let mut config = both();
        config["runtimeConfig"] = json!({"ips": ["10.3.0.9/24", "10.1.0.1/24", "fd00::9/64"]});
        assert_eq!(ips(config, ""), ["10.3.0.9/24 -", "10.1.0.1/24 -", "fd00::9/64 fd00::1"]);
    }

    #[test]
    fn invalid_values_are_refused_with_their_key() {
        let hint = |config: Value, args: &str| Static.add(&request(config, args)).unwrap_err().to_cni().hint;
        let reason =
            "invalid CIDR address: \"10.1.0.5\" (expected an address and a prefix length, like 10.1.0.5/16)";
        let config = json!({"ipam": {"addresses": [{"address": "10.1.0.5"}]}});
        assert_eq!(hint(config, ""), format!("ipam.addresses[0].address: {reason}"));
        assert_eq!(hint(both(), "IP=10.1.0.5"), format!("IP in CNI_ARGS: {reason}"));
        let mut config = both();
        config["runtimeConfig"] = json!({"ips": ["10.1.0.6/24", "10.1.0.5"]});
        assert_eq!(hint(config, ""), format!("runtimeConfig.ips[1]: {reason}"));
        let mut config = both();
        config["args"] = json!({"cni": {"ips": ["10.1.0.5"]}});
        assert_eq!(hint(config, ""), format!("args.cni.ips[0]: {reason}"));
        assert_eq!(refused(both(), "MAC=x").1, "ARGS: unknown args [\"MAC=x\"]");
        assert_eq!(refused(json!({}), ""), (7, "IPAM config missing 'ipam' key".into()));
        let config = json!({"ipam": {"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]}});
        assert_eq!(refused(config, "").1, "ipam.addresses[0].gateway: invalid IP address: \"x\"");
    }

    #[test]
    fn old_versions_have_one_address_of_each_family() {
        let mut config = both();
        config["cniVersion"] = json!("0.2.0");
        assert_eq!(ips(config.clone(), "").len(), 2);
        let text = "CNI version 0.2.0 does not support more than 1 address per family";
        assert_eq!(refused(config, "IP=10.2.0.7/16"), (7, text.into()));
    }

    #[test]
    fn check_compares_with_the_recorded_result() {
        let mut req = request(both(), "");
        let report = |req: &Request<'_>| Finding::report(Static.inspect(req)?);
        let check = |req: &Request<'_>| report(req).map_err(|error| error.to_cni().msg);
        assert_eq!(check(&req), Err("Required prevResult missing".into()));
        req.prev = Some(Static.add(&req).unwrap());
        assert_eq!(check(&req), Ok(()));
        req.prev.as_mut().unwrap().ips[1].gateway = None;
        assert_eq!(check(&req), Err("static: Failed to match addr fd00::5 on interface eth0".into()));
        req.prev.as_mut().unwrap().ips.remove(0);
        let text = "static: Failed to find address added by conf 10.1.0.5/24 on interface eth0; \
                    static: Failed to match addr fd00::5 on interface eth0";
        assert_eq!(check(&req), Err(text.into()), "every difference is reported");
    }

    #[test]
    fn del_and_gc_do_nothing_and_status_reads_the_config() {
        let broken = request(json!({"ipam": {"addresses": 5}}), "");
        assert!(Static.del(&broken).is_ok() && Static.gc(&broken).is_ok());
        assert_eq!(Static.status(&broken).unwrap_err().to_cni().code, 7);
        assert!(Static.status(&request(both(), "")).is_ok());
    }
}
