//! noop: does nothing and returns what a file dictates. For tests of runtimes.
//!
//! It is the test double of the reference library: `debugFile` in the config, or `DEBUG` in `CNI_ARGS`, names a file
//! that holds the response and into which the plugin writes its call. As an executed program it prints the response
//! verbatim. Called in the runtime's process it must return a valid result, as every plugin.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use podwire_cni_plugin::{Command, Finding, Keys, Plugin, RawOutput, Request, Result};
use podwire_cni_spec::{code, json, Args, Attachment, Version};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

/// The plugin.
#[derive(Debug)]
pub struct Noop;

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["debugFile", "commandLog"];

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    debug_file: String,
    command_log: String,
}

/// The contents of the file: the response, and the last call.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Script {
    report_result: String,
    report_error: String,
    report_error_code: u32,
    report_stderr: String,
    report_version_support: Option<Vec<String>>,
    exit_with_code: i64,
    command: String,
    cmd_args: Value,
}

impl Plugin for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn about(&self) -> &'static str {
        "noop: does nothing and returns what a file dictates, for tests of runtimes"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS]))
    }

    fn version_info(&self, args: &str) -> Value {
        let usual = || podwire_cni_spec::version::VersionInfo::new(Version::ALL).to_json();
        let args = Args::parse(args).unwrap_or_default();
        let script = args.get("DEBUG").and_then(|path| Script::read(Path::new(path)).ok());
        match script.and_then(|script| script.report_version_support) {
            Some(versions) => json!({"cniVersion": Version::CURRENT.as_str(), "supportedVersions": versions}),
            None => usual(),
        }
    }

    fn raw_output(&self, req: &Request<'_>) -> Result<Option<RawOutput>> {
        respond(req).map(Some)
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let result = json::parse(respond_in_process(req)?.stdout.as_bytes())?;
        Ok(Attachment::from_json(&result, req.version)?)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        respond_in_process(req).map(drop)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        respond_in_process(req).map(|_| Vec::new())
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        respond_in_process(req).map(drop)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        respond_in_process(req).map(drop)
    }
}

/// The response for a caller in the same process, which sees no exit status.
fn respond_in_process(req: &Request<'_>) -> Result<RawOutput> {
    let response = respond(req)?;
    eprint!("{}", response.stderr);
    match response.exit {
        0 => Ok(response),
        status => {
            let text = format!("netplugin failed: {:?}: exit status {status}", response.stdout);
            Err(podwire_cni_spec::Error::internal(text).into())
        }
    }
}

/// Records the call and returns the response of the file.
fn respond(req: &Request<'_>) -> Result<RawOutput> {
    let conf: Conf = req.config()?;
    let path = req.args.get("DEBUG").unwrap_or(&conf.debug_file);
    if path.is_empty() {
        let stderr = "CNI_ARGS or config empty, no debug behavior\n".into();
        return Ok(RawOutput { stdout: "{}".into(), stderr, exit: 0 });
    }
    let mut script = Script::read(Path::new(path))?;
    script.command = req.command.as_str().into();
    script.cmd_args = arguments(req);
    script.write(Path::new(path))?;
    if !conf.command_log.is_empty() {
        let entry = json!({"Command": script.command, "CmdArgs": script.cmd_args});
        append(&conf.command_log, entry)?;
    }
    script.response(req)
}

impl Script {
    fn read(path: &Path) -> Result<Script> {
        let failed = |error: String| {
            podwire_cni_spec::Error::new(code::IO, format!("debugFile: {}: {error}", path.display()))
        };
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let read = json::parse(&bytes).and_then(|value| json::decode(&value));
        Ok(read.map_err(|error| failed(error.msg))?)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(path);
        let written = opened.and_then(|mut file| file.write_all(&serde_json::to_vec(self)?));
        Ok(written.map_err(|error| {
            podwire_cni_spec::Error::new(code::IO, format!("debugFile: write {}: {error}", path.display()))
        })?)
    }

    fn response(self, req: &Request<'_>) -> Result<RawOutput> {
        if let Some(versions) = self.report_version_support.filter(|versions| !versions.is_empty()) {
            if !versions.iter().any(|version| version == req.version.as_str()) {
                let details = format!("config is {:?}, plugin supports {versions:?}", req.version.as_str());
                let error =
                    podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions");
                return Err(error.with_details(details).into());
            }
        }
        if !self.report_error.is_empty() {
            eprint!("{}", self.report_stderr);
            let code = if self.report_error_code == 0 { code::INTERNAL } else { self.report_error_code };
            return Err(podwire_cni_spec::Error::new(code, self.report_error).into());
        }
        let stdout = match self.report_result.as_str() {
            "PASSTHROUGH" => result(req, |_| {})?,
            "INJECT-DNS" => result(req, |prev| prev.dns.nameservers = vec!["1.2.3.4".into()])?,
            _ => self.report_result,
        };
        // Codes beyond 255 become 255.
        let exit = if self.exit_with_code > 0 { u8::try_from(self.exit_with_code).unwrap_or(255) } else { 0 };
        Ok(RawOutput { stdout, stderr: self.report_stderr, exit })
    }
}

/// The previous result after `change`. Only ADD requires one.
fn result(req: &Request<'_>, change: impl FnOnce(&mut Attachment)) -> Result<String> {
    if req.prev.is_none() && req.command != Command::Add {
        return Ok(String::new());
    }
    let mut prev = req.chained()?.clone();
    change(&mut prev);
    Ok(prev.to_json(req.version)?.to_string())
}

/// The call in the form of the reference library's `CmdArgs`.
fn arguments(req: &Request<'_>) -> Value {
    let path = std::env::join_paths(&req.path).unwrap_or_default();
    json!({
        "ContainerID": req.container,
        "Netns": req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        "IfName": req.ifname,
        "Args": req.args.to_string(),
        "Path": path.to_string_lossy(),
        "NetnsOverride": std::env::var("CNI_NETNS_OVERRIDE").unwrap_or_default(),
        "StdinData": STANDARD.encode(req.config.to_string()),
    })
}

/// Appends a call to the list in the file, under a lock: several plugins may do so at once.
fn append(path: &str, entry: Value) -> Result<()> {
    let work = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o644).open(path)?;
        file.lock()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut calls: Vec<Value> =
            if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text)? };
        calls.push(entry);
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(&serde_json::to_vec(&calls)?)
    };
    Ok(work()
        .map_err(|error| podwire_cni_spec::Error::new(code::IO, format!("commandLog: {path}: {error}")))?)
}
