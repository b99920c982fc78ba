//! tuning: sets sysctls of the pod's namespace, and the hardware address, MTU, transmit queue, promiscuous and
//! all-multicast mode of its interface.
//!
//! The interface may outlive the pod: host-device moves a device back to the node. So ADD saves the previous values
//! before it changes anything, and DEL restores them.

mod allowlist;
mod backup;
mod duplicates;
mod interface;
mod settings;

use std::io::ErrorKind;

use podwire_cni_plugin::{Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Version};
use podwire_kernel::{sysctl, Host, Undo};

use crate::policy;
use allowlist::Allowlist;
use backup::Backup;
pub(crate) use settings::Settings;

pub use backup::all as backups;
pub use settings::DATA_DIR as DATA_FOLDER;

/// The plugin.
#[derive(Debug)]
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    fn about(&self) -> &'static str {
        "tuning: sets sysctls, MAC, MTU and modes of a pod's interface"
    }

    fn check_text(&self, config: &[u8]) -> Result<()> {
        duplicates::refuse(config)
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[settings::CONFIG_KEYS]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let settings = Settings::read(req)?;
        Allowlist::load()?.check(&settings)?;
        let mut result = req.recorded()?.clone();
        if settings.is_empty() {
            return Ok(result);
        }
        let mut pod = req.pod()?;
        let mut undo = Undo::new();
        let backup = Backup::of(req, &mut pod, &settings)?;
        undo.push(|| drop(self.del(req)));
        backup.save(req)?;
        if let Some(mac) = settings.link.mac {
            policy::change_mac(req, mac)?;
        }
        for (key, value) in &settings.sysctl {
            pod.run(|| sysctl::write(key, value))?.doing(|| format!("set sysctl to {value:?}"))?;
        }
        interface::change(&mut pod, &req.ifname, &settings.link)?;
        update(&mut result, req, &settings);
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let Some(backup) = Backup::find(req)? else { return Backup::remove_unfinished(req) };
        let restored = match req.find_pod()? {
            None => Ok(()),
            Some(mut pod) => restore(&backup, &mut pod, &req.ifname),
        };
        // Removed even after a failure: a repeated DEL would fail in the same way.
        Backup::remove(req)?;
        restored
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        req.recorded()?;
        let settings = Settings::read(req)?;
        let mut pod = req.pod()?;
        let mut findings = Vec::new();
        for (key, wanted) in settings.sysctl {
            findings.extend(compare_sysctl(req, &pod, key, wanted)?);
        }
        if !settings.link.is_empty() {
            let found = pod.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
            for (text, wanted) in interface::differences(&settings.link, &found) {
                findings.push(
                    differs(&text)
                        .repaired_by(again(req, move |pod, ifname| interface::change(pod, ifname, &wanted))),
                );
            }
        }
        Ok(findings)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        backup::collect(req)
    }

    /// Fails if the node's allowlist does not permit the sysctls.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        Allowlist::load()?.check(&Settings::read(req)?)
    }
}

/// Compares values by their fields: the kernel separates numbers with tabs, configs with blanks.
fn same_value(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

/// A finding with the text of the Go plugin.
fn differs<'p>(text: &str) -> Finding<'p> {
    Finding::new(format!("Error: Tuning configured {text}"))
}

/// A repair that runs `work` in the pod.
fn again<'p>(
    req: &Request<'p>,
    work: impl FnOnce(&mut Host, &str) -> Result<()> + 'p,
) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || work(&mut req.pod()?, &req.ifname)
}

fn compare_sysctl<'p>(
    req: &Request<'p>,
    pod: &Host,
    key: String,
    wanted: String,
) -> Result<Option<Finding<'p>>> {
    let found = match pod.run(|| sysctl::read(&key))? {
        Ok(found) => found,
        // Some sysctls are write-only and cannot be compared.
        Err(podwire_kernel::Error::File(error)) if error.source.kind() == ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        Err(error) => {
            let source = Box::new(Error::from(error));
            return Ok(Some(Error::Step { doing: "compare a sysctl".into(), source }.into()));
        }
    };
    if same_value(&wanted, &found) {
        return Ok(None);
    }
    let text = format!("value of /proc/sys/{key} is {wanted}, current value is {found}");
    Ok(Some(
        differs(&text).repaired_by(again(req, move |pod, _| Ok(pod.run(|| sysctl::write(&key, &wanted))??))),
    ))
}

/// Restores the values that differ. A sysctl or interface that no longer exists is skipped.
fn restore(backup: &Backup, pod: &mut Host, ifname: &str) -> Result<()> {
    let mut errors = Vec::new();
    for (key, value) in &backup.sysctl {
        let restore = || match sysctl::read(key) {
            Ok(found) if same_value(&found, value) => Ok(()),
            Err(error) if error.is_gone() => Ok(()),
            _ => sysctl::write(key, value).or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) }),
        };
        errors.extend(pod.run(restore)?.doing(|| format!("restore sysctl to {value:?}")).err());
    }
    if pod.find_link(ifname)?.is_some() {
        let restored = interface::change(pod, ifname, &backup.link()).doing(|| format!("restore {ifname}"));
        if restored.is_err() && pod.find_link(ifname)?.is_some() {
            errors.extend(restored.err());
        }
    }
    Error::all(errors)
}

/// Updates the hardware address and MTU in the result, which later plugins and the runtime read.
fn update(result: &mut Attachment, req: &Request<'_>, settings: &Settings) {
    let has_name = |one: &&mut podwire_cni_spec::Interface| one.name == req.ifname;
    // The node may have an interface of the same name. The pod's has a sandbox, if the result has any.
    let is_sandboxed = result.interfaces.iter().any(|one| one.name == req.ifname && !one.sandbox.is_empty());
    for one in result.interfaces.iter_mut().filter(has_name) {
        if is_sandboxed && one.sandbox.is_empty() {
            continue;
        }
        if let Some(mac) = settings.link.mac {
            one.mac = mac.to_string();
        }
        // Results before 1.1.0 have no MTU.
        if let Some(mtu) = settings.link.mtu.filter(|_| req.version >= Version::V1_1_0) {
            one.mtu = mtu;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::same_value;

    #[test]
    fn values_are_compared_by_their_fields() {
        assert!(same_value("4096 87380 6291456", "4096\t87380\t6291456\n"));
        assert!(!same_value("1", "10"));
        assert!(!same_value("1 2", "12"));
    }
}
