//! debug: writes down how it was called, and runs commands in the pod. For people who look for a fault in a chain.
//!
//! The commands come from the network's config, which root wrote; they are the only programs of somebody else that
//! these plugins ever start. Whatever they do, and wherever the record cannot be written, the chain goes on: it is
//! told on standard error.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use podwire_cni_plugin::{Finding, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::Netns;
use serde::Deserialize;

/// The plugin.
#[derive(Debug)]
pub struct Debug;

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
        "debug: writes down how it was called and runs commands in the pod"
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
        // A config that makes no sense any more keeps no pod.
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

    /// It leaves nothing.
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
        // One write: two pods' calls do not mingle. The config may have secrets in it.
        let mut options = OpenOptions::new();
        let opened = options.append(true).create(true).mode(0o600).open(&self.cni_output);
        if let Err(error) = opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            eprintln!("debug: cniOutput: write {}: {error}", self.cni_output);
        }
    }
}

/// Runs each command in the pod's network, one after the other. Without a pod there is no place to run them.
fn run(req: &Request<'_>, hooks: &[Vec<String>]) {
    let Some(Ok(Some(netns))) = req.netns.as_ref().filter(|_| !hooks.is_empty()).map(Netns::find) else {
        return;
    };
    for hook in hooks {
        let told = hook.join(" ");
        match netns.run(|| execute(hook)) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => eprintln!("debug: hook `{told}`: {why}"),
            Err(error) => eprintln!("debug: hook `{told}`: {error}"),
        }
    }
}

/// Starts the command from this thread, so that it is born in the namespace that the thread is in. What it prints is
/// no part of the plugin's answer.
fn execute(hook: &[String]) -> Result<(), String> {
    let (program, arguments) = hook.split_first().ok_or("it is empty")?;
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = ended.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let words =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, words.trim()))
}
