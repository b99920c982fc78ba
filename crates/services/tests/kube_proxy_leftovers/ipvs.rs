//! What ipvs mode leaves. Needs IPVS in the kernel; the test of `scripts/vm` has it.

use podwire_netlink::ipvs::Ipvs;
use podwire_netlink::{genl, Socket};

use crate::proxy::{create_device, create_others, in_namespace, remove, ruleset, texts};
use crate::testbed::run;

const NEW_SERVICE: u8 = 1;

/// Adds a virtual service of TCP, as `ipvsadm -A` does.
fn add(generic: &mut Socket, family: u16, addr: [u8; 4], port: u16) {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&addr);
    let request = genl::message(family, NEW_SERVICE, "add a virtual service").nest(1, |m| {
        m.u16(1, 2)
            .u16(2, 6)
            .bytes(3, &address)
            .be16(4, port)
            .string(6, "rr")
            .bytes(7, &[0, 0, 0, 0, 255, 255, 255, 255])
            .u32(8, 0)
            .u32(9, u32::MAX)
    });
    generic.request(request).unwrap();
}

#[test]
fn virtual_services_go_with_the_device() {
    in_namespace(|| {
        let mut generic = Socket::generic().unwrap();
        // Asking for the family loads the module.
        let Some(family) = genl::family(&mut generic, "IPVS").unwrap() else {
            let required = std::env::var_os("PODWIRE_REQUIRE_DRIVERS").is_some();
            assert!(!required, "the kernel has no IPVS");
            return eprintln!("left out: the kernel has no IPVS");
        };
        create_others();
        let before = ruleset();
        create_device();
        run("ip addr add 192.0.2.1/32 dev lo");
        add(&mut generic, family, [10, 96, 0, 1], 443);
        add(&mut generic, family, [10, 96, 0, 10], 53);
        add(&mut generic, family, [192, 0, 2, 1], 30080);
        assert_eq!(texts(), ["device kube-ipvs0 with 2 IPVS services"]);
        assert!(remove().failures.is_empty());
        assert_eq!(texts(), [""; 0]);
        assert_eq!(ruleset(), before);
        let left = Ipvs::open().unwrap().unwrap().services().unwrap();
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["tcp 192.0.2.1:30080"]);
        assert!(!run("ip -o link").contains("kube-ipvs0"));
    });
}
