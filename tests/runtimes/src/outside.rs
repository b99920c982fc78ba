//! A client outside of a stage, on a separate link.

use podwire_tests::Pod;

use crate::Stage;

/// The networks between the stage and the client, reserved for documentation (RFC 5737, RFC 3849).
const NET: &str = "192.0.2";
const NET6: &str = "2001:db8:2";

impl Stage {
    /// A machine outside, on a separate link: 192.0.2.2 and 2001:db8:2::2. It and the stage are each other's default
    /// gateway, so it and pods can reach each other unless a rule forbids it.
    pub fn outside(&self) -> Pod {
        let outside = self.neighbour("outside", NET, NET6);
        self.sh(&format!(
            "ip -n outside route add default via {NET}.1; ip -n outside -6 route add default via {NET6}::1
             ip route add default via {NET}.2; ip -6 route add default via {NET6}::2"
        ));
        outside
    }

    /// The stage's IPv4 address on the link to [`outside`](Self::outside).
    pub fn address(&self) -> &'static str {
        "192.0.2.1"
    }

    /// The stage's IPv6 address on that link.
    pub fn address6(&self) -> &'static str {
        "2001:db8:2::1"
    }
}
