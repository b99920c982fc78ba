//! `podwire lab …`: a cluster of virtual nodes on this machine, with fault injection.

mod apply;
mod exec;
mod faults;
mod name_flag;
mod status;
mod up;
mod verify;

use clap::{Args, Subcommand};
use podwire_lab::Lab;
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use name_flag::NameFlag;

pub(crate) const EXAMPLES: &str = "Examples:
  podwire lab up --nodes 3 --subnets 2           three nodes, two subnets and a router
  podwire lab status                             nodes, agents, pods and their addresses
  podwire lab exec n1 -- ip route                run a command on a node
  podwire lab exec n1-pod1 -- ping -c 1 ADDRESS  run a command in a pod
  podwire lab verify                             send packets from all pods and nodes to all pods
  podwire lab break                              list the faults
  podwire lab break delete-device n2             inject a fault
  podwire lab heal                               remove all faults
  podwire lab down

A lab runs in its own namespaces and does not touch the machine's network, firewall and files. It
runs until `podwire lab down` or a reboot of the machine.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Start a lab: nodes with agents and pods.
    #[command(after_help = up::EXAMPLES)]
    Up(up::Up),
    /// Read the files of policies and Services again, and wait until every agent has applied them.
    #[command(after_help = apply::EXAMPLES)]
    Apply(NameFlag),
    /// Show nodes, agents, pods and Services.
    Status(NameFlag),
    /// Run a command on a node, on the router, or in a pod.
    #[command(after_help = exec::EXAMPLES)]
    Exec(exec::Exec),
    /// Test with packets that all pods and nodes reach all pods without NAT.
    Verify(verify::Verify),
    /// Inject a fault; without a name, list the faults.
    #[command(after_help = faults::EXAMPLES)]
    Break(faults::Break),
    /// Remove all faults, and wait until the lab is healthy.
    Heal(NameFlag),
    /// Stop and remove a lab.
    Down(Down),
}

impl Verb {
    /// Whether the command looks at no lab.
    pub(crate) fn only_lists_faults(&self) -> bool {
        matches!(self, Verb::Break(broken) if broken.is_list())
    }

    pub(crate) fn run(self, json: bool) -> Result<Output, Failure> {
        match self {
            Verb::Up(up) => up.run(json),
            Verb::Apply(lab) => apply::run(&lab.name),
            Verb::Status(lab) => status::run(&lab.name),
            Verb::Verify(verify) => verify.run(),
            Verb::Break(broken) => broken.run(),
            Verb::Heal(lab) => faults::heal(&lab.name),
            Verb::Down(down) => down.run(),
            Verb::Exec(_) => unreachable!("main runs exec, which has an exit status of its own"),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    lab: NameFlag,
    /// First wait for the end of standard input, to remove the lab when another process ends.
    #[arg(long)]
    after_input: bool,
}

impl Down {
    fn run(&self) -> Result<Output, Failure> {
        let name = &self.lab.name;
        if self.after_input {
            // The input itself is ignored.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        }
        Lab::remove(name).map_err(Failure::context(format!("cannot remove lab {name}")))?;
        Ok(Output::new(format!("removed lab {name}\n"), json!({ "name": name })))
    }
}
