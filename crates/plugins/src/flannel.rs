//! flannel: the node's part of a flannel network, by another plugin.
//!
//! flanneld gives every node a subnet and writes it down, with the whole network and the MTU, in `subnet.env`.
//! From that and its own config this plugin writes the config of a plugin that does the work, `bridge` mostly: the
//! node's subnet becomes the ranges of its IPAM plugin, the network a route. What it wrote is kept in a file for
//! each attachment, because flanneld may have another subnet for the node when the pod goes.

mod render;
mod scratch;
mod subnet;

use std::path::Path;

use podwire_cni_plugin::{delegate, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{code, json, Attachment};
use podwire_kernel::Undo;
use serde::Deserialize;
use serde_json::Value;

use render::render;
use scratch::Scratch;
use subnet::Subnet;

pub use scratch::{all as delegates, DATA_DIR as DATA_FOLDER};

/// The plugin.
#[derive(Debug)]
pub struct Flannel;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    subnet_file: String,
    /// Read here for its type only.
    #[serde(rename = "dataDir")]
    _data_dir: String,
}

impl Plugin for Flannel {
    fn name(&self) -> &'static str {
        "flannel"
    }

    fn about(&self) -> &'static str {
        "flannel: connects a pod to a flannel network, by a plugin such as bridge"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let config = render(req, Some(&read_subnet(req)?))?;
        let mut undo = Undo::new();
        let saved = Scratch::of(req).save(&config)?;
        undo.push(|| saved.take_back());
        let kind = kind(&config);
        let result = delegate::add(&delegate::with(req, config), &kind).map_err(|error| {
            let error = error.to_cni();
            podwire_cni_spec::Error { msg: format!("failed to delegate add: {}", error.msg), ..error }
        })?;
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let scratch = Scratch::of(req);
        scratch.remove_unfinished()?;
        let found = scratch.find()?;
        match found.as_ref().and_then(|found| found.config.clone()) {
            Some(config) => detach(req, config)?,
            None => detach_unrecorded(req)?,
        }
        found.map_or(Ok(()), |found| scratch::remove(&found.path))
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        req.recorded()?;
        let scratch = Scratch::of(req);
        if let Some(config) = scratch.find()?.and_then(|found| found.config) {
            let kind = kind(&config);
            return delegate::inspect(&delegate::with(req, config), &kind);
        }
        let config = render(req, Some(&read_subnet(req)?))?;
        let kind = kind(&config);
        let text = format!("the delegate's config of container {} is not recorded", req.container);
        let lost = Finding::new(text).repaired_by({
            let config = config.clone();
            move || scratch.save(&config).map(drop)
        });
        let mut findings = vec![lost];
        findings.extend(delegate::inspect(&delegate::with(req, config), &kind)?);
        Ok(findings)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let valid = req.valid()?;
        let stale = scratch::stale(req, &valid)?;
        // Whose things are to go does not depend on flanneld.
        let config = render(req, read_subnet(req).ok().as_ref())?;
        let mut errors = Vec::new();
        for one in &stale {
            errors.extend(one.let_go(req).err());
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

impl scratch::Stale {
    /// DEL of an attachment whose runtime has forgotten it; then its file goes. Which interface a file of Go's is for
    /// is not known: the delegate's GC has to find what is left.
    fn let_go(&self, req: &Request<'_>) -> Result<()> {
        if let Some(ifname) = &self.ifname {
            let of_pod = Request {
                container: self.container.clone(),
                ifname: ifname.clone(),
                netns: None,
                prev: None,
                ..req.clone()
            };
            delegate::del(&Request { config: self.config.clone().into(), ..of_pod }, &kind(&self.config))?;
        }
        scratch::remove(&self.path)
    }
}

fn read_subnet(req: &Request<'_>) -> Result<Subnet> {
    const SUBNET_FILE: &str = "/run/flannel/subnet.env";
    let conf: Conf = req.config()?;
    let path = Some(conf.subnet_file).filter(|path| !path.is_empty()).unwrap_or_else(|| SUBNET_FILE.into());
    Ok(Subnet::read(Path::new(&path))?)
}

/// The delegate of a rendered config. One that Go wrote has it too.
fn kind(config: &Value) -> String {
    json::get(config, "type").and_then(Value::as_str).unwrap_or("bridge").to_owned()
}

fn detach(req: &Request<'_>, config: Value) -> Result<()> {
    let kind = kind(&config);
    delegate::del(&delegate::with(req, config), &kind)
}

/// Nothing is written down: ADD was never here or did not get far, or the file is lost. The delegate's DEL finds what
/// is of this attachment by its owner. Where not even flanneld has left a word, a delegate that needs one has no say.
fn detach_unrecorded(req: &Request<'_>) -> Result<()> {
    let with_subnet = read_subnet(req).and_then(|subnet| render(req, Some(&subnet)));
    match (with_subnet, render(req, None)) {
        (Ok(config), _) => detach(req, config),
        (Err(_), Ok(config)) => {
            let _ = detach(req, config);
            Ok(())
        }
        // A config that cannot be rendered now was not the one that anything was made by.
        (Err(_), Err(_)) => Ok(()),
    }
}
