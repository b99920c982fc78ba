//! The objects that a runtime and its plugins could leave behind on a stage.

use crate::Stage;

impl Stage {
    /// Everything that could be left of a container, as lines of text: what
    /// [`Node::leftovers`](podwire_tests::Node::leftovers) lists (links, queues, rules, routes, firewall elements and
    /// rules, files of plugins), addresses of the node, and names of network namespaces. The runtime's own files are
    /// not included.
    ///
    /// What stays for the next pod by design (a bridge and its address, the shared chains of Go's iptables rules)
    /// exists after the first pod: take the first traces then.
    pub fn traces(&self) -> String {
        let of_plugins = |line: &&str| {
            !line.starts_with("/run/")
                || ["/run/podwire/", "/run/cni/", "/run/xtables"].iter().any(|own| line.starts_with(own))
        };
        let mut all: Vec<String> = self.leftovers().lines().filter(of_plugins).map(String::from).collect();
        let addresses = self.json("ip -j address");
        for link in addresses.as_array().into_iter().flatten() {
            for one in link["addr_info"].as_array().into_iter().flatten().filter(|one| one["scope"] != "link")
            {
                all.push(format!("address {}/{} of {}", one["local"], one["prefixlen"], link["ifname"]));
            }
        }
        all.extend(self.sh("ls /run/netns").lines().map(|name| format!("namespace {name}")));
        all.sort();
        all.join("\n")
    }
}
