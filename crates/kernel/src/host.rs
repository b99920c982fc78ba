//! Access to one network namespace: a socket for links and routes, one for the firewall when it is needed, and a way to
//! run code inside, for example for files under /proc/sys.

use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::{nft, Socket};

use crate::error::{Error, Result};
use crate::netns::Netns;

/// The sockets of one namespace. They stay in it when the thread enters another.
#[derive(Debug)]
pub struct Host {
    /// For links, addresses, routes, rules and traffic control.
    pub route: Socket,
    netfilter: Option<Socket>,
    /// The namespace; `None` is the thread's own.
    netns: Option<Netns>,
}

impl Host {
    /// Opens the calling thread's namespace: the node.
    pub fn here() -> Result<Host> {
        Ok(Host { route: Socket::route()?, netfilter: None, netns: None })
    }

    /// Opens `netns`: a pod.
    pub fn within(netns: Netns) -> Result<Host> {
        let route = netns.run(Socket::route)??;
        Ok(Host { route, netfilter: None, netns: Some(netns) })
    }

    /// The socket for nf_tables and connection tracking, opened on first use.
    pub fn nft(&mut self) -> Result<&mut Socket> {
        self.open_nft().map_err(|error| match error {
            Error::Netlink(error) if error.is_unsupported() => Error::NoNfTables,
            other => other,
        })
    }

    fn open_nft(&mut self) -> Result<&mut Socket> {
        if self.netfilter.is_none() {
            self.netfilter = Some(self.run(Socket::netfilter)??);
        }
        match &mut self.netfilter {
            Some(socket) => Ok(socket),
            None => unreachable!("it was opened above"),
        }
    }

    /// As [`nft`](Self::nft), for deletions: `None` if the kernel has no nf_tables, because then there is nothing to
    /// delete.
    pub fn find_nft(&mut self) -> Result<Option<&mut Socket>> {
        match self.open_nft() {
            Err(Error::Netlink(error)) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
            Ok(nft) => Ok(nft::is_supported(nft)?.then_some(nft)),
        }
    }

    /// The firewall socket, if it was used.
    pub fn used_nft(&self) -> Option<&Socket> {
        self.netfilter.as_ref()
    }

    /// The namespace, unless it is the thread's own.
    pub fn netns(&self) -> Option<&Netns> {
        self.netns.as_ref()
    }

    /// Calls `work` inside the namespace.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        match &self.netns {
            None => Ok(work()),
            Some(netns) => netns.run(work),
        }
    }

    /// Moves `link` into the namespace `to` with one message. There it is down, is called `name` and has `alias`. A
    /// `%d` at the end of `name` becomes the first free number.
    ///
    /// The kernel moves the link before it renames it: if `name` is taken in `to`, the link may arrive there under its
    /// old name. The caller checks that first.
    pub fn move_link(&mut self, link: &Link, to: &Netns, name: &str, alias: &str) -> Result<()> {
        let doing = format!("move {} as {name} to {}", link.name, to.path().display());
        let message = link::set_flags(link.index, 0, link::UP, doing)
            .u32(link::attribute::NET_NS_FD, to.as_fd().as_raw_fd() as u32)
            .string(link::attribute::IFNAME, name)
            // No final NUL: an alias of no bytes removes the alias.
            .bytes(link::attribute::IFALIAS, alias.as_bytes());
        Ok(self.route.request(message)?)
    }

    /// The link named `name`, if there is one.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>> {
        Ok(link::find(&mut self.route, name)?)
    }

    /// The index and the hardware address of the link named `name`, read without the RTNL lock. The other fields are
    /// empty.
    pub fn peek_link(&self, name: &str) -> Result<Link> {
        Ok(link::peek(&self.route, name)?)
    }

    /// The link named `name`.
    pub fn get_link(&mut self, name: &str) -> Result<Link> {
        Ok(link::by_name(&mut self.route, name)?)
    }
}
