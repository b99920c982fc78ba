//! debug: records its calls in a file and runs commands in the pod, to debug a chain.
//!
//! The commands come from the network's config, which root wrote. No other plugin runs foreign programs. If a command
//! fails or the file cannot be written, the plugin reports it on standard error and the chain continues.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use podwire_cni_plugin::{Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::Netns;
use serde::Deserialize;

/// The plugin.
#[derive(Debug)]
pub struct Debug;

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["cniOutput", "addHooks", "delHooks", "checkHooks"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    cni_output: String,
    add_hooks: Vec<Vec<String>>,
    del_hooks: Vec<Vec<String>>,
    check_hooks: Vec<Vec<String>>,
}

impl Plugin for Debug {
    fn name(&self) -> &'static str {
        "debug"
    }

    fn about(&self) -> &'static str {
        "debug: records its calls and runs commands in the pod"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf: Conf = req.config()?;
        conf.record("CmdAdd", req);
        run(req, &conf.add_hooks);
        Ok(req.prev.clone().unwrap_or_default())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        // DEL succeeds with an invalid config, too.
        let conf: Conf = req.config().unwrap_or_default();
        conf.record("CmdDel", req);
        run(req, &conf.del_hooks);
        Ok(())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let conf: Conf = req.config()?;
        conf.record("CmdCheck", req);
        run(req, &conf.check_hooks);
        Ok(Vec::new())
    }

    /// Nothing to collect.
    fn gc(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        req.config::<Conf>().map(drop)
    }
}

impl Conf {
    /// Appends the call to the file that the config names.
    fn record(&self, called: &str, req: &Request<'_>) {
        if self.cni_output.is_empty() {
            return;
        }
        let path = |path: Option<&std::path::PathBuf>| path.map(|path| path.display().to_string());
        let folders: Vec<_> = req.path.iter().filter_map(|folder| path(Some(folder))).collect();
        let text = format!(
            "{called}\nContainerID: {}\nNetns: {}\nIfName: {}\nArgs: {}\nPath: {}\nStdinData: {}\n----------------------\n",
            req.container,
            path(req.netns.as_ref()).unwrap_or_default(),
            req.ifname,
            req.args,
            folders.join(":"),
            req.config,
        );
        // One write, so that calls of two pods do not interleave. Mode 0600, because the config may hold secrets.
        let mut options = OpenOptions::new();
        let opened = options.append(true).create(true).mode(0o600).open(&self.cni_output);
        if let Err(error) = opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            eprintln!("debug: cniOutput: write {}: {error}", self.cni_output);
        }
    }
}

/// Runs the commands in the pod's network namespace, one after the other. Skipped if the namespace is gone.
fn run(req: &Request<'_>, hooks: &[Vec<String>]) {
    let Some(Ok(Some(netns))) = req.netns.as_ref().filter(|_| !hooks.is_empty()).map(Netns::find) else {
        return;
    };
    for hook in hooks {
        let command = hook.join(" ");
        match netns.run(|| execute(hook)) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => eprintln!("debug: hook `{command}`: {why}"),
            Err(error) => eprintln!("debug: hook `{command}`: {error}"),
        }
    }
}

/// Runs one command from this thread, so that it starts in the thread's namespace. Its output does not reach the
/// plugin's standard output.
fn execute(hook: &[String]) -> Result<(), String> {
    let (program, arguments) = hook.split_first().ok_or("it is empty")?;
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = ended.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, printed.trim()))
}
