//! The names of the Services that a dropped packet may have been sent to.
//!
//! A packet to a Service meets policies after its destination has become an endpoint. The log of the kernel does not have
//! the earlier destination, and on the endpoint's node the kernel does not know it: the sender's node has replaced it. So
//! the drop log names the Services of which the destination is an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use podwire_policy::Protocol;

/// The log names at most so many Services.
const MAX_NAMES: usize = 3;

type Lookup = dyn Fn(Protocol, SocketAddr) -> Vec<String> + Send + Sync;

/// Finds the Services with an endpoint.
#[derive(Clone)]
pub struct ServiceNames(Arc<Lookup>);

impl ServiceNames {
    /// `lookup` returns the Service ports with an endpoint. It is called in the policy thread, and must not wait.
    pub fn new(lookup: impl Fn(Protocol, SocketAddr) -> Vec<String> + Send + Sync + 'static) -> ServiceNames {
        ServiceNames(Arc::new(lookup))
    }

    /// The names of the Service ports as one text; `None` if there are none.
    pub(crate) fn text(&self, protocol: Protocol, endpoint: SocketAddr) -> Option<String> {
        let names = (self.0)(protocol, endpoint);
        let more = names.len().saturating_sub(MAX_NAMES);
        let mut text = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        (!names.is_empty()).then_some(text)
    }
}

impl Default for ServiceNames {
    fn default() -> ServiceNames {
        ServiceNames::new(|_, _| Vec::new())
    }
}

impl fmt::Debug for ServiceNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceNames")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_services_are_named() {
        let text = |count: usize| {
            let names: Vec<String> = (1..=count).map(|number| format!("x/s{number}")).collect();
            let names = ServiceNames::new(move |_, _| names.clone());
            names.text(Protocol::Tcp, "10.0.0.1:80".parse().unwrap())
        };
        assert_eq!(text(0), None);
        assert_eq!(text(1).as_deref(), Some("x/s1"));
        assert_eq!(text(3).as_deref(), Some("x/s1, x/s2, x/s3"));
        assert_eq!(text(5).as_deref(), Some("x/s1, x/s2, x/s3 and 2 more"));
    }
}
