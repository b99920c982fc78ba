//! Tunnel links where /proc/sys is read-only, as in the container of a DaemonSet. Needs root.

use std::process::Command;

use podwire_kernel::tunnel::{Driver, Ensured, Tunnel};
use podwire_kernel::vxlan::{Df, Vxlan};
use podwire_kernel::Host;
use podwire_netlink::sys;

/// Runs `test` in a network namespace and a mount namespace of its own.
fn on_a_node(test: impl FnOnce() + Send) {
    let work = || {
        sys::new_network_namespace().expect("a network namespace (are you root?)");
        sys::unshare_mounts().expect("a mount namespace");
        run("echo 1 >/proc/sys/net/ipv6/conf/default/accept_ra");
        test();
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

fn run(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

fn make_sysctls_read_only() {
    run("mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys");
    let write = std::fs::write("/proc/sys/net/ipv6/conf/default/accept_ra", "0");
    assert!(write.is_err(), "/proc/sys is still writable");
}

fn make_sysctls_writable() {
    run("umount /proc/sys");
}

fn ensure(host: &mut Host) -> Ensured {
    let driver = Driver::Vxlan(Vxlan {
        vni: 1,
        port: 8472,
        local: "192.0.2.1".parse().unwrap(),
        link: 0,
        learning: false,
        gbp: false,
        df: Df::Unset,
    });
    let tunnel = Tunnel { name: "flannel.1".into(), driver, mtu: 1450, mac: None, alias: "podwire" };
    let found = host.find_link(&tunnel.name).unwrap();
    tunnel.ensure(host, found).unwrap()
}

#[test]
fn a_tunnel_is_created_where_sysctls_are_read_only() {
    on_a_node(|| {
        make_sysctls_read_only();
        let mut host = Host::here().unwrap();
        let created = ensure(&mut host);
        assert!(created.is_new && created.link.is_up(), "{created:?}");
        // Quiet: nothing can be changed.
        assert_eq!(ensure(&mut host).done, Vec::<String>::new());
    });
}

#[test]
fn router_advertisements_are_refused_as_soon_as_that_is_possible() {
    on_a_node(|| {
        make_sysctls_read_only();
        let mut host = Host::here().unwrap();
        assert_eq!(ensure(&mut host).link.accept_ra, Some(1));
        make_sysctls_writable();
        assert_eq!(ensure(&mut host).done, ["set accept_ra of flannel.1 to 0"]);
        assert_eq!(host.get_link("flannel.1").unwrap().accept_ra, Some(0));
        run("echo 2 >/proc/sys/net/ipv6/conf/flannel.1/accept_ra");
        assert_eq!(ensure(&mut host).done, ["set accept_ra of flannel.1 to 0"]);
        assert_eq!(ensure(&mut host).done, Vec::<String>::new());
    });
}
