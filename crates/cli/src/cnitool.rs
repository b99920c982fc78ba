//! Called as `cnitool`, the program accepts the arguments and the environment of the reference tool.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use podwire_cni_runtime::{ConfigFolder, Error, Identity, Runtime};

use crate::cni::{absolute, container_id, split};

/// Runs ADD, CHECK, DEL, GC or STATUS of a network for a network namespace.
#[derive(Debug, Parser)]
#[command(name = "cnitool", version, disable_help_subcommand = true)]
#[command(after_help = "Environment:
  NETCONFPATH  directory of network configs [/etc/cni/net.d]
  CNI_PATH     directories of plugins, separated by colons
  CNI_ARGS     KEY=VALUE;KEY=VALUE
  CAP_ARGS     a JSON object of capability arguments
  CNI_IFNAME   name of the interface in the container [eth0]")]
struct Cnitool {
    /// Name of the interface in the container.
    #[arg(long, short, global = true)]
    ifname: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Attach a namespace to a network.
    Add(Target),
    /// Compare the attachment with the result of its ADD.
    Check(Target),
    /// Detach a namespace from a network.
    Del(Target),
    /// Remove all attachments of a network.
    Gc(Target),
    /// Show whether the network can take another container.
    Status(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Name of the network.
    net: String,
    /// Path of the namespace.
    netns: PathBuf,
}

/// Runs the tool. Errors go to standard error with exit status 1.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let tool = match Cnitool::try_parse_from(args) {
        Ok(tool) => tool,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match tool.run() {
        Ok(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

impl Cnitool {
    fn run(&self) -> Result<String, Error> {
        let env = |name: &str| std::env::var(name).unwrap_or_default();
        let (Verb::Add(target)
        | Verb::Check(target)
        | Verb::Del(target)
        | Verb::Gc(target)
        | Verb::Status(target)) = &self.verb;
        let dir = Some(env("NETCONFPATH")).filter(|path| !path.is_empty()).unwrap_or("/etc/cni/net.d".into());
        let list = ConfigFolder::new(dir).find(&target.net)?.list;
        let path = split(env("CNI_PATH").as_ref());
        let runtime = Runtime::new(path).registry(podwire_plugins::registry());
        let identity = self.identity(target, &env)?;
        match self.verb {
            Verb::Add(_) => {
                let json = runtime.add(&list, &identity)?.to_json(list.version)?;
                return Ok(podwire_cni_spec::json::pretty(&json));
            }
            Verb::Del(_) => runtime.del(&list, &identity)?,
            Verb::Check(_) => runtime.check(&list, &identity).map_err(bare)?,
            Verb::Status(_) => runtime.status(&list).map_err(bare)?,
            Verb::Gc(_) => drop(runtime.gc(&list, &[]).done()?),
        }
        Ok(String::new())
    }

    fn identity(&self, target: &Target, env: &dyn Fn(&str) -> String) -> Result<Identity, Error> {
        let netns = absolute(&target.netns);
        let given = [self.ifname.clone().unwrap_or_default(), env("CNI_IFNAME"), "eth0".to_owned()];
        let ifname = given.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let args = podwire_cni_spec::Args::parse(&env("CNI_ARGS"))?;
        if let Some((key, value)) = args.iter().find(|(key, value)| key.is_empty() || value.is_empty()) {
            return Err(podwire_cni_spec::Error::env(format!(
                "invalid CNI_ARGS pair {:?}",
                format!("{key}={value}")
            ))
            .into());
        }
        let mut identity = Identity::new(&container_id(&netns), &ifname)?.netns(netns).args(args);
        let capabilities = env("CAP_ARGS");
        if !capabilities.is_empty() {
            let failed =
                |error| podwire_cni_spec::Error::env(format!("CAP_ARGS must be a JSON object: {error}"));
            identity.capabilities = serde_json::from_str(&capabilities).map_err(failed)?;
        }
        Ok(identity)
    }
}

/// The error of the plugin without the plugin's name, as the reference tool prints it for CHECK and STATUS.
fn bare(error: Error) -> Error {
    match error {
        Error::Plugin { source, .. } => Error::Cni(source.to_cni()),
        other => other,
    }
}
