//! flannel: attaches pods to the node's subnet of a flannel network, through another plugin.
//!
//! flanneld assigns a subnet to every node and writes it, with the whole network and the MTU, into `subnet.env`. From
//! that file and its own config this plugin renders the config of a delegate, usually `bridge`: the node's subnet
//! becomes the ranges of the IPAM plugin, the network becomes a route. The rendered config is saved for each
//! attachment, because the node may have another subnet at DEL.

mod delegate_config;
mod render;
mod subnet;

use std::path::Path;

use podwire_cni_plugin::{delegate, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{code, json, Attachment};
use podwire_kernel::Undo;
use serde::Deserialize;
use serde_json::Value;

use delegate_config::{DelegateConfig, Stale};
use render::render;
use subnet::Subnet;

pub use delegate_config::{all as delegates, DATA_DIR as DATA_FOLDER};

/// The plugin.
#[derive(Debug)]
pub struct Flannel;

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["subnetFile", "dataDir", "delegate", "ipam"];

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    subnet_file: String,
    /// Here only to check its type.
    #[serde(rename = "dataDir")]
    _data_dir: String,
}

impl Plugin for Flannel {
    fn name(&self) -> &'static str {
        "flannel"
    }

    fn about(&self) -> &'static str {
        "flannel: connects a pod to a flannel network through another plugin, such as bridge"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys { paths: &[CONFIG_KEYS], delegate: Some(("delegate", "bridge")) })
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let config = render(req, Some(&read_subnet(req)?))?;
        let mut undo = Undo::new();
        let saved = DelegateConfig::of(req).save(&config)?;
        undo.push(|| saved.restore());
        let kind = kind(&config);
        let result = delegate::add(&delegate::with(req, config), &kind).map_err(|error| {
            let error = error.to_cni();
            podwire_cni_spec::Error { msg: format!("failed to delegate add: {}", error.msg), ..error }
        })?;
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let files = DelegateConfig::of(req);
        files.remove_unfinished()?;
        let found = files.find()?;
        match found.as_ref().and_then(|found| found.config.clone()) {
            Some(config) => detach(req, config)?,
            None => detach_unrecorded(req)?,
        }
        found.map_or(Ok(()), |found| delegate_config::remove(&found.path))
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        req.recorded()?;
        let files = DelegateConfig::of(req);
        if let Some(config) = files.find()?.and_then(|found| found.config) {
            let kind = kind(&config);
            return delegate::inspect(&delegate::with(req, config), &kind);
        }
        let config = render(req, Some(&read_subnet(req)?))?;
        let kind = kind(&config);
        let text = format!("the delegate's config of container {} is not recorded", req.container);
        let lost = Finding::new(text).repaired_by({
            let config = config.clone();
            move || files.save(&config).map(drop)
        });
        let mut findings = vec![lost];
        findings.extend(delegate::inspect(&delegate::with(req, config), &kind)?);
        Ok(findings)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let valid = req.valid()?;
        let stale = delegate_config::stale(req, &valid)?;
        // GC does not depend on flanneld.
        let config = render(req, read_subnet(req).ok().as_ref())?;
        let mut errors = Vec::new();
        for one in &stale {
            errors.extend(detach_stale(req, one).err());
        }
        let kind = kind(&config);
        errors.extend(delegate::gc(&delegate::with(req, config), &kind).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        let subnet = read_subnet(req).map_err(|error| match error.to_cni() {
            error if error.msg.starts_with("failed to load flannel") => {
                podwire_cni_spec::Error { code: code::NOT_AVAILABLE, ..error }
            }
            error => error,
        })?;
        let config = render(req, Some(&subnet))?;
        let kind = kind(&config);
        delegate::status(&delegate::with(req, config), &kind)
    }
}

/// Runs the delegate's DEL for an attachment that is no longer valid, and removes its file. A file of the Go plugin
/// does not name the interface: then only the delegate's GC removes what is left.
fn detach_stale(req: &Request<'_>, stale: &Stale) -> Result<()> {
    if let Some(ifname) = &stale.ifname {
        let of_pod = Request {
            container: stale.container.clone(),
            ifname: ifname.clone(),
            netns: None,
            prev: None,
            ..req.clone()
        };
        delegate::del(&Request { config: stale.config.clone().into(), ..of_pod }, &kind(&stale.config))?;
    }
    delegate_config::remove(&stale.path)
}

fn read_subnet(req: &Request<'_>) -> Result<Subnet> {
    const SUBNET_FILE: &str = "/run/flannel/subnet.env";
    let conf: Conf = req.config()?;
    let path = Some(conf.subnet_file).filter(|path| !path.is_empty()).unwrap_or_else(|| SUBNET_FILE.into());
    Ok(Subnet::read(Path::new(&path))?)
}

/// The delegate's type in a rendered config, also in one that the Go plugin rendered.
fn kind(config: &Value) -> String {
    json::get(config, "type").and_then(Value::as_str).unwrap_or("bridge").to_owned()
}

fn detach(req: &Request<'_>, config: Value) -> Result<()> {
    let kind = kind(&config);
    delegate::del(&delegate::with(req, config), &kind)
}

/// DEL without a saved config: ADD did not run or failed early, or the file is lost. The delegate's DEL finds the
/// attachment's objects by their owner. If `subnet.env` is missing, too, errors of the delegate are ignored.
fn detach_unrecorded(req: &Request<'_>) -> Result<()> {
    let with_subnet = read_subnet(req).and_then(|subnet| render(req, Some(&subnet)));
    match (with_subnet, render(req, None)) {
        (Ok(config), _) => detach(req, config),
        (Err(_), Ok(config)) => {
            let _ = detach(req, config);
            Ok(())
        }
        // A config that cannot be rendered did not create anything.
        (Err(_), Err(_)) => Ok(()),
    }
}
