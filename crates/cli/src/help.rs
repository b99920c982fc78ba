//! The overview that `podwire --help` prints: the commands in groups. clap has no headings for subcommands.

/// The help of the program. A test compares its commands with those that exist.
pub(crate) const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

Networks and pods:
  cni         Attach, check and detach containers, as a container runtime does
  pod         Run and inspect pods without containers
  plugins     List the CNI plugins in this build

Node agents:
  agent       Run the node agent, instead of flanneld or calico-node
  dhcp        Run the daemon of the dhcp plugin

Cluster:
  controller  Allocate pod CIDRs for the nodes of a Kubernetes cluster
  ipam        Show and change the address pools and blocks of a cluster
  policy      Test and explain network policies without a cluster
  service     Show the Services of this node, and explain what happens to packets to them

Try and check:
  demo        Show pods and a two-node cluster at work, in temporary namespaces
  lab         Run a cluster of virtual nodes on this machine
  verify      Test with packets that the pods and the node reach each other

Setup:
  install     Install plugins and a network for the container runtimes of this node
  version     Print the versions of this program and of the CNI specification

Options:
{options}{after-help}";

pub(crate) const EXAMPLES: &str = "Examples:
  podwire cni list                      networks, attachments and their problems
  podwire cni add pods blue             attach the namespace blue to the network pods
  podwire cni status                    whether the networks can take more containers
  podwire pod run web --port 8080:80    run a pod on the default network
  podwire lab up --nodes 3              start a three-node cluster on this machine
  podwire install --dry-run             show what would be installed on this node

Run `podwire COMMAND --help` for the options of a command.";

/// The commands in [`TEMPLATE`]: the first word of each line that is indented by two spaces.
#[cfg(test)]
pub(crate) fn commands() -> impl Iterator<Item = &'static str> {
    let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("  "));
    lines.filter_map(|line| line.split_whitespace().next())
}
