//! The intended differences. `docs/differences.md` describes them under the same names.
//!
//! A line belongs to the first row that matches it, so rows with more stars come later.

use podwire_tests::Difference;

pub const NO_EMPTY_DNS: &str = "Results have no empty `dns`";
pub const SHAPE: &str = "Results of loopback have the form of their version";
pub const GATEWAY: &str = "An address that the runtime chooses keeps its gateway";
pub const LEASE: &str = "Files of host-local are readable by root only, and one notes the boot";
pub const UNTOUCHED: &str = "A request that is refused leaves no file behind";
pub const PORT: &str = "The node's end of a veth pair has IPv6 only where it is used";
pub const ALIAS: &str = "Devices on the node have their owner as alias";
pub const QUEUE: &str = "Devices have one transmit queue, of the usual length";
pub const QUIET: &str = "IPv6 of a pod without IPv6 addresses is left alone";
pub const DAD: &str = "IPv6 addresses can be used at once";
pub const KEEP: &str = "IPv6 addresses survive when their link goes down";
pub const NEWS: &str = "IPv6 addresses are announced on the link";
pub const HUNG: &str = "Subinterfaces have their owner as alias";
pub const SERVERS: &str = "Name servers of the IPAM plugin reach the pod";
pub const SCOPE: &str = "The node's route to a pod on ptp has the scope of a link";
pub const BRIDGE_MAC: &str = "A bridge keeps its hardware address";
pub const HARDWARE: &str = "A pod on a bridge has a hardware address that follows from its address";
pub const FOREIGN: &str = "A bridge that is not a gateway keeps listening to routers";
pub const BUCKET: &str = "Limits are a little more exact";
pub const SOURCES: &str = "sbr moves the routes of its own addresses only";
pub const BACKUP: &str = "tuning remembers more, and puts it back";
pub const CHECK: &str = "CHECK is content with what ADD made";
pub const DEL: &str = "DEL does what it can";
pub const CODE: &str = "Errors say of which kind they are";
pub const FAILED_ADD: &str = "An ADD that fails takes everything back";

/// The differences of every veth pair.
pub const VETH: &[&str] = &[ALIAS, QUEUE];

pub const DIFFERENCES: &[Difference] = &[
    Difference { name: NO_EMPTY_DNS, lines: &["- ADD * dns = {}"] },
    Difference {
        name: SHAPE,
        lines: &[
            "- ADD * by loopback interfaces[0] *",
            "- ADD * by loopback ips[*",
            "+ ADD * by loopback ips[*] version = *",
            "+ ADD * by loopback ip4 ip = 127.0.0.1/8",
            "+ ADD * by loopback ip6 ip = ::1/128",
        ],
    },
    Difference {
        name: HARDWARE,
        lines: &[
            "- after *: p* sysctl ipv4/conf/*/arp_notify = 1",
            "+ after *: p* sysctl ipv4/conf/*/arp_notify = 0",
        ],
    },
    Difference { name: GATEWAY, lines: &["+ ADD * by static ips[*] gateway = *"] },
    Difference {
        name: LEASE,
        lines: &[
            "- after *: mode /var/lib/cni/*/lock = 750",
            "- after *: mode /var/lib/cni/* = 644",
            "+ after *: mode /var/lib/cni/* = 600",
            "+ after *: file /var/lib/cni/*/podwire.boot = boot *",
        ],
    },
    Difference {
        name: UNTOUCHED,
        lines: &[
            "- after *: file /var/lib/cni/*/lock = ",
            "- after *: file /var/lib/cni/*/last_reserved_ip.0 = *",
        ],
    },
    Difference {
        name: PORT,
        lines: &[
            "- after *: node address end(*) fe80::(end *)/64: *",
            "- after *: node route6 dst fe80::/64 dev end(*) *",
            "- after *: node route6 type local dst fe80::(end *) *",
            "- after *: node route6 type anycast dst fe80:: dev end(*) *",
            "- after *: node link end(*) inet6_addr_gen_mode = eui64",
            "+ after *: node link end(*) inet6_addr_gen_mode = none",
            "- after *: node sysctl ipv6/conf/end(*)/addr_gen_mode = 0",
            "+ after *: node sysctl ipv6/conf/end(*)/addr_gen_mode = 1",
            "- after *: node route6 type multicast dst ff00::/8 dev end(*) *",
            "- after *: node sysctl ipv6/conf/end(*)/disable_ipv6 = 0",
            "+ after *: node sysctl ipv6/conf/end(*)/disable_ipv6 = 1",
            "- after *: node sysctl ipv6/conf/end(*)/accept_ra = 0",
            "+ after *: node sysctl ipv6/conf/end(*)/accept_ra = 1",
        ],
    },
    Difference {
        name: ALIAS,
        lines: &["+ after *: node link end(*) ifalias = net/*", "+ after *: node link bwp* ifalias = net/*"],
    },
    Difference {
        name: QUEUE,
        lines: &[
            "+ after *: node link end(*) txqlen = 1000",
            "+ after *: p* link * txqlen = 1000",
            "+ after *: node link bwp* txqlen = 32",
            "- after *: node link end(*) num_rx_queues = *",
            "- after *: node link end(*) num_tx_queues = *",
            "+ after *: node link end(*) num_rx_queues = 1",
            "+ after *: node link end(*) num_tx_queues = 1",
            "- after *: p* link * num_rx_queues = *",
            "- after *: p* link * num_tx_queues = *",
            "+ after *: p* link * num_rx_queues = 1",
            "+ after *: p* link * num_tx_queues = 1",
        ],
    },
    Difference {
        name: QUIET,
        lines: &[
            "- after *: p* sysctl ipv6/conf/*/accept_dad = 0",
            "+ after *: p* sysctl ipv6/conf/*/accept_dad = 1",
        ],
    },
    Difference {
        name: DAD,
        lines: &[
            "- after *: * address * fd*: scope global valid_life_time *",
            "+ after *: * address * fd*: scope global nodad true valid_life_time *",
            "- after *: p* sysctl ipv6/conf/eth0/accept_dad = 1",
            "+ after *: p* sysctl ipv6/conf/eth0/accept_dad = 0",
        ],
    },
    Difference {
        name: KEEP,
        lines: &[
            "- after *: p* sysctl ipv6/conf/eth0/keep_addr_on_down = 0",
            "+ after *: p* sysctl ipv6/conf/eth0/keep_addr_on_down = 1",
        ],
    },
    Difference {
        name: NEWS,
        lines: &[
            "- after *: p* sysctl ipv6/conf/eth0/ndisc_notify = 0",
            "+ after *: p* sysctl ipv6/conf/eth0/ndisc_notify = 1",
        ],
    },
    Difference { name: HUNG, lines: &["+ after *: p* link eth0 ifalias = net/*"] },
    Difference { name: SERVERS, lines: &["+ ADD * by macvlan dns nameservers = *"] },
    Difference {
        name: SCOPE,
        lines: &[
            "- after *: node route dst 10.* dev end(*) scope host",
            "+ after *: node route dst 10.* dev end(*) scope link",
        ],
    },
    Difference {
        name: BRIDGE_MAC,
        lines: &[
            "- ADD * by bridge interfaces[0] mac = mac(end *",
            "+ ADD * by bridge interfaces[0] mac = mac(br0)",
            "- after *: node address br0 fe80::*",
            "+ after *: node address br0 fe80::(br0)/64: *",
            "- after *: node route6 type local dst fe80::* dev br0 *",
            "+ after *: node route6 type local dst fe80::(br0) dev br0 *",
            "- after *: node link br0 address = mac(end *",
            // A bridge without ports has no port whose address it could copy.
            "- after *: node link br0 address = 00:00:00:00:00:00",
            "+ after *: node link br0 address = mac(br0)",
        ],
    },
    Difference {
        name: FOREIGN,
        lines: &[
            "- after *: node sysctl ipv6/conf/br0/accept_ra = 0",
            "+ after *: node sysctl ipv6/conf/br0/accept_ra = 1",
        ],
    },
    Difference {
        name: BUCKET,
        lines: &[
            "- after *: node filter parent ffff: *\"flowid\":\"1:1\",*",
            "+ after *: node filter parent ffff: *",
            "- after *: node queue kind tbf * dev bwp*\"rate\":154320986,\"burst\":1542901,\"lat\":25001}",
            "+ after *: node queue kind tbf * dev bwp*\"rate\":154320986,\"burst\":1543055,\"lat\":25000}",
        ],
    },
    Difference {
        name: SOURCES,
        lines: &[
            "- after *: p* route6 dst fe80::/64 dev eth0 table 10*",
            "- after *: p* route6 dst fd00:1::/64 dev eth0 table 100 *",
            "+ after *: p* route6 dst fe80::/64 dev eth0 protocol *",
        ],
    },
    Difference {
        name: BACKUP,
        lines: &[
            "+ after *: file /run/cni/*/p1_eth0.json network = net",
            "+ after *: file /run/cni/*/p1_eth0.json containerID = p1",
            "+ after *: file /run/cni/*/p1_eth0.json ifname = eth0",
            "+ after *: file /run/cni/*/p1_eth0.json sysctl *",
            "- after DEL p1: p1 sysctl ipv4/conf/all/log_martians = 1",
            "+ after DEL p1: p1 sysctl ipv4/conf/all/log_martians = 0",
        ],
    },
    Difference {
        name: CHECK,
        lines: &["- CHECK * exit = *", "- CHECK * error code = *", "+ CHECK * exit = 0"],
    },
    Difference { name: DEL, lines: &["- DEL * exit = 1", "+ DEL * exit = 0"] },
    Difference { name: CODE, lines: &["- * error code = 999", "+ * error code = *"] },
    Difference {
        name: FAILED_ADD,
        lines: &[
            "- after *: node has *",
            "- after *: p* has eth0",
            "- after *: node * br0 *",
            "+ after *: node * br0 *",
            "- after *: node sysctl ipv4/conf/br0/route_localnet = 1",
            "+ after *: node sysctl ipv4/conf/br0/route_localnet = 0",
            "- after *: node sysctl ipv4/conf/*/accept_redirects = 0",
            "+ after *: node sysctl ipv4/conf/*/accept_redirects = 1",
            "- after *: node sysctl ipv4/conf/*/forwarding = 1",
            "+ after *: node sysctl ipv4/conf/*/forwarding = 0",
            "- after *: node sysctl ipv4/ip_forward = 1",
            "+ after *: node sysctl ipv4/ip_forward = 0",
            "- after *: file /run/cni/tuning/*",
            "- after *: p* * lo *",
            "+ after *: p* link lo *",
        ],
    },
];
