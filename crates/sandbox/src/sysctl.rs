//! The sysctls that a pod may set: those of its own namespaces.

/// The path under /proc/sys of a namespaced sysctl: `net.` of the network namespace, and those of System V IPC and message queues,
/// as in Kubernetes. Dots or slashes separate the words; with slashes a word may contain dots, as interface names do.
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
        return fail("is not a sysctl name", "an example is net.ipv4.ip_unprivileged_port_start");
    }
    let of_network = path.starts_with("net/");
    let of_ipc = ["kernel/shm", "kernel/msg", "fs/mqueue/"].iter().any(|begin| path.starts_with(begin))
        || path == "kernel/sem";
    if of_network && host_network {
        return fail("would change the node", "a pod on the host's network cannot set network sysctls");
    }
    if of_network || of_ipc {
        return Ok(path);
    }
    fail("is not namespaced", "allowed are net.*, kernel.shm*, kernel.msg*, kernel.sem and fs.mqueue.*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaced_sysctls_are_allowed() {
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
