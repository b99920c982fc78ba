//! Rules that the Go plugins left.

use std::net::IpAddr;

use podwire_kernel::firewall::legacy;
use podwire_kernel::Owner;
use podwire_netlink::Socket;

use crate::testbed::{ip, on_a_node, run, Peer};

/// The rules of the Go plugins for container `1234` of network `test`, whose chains are named `CNI-2bbe0c48…`.
const GO_IPTABLES: &str = r#"
for i in iptables ip6tables; do
    addr=10.1.0.5/32; net=10.1.0.0/16; to=10.1.0.5:80
    [ $i = ip6tables ] && addr=fd00:1::5/128 && net=fd00:1::/64 && to=[fd00:1::5]:80
    $i -t nat -N CNI-2bbe0c48b91a7d1b8a6753a8
    $i -t nat -A CNI-2bbe0c48b91a7d1b8a6753a8 -d $net -m comment --comment 'name: "test" id: "1234"' -j ACCEPT
    $i -t nat -A CNI-2bbe0c48b91a7d1b8a6753a8 -j MASQUERADE
    $i -t nat -A POSTROUTING -s $addr -m comment --comment 'name: "test" id: "1234"' -j CNI-2bbe0c48b91a7d1b8a6753a8
    $i -t nat -N CNI-HOSTPORT-DNAT
    $i -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
    $i -t nat -N CNI-DN-2bbe0c48b91a7d1b8a675
    $i -t nat -A CNI-DN-2bbe0c48b91a7d1b8a675 -p tcp --dport 8080 -j DNAT --to-destination $to
    $i -t nat -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment 'dnat name: "test" id: "1234"' -m multiport --dports 8080 -j CNI-DN-2bbe0c48b91a7d1b8a675
    $i -N CNI-FORWARD
    $i -A CNI-FORWARD -d $addr -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    $i -A CNI-FORWARD -s $addr -j ACCEPT
done
iptables -t nat -A POSTROUTING -s 10.1.0.6/32 -m comment --comment 'name: "test" id: "5678"' -j MASQUERADE
iptables -A CNI-FORWARD -s 10.1.0.6/32 -j ACCEPT
"#;

/// `printf test | sha512sum` and `printf eth0:1234 | sha512sum` begin the comment of the masquerade.
const GO_NFTABLES: &str = r#"
hash() { printf %s "$1" | sha512sum | cut -c1-16; }
nft -f - <<END
table inet cni_plugins_masquerade {
    chain masq_checks {
        ip saddr 10.1.0.5 ip daddr != 10.1.0.0/16 masquerade comment "$(hash test)-$(hash eth0:1234), net: test, if: eth0, id: 1234"
        ip saddr 10.1.0.6 ip daddr != 10.1.0.0/16 masquerade comment "$(hash test)-$(hash eth0:5678), net: test, if: eth0, id: 5678"
    }
    chain postrouting { type nat hook postrouting priority srcnat; goto masq_checks; }
}
table ip cni_hostport {
    chain hostports {
        tcp dport 8080 dnat to 10.1.0.5:80 comment "1234"
        tcp dport 8081 dnat to 10.1.0.6:80 comment "5678"
    }
    chain masquerading { type nat hook postrouting priority srcnat
        ip saddr 10.1.0.5 ip daddr 10.1.0.5 masquerade comment "1234"
    }
}
table bridge nat {
    chain cni-br-iface-1234-eth0-mac {
        ether saddr 02:00:00:00:00:01 return comment "macspoofchk-1234-eth0"
        drop comment "macspoofchk-1234-eth0"
    }
    chain cni-br-iface-1234-eth0 { jump cni-br-iface-1234-eth0-mac comment "macspoofchk-1234-eth0"; }
    chain PREROUTING { type filter hook prerouting priority -300
        iifname "veth1" jump cni-br-iface-1234-eth0 comment "macspoofchk-1234-eth0"
    }
}
END
"#;

/// As our plugins of a chain do it, each for its counterpart.
fn remove_go_rules(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> bool {
    let removed = [
        legacy::remove_passes(nft, addrs).unwrap(),
        legacy::remove_ports(nft, owner).unwrap(),
        legacy::remove_masquerade(nft, owner).unwrap(),
    ];
    removed.contains(&true)
}

fn collect_go_rules(nft: &mut Socket, network: &str, keep: &[Owner]) -> usize {
    let masquerades = legacy::collect_masquerades(nft, network, keep).unwrap();
    masquerades + legacy::collect_ports(nft, network, keep).unwrap()
}

#[test]
fn rules_of_go_plugins_are_removed() {
    on_a_node(|nft| {
        let gone = Owner::new("test", "1234", "eth0");
        assert!(!remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        run(GO_IPTABLES);
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5"), ip("fd00:1::5")]));
        assert!(!legacy::masquerades(nft, &gone).unwrap() && !legacy::maps_ports(nft, &gone).unwrap());
        let left = run("iptables-save; ip6tables-save");
        for word in ["2bbe0c48", "1234", "10.1.0.5", "fd00:1::5"] {
            assert!(!left.contains(word), "{word} in {left}");
        }
        assert!(left.contains("-s 10.1.0.6/32 -j ACCEPT") && left.contains("id: \\\"5678\\\""), "{left}");
        assert!(left.contains("-j CNI-HOSTPORT-DNAT"));
        assert!(!remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));

        run(GO_NFTABLES);
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        assert!(!legacy::masquerades(nft, &gone).unwrap() && !legacy::maps_ports(nft, &gone).unwrap());
        let left = run("nft list ruleset 2>/dev/null");
        assert!(!left.contains("1234") && left.matches("5678").count() >= 2, "{left}");
    });
}

#[test]
fn rules_of_go_plugins_are_collected_except_kept_ones() {
    on_a_node(|nft| {
        run(GO_IPTABLES);
        run(GO_NFTABLES);
        let (gone, kept) = (Owner::new("test", "1234", "eth0"), Owner::new("test", "5678", "eth0"));
        assert_eq!(collect_go_rules(nft, "other", &[]), 0);
        assert_eq!(collect_go_rules(nft, "test", &[gone.clone(), kept.clone()]), 0);
        assert!(collect_go_rules(nft, "test", std::slice::from_ref(&kept)) > 0);
        assert!(!legacy::masquerades(nft, &gone).unwrap() && legacy::masquerades(nft, &kept).unwrap());
        assert!(!run("iptables-save; ip6tables-save").contains("2bbe0c48"));
    });
}

/// ADD by the Go plugins that Debian installs, with all they do to a firewall.
const GO_ADD: &str = r#"
export CNI_COMMAND=ADD CNI_CONTAINERID=1234 CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni CNI_NETNS=$NETNS
base='"cniVersion":"1.0.0","name":"test"'
ipam='"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"}]}'
result=$(echo "{$base,\"type\":\"bridge\",\"bridge\":\"go0\",\"isGateway\":true,\"ipMasq\":true,\"macspoofchk\":true,$ipam}" |
    /usr/lib/cni/bridge) || { echo "$result" >&2; exit 1; }
ports='"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}'
echo "{$base,\"type\":\"portmap\",\"capabilities\":{\"portMappings\":true},$ports,\"prevResult\":$result}" | /usr/lib/cni/portmap >&2
echo "{$base,\"type\":\"firewall\",\"backend\":\"iptables\",\"prevResult\":$result}" | /usr/lib/cni/firewall >&2
"#;

#[test]
fn rules_of_the_real_go_plugins_are_removed() {
    if !std::path::Path::new("/usr/lib/cni/bridge").exists() {
        eprintln!("not tested: Debian's containernetworking-plugins are not installed");
        return;
    }
    on_a_node(|nft| {
        let pod = Peer::connected("spare");
        pod.sh("ip link delete eth0");
        run(&format!("NETNS={}; {GO_ADD}", pod.path()));
        let made = run("nft list ruleset 2>/dev/null; iptables-save; ip6tables-save");
        for word in ["CNI-2bbe0c48", "CNI-DN-2bbe0c48", "cni-br-iface-1234-eth0", "-s 10.1.0.5/32 -j ACCEPT"]
        {
            assert!(made.contains(word), "the plugins made no {word}: {made}");
        }
        let gone = Owner::new("test", "1234", "eth0");
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        let left = run("nft list ruleset 2>/dev/null; iptables-save; ip6tables-save");
        for word in ["2bbe0c48", "1234", "10.1.0.5"] {
            assert!(!left.contains(word), "{word} in {left}");
        }
    });
}
