//! The addresses of an attachment: which belong to an interface, and which families they are of.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_spec::Attachment;
use podwire_ip::IpFamily;

/// The recorded addresses of interface `ifname` in the pod. Addresses that name no interface count as its own.
pub fn addresses_of(recorded: &Attachment, ifname: &str) -> Vec<IpNet> {
    let is_own = |index: Option<usize>| match index.and_then(|index| recorded.interfaces.get(index)) {
        Some(interface) => interface.name == ifname && !interface.sandbox.is_empty(),
        None => true,
    };
    recorded.ips.iter().filter(|ip| is_own(ip.interface)).map(|ip| ip.address).collect()
}

/// All addresses of an attachment, without their prefixes.
pub fn all_hosts(attachment: &Attachment) -> Vec<IpAddr> {
    attachment.ips.iter().map(|ip| ip.address.addr()).collect()
}

/// The addresses without their prefixes.
pub fn hosts(nets: &[IpNet]) -> Vec<IpAddr> {
    nets.iter().map(IpNet::addr).collect()
}

/// The families of an attachment's addresses, each once, IPv4 first.
pub fn families(attachment: &Attachment) -> Vec<IpFamily> {
    let has = |family: &IpFamily| attachment.ips.iter().any(|ip| IpFamily::of_net(ip.address) == *family);
    IpFamily::ALL.into_iter().filter(has).collect()
}

/// The first host address of a subnet, the usual address of a gateway.
pub fn first_host(net: &IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(v4) => IpAddr::from((u32::from(v4).wrapping_add(1)).to_be_bytes()),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6).wrapping_add(1)).to_be_bytes()),
    }
}
