//! The commands of the `podwire` program.
//!
//! A command is a type that clap fills from the command line and a function that turns it into an [`Answer`]
//! (what people read, and the same as JSON) or a [`Failure`] (what failed, because of what, and what to do next).
//! Printing happens in one place, [`main`]. Called as `cnitool` the program is a drop-in for that tool.

#![forbid(unsafe_code)]

mod addresses;
mod agent_daemon;
mod answer;
mod catalogue;
mod cnitool;
mod controller_daemon;
mod demo;
mod dhcp_daemon;
mod duration;
mod failure;
mod install_command;
mod lab_command;
mod log;
mod node_daemon;
mod paint;
mod pods;
mod policy;
mod prove;
mod publish;
mod table;
mod verbs;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use answer::Answer;
pub use failure::Failure;

/// Plugs pods and containers into networks, and shows what is plugged in.
#[derive(Debug, Parser)]
#[command(name = "podwire", version, disable_help_subcommand = true)]
#[command(after_help = "Examples:
  podwire cni list                      networks, attachments, and what is wrong with them
  podwire cni add pods blue             attach the namespace `blue` to the network `pods`
  podwire cni status                    could another container be attached?
  podwire install --dry-run             what would be put on this node, and where?
  podwire pod run web --port 8080:80    run a pod on the default network
  podwire lab up --nodes 3              a cluster on this machine, in namespaces of its own

`podwire COMMAND --help` tells more.")]
struct Podwire {
    /// Print JSON instead of text; errors too.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Learn of the other nodes, open the roads to them, and say when pods may come.
    #[command(after_help = agent_daemon::EXAMPLES)]
    Agent(Box<agent_daemon::Agent>),
    /// Attach, detach and look at containers, as a container runtime does.
    #[command(subcommand)]
    Cni(Box<verbs::Verb>),
    /// Give every node of a Kubernetes cluster a range of addresses that no other node has.
    #[command(after_help = controller_daemon::EXAMPLES)]
    Controller(Box<controller_daemon::Controller>),
    /// Watch three pods get a network on this machine, then a cluster of two nodes, in namespaces that vanish afterwards. Needs root.
    Demo,
    /// Keep leases for pods whose addresses come from a DHCP server.
    #[command(subcommand)]
    Dhcp(dhcp_daemon::Dhcp),
    /// Put plugins and a network where this node's container runtimes look for them, or take them back.
    #[command(after_help = install_command::EXAMPLES)]
    Install(Box<install_command::Install>),
    /// A cluster on this machine: nodes with agents and pods, to play with and to break.
    #[command(subcommand, after_help = lab_command::EXAMPLES)]
    Lab(lab_command::Verb),
    /// Own this node's blocks of addresses and open the roads to those of other nodes, as Calico's node agent does.
    #[command(after_help = node_daemon::EXAMPLES)]
    Node(Box<node_daemon::Node>),
    /// Run, stop and look at pods: namespaces, the process that holds them, and their networks.
    #[command(subcommand)]
    Pod(Box<pods::Verb>),
    /// Address pools and blocks of a cluster: look at them, check them, change them.
    #[command(subcommand)]
    Ipam(Box<addresses::Verb>),
    /// The network plugins that this program knows.
    Plugins,
    /// Prove with packets that pods and nodes reach each other, and see each other's own addresses.
    #[command(after_help = prove::EXAMPLES)]
    Verify(prove::Verify),
    /// Try network policies without a cluster, and see which rule decides.
    #[command(subcommand)]
    Policy(policy::Verb),
    /// The version of this program, and of the specification that it speaks.
    Version,
}

/// Runs the program: `args` are those of the process, its own name first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<_> = args.into_iter().collect();
    let called = args.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if called.is_some_and(|name| name == "cnitool") {
        podwire_kernel::detached::set_short_lived();
        return cnitool::main(args);
    }
    // The process of a pod is this program too. It is to be small: nothing else is done in it.
    if args.get(1).is_some_and(|command| command == "pause") {
        return podwire_sandbox::pause::main();
    }
    let podwire = Podwire::parse_from(args);
    let answer = match podwire.command {
        Command::Agent(agent) => match agent.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => Err(failure),
        },
        Command::Cni(verb) => {
            podwire_kernel::detached::set_short_lived();
            verb.run(podwire.json)
        }
        Command::Controller(controller) => match controller.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => Err(failure),
        },
        Command::Demo => match demo::run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => {
                Err(Failure::new("the demo failed", podwire_cni_spec::Error::internal(format!("{error:#}"))))
            }
        },
        Command::Dhcp(command) => match command.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => Err(failure),
        },
        Command::Install(command) => command.run(),
        Command::Lab(verb) => match verb.exec() {
            Some(Ok(status)) => return status,
            Some(Err(failure)) => Err(failure),
            None => verb.run(podwire.json),
        },
        Command::Node(node) => match node.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => Err(failure),
        },
        Command::Pod(verb) => {
            podwire_kernel::detached::set_short_lived();
            match *verb {
                pods::Verb::Exec(exec) => match exec.run() {
                    Ok(status) => return status,
                    Err(failure) => Err(failure),
                },
                verb => verb.run(),
            }
        }
        Command::Ipam(verb) => verb.run(),
        Command::Plugins => Ok(catalogue::plugins()),
        Command::Verify(command) => command.run(),
        Command::Policy(verb) => verb.run(),
        Command::Version => Ok(catalogue::version()),
    };
    match answer {
        Ok(answer) => answer.print(podwire.json),
        Err(failure) => failure.print(podwire.json),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_makes_sense() {
        super::Podwire::command().debug_assert();
    }
}
