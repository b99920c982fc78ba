//! Calling another plugin from a plugin, mostly an IPAM plugin for an address.
//!
//! The other plugin gets the caller's whole request. If the file that would be executed is this program, it
//! is called right here: a process less.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use podwire_cni_spec::{json, Attachment};
use serde_json::Value;

use crate::dispatch::call;
use crate::exec::{self, Execution};
use crate::{Command, Context, Finding, Plugin, Request, Result};

/// How long a plugin may take to give back what it gave, when the caller's own time may be up.
const UNDO_PATIENCE: Duration = Duration::from_secs(10);

/// The IPAM plugin that the config names, if it names one.
pub fn ipam<'v>(req: &'v Request<'_>) -> Option<&'v str> {
    let kind = json::get(json::get(&req.config, "ipam")?, "type")?.as_str()?;
    Some(kind).filter(|kind| !kind.is_empty())
}

/// The caller's request with another config, for a plugin that writes its delegate's config itself. What a runtime adds
/// to a config on the way, the recorded result and the list of valid attachments, goes along.
pub fn with<'p>(req: &Request<'p>, config: Value) -> Request<'p> {
    let mut config = config;
    if let (Some(own), Some(other)) = (req.config.as_object(), config.as_object_mut()) {
        for key in ["prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"] {
            let sent = own.iter().filter(|(sent, _)| sent.eq_ignore_ascii_case(key));
            sent.for_each(|(_, value)| json::set(other, key, value.clone()));
        }
        // A result that the runtime lost may be known here all the same.
        let known = req.prev.as_ref().filter(|_| !other.contains_key("prevResult"));
        if let Some(known) = known.and_then(|prev| prev.to_json(req.version).ok()) {
            json::set(other, "prevResult", known);
        }
    }
    Request { config: config.into(), ..req.clone() }
}

/// Whether the plugin `kind` is of this program: then it is called right here.
pub fn is_own(req: &Request<'_>, kind: &str) -> bool {
    exec::find(kind, &req.path).is_ok_and(|file| req.registry.in_file(kind, &file).is_some())
}

/// ADD by the plugin `kind`. If a foreign one fails, or says what makes no sense, its DEL is run: it may have got half way. Ours leaves
/// nothing when it fails, and a DEL after "this container has an address already" would take that address.
pub fn add(req: &Request<'_>, kind: &str) -> Result<Attachment> {
    let undo = |_: &crate::Error| {
        if !is_own(req, kind) {
            let _ = send(req, kind, Command::Del);
        }
    };
    let read = |answer: Option<Value>| {
        let answer = answer.unwrap_or(Value::Null);
        Attachment::from_json(&answer, req.version).doing(|| format!("read the result of plugin {kind}"))
    };
    send(req, kind, Command::Add).and_then(read).inspect_err(undo)
}

/// DEL by the plugin `kind`.
pub fn del(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Del).map(drop)
}

/// CHECK by the plugin `kind`.
pub fn check(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Check).map(drop)
}

/// What the plugin `kind` finds changed. A foreign one can only say so.
pub fn inspect<'p>(req: &Request<'p>, kind: &str) -> Result<Vec<Finding<'p>>> {
    match exec::find(kind, &req.path).ok().and_then(|file| req.registry.in_file(kind, &file)) {
        Some(plugin) if !req.callers.contains(&plugin.name()) => {
            plugin.inspect(&passed_on(req, plugin, Command::Check))
        }
        _ => Ok(check(req, kind).err().map(Finding::from).into_iter().collect()),
    }
}

/// GC by the plugin `kind`.
pub fn gc(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Gc).map(drop)
}

/// STATUS of the plugin `kind`.
pub fn status(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Status).map(drop)
}

/// The caller's request, on its way to another plugin of this program.
fn passed_on<'p>(req: &Request<'p>, to: &dyn Plugin, command: Command) -> Request<'p> {
    let mut passed_on = Request { command, ..req.clone() };
    passed_on.callers.push(to.name());
    passed_on
}

/// A plugin that gets its caller's config finds the same other plugin in it, and if it calls that in turn there is
/// no end: `bridge` with `ptp` as its IPAM.
pub fn refuse_circle(req: &Request<'_>, kind: &str) -> Result<()> {
    if !req.callers.contains(&kind) {
        return Ok(());
    }
    let text = format!("ipam.type: {kind} is no IPAM plugin, it needs one itself");
    Err(podwire_cni_spec::Error::invalid_config(text)
        .with_details("choose host-local or static, for example")
        .into())
}

/// The config of a GC for a plugin of another program, which cannot know who is being attached right now.
fn with_all_valid(req: &Request<'_>) -> Result<Value> {
    let mut config = Value::clone(&req.config);
    if let Some(object) = config.as_object_mut() {
        podwire_cni_spec::config::set_valid_attachments(object, req.valid()?.iter());
    }
    Ok(config)
}

fn send(req: &Request<'_>, kind: &str, command: Command) -> Result<Option<Value>> {
    let found = exec::find(kind, &req.path);
    let here = match &found {
        Ok(file) => req.registry.in_file(kind, file),
        Err(_) => req.registry.in_place_of_missing(kind, command),
    };
    if let Some(plugin) = here {
        match refuse_circle(req, plugin.name()) {
            // Nothing was made, so there is nothing to take back.
            Err(_) if matches!(command, Command::Del | Command::Gc) => return Ok(None),
            other => other?,
        }
        // The own-namespace check was made for the caller.
        return call(plugin, &passed_on(req, plugin, command), true);
    }
    let file = found?;
    let path = std::env::join_paths(&req.path).unwrap_or_default();
    let cni: [(&'static str, OsString); 6] = [
        ("CNI_COMMAND", command.as_str().into()),
        ("CNI_CONTAINERID", req.container.clone().into()),
        ("CNI_NETNS", req.netns.clone().unwrap_or_default().into()),
        ("CNI_IFNAME", req.ifname.clone().into()),
        ("CNI_ARGS", req.args.to_string().into()),
        ("CNI_PATH", path),
    ];
    let stdin = match command {
        Command::Gc if !req.busy.is_empty() => with_all_valid(req)?.to_string(),
        _ => req.config.to_string(),
    };
    let trace = req.trace.iter().map(|(name, value)| (*name, value.into()));
    let env = cni.into_iter().chain(trace).collect();
    let deadline = match (req.command, command) {
        (Command::Add, Command::Del) => req.deadline.map(|end| end.max(Instant::now() + UNDO_PATIENCE)),
        _ => req.deadline,
    };
    let output = Execution { file: &file, env, stdin: stdin.as_bytes(), deadline }.run()?;
    if command != Command::Add || output.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    Ok(Some(json::parse(&output).doing(|| format!("read the result of plugin {kind}"))?))
}
