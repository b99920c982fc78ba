//! A network with a DHCP server: a bridge on a node, and dnsmasq in a namespace behind it.

use std::time::{Duration, Instant};

use crate::{podwire, Node, Process};

/// The default options of the server: it does not ping an address before it offers it, and serves no names.
const SERVER: &str =
    "--no-daemon --conf-file=/dev/null --port=0 --pid-file= --user=root --no-ping --no-hosts \
    --no-resolv --interface=eth0 --bind-interfaces --dhcp-leasefile=/run/test/dnsmasq.leases --log-dhcp \
    --log-facility=- --dhcp-authoritative";

impl Node {
    /// A bridge `lan0` with the namespace `server` behind it, which has the addresses 10.66.0.1/24 and fd66::1/64.
    pub fn lan(&self) {
        self.sh("ip netns add server && ip link add lan0 type bridge && ip link set lan0 up \
             && ip link add s0 type veth peer name eth0 netns server && ip link set s0 master lan0 up \
             && ip -n server address add 10.66.0.1/24 dev eth0 \
             && ip -n server address add fd66::1/64 dev eth0 nodad && ip -n server link set lo up \
             && nsenter --net=/run/netns/server sh -c 'echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad' \
             && ip -n server link set eth0 up");
    }

    /// dnsmasq behind `lan0`, with these additional options.
    pub fn dhcp_server(&self, options: &str) -> Process {
        let mut command = self.command("nsenter");
        command.args(["--net=/run/netns/server", "--", "dnsmasq"]);
        command.args(SERVER.split_whitespace()).args(options.split_whitespace());
        let mut server = Process::start(command);
        server.expect(&["DHCP, "]);
        server
    }

    /// The daemon of the dhcp plugin, ready to serve.
    pub fn dhcp_daemon(&self, options: &str) -> Process {
        let mut command = self.command(&podwire());
        command.args(["dhcp", "daemon"]).args(options.split_whitespace());
        let mut daemon = Process::start(command);
        daemon.expect(&["event=ready"]);
        daemon
    }

    /// Waits until dnsmasq's file has this number of leases. dnsmasq writes it shortly after it logs a lease.
    #[track_caller]
    pub fn expect_leases(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.leases().len() != count {
            assert!(Instant::now() < end, "expected {count} leases: {:?}", self.leases());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The leases that dnsmasq has given: lines of its file.
    pub fn leases(&self) -> Vec<String> {
        let file = self.sh("cat /run/test/dnsmasq.leases 2>/dev/null || true");
        file.lines().filter(|line| !line.starts_with("duid")).map(String::from).collect()
    }
}
