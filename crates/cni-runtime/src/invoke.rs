//! One call of one plugin: in this process if this program contains it, otherwise by executing its file.

use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Instant;

use podwire_cni_plugin::exec::{self, Execution};
use podwire_cni_plugin::repair::{self, Mode, Report};
use podwire_cni_plugin::{dispatch, Command, Context, Plugin, Request, Source};
use podwire_cni_spec::{code, json, NetworkList, PluginConfig};
use serde_json::Value;

use crate::{Error, Identity, Result, Runtime};

/// A plugin of a list, with its location.
pub(crate) struct Step<'l, 'p> {
    pub(crate) config: &'l PluginConfig,
    pub(crate) location: Location<'p>,
}

impl Step<'_, '_> {
    /// The error for an invalid result.
    pub(crate) fn invalid_result(&self, list: &NetworkList, error: podwire_cni_spec::Error) -> Error {
        let source = podwire_cni_plugin::Error::Step {
            doing: "read its result".into(),
            source: Box::new(error.into()),
        };
        failed(list, &self.config.kind, Command::Add)(source)
    }
}

/// Where a plugin is.
pub(crate) enum Location<'p> {
    InProcess(&'p dyn Plugin),
    File(PathBuf),
}

/// A call of a plugin. GC and STATUS have no identity.
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
        let replacement = || self.registry.in_place_of_missing(&config.kind, verb);
        let location =
            self.locate(&config.kind).or_else(|error| replacement().map(Location::InProcess).ok_or(error));
        Ok(Step { config, location: location.map_err(failed(list, &config.kind, verb))? })
    }

    /// Whether a plugin of the list and its IPAM plugin are installed.
    pub(crate) fn can_delete(&self, list: &NetworkList, config: &PluginConfig) -> bool {
        self.find_missing(list, config).is_none()
    }

    /// The error of DEL if the plugin or its IPAM plugin is not installed.
    pub(crate) fn find_missing(&self, list: &NetworkList, config: &PluginConfig) -> Option<Error> {
        let find_ipam = |kind: &String| match exec::find(kind, &self.path_of(&config.kind)) {
            Err(error) if self.registry.in_place_of_missing(kind, Command::Del).is_none() => {
                Some(failed(list, kind, Command::Del)(error))
            }
            _ => None,
        };
        let own = self.step(list, config, Command::Del).err();
        own.or_else(|| config.ipam.as_ref().and_then(find_ipam))
    }

    /// Finds every plugin of the list, so that a missing one is noticed before another creates anything.
    pub(crate) fn chain<'l>(&self, list: &'l NetworkList, verb: Command) -> Result<Vec<Step<'l, 'p>>> {
        if list.plugins.is_empty() {
            let text = format!("no plugin configs found in network {:?}", list.name.as_str());
            return Err(podwire_cni_spec::Error::invalid_config(text).into());
        }
        list.plugins.iter().map(|config| self.step(list, config, verb)).collect()
    }

    /// Finds the plugin `kind`.
    pub(crate) fn locate(&self, kind: &str) -> podwire_cni_plugin::Result<Location<'p>> {
        let file = exec::find(kind, &self.path).or_else(|_| exec::find(kind, &self.path_of(kind)))?;
        Ok(self.registry.in_file(kind, &file).map_or(Location::File(file), Location::InProcess))
    }

    /// The vendor directory of the plugin `kind`.
    pub(crate) fn vendor(&self, kind: &str) -> Option<PathBuf> {
        // `exec::find` reports a type that is not a file name.
        let folder = self.vendors.as_ref().filter(|_| podwire_cni_spec::name::plugin_type(kind).is_ok())?;
        Some(folder.join(kind).join("bin"))
    }

    /// The search path of the plugin `kind` and of its delegates.
    fn path_of(&self, kind: &str) -> Vec<PathBuf> {
        let there = self.vendor(kind).filter(|folder| folder.is_dir());
        self.path.iter().cloned().chain(there).collect()
    }

    /// Calls a plugin. Returns the result of ADD.
    pub(crate) fn call(
        &self,
        list: &NetworkList,
        step: &Step<'_, '_>,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let verb = call.command;
        self.run_plugin(&step.location, call).map_err(failed(list, &step.config.kind, verb))
    }

    fn run_plugin(
        &self,
        location: &Location<'_>,
        call: Call<'_>,
    ) -> podwire_cni_plugin::Result<Option<Value>> {
        if call.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(podwire_cni_spec::Error::new(
                code::TRY_AGAIN,
                "the deadline passed before the plugin was started",
            )
            .into());
        }
        match location {
            Location::InProcess(plugin) => self.in_process(*plugin, call),
            Location::File(file) => {
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

    /// CHECK of an executed plugin that may repair. `None` if it is no plugin of the SDK: then it found no difference.
    pub(crate) fn check_file(
        &self,
        file: &Path,
        call: &Call<'_>,
        mode: Mode,
    ) -> podwire_cni_plugin::Result<Option<Report>> {
        let variable = (repair::VARIABLE, mode.as_str().into());
        let env = self.environment(call).into_iter().chain([variable]).collect();
        let stdin = call.config.to_string();
        let output = Execution { file, env, stdin: stdin.as_bytes(), deadline: call.deadline }.run()?;
        Ok(Report::parse(&output))
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

/// Turns a panic of a plugin into an error, so that the ADD can be undone. (A program that is built to abort ends; the next ADD,
/// DEL or GC cleans up.)
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

/// Adds the plugin and the network to an error.
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
        Error::Plugin { kind, network, verb, file: list.file.clone(), source: Box::new(source) }
    }
}
