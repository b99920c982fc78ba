//! Packets of pods: reachability, ports, limits, DNS.

use podwire_runtime_tests::{Container, Containerd, Cri, Flow, Limit, Plugins, PodSpec, Sandbox};
use podwire_tests::Pod;

use crate::{assert_nothing_left, by_netns, scene, EGRESS, INGRESS};

/// A container that serves a page with its pod's name, and runs an additional script.
const SERVE: &str = "hostname > /www/index.html && exec httpd -f -p 80 -h /www";

/// The burst that containerd requests for every limit: u32::MAX bits. Only data after the burst is limited.
const BURST: u64 = u32::MAX as u64 / 8;

/// A pod with a container that serves a page.
pub struct Server {
    /// The pod.
    pub pod: Sandbox,
    /// The container.
    pub container: Container,
}

/// Starts a pod with a container that serves a page with its name.
pub fn serve(cri: &mut Cri, spec: &PodSpec) -> Server {
    let pod = cri.run(spec);
    let container = cri.container(&pod, spec, &["sh", "-c", SERVE]);
    Server { pod, container }
}

/// The page at this address, requested from a network namespace.
pub fn page(containerd: &Containerd, at: &Pod, address: &str) -> String {
    let fetch = format!("nsenter --net={} timeout 10 busybox wget -qO- http://{address}/", at.netns);
    // The server may not have opened its port yet.
    containerd
        .sh(&format!("for try in $(seq 150); do {fetch} && exit; sleep 0.2; done; exit 1"))
        .trim()
        .into()
}

/// Checks that two pods reach each other and the machine outside, and that it reaches them, over both families.
pub fn packets_pass(containerd: &Containerd, outside: &Pod, [web, other]: [&Server; 2]) {
    let mut cri = containerd.cri();
    assert_eq!(web.pod.addresses.len(), 2, "IPv4 and IPv6: {:?}", web.pod.addresses);
    for (from, to) in [(web, other), (other, web)] {
        for address in &to.pod.addresses {
            cri.sh(&from.container, &format!("ping -c 1 -W 10 {address}"));
        }
    }
    // A host port, from outside and from a pod on the same bridge.
    for address in [containerd.address().to_owned(), format!("[{}]", containerd.address6())] {
        let port = format!("{address}:8080");
        assert_eq!(page(containerd, outside, &port), "web", "from outside, {port}");
        assert_eq!(page(containerd, &by_netns(&other.pod), &port), "web", "from a pod, {port}");
    }
    // The machine outside sees the node's address.
    let _listener = containerd.listen(Some(outside), "tcp/99");
    for (world, node) in [("192.0.2.2", containerd.address()), ("2001:db8:2::2", containerd.address6())] {
        let seen = cri.sh(&web.container, &format!("nc {world} 99 </dev/null"));
        assert_eq!(seen.trim(), format!("outside {node}"));
    }
}

fn pods_are_on_the_network(plugins: Plugins) {
    let (containerd, outside) = scene(plugins);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let ready = cri.conditions();
    assert!(ready["NetworkReady"].0, "{ready:?}");
    let spec = PodSpec::named("web").port(8080, 80).dns(&["10.96.0.10"], &["pods.test"], &["ndots:5"]);
    let web = serve(&mut cri, &spec);
    let other = serve(&mut cri, &PodSpec::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
    let resolver = cri.sh(&web.container, "cat /etc/resolv.conf");
    assert_eq!(resolver, "search pods.test\nnameserver 10.96.0.10\noptions ndots:5\n");
    for server in [web, other] {
        cri.remove(&server.pod.id);
    }
    assert_nothing_left(&containerd, &before);
}

#[test]
fn two_pods_ping_each_other_and_a_host_port_answers_from_outside() {
    pods_are_on_the_network(Plugins::Ours);
}

#[test]
fn with_go_plugins_all_of_this_is_so_too() {
    pods_are_on_the_network(Plugins::Go);
}

fn limits_are_kept(plugins: Plugins) {
    let (containerd, outside) = scene(plugins);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let limited = cri.run(&PodSpec::named("limited").annotation(INGRESS, "40M").annotation(EGRESS, "16M"));
    let free = cri.run(&PodSpec::named("free"));
    let (pod, other) = (by_netns(&limited), by_netns(&free));
    for (rate, from, to, address) in
        [(40_000_000, &other, &pod, &*limited.addresses[0]), (16_000_000, &pod, &outside, "192.0.2.2")]
    {
        // On a busy machine the sender or the receiver may have had too little CPU time in the first measurement.
        let mut flows = Vec::new();
        let is_kept = (0..5).any(|_| {
            let flow = containerd.flow_beyond(Limit { rate, burst: BURST }, from, to, address);
            flows.push(flow);
            let burst = Flow { bytes: BURST, seconds: flow.before, ..flow };
            (0.5..=1.1).contains(&flow.share_of(rate)) && burst.share_of(rate) > 2.0
        });
        assert!(is_kept, "of {rate} bits a second, or the burst is held up: {flows:?}");
    }
    // A pod without a limit is not slowed down.
    let free_flow = containerd.flow(&other, &outside, "192.0.2.2");
    assert!(free_flow.share_of(40_000_000) > 2.0, "{free_flow:?}");
    for id in [limited.id, free.id] {
        cri.remove(&id);
    }
    assert_nothing_left(&containerd, &before);
}

#[test]
fn a_pod_receives_and_sends_as_fast_as_it_may_and_no_faster() {
    limits_are_kept(Plugins::Ours);
}

#[test]
fn with_go_plugins_it_does_so_too() {
    limits_are_kept(Plugins::Go);
}
