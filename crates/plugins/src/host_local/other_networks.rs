//! The addresses of the other networks in a data folder. Each network has its own pool, and no pool knows the others.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use podwire_cni_plugin::Request;
use podwire_kernel::Owner;

use super::config;
use super::entry::Holder;
use super::store::CONTENT_LIMIT;

/// Who has one of these addresses in another network's folder beside that of the request's network. Takes no lock: an
/// address file has its content before its ADD goes on.
pub(crate) fn holders_in_other_networks(req: &Request<'_>, ips: &[IpAddr]) -> Vec<(IpAddr, Owner)> {
    let own = config::folder(req);
    let Some(folder) = own.parent() else { return Vec::new() };
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let others = names.filter(|name| Some(&**name) != own.file_name());
    let mut holders = Vec::new();
    for network in others {
        for ip in ips {
            let Some(Holder::Interface(one)) = read(&folder.join(&network).join(ip.to_string())) else {
                continue;
            };
            holders.push((*ip, Owner::new(&*network.to_string_lossy(), &*one.container, &*one.ifname)));
        }
    }
    holders
}

fn read(file: &Path) -> Option<Holder> {
    // Opening a pipe may block.
    std::fs::symlink_metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    let mut buffer = [0; CONTENT_LIMIT];
    let read = File::open(file).and_then(|mut file| file.read(&mut buffer)).ok()?;
    Some(Holder::parse(&buffer[..read]))
}
