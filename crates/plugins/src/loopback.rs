//! loopback: brings up `lo` in the pod.
//!
//! A new namespace has a loopback device that is down. When it comes up, the kernel adds 127.0.0.1/8, ::1/128 if IPv6
//! is on, and the routes to them.

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Link, Undo};

use crate::inspection;

/// The only loopback device, whichever interface name the runtime passes.
const LO: &str = "lo";

/// The plugin.
#[derive(Debug)]
pub struct Loopback;

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn about(&self) -> &'static str {
        "loopback: brings the pod's lo interface up"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let mut pod = req.pod()?;
        let lo = pod.get_link(LO).doing(|| "loopback interface of the pod".into())?;
        let mut undo = Undo::new();
        if !lo.is_up() {
            undo.push(|| drop(self.del(req)));
            pod.route.request(link::up(&lo))?;
        }
        let addresses = addresses(&mut pod, &lo)?;
        undo.keep();
        Ok(req.prev.clone().unwrap_or_else(|| attachment(req, &addresses)))
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let Some(mut pod) = req.find_pod()? else { return Ok(()) };
        match pod.find_link(LO)? {
            Some(lo) => Ok(pod.route.request(link::down(&lo))?),
            None => Ok(()),
        }
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let mut pod = req.pod()?;
        let lo = pod.get_link(LO).doing(|| "loopback interface of the pod".into())?;
        if !lo.is_up() {
            // The kernel adds the addresses when it comes up.
            let down = Finding::new("loopback interface is down");
            return Ok(vec![down.repaired_by(inspection::change(req, link::up(&lo)))]);
        }
        let found = address::list(&mut pod.route, lo.index)?;
        let is_missing = |net: &IpNet| found.iter().all(|one| one.ip != net.addr());
        let finding = |net: IpNet| {
            let again = address::add(lo.index, net.addr(), net.prefix_len(), false);
            Finding::new(format!("loopback interface lacks address {net}"))
                .repaired_by(inspection::change(req, again))
        };
        Ok(expected(req).into_iter().filter(is_missing).map(finding).collect())
    }

    /// Nothing to collect: `lo` belongs to its namespace.
    fn gc(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }
}

/// The addresses that `lo` must have: the recorded ones, else 127.0.0.1/8.
fn expected(req: &Request<'_>) -> Vec<IpNet> {
    let recorded = req.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address);
    let own: Vec<IpNet> = recorded.filter(|net| net.addr().is_loopback()).collect();
    if own.is_empty() {
        return vec![IpNet::new_assert([127, 0, 0, 1].into(), 8)];
    }
    own
}

/// The first address of each family. Fails on a non-loopback address: the pod would reach itself instead of the host
/// that has the address.
fn addresses(pod: &mut Host, lo: &Link) -> Result<Vec<IpNet>> {
    let all = address::list(&mut pod.route, lo.index)?;
    if let Some(foreign) = all.iter().find(|address| !address.ip.is_loopback()) {
        let text = format!("loopback interface found with non-loopback address {:?}", foreign.ip.to_string());
        return Err(podwire_cni_spec::Error::internal(text)
            .with_details("remove that address from lo in the pod")
            .into());
    }
    let of_family = |family: IpFamily| all.iter().find(|address| IpFamily::of(address.ip) == family);
    let first = IpFamily::ALL.into_iter().filter_map(of_family);
    Ok(first.filter_map(|address| IpNet::new(address.ip, address.prefix).ok()).collect())
}

fn attachment(req: &Request<'_>, addresses: &[IpNet]) -> Attachment {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let lo = Interface { name: LO.into(), mac: "00:00:00:00:00:00".into(), sandbox, ..Interface::default() };
    let ips = addresses.iter().map(|net| Ip { interface: Some(0), ..Ip::new(*net) }).collect();
    Attachment { interfaces: vec![lo], ips, ..Attachment::default() }
}
