//! What kube-proxy and others create on a node, by hand.

use std::io::Write;
use std::process::{Command, Stdio};

use podwire_netlink::{sys, Socket};
use podwire_services::kube_proxy::{self, Leftover, Removal};

use crate::testbed::run;

/// Runs a test in a network namespace of its own.
pub fn in_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let work = || {
        sys::new_network_namespace().unwrap();
        run("ip link set lo up");
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// The rules of others: the kubelet, kube-router, a user, another program. iptables adds the base chains that it lacks, so
/// all are there.
pub const OTHERS: &str = "
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-POD-FW-ABC - [0:0]
:MINE - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -j KUBE-ROUTER-INPUT
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -p tcp -m tcp --dport 22 -j MINE
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-ROUTER-INPUT -j KUBE-POD-FW-ABC
-A MINE -j ACCEPT
COMMIT";

/// The rules of kube-proxy in iptables mode: a Service with two endpoints.
pub const IPTABLES_MODE: &str = "
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-BHRFYCTZDXLW4P23 - [0:0]
:KUBE-SEP-M2WBDLHKXUDDNN6G - [0:0]
-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d SERVICE -p tcp -m tcp --dport 80 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-ERIFXISQEP7F7OF4 -m statistic --mode random --probability 0.5 -j KUBE-SEP-BHRFYCTZDXLW4P23
-A KUBE-SVC-ERIFXISQEP7F7OF4 -j KUBE-SEP-M2WBDLHKXUDDNN6G
-A KUBE-SEP-BHRFYCTZDXLW4P23 -s ONE -j KUBE-MARK-MASQ
-A KUBE-SEP-BHRFYCTZDXLW4P23 -p tcp -m tcp -j DNAT --to-destination [ONE]:8080
-A KUBE-SEP-M2WBDLHKXUDDNN6G -p tcp -m tcp -j DNAT --to-destination [ONE]:8080
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-I INPUT -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-I FORWARD -j KUBE-FORWARD
-I OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT";

const NFTABLES_MODE: &str = "
table FAMILY kube-proxy {
  map service-ips { type FAMILY_addr . inet_proto . inet_service : verdict; }
  chain services { }
  chain endpoint { }
  chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
  chain service { goto endpoint; }
}";

/// Loads rules with iptables-restore, of the program's kind and family.
pub fn restore(program: &str, rules: &str) {
    let (service, one) =
        if program.starts_with("ip6") { ("fd00:96::1", "fd00:1::1") } else { ("10.96.0.1", "10.1.0.1") };
    let one_in_url = if program.starts_with("ip6") { format!("[{one}]") } else { one.to_owned() };
    let rules = rules
        .replace("[ONE]", &one_in_url)
        .replace("ONE", one)
        .replace("SERVICE -p", &format!("{service} -p"));
    let mut restore = Command::new(format!("{program}-restore"));
    let mut restore = restore.arg("--noflush").stdin(Stdio::piped()).spawn().unwrap();
    restore.stdin.take().unwrap().write_all(format!("{rules}\n").as_bytes()).unwrap();
    assert!(restore.wait().unwrap().success(), "{rules}");
}

pub fn create_others() {
    ["iptables-nft", "ip6tables-nft"].iter().for_each(|program| restore(program, OTHERS));
    run("nft 'table inet mine { chain KUBE-SERVICES { }; chain input { type filter hook input priority 0; jump KUBE-SERVICES; }; }'");
}

pub fn create_iptables_mode() {
    ["iptables-nft", "ip6tables-nft"].iter().for_each(|program| restore(program, IPTABLES_MODE));
}

pub fn create_nftables_mode() {
    for (family, addr) in [("ip", "ipv4"), ("ip6", "ipv6")] {
        run(&format!(
            "nft '{}'",
            NFTABLES_MODE.replace("FAMILY_addr", &format!("{addr}_addr")).replace("FAMILY", family)
        ));
    }
}

/// The device of ipvs mode. Not every kernel has dummies; any other kind of device does as well.
pub fn create_device() {
    run("ip link add kube-ipvs0 type dummy 2>/dev/null || ip link add kube-ipvs0 type bridge");
    run("ip addr add 10.96.0.1/32 dev kube-ipvs0; ip addr add 10.96.0.10/32 dev kube-ipvs0");
}

/// All rules, without counters.
pub fn ruleset() -> String {
    run("nft -s list ruleset 2>/dev/null")
}

pub fn sockets() -> (Socket, Socket) {
    (Socket::netfilter().unwrap(), Socket::route().unwrap())
}

pub fn find() -> Vec<Leftover> {
    let (mut nft, mut route) = sockets();
    kube_proxy::find(&mut nft, &mut route).unwrap()
}

/// What is found, as the user reads it.
pub fn texts() -> Vec<String> {
    find().iter().map(Leftover::to_string).collect()
}

pub fn remove() -> Removal {
    let (mut nft, mut route) = sockets();
    kube_proxy::remove(&mut nft, &mut route).unwrap()
}
