//! The kernel's knobs that a pod may turn: those that its namespaces have for themselves.

/// The path under /proc/sys of a knob that belongs to a pod's namespaces. `net.` belongs to the network; of the others
/// Kubernetes knows those of System V objects and message queues. Dots or slashes may separate the words: a name with
/// slashes may have dots in its words, as interfaces do.
pub fn path(key: &str, host_network: bool) -> Result<String, podwire_cni_spec::Error> {
    let fail = |text: &str, hint: &str| {
        Err(podwire_cni_spec::Error::env(format!("sysctl {key:?} {text}")).with_details(hint))
    };
    let path = match key.find(['.', '/']) {
        // As sysctl(8) reads it: whichever comes first separates.
        Some(at) if key.as_bytes()[at] == b'.' => key
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect(),
        _ => key.to_owned(),
    };
    if path.split('/').any(|word| word.is_empty() || word == "." || word == "..")
        || path.contains(['\0', ' ', '\n'])
    {
        return fail("is no name of a knob", "it reads like net.ipv4.ip_unprivileged_port_start");
    }
    let of_network = path.starts_with("net/");
    let of_objects = ["kernel/shm", "kernel/msg", "fs/mqueue/"].iter().any(|begin| path.starts_with(begin))
        || path == "kernel/sem";
    match (of_network, of_objects) {
        (true, _) if host_network => fail(
            "would change the node",
            "a pod on the host's network has no knobs of the network of its own",
        ),
        (true, _) | (_, true) => Ok(path),
        _ => fail(
            "is not namespaced",
            "allowed are net.*, kernel.shm*, kernel.msg*, kernel.sem and fs.mqueue.*",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_knobs_of_namespaces_may_be_turned() {
        assert_eq!(path("net.core.somaxconn", false).unwrap(), "net/core/somaxconn");
        assert_eq!(
            path("net/ipv4/conf/eth0.5/arp_filter", false).unwrap(),
            "net/ipv4/conf/eth0.5/arp_filter"
        );
        assert_eq!(
            path("net.ipv4.conf.eth0/5.arp_filter", false).unwrap(),
            "net/ipv4/conf/eth0.5/arp_filter"
        );
        for good in
            ["kernel.shmmax", "kernel.shm_rmid_forced", "kernel.msgmax", "kernel.sem", "fs.mqueue.msg_max"]
        {
            assert!(path(good, true).is_ok(), "{good}");
        }
        for bad in [
            "kernel.hostname",
            "vm.swappiness",
            "net",
            "kernel.semaphore",
            "",
            "net..x",
            "net/../kernel/x",
            "net.x y",
        ] {
            assert!(path(bad, false).is_err(), "{bad}");
        }
        assert!(path("net.ipv4.ip_forward", true).unwrap_err().msg.contains("would change the node"));
    }
}
