//! From an executed process to the call of a plugin, and back: reads and checks the environment and the config, calls the
//! plugin, prints its result or error.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use podwire_cni_spec::{code, json, Version};
use podwire_kernel::Netns;
use serde_json::Value;

use crate::repair::{self, Mode, Report};
use crate::request::{Request, Source};
use crate::{recorded, Command, Error, Finding, Plugin, Registry, Result};

/// The longest config that is read. A runtime that sends more is broken or hostile.
const STDIN_LIMIT: u64 = 64 << 20;

/// The variables that each verb requires.
const REQUIRED: &[(&str, &[Command])] = &[
    ("CNI_CONTAINERID", &[Command::Add, Command::Check, Command::Del]),
    ("CNI_NETNS", &[Command::Add, Command::Check]),
    ("CNI_IFNAME", &[Command::Add, Command::Check, Command::Del]),
    ("CNI_PATH", &[Command::Add, Command::Check, Command::Del, Command::Gc, Command::Status]),
];

/// The inputs and outputs of a plugin process.
#[allow(missing_debug_implementations)]
pub struct Process<'w> {
    /// Reads an environment variable.
    pub env: &'w dyn Fn(&str) -> Option<String>,
    /// Standard input.
    pub stdin: &'w mut dyn Read,
    /// Standard output.
    pub stdout: &'w mut dyn Write,
    /// Standard error.
    pub stderr: &'w mut dyn Write,
}

/// The exact output of a test double.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawOutput {
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
    /// The exit status.
    pub exit: u8,
}

/// The output for a request.
enum Output {
    Nothing,
    Result(Value),
    Raw(RawOutput),
}

/// The whole `main` of a plugin's program.
pub fn main(plugin: &dyn Plugin, registry: &Registry<'_>) -> ExitCode {
    ExitCode::from(run(plugin, registry))
}

/// The same; returns the exit status as a number.
pub fn run(plugin: &dyn Plugin, registry: &Registry<'_>) -> u8 {
    let mut process = Process {
        env: &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
        stdin: &mut std::io::stdin().lock(),
        stdout: &mut std::io::stdout().lock(),
        stderr: &mut std::io::stderr().lock(),
    };
    dispatch(plugin, registry, &mut process)
}

/// Serves the request of `process`; returns the exit status.
pub fn dispatch(plugin: &dyn Plugin, registry: &Registry<'_>, process: &mut Process<'_>) -> u8 {
    let verb = (process.env)("CNI_COMMAND").unwrap_or_default();
    if verb.is_empty() {
        let versions: Vec<_> = plugin.versions().iter().map(|version| version.as_str()).collect();
        let about = plugin.about();
        let _ = writeln!(process.stderr, "{about}\nCNI protocol versions supported: {}", versions.join(", "));
        return 0;
    }
    match serve(plugin, registry, process, &verb) {
        Ok(Output::Nothing) => 0,
        Ok(Output::Result(answer)) => match write(process.stdout, &answer) {
            Ok(()) => 0,
            Err(error) => {
                let _ = writeln!(process.stderr, "write the result: {error}");
                1
            }
        },
        Ok(Output::Raw(raw)) => {
            let _ = process.stderr.write_all(raw.stderr.as_bytes());
            let _ = process.stdout.write_all(raw.stdout.as_bytes()).and_then(|()| process.stdout.flush());
            raw.exit
        }
        Err(error) => {
            let _ = write(process.stdout, &error.to_cni().to_json());
            1
        }
    }
}

fn serve(
    plugin: &dyn Plugin,
    registry: &Registry<'_>,
    process: &mut Process<'_>,
    verb: &str,
) -> Result<Output> {
    let command = Command::parse(verb)
        .ok_or_else(|| podwire_cni_spec::Error::env(format!("unknown CNI_COMMAND: {verb}")))?;
    if command == Command::Version {
        let args = (process.env)("CNI_ARGS").unwrap_or_default();
        return Ok(Output::Result(plugin.version_info(&args)));
    }
    let env = |name: &str| (process.env)(name).unwrap_or_default();
    let absent: Vec<_> = REQUIRED
        .iter()
        .filter(|(name, verbs)| verbs.contains(&command) && env(name).is_empty())
        .map(|(name, _)| *name)
        .collect();
    if !absent.is_empty() {
        return Err(missing(&absent));
    }
    let source = Source {
        container: env("CNI_CONTAINERID"),
        ifname: env("CNI_IFNAME"),
        netns: env("CNI_NETNS"),
        args: env("CNI_ARGS"),
        path: env("CNI_PATH"),
        ..Source::default()
    };
    let own_allowed = matches!(env("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true");
    let mut stdin = Vec::new();
    process.stdin.take(STDIN_LIMIT).read_to_end(&mut stdin).map_err(|error| {
        podwire_cni_spec::Error::new(code::IO, format!("error reading from stdin: {error}"))
    })?;
    let config = json::parse(&stdin)?;
    if matches!(command, Command::Add | Command::Check | Command::Status) {
        plugin.check_text(&stdin)?;
    }
    let req = Request::new(command, &source, config, *registry)?;
    admit(plugin, &req, own_allowed)?;
    if let Some(raw) = plugin.raw_output(&req)? {
        return Ok(Output::Raw(raw));
    }
    if let Some(mode) = Mode::parse(&env(repair::VARIABLE)).filter(|_| command == Command::Check) {
        req.registry.hooks().before(plugin, command, &req.config)?;
        return Ok(Output::Result(serde_json::to_value(Report::of(plugin, &req, mode)?).unwrap_or_default()));
    }
    Ok(perform(plugin, &req)?.map_or(Output::Nothing, Output::Result))
}

/// Calls `plugin` with a parsed request, for an in-process runtime too. Returns the result of ADD, in the config's
/// version.
pub fn call(plugin: &dyn Plugin, req: &Request<'_>, own_namespace_allowed: bool) -> Result<Option<Value>> {
    admit(plugin, req, own_namespace_allowed)?;
    perform(plugin, req)
}

fn perform(plugin: &dyn Plugin, req: &Request<'_>) -> Result<Option<Value>> {
    req.registry.hooks().before(plugin, req.command, &req.config)?;
    match req.command {
        Command::Add => return timed(plugin, req, recorded::add).map(Some),
        Command::Del => timed(plugin, req, recorded::del)?,
        Command::Check => Finding::report(plugin.inspect(req)?)?,
        Command::Gc => recorded::gc(plugin, req)?,
        Command::Status => plugin.status(req)?,
        Command::Version => {}
    }
    Ok(None)
}

type Verb<T> = fn(&dyn Plugin, &Request<'_>) -> Result<T>;

/// Runs the verb, then the [`after`](crate::Hooks::after) hook.
fn timed<T>(plugin: &dyn Plugin, req: &Request<'_>, verb: Verb<T>) -> Result<T> {
    let start = Instant::now();
    let result = verb(plugin, req);
    let code = result.as_ref().err().map_or(0, |error| error.to_cni().code);
    req.registry.hooks().after(plugin, req.command, start.elapsed(), code);
    result
}

/// The differences that `plugin` finds: CHECK for an in-process runtime, which may repair them.
pub fn inspect<'p>(
    plugin: &dyn Plugin,
    req: &Request<'p>,
    own_namespace_allowed: bool,
) -> Result<Vec<Finding<'p>>> {
    admit(plugin, req, own_namespace_allowed)?;
    plugin.inspect(req)
}

/// The checks of every request before the plugin is called.
fn admit(plugin: &dyn Plugin, req: &Request<'_>, own_namespace_allowed: bool) -> Result<()> {
    if !plugin.versions().contains(&req.version) {
        return Err(Version::incompatible(req.version.as_str(), plugin.versions()).into());
    }
    allow(req)?;
    require_netns(req)?;
    if own_namespace_allowed {
        return Ok(());
    }
    refuse_own_namespace(req)
}

/// An in-process runtime passes no environment variables that could be missing.
fn require_netns(req: &Request<'_>) -> Result<()> {
    match (req.command, &req.netns) {
        (Command::Add | Command::Check, None) => Err(missing(&["CNI_NETNS"])),
        _ => Ok(()),
    }
}

fn missing(names: &[&str]) -> Error {
    podwire_cni_spec::Error::env(format!("required env variables [{}] missing", names.join(","))).into()
}

/// Refuses verbs that the config's version does not have.
fn allow(req: &Request<'_>) -> Result<()> {
    let allowed = match req.command {
        Command::Check => req.version.has_check(),
        Command::Gc => req.version.has_gc(),
        Command::Status => req.version.has_status(),
        _ => true,
    };
    if allowed {
        return Ok(());
    }
    let text = format!("config version does not allow {}", req.command.as_str());
    let hint = format!("config is {:?}", req.version.as_str());
    Err(podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, text).with_hint(hint).into())
}

/// A plugin that ran in the host's own namespace would change the host's network: refused before anything is changed.
fn refuse_own_namespace(req: &Request<'_>) -> Result<()> {
    let Some(path) = req.netns.as_ref().filter(|_| req.command != Command::Gc) else { return Ok(()) };
    // A missing namespace is not an error here: DEL accepts it.
    if !Netns::open(path).and_then(|pod| pod.is_current()).unwrap_or(false) {
        return Ok(());
    }
    let text = "plugin's netns and netns from CNI_NETNS should not be the same";
    let hint = format!("CNI_NETNS, {}, is the caller's own namespace", path.display());
    Err(Error::Cni(podwire_cni_spec::Error::new(code::INVALID_NETNS, text).with_hint(hint)))
}

/// Writes JSON indented by four spaces, as all CNI tools do.
pub fn write(to: &mut dyn Write, value: &Value) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(1024);
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, format);
    serde::Serialize::serialize(value, &mut serializer).map_err(std::io::Error::other)?;
    to.write_all(&bytes)?;
    to.flush()
}
