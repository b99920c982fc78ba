//! The sender of a packet: a pod of this node, an address, the node itself, or somewhere outside.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use podwire_cni_runtime::{Cache, Record};
use podwire_cni_spec::suggestion::nearest;
use podwire_cni_spec::Error;
use podwire_services::{Client, Frontend};

use crate::cni::records;

/// Who sends.
#[derive(Debug, PartialEq)]
pub(super) enum Sender {
    Node,
    Outside,
    Addresses { name: String, ips: Vec<IpAddr> },
}

impl Sender {
    /// `node`, `outside`, an address, or a pod as `NAMESPACE/NAME`.
    pub(super) fn find(text: &str, cache: &Path) -> Result<Sender, Error> {
        match (text, text.parse::<IpAddr>()) {
            ("node", _) => Ok(Sender::Node),
            ("outside", _) => Ok(Sender::Outside),
            (_, Ok(ip)) => Ok(Sender::Addresses { name: text.to_owned(), ips: vec![ip] }),
            (pod, Err(_)) => pod_named(pod, &Cache::new(cache).list().records),
        }
    }

    /// The client for a frontend; `None` if it has no address of the family.
    pub(super) fn client(&self, frontend: &Frontend) -> Option<io::Result<Client>> {
        match self {
            Sender::Node => Some(source_of_node(frontend).map(Client::Address)),
            Sender::Outside => Some(Ok(Client::Outside)),
            Sender::Addresses { ips, .. } => {
                let ip = ips.iter().find(|ip| ip.is_ipv4() == frontend.ip.is_ipv4())?;
                Some(Ok(Client::Address(*ip)))
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Sender::Node => "node",
            Sender::Outside => "outside",
            Sender::Addresses { name, .. } => name,
        }
    }
}

/// The address that the kernel chooses for a process of the node. Connecting a UDP socket sends no packet.
fn source_of_node(frontend: &Frontend) -> io::Result<IpAddr> {
    let any = if frontend.ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(SocketAddr::new(frontend.ip, frontend.port))?;
    Ok(socket.local_addr()?.ip())
}

fn pod_named(text: &str, all: &[Record]) -> Result<Sender, Error> {
    let full = if text.contains('/') { text.to_owned() } else { format!("default/{text}") };
    let is_it = |record: &&Record| records::pod_name(record).is_some_and(|name| name == full || name == text);
    let attachments = all.iter().filter(is_it).filter_map(Record::attachment);
    let ips: Vec<IpAddr> =
        attachments.flat_map(|attachment| attachment.ips).map(|ip| ip.address.addr()).collect();
    if !ips.is_empty() {
        return Ok(Sender::Addresses { name: full, ips });
    }
    let names: Vec<String> = all.iter().filter_map(records::pod_name).collect();
    let hint = match nearest(&full, names.iter().map(String::as_str)) {
        Some(name) => format!("similar: {name}"),
        None => {
            "`podwire cni list` shows the pods of this node; name a pod of another node by its address".into()
        }
    };
    Err(Error::invalid_config(format!("no pod {full} is attached on this node")).with_details(hint))
}
