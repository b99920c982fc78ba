//! The config of host-local: ranges, requested addresses, and the data folder.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::capability::{self, IpRange};
use podwire_cni_spec::{addr, code, json, Dns, Error, Route, Version};
use podwire_ipam::{range_sets, RangeSet, RangeSpec};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{resolv, store};

/// The default data folder, that of the reference plugin.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// The keys of a pod in `CNI_ARGS`.
const POD_NAMESPACE: &str = "K8S_POD_NAMESPACE";
const POD_NAME: &str = "K8S_POD_NAME";

/// `NAME_MAX` of linux/limits.h.
const MAX_NAME: usize = 255;

/// The parsed config.
#[derive(Debug)]
pub(super) struct Config {
    /// `<dataDir>/<network>`.
    pub(super) folder: PathBuf,
    /// A pod gets one address from each.
    pub(super) sets: Vec<RangeSet>,
    /// The requested address of each set.
    pub(super) requested: Vec<Option<IpAddr>>,
    /// The pod's routes.
    pub(super) routes: Vec<Route>,
    /// For how many seconds a released address is not assigned again.
    pub(super) cooldown: u64,
    /// Whether pods get the addresses that they had before.
    pub(super) sticky: bool,
    /// The pod's name, if `sticky` is set and the runtime passes it.
    pub(super) pod: Option<String>,
    resolv_conf: PathBuf,
}

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "ipam.subnet",
    "ipam.rangeStart",
    "ipam.rangeEnd",
    "ipam.gateway",
    "ipam.rangeFromFile",
    "ipam.resolvConf",
    "ipam.dataDir",
    "ipam.exclude",
    "ipam.reserve",
    "ipam.cooldown",
    "ipam.sticky",
    "ipam.ranges[][].subnet",
    "ipam.ranges[][].rangeStart",
    "ipam.ranges[][].rangeEnd",
    "ipam.ranges[][].gateway",
    "ipam.ranges[][].exclude",
    "ipam.ranges[][].reserve",
    "runtimeConfig.ipRanges",
    "runtimeConfig.ips",
    "args.cni.ips",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Section>,
    args: Option<Arguments>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Section {
    #[serde(with = "addr::optional_net")]
    subnet: Option<IpNet>,
    #[serde(with = "addr::optional_ip")]
    range_start: Option<IpAddr>,
    #[serde(with = "addr::optional_ip")]
    range_end: Option<IpAddr>,
    #[serde(with = "addr::optional_ip")]
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<IpRange>>,
    range_from_file: String,
    routes: Vec<Route>,
    resolv_conf: String,
    data_dir: String,
    exclude: Vec<String>,
    reserve: Vec<String>,
    #[serde(deserialize_with = "seconds")]
    cooldown: u64,
    sticky: bool,
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

impl Config {
    /// Reads and checks the whole config.
    pub(super) fn read(req: &Request<'_>) -> Result<Config> {
        let document: Document = req.config()?;
        let missing = || Error::invalid_config("IPAM config missing 'ipam' key");
        let section = document.ipam.ok_or_else(missing)?;
        check_folder(req, &section)?;
        let known: &[&str] = if section.sticky { &["IP", POD_NAMESPACE, POD_NAME] } else { &["IP"] };
        req.args.check_known(known)?;
        let requested = requested(req, &document.args.unwrap_or_default().cni.ips)?;
        let sets = range_sets(specs(req, &section)?)
            .map_err(|error| Error::invalid_config(error.to_string()).with_hint(error.hint()))?;
        one_of_each_family(req.version, &sets)?;
        Ok(Config {
            folder: folder(req),
            requested: distribute(requested, &sets)?,
            sets,
            routes: section.routes,
            cooldown: section.cooldown,
            sticky: section.sticky,
            pod: pod(req).filter(|_| section.sticky),
            resolv_conf: section.resolv_conf.into(),
        })
    }

    /// The name servers of the file `resolvConf`.
    pub(super) fn dns(&self) -> Result<Dns> {
        if self.resolv_conf.as_os_str().is_empty() {
            return Ok(Dns::default());
        }
        match fs::read(&self.resolv_conf) {
            Ok(bytes) => Ok(resolv::parse(&String::from_utf8_lossy(&bytes))),
            Err(error) => Err(store::io_error("ipam.resolvConf: open", &self.resolv_conf)(error)),
        }
    }
}

/// The network's folder, even if the rest of the config is invalid: DEL must find what an earlier config left.
pub(super) fn folder(req: &Request<'_>) -> PathBuf {
    let data_dir =
        json::get(&req.config, "ipam").and_then(|ipam| json::get(ipam, "dataDir")).and_then(Value::as_str);
    Path::new(data_dir.filter(|text| !text.is_empty()).unwrap_or(DATA_DIR)).join(req.network.as_str())
}

/// Whether `cooldown` is set. An invalid value counts as not set.
pub(super) fn has_cooldown(req: &Request<'_>) -> bool {
    let cooldown = json::get(&req.config, "ipam").and_then(|ipam| json::get(ipam, "cooldown"));
    cooldown.and_then(|value| seconds(value.clone()).ok()).is_some_and(|seconds| seconds > 0)
}

/// `<namespace>/<pod>/<interface>`, which stays the same when the container is replaced.
fn pod(req: &Request<'_>) -> Option<String> {
    let word = |text: &&str| !text.is_empty() && !text.contains(char::is_whitespace);
    let (namespace, name) = (req.args.get(POD_NAMESPACE).unwrap_or("default"), req.args.get(POD_NAME)?);
    Some([namespace, name])
        .filter(|words| words.iter().all(word))
        .map(|_| format!("{namespace}/{name}/{}", req.ifname))
}

/// Seconds as a number, or a duration in Go's syntax: `90`, `"90"`, `"90s"`, `"5m"`, `"1h30m"`.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let read = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok().or_else(|| duration(text)),
        _ => None,
    };
    read.ok_or_else(|| {
        D::Error::custom(format_args!(
            "{value} is not a duration: write seconds, or \"90s\", \"5m\", \"1h30m\""
        ))
    })
}

fn duration(text: &str) -> Option<u64> {
    let mut sum = 0u64;
    let mut rest = Some(text).filter(|text| !text.is_empty())?;
    while !rest.is_empty() {
        let unit = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..unit].parse().ok()?;
        let factor = match rest[unit..].chars().next()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(factor)?)?;
        rest = &rest[unit + 1..];
    }
    Some(sum)
}

/// Fails if the folder's path is not possible.
fn check_folder(req: &Request<'_>, section: &Section) -> Result<()> {
    if section.data_dir.contains('\0') {
        let text = format!("ipam.dataDir: {:?} is not a path, it contains a NUL byte", section.data_dir);
        return Err(Error::invalid_config(text).into());
    }
    if req.network.len() > MAX_NAME {
        let text = format!(
            "name: it has {} bytes and names a folder, for which at most {MAX_NAME} are possible",
            req.network.len()
        );
        return Err(Error::invalid_config(text).into());
    }
    Ok(())
}

/// Whether only the runtime passes ranges, at ADD.
pub(super) fn has_ranges_from_runtime(req: &Request<'_>) -> bool {
    let capability = json::get(&req.config, "capabilities").and_then(|all| json::get(all, "ipRanges"));
    let section = json::get(&req.config, "ipam");
    let has = |key: &str| section.is_some_and(|section| json::get(section, key).is_some());
    capability == Some(&Value::Bool(true)) && !has("subnet") && !has("ranges") && !has("rangeFromFile")
}

/// All ranges: the runtime's first, then the one of `ipam` itself, then `ipam.ranges`.
fn specs(req: &Request<'_>, section: &Section) -> Result<Vec<Vec<RangeSpec>>> {
    let sets = |key: &str, sets: &[Vec<IpRange>]| -> Vec<Vec<RangeSpec>> {
        let set = |(i, set): (usize, &Vec<IpRange>)| {
            set.iter().enumerate().map(|(j, range)| spec(format!("{key}[{i}][{j}]"), range)).collect()
        };
        sets.iter().enumerate().map(set).collect()
    };
    let mut specs = sets("runtimeConfig.ipRanges", &capability::ip_ranges(&req.config)?);
    if let Some(subnet) = section.subnet {
        let Section { range_start: start, range_end: end, gateway, .. } = *section;
        let (exclude, reserve) = (section.exclude.clone(), section.reserve.clone());
        specs.push(vec![RangeSpec { key: "ipam".into(), subnet, start, end, gateway, exclude, reserve }]);
    } else if !section.exclude.is_empty() || !section.reserve.is_empty() {
        let text = "ipam.exclude, ipam.reserve: they need ipam.subnet, the range that they belong to";
        return Err(Error::invalid_config(text).with_details("move them into a range of ipam.ranges").into());
    }
    specs.extend(sets("ipam.ranges", &section.ranges));
    if specs.is_empty() && !section.range_from_file.is_empty() {
        specs.push(vec![from_file(&section.range_from_file)?]);
    }
    if specs.is_empty() {
        let hint = "set ipam.subnet, ipam.ranges or ipam.rangeFromFile";
        return Err(Error::invalid_config("no IP ranges specified").with_hint(hint).into());
    }
    Ok(specs)
}

fn spec(key: String, range: &IpRange) -> RangeSpec {
    RangeSpec {
        key,
        subnet: range.subnet,
        start: range.range_start,
        end: range.range_end,
        gateway: range.gateway,
        exclude: range.exclude.clone(),
        reserve: range.reserve.clone(),
    }
}

/// The range of a file that another program on the node writes, such as an agent that knows the node's subnet.
fn from_file(path: &str) -> Result<RangeSpec> {
    let bytes = fs::read(path)
        .map_err(|error| Error::new(code::IO, format!("failed to read rangeFromFile {path:?}: {error}")))?;
    let range = json::parse(&bytes).and_then(|value| json::decode::<IpRange>(&value));
    let range = range.map_err(|error| {
        let text = format!("failed to parse rangeFromFile {path:?} as a Range: {}", error.msg);
        Error::invalid_config(text).with_details("it must hold an object like {\"subnet\": \"10.1.0.0/24\"}")
    })?;
    Ok(spec(format!("ipam.rangeFromFile {path:?}"), &range))
}

fn one_of_each_family(version: Version, sets: &[RangeSet]) -> Result<()> {
    let v4 = sets.iter().filter(|set| set.family().is_v4()).count();
    if version >= Version::V0_3_0 || (v4 <= 1 && sets.len() - v4 <= 1) {
        return Ok(());
    }
    let text = format!("CNI version {version} does not support more than 1 address per family");
    Err(Error::invalid_config(text).with_hint("raise cniVersion to 0.3.0 or later").into())
}

/// The requested addresses of `CNI_ARGS`, of `args` in the config, and of the runtime.
fn requested(req: &Request<'_>, args: &[String]) -> Result<Vec<IpAddr>> {
    let mut requested = Vec::new();
    if let Some(text) = req.args.get("IP").filter(|text| !text.is_empty()) {
        let refused = |_| {
            Error::env(format!("ARGS: error parsing value of pair \"IP={text}\": invalid IP address {text}"))
                .with_details("CNI_ARGS takes one address, with or without a prefix length")
        };
        requested.push(parse(text).map_err(refused)?);
    }
    let runtime = capability::ips(&req.config)?;
    for (key, list) in [("args.cni.ips", args), ("runtimeConfig.ips", &runtime)] {
        for (i, text) in list.iter().enumerate() {
            let refused = |error: Error| Error { msg: format!("{key}[{i}]: {}", error.msg), ..error };
            requested.push(parse(text).map_err(refused)?);
        }
    }
    let mut seen = std::collections::HashSet::new();
    requested.retain(|ip| seen.insert(*ip));
    Ok(requested)
}

/// An address with or without prefix length. The length is ignored: the range's subnet has one.
fn parse(text: &str) -> std::result::Result<IpAddr, Error> {
    if text.contains('/') {
        addr::parse_net(text).map(|net| net.addr())
    } else {
        addr::parse_ip(text)
    }
}

/// Assigns each requested address to a set that contains it. Fails if one is left.
fn distribute(mut remaining: Vec<IpAddr>, sets: &[RangeSet]) -> Result<Vec<Option<IpAddr>>> {
    let mut requested = Vec::with_capacity(sets.len());
    for (i, set) in sets.iter().enumerate() {
        let ip = remaining.iter().position(|ip| set.contains(*ip)).map(|at| remaining.remove(at));
        if let Some(ip) = ip.filter(|ip| set.is_gateway(*ip)) {
            let text = format!("failed to allocate for range {i}: requested ip {ip} is subnet's gateway");
            return Err(Error::invalid_config(text).with_hint("request another address").into());
        }
        if let Some(ip) = ip.filter(|ip| set.excludes(*ip)) {
            let text = format!("failed to allocate for range {i}: requested ip {ip} is excluded (exclude)");
            return Err(Error::invalid_config(text).with_details("request another address").into());
        }
        requested.push(ip);
    }
    if remaining.is_empty() {
        return Ok(requested);
    }
    let list: Vec<String> = remaining.iter().map(IpAddr::to_string).collect();
    let all: Vec<String> = sets.iter().map(RangeSet::to_string).collect();
    let text = format!("failed to allocate all requested IPs: {}", list.join(" "));
    let hint =
        format!("each range set assigns one of its addresses; the range sets are {}", all.join(" and "));
    Err(Error::invalid_config(text).with_hint(hint).into())
}
