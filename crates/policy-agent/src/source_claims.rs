//! What pods wish to send with besides their own addresses, and what of it is granted.
//!
//! Anybody who may write pods can claim any address. So a claim counts only inside of what the network's administrator allows,
//! and never for what is another pod's. Claims that do not count are told.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::Interface;
use podwire_policy::api::Pod;
use podwire_policy::{Kind, Warning};

const PLACE: &str = "metadata.annotations[cni.projectcalico.org/allowedSourcePrefixes]";

/// Claims, one after the other: of two that overlap the first one counts.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    granted: Vec<(String, IpNet)>,
    pub warnings: Vec<Warning>,
}

impl Claims {
    /// What of the pod's claims is granted at this interface. `taken` says whether an address of the network is another pod's.
    pub fn grant(&mut self, pod: &Pod, interface: &Interface, taken: impl Fn(&IpNet) -> bool) -> Vec<IpNet> {
        let Some(text) = &pod.metadata.annotations.allowed_source_prefixes else { return Vec::new() };
        let name = interface.pod_name();
        let Ok(written) = serde_json::from_str::<Vec<String>>(text) else {
            self.warn(&name, format!("{text:?} is no JSON list of networks: nothing is granted"));
            return Vec::new();
        };
        let allowed: Vec<IpNet> =
            interface.allowed_source_prefixes.iter().filter_map(|net| net.parse().ok()).collect();
        let mut granted = Vec::new();
        for word in written {
            let Some(network) = parse(&word) else {
                self.warn(&name, format!("{word:?} is no network"));
                continue;
            };
            let others = self.granted.iter().find(|(pod, its)| *pod != name && overlap(its, &network));
            let why = if !allowed.iter().any(|net| net.contains(&network)) {
                format!(
                    "{network} is not granted: policy.allowedSourcePrefixes of network {} does not allow it",
                    interface.owner.network
                )
            } else if let Some((other, _)) = others {
                format!("{network} is not granted: pod {other} has addresses of it")
            } else if taken(&network) {
                format!("{network} is not granted: an address of it is another pod's own")
            } else {
                self.granted.push((name.clone(), network));
                granted.push(network);
                continue;
            };
            self.warn(&name, why);
        }
        granted
    }

    fn warn(&mut self, pod: &str, text: String) {
        let (object, place) = (format!("Pod {pod}"), PLACE.into());
        self.warnings.push(Warning { object, place, kind: Kind::Refused, text });
    }
}

fn parse(word: &str) -> Option<IpNet> {
    let network: Option<IpNet> = word.parse().ok();
    network.or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from)).map(|network| network.trunc())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(claims: &mut Claims, name: &str, text: &str) -> Vec<String> {
        let mut pod = Pod::default();
        pod.metadata.annotations.allowed_source_prefixes = Some(text.into());
        let interface = Interface {
            pod: name.into(),
            namespace: "shop".into(),
            owner: podwire_agent_ipc::Owner::new("net", "", ""),
            allowed_source_prefixes: vec!["10.8.0.0/16".into(), "fd08::/64".into()],
            ..Interface::default()
        };
        let own: IpAddr = "10.8.9.9".parse().unwrap();
        let granted = claims.grant(&pod, &interface, |network| network.contains(&own));
        granted.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_network_allows_is_granted_and_all_else_is_told_with_the_pod() {
        let mut claims = Claims::default();
        assert_eq!(grant(&mut claims, "a", r#"["10.8.1.7/24", "fd08::5"]"#), ["10.8.1.0/24", "fd08::5/128"]);
        assert!(claims.warnings.is_empty());
        for (text, says) in [
            ("10.8.2.0/24", "no JSON list"),
            (r#"["ten"]"#, "\"ten\" is no network"),
            (r#"["10.0.0.0/8"]"#, "10.0.0.0/8 is not granted: policy.allowedSourcePrefixes of network net"),
            (r#"["10.8.1.128/25"]"#, "pod shop/a has addresses of it"),
            (r#"["10.8.9.0/24"]"#, "another pod's own"),
        ] {
            assert!(grant(&mut claims, "b", text).is_empty(), "{text}");
            let warning = claims.warnings.pop().unwrap().to_string();
            assert!(
                warning.starts_with("Pod shop/b: metadata.annotations[") && warning.contains(says),
                "{warning}"
            );
        }
    }
}
