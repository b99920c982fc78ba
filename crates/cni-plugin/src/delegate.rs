//! Calls another plugin from a plugin, usually an IPAM plugin for an address.
//!
//! The other plugin gets the caller's whole request. If the file to be executed is this program, the call happens in this
//! process, which saves an exec.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use podwire_cni_spec::{json, Attachment};
use serde_json::Value;

use crate::dispatch::call;
use crate::exec::{self, Execution};
use crate::repair::{self, Mode, Outcome, Report, Reported};
use crate::{Command, Context, Finding, Plugin, Request, Result};

/// The least time for the DEL that undoes a failed ADD, even if the caller's deadline is near.
const UNDO_TIMEOUT: Duration = Duration::from_secs(10);

/// The IPAM plugin of the config, if it has one.
pub fn ipam<'v>(req: &'v Request<'_>) -> Option<&'v str> {
    let kind = json::get(json::get(&req.config, "ipam")?, "type")?.as_str()?;
    Some(kind).filter(|kind| !kind.is_empty())
}

/// The caller's request with another config, for a plugin that writes its delegate's config itself. Keeps what a runtime adds
/// to a config: the recorded result and the list of valid attachments.
pub fn with<'p>(req: &Request<'p>, config: Value) -> Request<'p> {
    let mut config = config;
    if let (Some(own), Some(other)) = (req.config.as_object(), config.as_object_mut()) {
        for key in ["prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"] {
            let sent = own.iter().filter(|(sent, _)| sent.eq_ignore_ascii_case(key));
            sent.for_each(|(_, value)| json::set(other, key, value.clone()));
        }
        // A result that the runtime lost may still be in the ledger.
        let known = req.prev.as_ref().filter(|_| !other.contains_key("prevResult"));
        if let Some(known) = known.and_then(|prev| prev.to_json(req.version).ok()) {
            json::set(other, "prevResult", known);
        }
    }
    Request { config: config.into(), ..req.clone() }
}

/// Whether the plugin `kind` is part of this program and called in-process.
pub fn is_own(req: &Request<'_>, kind: &str) -> bool {
    exec::find(kind, &req.path).is_ok_and(|file| req.registry.in_file(kind, &file).is_some())
}

/// ADD by the plugin `kind`. If an executed plugin fails or prints an invalid result, its DEL runs, because it may have
/// changed something. An in-process plugin leaves nothing behind when it fails, and a DEL after "this container already has an
/// address" would release that address.
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

/// The differences that the plugin `kind` finds. An executed plugin of the SDK lists them one by one, with its repairs; the
/// error of another one is its only difference, without a repair.
pub fn inspect<'p>(req: &Request<'p>, kind: &str) -> Result<Vec<Finding<'p>>> {
    match exec::find(kind, &req.path).ok().and_then(|file| req.registry.in_file(kind, &file)) {
        Some(plugin) if !req.callers.contains(&plugin.name()) => {
            plugin.inspect(&passed_on(req, plugin, Command::Check))
        }
        _ => Ok(match check(req, kind) {
            Ok(()) => Vec::new(),
            Err(error) => executed_findings(req, kind).unwrap_or_else(|| vec![error.into()]),
        }),
    }
}

/// The differences that an executed plugin of the SDK lists; `None` if it is none of the SDK.
fn executed_findings<'p>(req: &Request<'p>, kind: &str) -> Option<Vec<Finding<'p>>> {
    let report = settle(req, kind, Mode::Inspect).ok()??;
    let finding = |one: Reported| {
        let finding = Finding::new(&*one.what);
        if one.outcome != Outcome::Repairable {
            return finding;
        }
        let (req, kind) = (req.clone(), kind.to_owned());
        finding.repaired_by(move || repair_executed(&req, &kind, &one.what))
    };
    Some(report.differences.into_iter().map(finding).collect())
}

/// Lets an executed plugin of the SDK repair. It repairs all its differences at once, so the one that is asked about may
/// be gone since an earlier call.
fn repair_executed(req: &Request<'_>, kind: &str, what: &str) -> Result<()> {
    let report = settle(req, kind, Mode::Repair)?;
    let found = report.and_then(|report| report.differences.into_iter().find(|one| one.what == what));
    match found.map(|one| one.outcome) {
        None | Some(Outcome::Repaired) => Ok(()),
        Some(Outcome::Failed { reason }) => Err(podwire_cni_spec::Error::internal(reason).into()),
        Some(Outcome::Repairable | Outcome::NotRepaired) => {
            Err(podwire_cni_spec::Error::internal(what).into())
        }
    }
}

/// A CHECK that asks an executed plugin for a report; `None` if it answers without one.
fn settle(req: &Request<'_>, kind: &str, mode: Mode) -> Result<Option<Report>> {
    let file = exec::find(kind, &req.path)?;
    if req.registry.in_file(kind, &file).is_some() {
        return Ok(None);
    }
    Ok(Report::parse(&execute(req, &file, Command::Check, mode.as_str())?))
}

/// GC by the plugin `kind`.
pub fn gc(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Gc).map(drop)
}

/// STATUS of the plugin `kind`.
pub fn status(req: &Request<'_>, kind: &str) -> Result<()> {
    send(req, kind, Command::Status).map(drop)
}

/// The caller's request for another plugin of this program.
fn passed_on<'p>(req: &Request<'p>, to: &dyn Plugin, command: Command) -> Request<'p> {
    let mut passed_on = Request { command, ..req.clone() };
    passed_on.callers.push(to.name());
    passed_on
}

/// Refuses a delegation that would never end: a delegate gets its caller's config and finds the same delegate in it, as
/// `bridge` with `ptp` as its IPAM plugin does.
pub fn refuse_circle(req: &Request<'_>, kind: &str) -> Result<()> {
    if !req.callers.contains(&kind) {
        return Ok(());
    }
    let text = format!("ipam.type: {kind} is not an IPAM plugin, it needs one itself");
    Err(podwire_cni_spec::Error::invalid_config(text)
        .with_details("use an IPAM plugin such as host-local or static")
        .into())
}

/// The config of a GC for an executed plugin, which does not know the attachments that are in progress.
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
            // The ADD was refused too, so there is nothing to remove.
            Err(_) if matches!(command, Command::Del | Command::Gc) => return Ok(None),
            other => other?,
        }
        // The caller has passed the own-namespace check.
        return call(plugin, &passed_on(req, plugin, command), true);
    }
    // The delegate answers CHECK with an error, whatever the caller was asked.
    let output = execute(req, &found?, command, "")?;
    if command != Command::Add || output.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    Ok(Some(json::parse(&output).doing(|| format!("read the result of plugin {kind}"))?))
}

/// Executes a plugin with the caller's request. `mode` is the value of [`repair::VARIABLE`].
fn execute(req: &Request<'_>, file: &Path, command: Command, mode: &str) -> Result<Vec<u8>> {
    let path = std::env::join_paths(&req.path).unwrap_or_default();
    let cni: [(&'static str, OsString); 7] = [
        ("CNI_COMMAND", command.as_str().into()),
        ("CNI_CONTAINERID", req.container.clone().into()),
        ("CNI_NETNS", req.netns.clone().unwrap_or_default().into()),
        ("CNI_IFNAME", req.ifname.clone().into()),
        ("CNI_ARGS", req.args.to_string().into()),
        ("CNI_PATH", path),
        (repair::VARIABLE, mode.into()),
    ];
    let stdin = match command {
        Command::Gc if !req.busy.is_empty() => with_all_valid(req)?.to_string(),
        _ => req.config.to_string(),
    };
    let trace = req.trace.iter().map(|(name, value)| (*name, value.into()));
    let env = cni.into_iter().chain(trace).collect();
    let deadline = match (req.command, command) {
        (Command::Add, Command::Del) => req.deadline.map(|end| end.max(Instant::now() + UNDO_TIMEOUT)),
        _ => req.deadline,
    };
    Execution { file, env, stdin: stdin.as_bytes(), deadline }.run()
}
