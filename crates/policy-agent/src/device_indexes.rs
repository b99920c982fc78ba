//! The indexes of the pods' devices. Rules look up an index in less time than a name.

use std::collections::BTreeMap;

use podwire_netlink::rt::link;
use podwire_netlink::Socket;

use crate::dataplane::PodPort;
use crate::Result;

#[derive(Debug)]
pub(crate) struct DeviceIndexes {
    route: Socket,
    /// By the device's name.
    known: BTreeMap<String, u32>,
}

impl DeviceIndexes {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<DeviceIndexes> {
        Ok(DeviceIndexes { route: Socket::route()?, known: BTreeMap::new() })
    }

    /// The device may have been made anew.
    pub fn forget(&mut self, device: &str) {
        self.known.remove(device);
    }

    /// Sets the indexes of the ports. Asks the kernel for those that are not known, and forgets those of other devices. A
    /// port whose device is not there gets none.
    pub fn complete(&mut self, ports: &mut [PodPort]) {
        let mut known = BTreeMap::new();
        for port in ports {
            let asked = || Some(link::find(&mut self.route, &port.device).ok()??.index);
            port.index = self.known.get(&port.device).copied().or_else(asked);
            known.extend(port.index.map(|index| (port.device.clone(), index)));
        }
        self.known = known;
    }
}
