//! The commands of the `podwire` program.
//!
//! A command is a type that clap fills from the command line and a function that turns it into an [`Output`] (text for
//! people and the same as JSON) or a [`Failure`] (the action that failed, its cause and a hint). [`main`] prints the
//! result and returns the exit status. Daemons and `exec` commands return only an exit status.
//! Under the name `cnitool` the program is a drop-in for that tool.

#![forbid(unsafe_code)]

mod agent;
mod cni;
mod cnitool;
mod container_ids;
mod controller;
mod demo;
mod dhcp;
mod duration;
mod failure;
mod help;
mod info;
mod install;
mod ipam;
mod lab;
mod log;
#[cfg(test)]
mod named_commands;
mod output;
mod paint;
mod plugin_dirs;
mod pod;
mod policy;
mod publish;
mod service;
mod table;
mod verify;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use failure::Failure;
pub use output::Output;

/// Pod networking: CNI plugins, node agents, IPAM and network policy.
#[derive(Debug, Parser)]
#[command(name = "podwire", version, disable_help_subcommand = true)]
#[command(help_template = help::TEMPLATE, after_help = help::EXAMPLES)]
struct Podwire {
    /// Print JSON instead of text, also for errors.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// The short lines of `podwire --help` are in [`help::TEMPLATE`].
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node agent, instead of flanneld or calico-node.
    #[command(subcommand)]
    Agent(Box<agent::Mode>),
    /// Attach, check and detach containers, as a container runtime does.
    #[command(subcommand)]
    Cni(Box<cni::Verb>),
    /// Allocate pod CIDRs for the nodes of a Kubernetes cluster.
    #[command(after_help = controller::EXAMPLES)]
    Controller(Box<controller::Controller>),
    /// Show pods and a two-node cluster at work, in temporary namespaces. Needs root.
    Demo,
    /// Run the daemon of the dhcp plugin.
    #[command(subcommand)]
    Dhcp(dhcp::Dhcp),
    /// Install plugins and a network for the container runtimes of this node.
    #[command(after_help = install::EXAMPLES)]
    Install(Box<install::Install>),
    /// Run a cluster of virtual nodes on this machine.
    #[command(subcommand, after_help = lab::EXAMPLES)]
    Lab(lab::Verb),
    /// Run and inspect pods without containers.
    #[command(subcommand)]
    Pod(Box<pod::Verb>),
    /// Show and change the address pools and blocks of a cluster.
    #[command(subcommand)]
    Ipam(Box<ipam::Verb>),
    /// List the CNI plugins in this build.
    Plugins,
    /// Test with packets that the pods and the node reach each other without NAT.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Verify),
    /// Test and explain network policies, on files, a node or a lab.
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Show the Services of this node, and explain what happens to packets to them.
    #[command(subcommand)]
    Service(service::Verb),
    /// Print the versions of this program and of the CNI specification.
    Version,
}

/// Runs the program. `args` are the arguments of the process, with its name first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<_> = args.into_iter().collect();
    let called = args.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if called.is_some_and(|name| name == "cnitool") {
        podwire_kernel::detached::set_short_lived();
        return cnitool::main(args);
    }
    // The pause process of a pod is this program too. It does nothing else, to stay small.
    if args.get(1).is_some_and(|command| command == "pause") {
        return podwire_sandbox::pause::main();
    }
    let podwire = match Podwire::try_parse_from(&args) {
        Ok(podwire) => podwire,
        Err(error) => {
            // What follows `--` belongs to another program.
            let json = args.iter().take_while(|word| *word != "--").any(|word| word == "--json");
            return failure::print_usage(&error, json);
        }
    };
    match podwire.command.run(podwire.json) {
        Ok(Done::Output(output)) => output.print(podwire.json),
        Ok(Done::Exit(status)) => status,
        Err(failure) => failure.print(podwire.json),
    }
}

/// What a command leaves to print.
enum Done {
    Output(Output),
    /// Nothing: the command printed its own output.
    Exit(ExitCode),
}

impl Command {
    /// The name of the command, if its answer would be wrong without root.
    fn needing_root(&self) -> Option<&'static str> {
        match self {
            Command::Cni(verb) if !verb.only_reads_files() => Some("cni"),
            Command::Demo => Some("demo"),
            Command::Ipam(verb) if verb.reads_node() => Some("ipam"),
            Command::Lab(verb) if !verb.only_lists_faults() => Some("lab"),
            Command::Pod(_) => Some("pod"),
            Command::Service(_) => Some("service"),
            Command::Verify(_) => Some("verify"),
            _ => None,
        }
    }

    fn run(self, json: bool) -> Result<Done, Failure> {
        if let Some(command) = self.needing_root() {
            failure::require_root(&format!("`podwire {command}`"))?;
        }
        let ended = |()| Done::Exit(ExitCode::SUCCESS);
        match self {
            Command::Agent(mode) => mode.run().map(ended),
            Command::Cni(verb) => {
                podwire_kernel::detached::set_short_lived();
                verb.run(json).map(Done::Output)
            }
            Command::Controller(controller) => controller.run().map(ended),
            Command::Demo => demo::run().map(ended).map_err(|error| {
                Failure::new("the demo failed", podwire_cni_spec::Error::internal(format!("{error:#}")))
            }),
            Command::Dhcp(dhcp) => dhcp.run().map(ended),
            Command::Install(install) => install.run().map(Done::Output),
            Command::Lab(lab::Verb::Exec(exec)) => exec.run().map(Done::Exit),
            Command::Lab(verb) => verb.run(json).map(Done::Output),
            Command::Pod(verb) => {
                podwire_kernel::detached::set_short_lived();
                match *verb {
                    pod::Verb::Exec(exec) => exec.run().map(Done::Exit),
                    verb => verb.run().map(Done::Output),
                }
            }
            Command::Ipam(verb) => verb.run().map(Done::Output),
            Command::Plugins => Ok(Done::Output(info::plugins())),
            Command::Verify(verify) => verify.run().map(Done::Output),
            Command::Policy(verb) => verb.run().map(Done::Output),
            Command::Service(verb) => verb.run().map(Done::Output),
            Command::Version => Ok(Done::Output(info::version())),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Podwire::command().debug_assert();
    }

    #[test]
    fn the_help_lists_every_command_once() {
        let mut listed: Vec<&str> = help::commands().collect();
        let command = Podwire::command();
        let mut known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }

    /// Every help text of every command.
    fn help_texts(command: &clap::Command, path: &str) -> Vec<(String, String)> {
        let path = format!("{path} {}", command.get_name());
        let text =
            |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
        let mut texts = vec![(path.clone(), text(command.get_about()))];
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help" && arg.get_id() != "version") {
            texts.push((format!("{path} {}", arg.get_id()), text(arg.get_help())));
        }
        texts.extend(command.get_subcommands().flat_map(|command| help_texts(command, &path)));
        texts
    }

    #[test]
    fn every_help_text_is_one_line_and_every_example_fits_100_columns() {
        let mut command = Podwire::command();
        command.build();
        let mut bad: Vec<String> = help_texts(&command, "")
            .into_iter()
            .filter(|(_, text)| text.is_empty() || text.contains('\n') || text.chars().count() > 100)
            .map(|(path, text)| format!("{path}: {text}"))
            .collect();
        let mut all = vec![&command];
        while let Some(command) = all.pop() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = after.lines().filter(|line| line.chars().count() > 100);
            bad.extend(long.map(|line| format!("{}: {line}", command.get_name())));
            all.extend(command.get_subcommands());
        }
        assert!(bad.is_empty(), "{bad:#?}");
    }
}
