//! tap: a TAP device in the pod, for a virtual machine or another program that sends and receives frames through a file
//! descriptor. The device is persistent: it stays when the program closes it.

use podwire_cni_plugin::{delegate, Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{capability, Attachment, Dns, Interface, Version};
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::tap::{self, Access};
use podwire_kernel::{detached, Host, Link, Mac, Undo};
use serde::Deserialize;

use crate::{inspection, lease, pod_interface, subinterface, veth_pair};

/// The plugin.
#[derive(Debug)]
pub struct Tap;

/// The keys of the config.
const CONFIG_KEYS: &[&str] =
    &["multiQueue", "mtu", "mac", "runtimeConfig.mac", "owner", "group", "selinuxContext", "bridge"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    multi_queue: bool,
    mtu: u32,
    mac: String,
    /// The user that may open it.
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    /// A bridge in the pod.
    bridge: String,
    dns: Dns,
}

impl Plugin for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn about(&self) -> &'static str {
        "tap: creates a TAP device in a pod, for a virtual machine"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]))
    }

    fn bypasses_host_firewall(&self) -> bool {
        true
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let mut undo = Undo::new();
        let mut pod = req.pod()?;
        let made = conf.create(req, &mut pod, conf.hardware_address(req)?)?;
        undo.push(|| drop(req.pod().map(|mut pod| tap::remove(&mut pod, &req.ifname))));
        let mut result = match delegate::ipam(req) {
            Some(_) => lease::obtain(req, &mut undo)?,
            None => Attachment::default(),
        };
        pod_interface::configure(&mut pod, &made, &result, ANNOUNCED)?;
        result.interfaces = vec![interface(req, &made)];
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
        result.dns = lease::choose_dns(req, &conf.dns, std::mem::take(&mut result.dns));
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        errors.extend(lease::release(req).err());
        errors.extend(remove(req).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let conf = Conf::read(req)?;
        req.recorded()?;
        let mut findings = lease::inspect(req)?;
        let mut pod = req.pod()?;
        match pod.find_link(&req.ifname)? {
            None => findings.push(missing(req)?),
            Some(link) if link.kind != tap::KIND => {
                let kind = if link.kind.is_empty() { "a device" } else { &link.kind };
                findings
                    .push(Finding::new(format!("interface {} is not a TAP device but {kind}", link.name)));
            }
            Some(link) => {
                findings.extend(conf.differences(req, &mut pod, &link)?);
                findings.extend(inspection::pod_interface(req, &mut pod)?);
            }
        }
        Ok(findings)
    }

    /// The kernel deletes the device with the pod's namespace.
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        lease::collect(req)
    }

    /// Fails if TAP devices cannot be created on this node.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        if let Err(error) = std::fs::File::options().read(true).write(true).open(TUN_DEVICE) {
            let text = format!("{TUN_DEVICE} cannot be opened: {error}");
            let hint = "TAP devices need CONFIG_TUN, or the module tun, and that file";
            return Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, text)
                .with_details(hint)
                .into());
        }
        lease::status(req)
    }
}

const TUN_DEVICE: &str = "/dev/net/tun";
const SELINUX: &str = "/sys/fs/selinux/enforce";
/// Hosts behind the device may have cached another owner of an address.
const ANNOUNCED: pod_interface::Options =
    pod_interface::Options { detect_duplicates: false, mac: None, announce: true };

impl Conf {
    fn read(req: &Request<'_>) -> Result<Conf> {
        let conf: Conf = req.config()?;
        veth_pair::check_mtu(conf.mtu)?;
        conf.hardware_address(req)?;
        // A device with another context than requested would be a security hole.
        if !conf.selinux_context.is_empty() && !std::path::Path::new(SELINUX).exists() {
            let text = "selinuxContext: this node has no SELinux";
            return Err(podwire_cni_spec::Error::invalid_config(text).with_details("remove the key").into());
        }
        Ok(conf)
    }

    /// The requested hardware address: from the runtime, from `CNI_ARGS`, or from the config, in this order.
    fn hardware_address(&self, req: &Request<'_>) -> Result<Option<Mac>> {
        let by_runtime = capability::mac(&req.config)?;
        let by_args = || req.args.get("MAC").map(str::to_string);
        let is_given = |mac: &String| !mac.is_empty();
        let wanted = by_runtime.filter(is_given).or_else(|| by_args().filter(is_given));
        let text = wanted.unwrap_or_else(|| self.mac.clone());
        match text.parse::<Mac>() {
            _ if text.is_empty() => Ok(None),
            Ok(mac) if mac.is_usable() => Ok(Some(mac)),
            Ok(mac) => invalid(format!("mac: {mac} is a group's address, an interface cannot have it")),
            Err(error) => Err(subinterface::invalid_mac(&text, &error)),
        }
    }

    fn access(&self) -> Access<'_> {
        let label = Some(self.selinux_context.as_str()).filter(|label| !label.is_empty());
        Access { multi_queue: self.multi_queue, user: self.owner, group: self.group, label }
    }

    /// The bridge of the device. It must already exist in the pod.
    fn find_bridge(&self, pod: &mut Host) -> Result<Option<Link>> {
        if self.bridge.is_empty() {
            return Ok(None);
        }
        match pod.find_link(&self.bridge)? {
            Some(bridge) if bridge.kind == "bridge" => Ok(Some(bridge)),
            Some(other) => {
                invalid(format!("bridge: {:?} in the pod is not a bridge but {}", other.name, other.kind))
            }
            None => {
                let text = format!("bridge: the pod has no bridge {:?}", self.bridge);
                let hint = "the bridge must exist in the pod: create it with a plugin before this one";
                Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into())
            }
        }
    }

    fn create(&self, req: &Request<'_>, pod: &mut Host, mac: Option<Mac>) -> Result<Link> {
        if let Some(other) = pod.find_link(&req.ifname)? {
            let text = format!(
                "failed to create tap: the pod has an interface {} of kind {:?}",
                req.ifname, other.kind
            );
            let hint = "the container is already attached under that name: run DEL first";
            return Err(podwire_cni_spec::Error::internal(text).with_details(hint).into());
        }
        let bridge = self.find_bridge(pod)?.map(|bridge| bridge.index);
        let (owner, access) = (req.owner(), self.access());
        let tap = tap::Tap { name: &req.ifname, owner: &owner, access, mtu: self.mtu, mac, bridge };
        tap.create(pod).doing(|| "failed to create tap".into())
    }

    /// The differences between the device and the config.
    fn differences<'p>(&self, req: &Request<'p>, pod: &mut Host, link: &Link) -> Result<Vec<Finding<'p>>> {
        let name = &link.name;
        let finding = |what: String| Finding::new(format!("TAP device {name}: {what}"));
        let mut all: Vec<Finding<'p>> = self.access().differences(link).into_iter().map(finding).collect();
        // The recorded MTU, because a later plugin may have changed it.
        if let Some(mtu) = recorded_mtu(req).filter(|mtu| *mtu != link.mtu) {
            let message = link::change(link.index, format!("set the MTU of {name}")).u32(attribute::MTU, mtu);
            let text = format!("its MTU is {}, not {mtu}", link.mtu);
            all.push(finding(text).repaired_by(inspection::change(req, message)));
        }
        match self.find_bridge(pod) {
            Err(error) => all.push(error.into()),
            Ok(Some(bridge)) if link.master != Some(bridge.index) => {
                let message = link::change(link.index, format!("put {name} on bridge {}", bridge.name))
                    .u32(attribute::MASTER, bridge.index);
                let text = format!("it is not a port of bridge {}", bridge.name);
                all.push(finding(text).repaired_by(inspection::change(req, message)));
            }
            Ok(_) => {}
        }
        Ok(all)
    }
}

/// The recorded MTU. Results before 1.1.0 have none.
fn recorded_mtu(req: &Request<'_>) -> Option<u32> {
    let recorded = inspection::recorded_interface(req.prev.as_ref()?, &req.ifname)?;
    Some(recorded.mtu).filter(|mtu| *mtu > 0)
}

fn interface(req: &Request<'_>, link: &Link) -> Interface {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mtu = if req.version >= Version::V1_1_0 { link.mtu } else { 0 };
    Interface { name: link.name.clone(), mac: link.mac_text(), mtu, sandbox, ..Interface::default() }
}

/// The device is missing. The repair creates it again with its hardware address; a program that had it open must reopen
/// it.
fn missing<'p>(req: &Request<'p>) -> Result<Finding<'p>> {
    let req = req.clone();
    let text = format!("the pod has no interface {}", req.ifname);
    Ok(Finding::new(text).repaired_by(move || {
        let (conf, recorded) = (Conf::read(&req)?, req.recorded()?);
        let mac = inspection::recorded_interface(recorded, &req.ifname).and_then(|one| one.mac.parse().ok());
        let mut pod = req.pod()?;
        let made = conf.create(&req, &mut pod, mac)?;
        pod_interface::configure(&mut pod, &made, recorded, ANNOUNCED)
    }))
}

/// Deletes the device, unless its alias names another attachment.
fn remove(req: &Request<'_>) -> Result<()> {
    let Some(mut pod) = req.find_pod()? else { return Ok(()) };
    let is_ours =
        |link: &Link| link.kind == tap::KIND && (link.alias.is_empty() || req.owner().matches(&link.alias));
    match pod.find_link(&req.ifname)?.filter(is_ours) {
        Some(link) => Ok(detached::delete_link(&mut pod, &link, None)?),
        None => Ok(()),
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}
