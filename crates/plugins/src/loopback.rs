//! loopback: the pod's own `lo`, brought up.
//!
//! Every new namespace has a loopback device, down. Bringing it up is all there is to do: the kernel then
//! gives it 127.0.0.1/8 and, where IPv6 is on, ::1/128, and the routes to them.

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Ip};
use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Link, Undo};

use crate::inspection;

/// Whatever interface name the runtime asks for: there is one loopback, and this is it.
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
            // Its addresses come with it.
            let down = Finding::new("loopback interface is down");
            return Ok(vec![down.repaired_by(inspection::change(req, link::up(&lo)))]);
        }
        let found = address::list(&mut pod.route, lo.index)?;
        let lost = |net: &IpNet| found.iter().all(|one| one.ip != net.addr());
        let put_back = |net: IpNet| {
            let again = address::add(lo.index, net.addr(), net.prefix_len(), false);
            Finding::new(format!("loopback interface lacks address {net}"))
                .repaired_by(inspection::change(req, again))
        };
        Ok(expected(req).into_iter().filter(lost).map(put_back).collect())
    }

    /// A loopback lives and dies with its namespace.
    fn gc(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }
}

/// The addresses that lo must have: those that were recorded, else the one that every program relies on.
fn expected(req: &Request<'_>) -> Vec<IpNet> {
    let recorded = req.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address);
    let own: Vec<IpNet> = recorded.filter(|net| net.addr().is_loopback()).collect();
    match own.is_empty() {
        true => vec![IpNet::new_assert([127, 0, 0, 1].into(), 8)],
        false => own,
    }
}

/// The first address of each family. An address of the outside world on lo would make the pod talk to itself
/// where it means somebody else.
fn addresses(pod: &mut Host, lo: &Link) -> Result<Vec<IpNet>> {
    let all = address::list(&mut pod.route, lo.index)?;
    if let Some(foreign) = all.iter().find(|address| !address.ip.is_loopback()) {
        let text = format!("loopback interface found with non-loopback address {:?}", foreign.ip.to_string());
        return Err(podwire_cni_spec::Error::internal(text)
            .with_details("remove that address from lo in the pod")
            .into());
    }
    let of_family = |v4: bool| all.iter().find(|address| address.ip.is_ipv4() == v4);
    let first = [of_family(true), of_family(false)].into_iter().flatten();
    Ok(first.filter_map(|address| IpNet::new(address.ip, address.prefix).ok()).collect())
}

fn attachment(req: &Request<'_>, addresses: &[IpNet]) -> Attachment {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let lo = Interface { name: LO.into(), mac: "00:00:00:00:00:00".into(), sandbox, ..Interface::default() };
    let ips = addresses.iter().map(|net| Ip { interface: Some(0), ..Ip::new(*net) }).collect();
    Attachment { interfaces: vec![lo], ips, ..Attachment::default() }
}
