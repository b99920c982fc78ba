//! A request to a plugin, parsed and checked once.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use podwire_cni_spec::{json, Args, Attachment, ContainerId, IfName, NetworkName, ValidAttachment, Version};
use podwire_kernel::{Host, Netns, Owner};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Command, Context, Registry, Result};

/// A request to a plugin. For GC and STATUS `container` and `ifname` are empty.
#[derive(Clone, Debug)]
pub struct Request<'p> {
    /// The verb.
    pub command: Command,
    /// The container's id.
    pub container: String,
    /// The interface's name in the pod.
    pub ifname: String,
    /// The path of the pod's network namespace; `None` if the runtime passes none because it is gone.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS`.
    pub args: Args,
    /// `CNI_PATH`: the directories of the plugins.
    pub path: Vec<PathBuf>,
    /// The network's name.
    pub network: NetworkName,
    /// The config's version.
    pub version: Version,
    /// The whole config, unchanged. Clones of a request share it.
    pub config: Arc<Value>,
    /// The result of the previous plugins (ADD), or of the whole chain (CHECK, DEL).
    pub prev: Option<Attachment>,
    /// The plugins of this program.
    pub registry: Registry<'p>,
    /// For GC: attachments whose ADD is in progress.
    pub busy: Vec<ValidAttachment>,
    /// For DEL: remove only objects that carry this owner's comment. An object without it belongs to another pod by now, one
    /// that a Go plugin attached with the same interface, address or device name.
    pub signed_only: bool,
    /// The in-process plugins that delegated this request, outermost first.
    pub callers: Vec<&'static str>,
    /// The deadline of an in-process runtime: plugins that are executed for it are stopped then.
    pub deadline: Option<Instant>,
    /// Environment variables that such a runtime passes to them: its trace context.
    pub trace: Vec<(&'static str, String)>,
}

/// The attachments that a GC must leave alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Valid(HashSet<ValidAttachment>);

impl Valid {
    /// Whether the attachment of `container` as `ifname` must be kept.
    pub fn contains(&self, container: &str, ifname: &str) -> bool {
        self.0.contains(&ValidAttachment { container_id: container.into(), ifname: ifname.into() })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ValidAttachment> {
        self.0.iter()
    }
}

/// The parameters of a request, from the environment or from an in-process runtime.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// See [`Request::deadline`].
    pub deadline: Option<Instant>,
    /// See [`Request::trace`].
    pub trace: Vec<(&'static str, String)>,
}

impl<'p> Request<'p> {
    /// Checks and parses a request. `config` is the plugin's standard input.
    pub fn new(
        command: Command,
        source: &Source,
        config: Value,
        registry: Registry<'p>,
    ) -> Result<Request<'p>> {
        let attachment = matches!(command, Command::Add | Command::Del | Command::Check);
        if attachment {
            ContainerId::parse(&source.container)?;
            IfName::parse(&source.ifname)?;
        }
        if !config.is_object() {
            return Err(podwire_cni_spec::Error::decode(
                "error unmarshall network config: it is not a JSON object",
            )
            .into());
        }
        let text = |key: &str| json::get(&config, key).and_then(Value::as_str).unwrap_or_default();
        for (key, what) in [("name", "the network's name"), ("cniVersion", "the version")] {
            if json::get(&config, key).is_some_and(|value| !value.is_string()) {
                return Err(podwire_cni_spec::Error::invalid_config(format!(
                    "{key}: {what} must be a string"
                ))
                .into());
            }
        }
        let network = NetworkName::parse(text("name"))?;
        let version = Version::parse(text("cniVersion"))
            .ok_or_else(|| Version::incompatible(text("cniVersion"), Version::ALL))?;
        let prev = match json::get(&config, "prevResult").map(|prev| Attachment::from_json(prev, version)) {
            None => None,
            Some(Ok(prev)) => Some(prev),
            // An invalid record must not prevent the cleanup of a dead pod.
            Some(Err(_)) if command == Command::Del => None,
            Some(Err(error)) => {
                let text = format!("could not parse prevResult: {}", error.msg);
                return Err(podwire_cni_spec::Error { msg: text, ..error }.into());
            }
        };
        Ok(Request {
            command,
            container: source.container.clone(),
            ifname: source.ifname.clone(),
            netns: Some(&source.netns).filter(|netns| !netns.is_empty()).map(PathBuf::from),
            args: match command {
                Command::Add | Command::Check => Args::parse(&source.args)?,
                Command::Del | Command::Gc => Args::parse_readable(&source.args),
                // STATUS and VERSION concern no container.
                _ => Args::default(),
            },
            path: std::env::split_paths(&source.path).filter(|path| !path.as_os_str().is_empty()).collect(),
            network,
            version,
            prev,
            config: Arc::new(config),
            registry,
            busy: Vec::new(),
            signed_only: false,
            callers: Vec::new(),
            deadline: source.deadline,
            trace: source.trace.clone(),
        })
    }

    /// The config as the plugin's own type. Keys are matched without case, as Go does.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(json::decode(&self.config)?)
    }

    /// The owner of the objects that this request creates or removes.
    pub fn owner(&self) -> Owner {
        Owner {
            network: self.network.to_string(),
            container: self.container.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// The pod's network namespace; an error if it does not exist.
    pub fn netns(&self) -> Result<Netns> {
        let path = self.netns.clone().unwrap_or_default();
        Ok(Netns::open(path)?)
    }

    /// The pod's host handle; an error if its namespace does not exist.
    pub fn pod(&self) -> Result<Host> {
        Ok(Host::within(self.netns()?)?)
    }

    /// The pod's host handle, if its namespace still exists.
    pub fn find_pod(&self) -> Result<Option<Host>> {
        let Some(path) = &self.netns else { return Ok(None) };
        match Netns::find(path).doing(|| "open the pod's namespace".into())? {
            None => Ok(None),
            Some(netns) => Ok(Some(Host::within(netns)?)),
        }
    }

    /// The result of the previous plugins; an error if this plugin is the first of its chain.
    pub fn chained(&self) -> Result<&Attachment> {
        self.chained_or("must be called as chained plugin")
    }

    /// The result of the previous plugins, or an error with the text that the Go plugin has for its absence.
    pub fn chained_or(&self, text: &str) -> Result<&Attachment> {
        let hint = "prevResult is missing: put the plugin after one that creates an interface";
        let missing = || podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into();
        self.prev.as_ref().ok_or_else(missing)
    }

    /// The recorded result; an error if it is missing.
    pub fn recorded(&self) -> Result<&Attachment> {
        self.recorded_or("Required prevResult missing")
    }

    /// The recorded result, or an error with the text that the Go plugin has for its absence.
    pub fn recorded_or(&self, text: &str) -> Result<&Attachment> {
        let missing = || podwire_cni_spec::Error::invalid_config(text).into();
        self.prev.as_ref().ok_or_else(missing)
    }

    /// The attachments that a GC must keep. A Go runtime without pods sends `null`: nothing is valid. A request without
    /// the key is an error, because it does not say what may be removed.
    pub fn valid(&self) -> Result<Valid> {
        let all = match podwire_cni_spec::config::valid_attachments(&self.config)? {
            Some(all) => all,
            None if self.has_null_attachments() => Vec::new(),
            None => {
                let text = "cni.dev/valid-attachments is missing: the request does not say which attachments to keep";
                return Err(podwire_cni_spec::Error::invalid_config(text).into());
            }
        };
        Ok(Valid(all.into_iter().chain(self.busy.iter().cloned()).collect()))
    }

    /// The owners of the attachments that a GC must keep.
    pub fn kept_owners(&self) -> Result<Vec<Owner>> {
        let valid = self.valid()?;
        Ok(valid
            .iter()
            .map(|one| Owner::new(self.network.as_str(), one.container_id.as_str(), one.ifname.as_str()))
            .collect())
    }

    fn has_null_attachments(&self) -> bool {
        let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let is_one = |key: &String| keys.iter().any(|known| known.eq_ignore_ascii_case(key));
        self.config
            .as_object()
            .is_some_and(|config| config.iter().any(|(key, value)| is_one(key) && value.is_null()))
    }
}
