//! One call of one plugin: in this process if it is one of ours, else by executing its file.

use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::Instant;

use podwire_cni_plugin::exec::{self, Execution};
use podwire_cni_plugin::{dispatch, Command, Context, Plugin, Request, Source};
use podwire_cni_spec::{code, json, NetworkList, PluginConfig};
use serde_json::Value;

use crate::{Error, Identity, Result, Runtime};

/// A plugin of a list, found.
pub(crate) struct Step<'l, 'p> {
    pub(crate) config: &'l PluginConfig,
    pub(crate) place: Place<'p>,
}

impl Step<'_, '_> {
    /// The error of a result that cannot be understood.
    pub(crate) fn misread(&self, list: &NetworkList, error: podwire_cni_spec::Error) -> Error {
        let source = podwire_cni_plugin::Error::Step {
            doing: "read its result".into(),
            source: Box::new(error.into()),
        };
        failed(list, &self.config.kind, Command::Add)(source)
    }
}

/// Where a plugin is.
pub(crate) enum Place<'p> {
    Here(&'p dyn Plugin),
    File(PathBuf),
}

/// What a plugin is asked. GC and STATUS concern no container.
pub(crate) struct Call<'a> {
    pub(crate) command: Command,
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) config: Value,
    pub(crate) deadline: Option<Instant>,
}

impl<'p> Runtime<'p> {
    /// Finds a plugin of the list.
    pub(crate) fn step<'l>(
        &self,
        list: &NetworkList,
        config: &'l PluginConfig,
        verb: Command,
    ) -> Result<Step<'l, 'p>> {
        let stand_in = || self.registry.in_place_of_missing(&config.kind, verb);
        let place = self.place(&config.kind).or_else(|error| stand_in().map(Place::Here).ok_or(error));
        Ok(Step { config, place: place.map_err(failed(list, &config.kind, verb))? })
    }

    /// Whether a plugin of the list is installed, and the one that it has its addresses from.
    pub(crate) fn can_delete(&self, list: &NetworkList, config: &PluginConfig) -> bool {
        let is_there = |kind: &String| {
            exec::find(kind, &self.path_of(&config.kind)).is_ok()
                || self.registry.in_place_of_missing(kind, Command::Del).is_some()
        };
        self.step(list, config, Command::Del).is_ok() && config.ipam.as_ref().is_none_or(is_there)
    }

    /// Finds every plugin of the list, so that a missing one is noticed before another has made anything.
    pub(crate) fn chain<'l>(&self, list: &'l NetworkList, verb: Command) -> Result<Vec<Step<'l, 'p>>> {
        if list.plugins.is_empty() {
            let text = format!("no plugin configs found in network {:?}", list.name.as_str());
            return Err(podwire_cni_spec::Error::invalid_config(text).into());
        }
        list.plugins.iter().map(|config| self.step(list, config, verb)).collect()
    }

    /// Finds the plugin `kind`.
    pub(crate) fn place(&self, kind: &str) -> podwire_cni_plugin::Result<Place<'p>> {
        let file = exec::find(kind, &self.path).or_else(|_| exec::find(kind, &self.path_of(kind)))?;
        Ok(self.registry.in_file(kind, &file).map_or(Place::File(file), Place::Here))
    }

    /// The vendor's folder of the plugin `kind`.
    pub(crate) fn vendor(&self, kind: &str) -> Option<PathBuf> {
        // A type that is no file name is told of where it is looked for.
        let folder = self.vendors.as_ref().filter(|_| podwire_cni_spec::name::plugin_type(kind).is_ok())?;
        Some(folder.join(kind).join("bin"))
    }

    /// Where the plugin `kind`, and those that it calls, are looked for.
    fn path_of(&self, kind: &str) -> Vec<PathBuf> {
        let there = self.vendor(kind).filter(|folder| folder.is_dir());
        self.path.iter().cloned().chain(there).collect()
    }

    /// Calls a plugin. Returns what ADD printed.
    pub(crate) fn call(
        &self,
        list: &NetworkList,
        step: &Step<'_, '_>,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let verb = call.command;
        self.place_call(&step.place, call).map_err(failed(list, &step.config.kind, verb))
    }

    fn place_call(&self, place: &Place<'_>, call: Call<'_>) -> podwire_cni_plugin::Result<Option<Value>> {
        if call.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(podwire_cni_spec::Error::new(
                code::TRY_AGAIN,
                "the time was up before it could be started",
            )
            .into());
        }
        match place {
            Place::Here(plugin) => self.in_process(*plugin, call),
            Place::File(file) => {
                let env = self.environment(&call);
                let stdin = call.config.to_string();
                let output =
                    Execution { file, env, stdin: stdin.as_bytes(), deadline: call.deadline }.run()?;
                match call.command {
                    Command::Add => Ok(Some(json::parse(&output).doing(|| "read its result".into())?)),
                    _ => Ok(None),
                }
            }
        }
    }

    fn in_process(&self, plugin: &dyn Plugin, call: Call<'_>) -> podwire_cni_plugin::Result<Option<Value>> {
        let request = self.request(call)?;
        guarded(|| dispatch::call(plugin, &request, own_namespace_allowed()))
    }

    /// The request of a call in this process.
    pub(crate) fn request(&self, call: Call<'_>) -> podwire_cni_plugin::Result<Request<'p>> {
        let source = self.source(&call);
        Request::new(call.command, &source, call.config, self.registry)
    }

    fn source(&self, call: &Call<'_>) -> Source {
        let (container, ifname, netns, args) = match call.identity {
            Some(id) => {
                (id.container.to_string(), id.ifname.to_string(), id.netns_text(), id.args.to_string())
            }
            None => Default::default(),
        };
        let kind = json::get(&call.config, "type").and_then(Value::as_str).unwrap_or_default();
        let path = self.path_of(kind);
        let folders: Vec<_> = path.iter().map(|folder| folder.to_string_lossy()).collect();
        let trace = [
            ("TRACEPARENT", &self.trace.parent),
            ("TRACESTATE", &self.trace.state),
            ("BAGGAGE", &self.trace.baggage),
        ];
        let given = trace.into_iter().filter(|(_, value)| !value.is_empty());
        let trace = given.map(|(name, value)| (name, value.clone())).collect();
        Source { container, ifname, netns, args, path: folders.join(":"), deadline: call.deadline, trace }
    }

    fn environment(&self, call: &Call<'_>) -> Vec<(&'static str, OsString)> {
        let source = self.source(call);
        let cni = [
            ("CNI_COMMAND", call.command.as_str().to_owned()),
            ("CNI_CONTAINERID", source.container),
            ("CNI_NETNS", source.netns),
            ("CNI_IFNAME", source.ifname),
            ("CNI_ARGS", source.args),
            ("CNI_PATH", source.path),
        ];
        cni.into_iter().chain(source.trace).map(|(name, value)| (name, value.into())).collect()
    }
}

/// A plugin that panics has failed like any other: what was done so far can still be taken back. (In a program that is built to abort, a panic is
/// its end, and what was done is taken back by the next ADD, DEL or GC.)
pub(crate) fn guarded<T>(
    work: impl FnOnce() -> podwire_cni_plugin::Result<T>,
) -> podwire_cni_plugin::Result<T> {
    let panicked = || podwire_cni_spec::Error::internal("the plugin panicked: this is a bug in it").into();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()))
}

pub(crate) fn own_namespace_allowed() -> bool {
    let own = std::env::var("CNI_NETNS_OVERRIDE").unwrap_or_default().to_ascii_lowercase();
    matches!(own.as_str(), "1" | "true")
}

/// Says which plugin of which network it was.
pub(crate) fn failed<'a>(
    list: &'a NetworkList,
    kind: &'a str,
    command: Command,
) -> impl FnOnce(podwire_cni_plugin::Error) -> Error + 'a {
    let verb = match command {
        Command::Add => "add",
        Command::Del => "delete",
        Command::Check => "check",
        Command::Gc => "gc",
        Command::Status => "status",
        Command::Version => "version",
    };
    move |source| {
        let (kind, network) = (kind.to_owned(), list.name.to_string());
        Error::Plugin { kind, network, verb, source: Box::new(source) }
    }
}
