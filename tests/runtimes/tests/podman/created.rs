//! Every network that `podman network create` writes works and behaves as its options say.

use podwire_runtime_tests::{Plugins, Podman};
use podwire_tests::needs;

use crate::scene;

/// A network, and what two containers on it must be able to do.
struct Row {
    options: &'static str,
    /// A script on the stage. `in_one` and `in_two` run a program in the network namespaces of the containers, $two is
    /// an address of the second one, and $parent is the name of an interface of the stage.
    holds: &'static str,
}

const ROWS: &[Row] = &[
    Row { options: "", holds: "in_one ping -qc1 -W10 $two && in_one ping -qc1 -W10 192.0.2.2" },
    Row { options: "--disable-dns --label purpose=test", holds: "in_one ping -qc1 -W10 $two" },
    // The network is internal: containers reach each other only.
    Row {
        options: "--internal --subnet 10.91.0.0/24",
        holds: "in_one ping -qc1 -W10 $two && ! in_one ip route | grep default && ! in_one ping -qc1 -W1 192.0.2.2",
    },
    // Containers of another isolated network are refused. Containers of the same network are allowed, and so are
    // responses.
    Row {
        options: "-o isolate=true --subnet 10.92.0.0/24",
        holds: "in_one ping -qc1 -W10 $two && ! in_stranger ping -qc1 -W1 $two && in_one ping -qc1 -W10 192.0.2.2",
    },
    Row {
        options: "-o mtu=1400 --subnet 10.93.0.0/24",
        holds: "in_one ping -qc1 -W10 $two && in_one ip link show eth0 | grep 'mtu 1400'",
    },
    Row {
        options: "--subnet 10.94.0.0/24 --ip-range 10.94.0.128/25 --gateway 10.94.0.250",
        holds: "in_one ping -qc1 -W10 $two && in_one ip route | grep 'default via 10.94.0.250'
                test ${two#10.94.0.} -gt 128",
    },
    Row {
        options: "--ipv6 --subnet fd95::/64",
        holds: "in_one ping -qc1 -W10 $two && in_one ping -qc1 -W10 2001:db8:2::2",
    },
    // Only an interface: podman does not assign addresses.
    Row {
        options: "--ipam-driver none",
        holds: "in_one ip address add 10.96.0.1/24 dev eth0 && in_two ip address add 10.96.0.2/24 dev eth0
                in_one ping -qc1 -W10 10.96.0.2",
    },
    Row {
        options: "-d macvlan -o parent=$parent --ipv6 --subnet 10.97.0.0/24 --subnet fd97::/64",
        holds: "in_one ping -qc1 -W10 $two && in_one ip -6 route | grep 'default via fd97::1'",
    },
    // The addresses come from the DHCP server, through our daemon.
    Row {
        options: "-d macvlan -o parent=$parent",
        holds: "in_one ping -qc1 -W10 $two && in_one ping -qc1 -W10 10.66.0.1",
    },
];

/// Starts two containers on the network, runs the checks, and removes everything.
fn try_row(podman: &Podman, row: &Row) -> Result<(), String> {
    let start = |name: &str| {
        let made = podman.call(&["run", "-d", "--name", name, "--network", "tried", "podwire.test/pause:1"]);
        match made.status {
            0 => Ok(podman.container(name)),
            _ => Err(made.stderr),
        }
    };
    let options = row.options.replace("$parent", "lan0");
    podman.sh(&format!("podman network create {options} tried"));
    let (one, two) = (start("one")?, start("two")?);
    let enter = |name: &str, netns: &str| format!("in_{name}() {{ nsenter --net={netns} \"$@\"; }}\n");
    let stranger = podman.container("stranger");
    let script = enter("one", &one.pod.netns)
        + &enter("two", &two.pod.netns)
        + &enter("stranger", &stranger.pod.netns)
        + &format!("two={}\nset -ex\n{}\n", two.addresses.first().map_or("", |address| address), row.holds);
    let held = podman.try_sh(&script);
    podman.must(&["rm", "-f", "-t", "0", "one", "two"]);
    podman.must(&["network", "rm", "tried"]);
    if held.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&held.stderr).into_owned())
    }
}

#[test]
fn networks_of_podman_network_create_behave_as_their_options_say() {
    let (podman, _outside) = scene(Plugins::Ours);
    podman.lan();
    let _server = podman.dhcp_server("--dhcp-range=10.66.0.50,10.66.0.99,1h");
    let _daemon = podman.dhcp_daemon("");
    podman.must(&["network", "create", "-o", "isolate=true", "strange"]);
    podman.must(&["run", "-d", "--name", "stranger", "--network", "strange", "podwire.test/pause:1"]);
    let before = podman.traces();
    let mut failed = Vec::new();
    for row in ROWS.iter().filter(|row| !row.options.contains("macvlan") || needs("macvlan")) {
        if let Err(why) = try_row(&podman, row) {
            failed.push(format!("network create {}:\n{why}", row.options));
            podman.call(&["rm", "-f", "-t", "0", "one", "two"]);
            podman.call(&["network", "rm", "-f", "tried"]);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    podman.assert_nothing_left(&before);
}

#[test]
fn run_gets_the_requested_addresses_and_names() {
    let (podman, _outside) = scene(Plugins::Ours);
    let before = podman.traces();
    podman.must(&["network", "create", "--subnet", "10.91.0.0/24", "second"]);
    let networks = [
        "--network=pods:ip=10.90.0.77,ip=fd90::77,mac=52:54:00:00:00:77",
        "--network=second:ip=10.91.0.88,interface_name=net7",
    ];
    podman.must(&[&["run", "-d", "--name", "both"], &networks[..], &["podwire.test/pause:1"]].concat());
    let netns = podman.container("both").pod.netns;
    assert_eq!(podman.addresses(&netns, "eth0"), ["10.90.0.77", "fd90::77"]);
    assert_eq!(podman.addresses(&netns, "net7"), ["10.91.0.88"]);
    assert!(podman.can(&format!("nsenter --net={netns} ip link show eth0 | grep 52:54:00:00:00:77")));
    let (taken, _) = podman.refuses(&["run", "--rm", networks[1], "podwire.test/pause:1"]);
    assert!(taken.contains("10.91.0.88"), "{taken}");
    podman.must(&["rm", "-f", "-t", "0", "both"]);
    podman.must(&["network", "rm", "second"]);
    podman.assert_nothing_left(&before);
}
