//! Many pods at once.

use std::collections::BTreeSet;

use podwire_runtime_tests::{Plugins, PodSpec};

use crate::{assert_nothing_left, scene};

const PODS: u16 = 50;

#[test]
fn fifty_pods_at_once_all_get_a_network_of_their_own_and_leave_nothing() {
    crowd(Plugins::Ours);
}

#[test]
fn with_go_plugins_fifty_pods_get_one_too() {
    crowd(Plugins::Go);
}

fn crowd(plugins: Plugins) {
    let (containerd, outside) = scene(plugins);
    let before = containerd.traces();
    let start = |n: u16| {
        let spec = PodSpec::named(&format!("pod-{n}")).port(20_000 + n, 80);
        containerd.cri().run(&spec)
    };
    let pods: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..PODS).map(|n| scope.spawn(move || start(n))).collect();
        all.into_iter().map(|one| one.join().expect("a pod")).collect()
    });

    let addresses: BTreeSet<_> = pods.iter().flat_map(|pod| &pod.addresses).collect();
    assert_eq!(addresses.len(), 2 * usize::from(PODS), "each has two addresses, and no two the same");
    let pings =
        addresses.iter().map(|address| format!("ping -q -c 1 -W 10 {address} >/dev/null || echo {address}"));
    assert_eq!(containerd.sh(&pings.collect::<Vec<_>>().join("\n")), "", "addresses that do not answer");
    // The port maps to a listener in the last pod only.
    let last = crate::by_netns(&pods[usize::from(PODS) - 1]);
    let _listener = containerd.listen(Some(&last), "tcp/80");
    let port = format!("tcp/{}", 20_000 + PODS - 1);
    let answer = containerd.ask(Some(&outside), containerd.address(), &port);
    assert_eq!(answer, format!("{} 192.0.2.2", last.name));
    drop(_listener);

    let remove = |id: &str| containerd.cri().remove(id);
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(move || remove(&pod.id));
        }
    });
    assert_nothing_left(&containerd, &before);
}
