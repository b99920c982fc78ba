//! `podwire lab`: a cluster on this machine, to play with, to learn from and to break.

mod apply;
mod exec;
mod faults;
mod status;
mod up;
mod verify;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use podwire_lab::Lab;
use serde_json::json;

use crate::{Answer, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire lab up --nodes 3 --subnets 2        three nodes, two wires, a router between
  podwire lab status
  podwire lab exec n1 -- ip route             on a node
  podwire lab exec n1-pod1 -- ping -c 1 ADDRESS   of another pod; `podwire lab status` tells it
  podwire lab verify                          every pod asks every pod, every node asks every pod
  podwire lab break                           what can be broken
  podwire lab break delete-device n2
  podwire lab heal
  podwire lab down

All of it is in namespaces of its own: the machine's network, firewall and files are not touched. A lab lives until
`podwire lab down`, or until the machine is restarted.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a lab: nodes with agents and pods, joined by wires.
    #[command(after_help = up::EXAMPLES)]
    Up(up::Up),
    /// Read the files of policies again, and wait until every agent enforces them.
    #[command(after_help = apply::EXAMPLES)]
    Apply(Named),
    /// How nodes, agents and pods are.
    Status(Named),
    /// Run a command on a node, on the router, or in a pod.
    #[command(after_help = exec::EXAMPLES)]
    Exec(exec::Exec),
    /// Prove with packets that all pods and nodes reach all pods, with their own addresses.
    Verify(verify::Verify),
    /// Break something; without a name, list what can be broken.
    #[command(after_help = faults::EXAMPLES)]
    Break(faults::Break),
    /// Take away what was broken, and wait until all is whole again.
    Heal(Named),
    /// End a lab: nothing of it is left.
    Down(Down),
}

/// Which lab.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The lab's name.
    #[arg(long, value_name = "NAME", default_value = "lab")]
    name: String,
}

impl Verb {
    /// All verbs but `exec`, whose status is that of the command.
    pub(crate) fn run(self, json: bool) -> Result<Answer, Failure> {
        match self {
            Verb::Up(up) => up.run(json),
            Verb::Apply(lab) => apply::run(&lab.name),
            Verb::Status(lab) => status::run(&lab.name),
            Verb::Verify(verify) => verify.run(),
            Verb::Break(broken) => broken.run(),
            Verb::Heal(lab) => faults::heal(&lab.name),
            Verb::Down(down) => down.run(),
            Verb::Exec(_) => Ok(Answer::new("", json!(null))),
        }
    }

    /// Runs it and returns the exit status, if it is `exec`.
    pub(crate) fn exec(&self) -> Option<Result<ExitCode, Failure>> {
        match self {
            Verb::Exec(exec) => Some(exec.run()),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    lab: Named,
    /// First wait until standard input ends: a lab that ends with whoever holds the other end of a pipe.
    #[arg(long)]
    after_input: bool,
}

impl Down {
    fn run(&self) -> Result<Answer, Failure> {
        let name = &self.lab.name;
        if self.after_input {
            // Whatever comes, the end of it is what counts.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        }
        Lab::remove(name).map_err(Failure::to(format!("cannot end lab {name}")))?;
        Ok(Answer::new(format!("lab {name} is gone\n"), json!({ "name": name })))
    }
}
