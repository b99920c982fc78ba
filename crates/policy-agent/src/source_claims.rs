//! Source prefixes that pods claim by annotation, and which of them are granted.
//!
//! Any user who may write pods can claim any address. So a claim is granted only inside the prefixes that the network's
//! administrator allows, and never for another pod's address. A refused claim becomes a warning.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::Interface;
use podwire_policy::api::Pod;
use podwire_policy::{Warning, WarningKind};

const FIELD: &str = "metadata.annotations[cni.projectcalico.org/allowedSourcePrefixes]";

/// The claims of all pods. Of two overlapping claims the first is granted.
#[derive(Debug, Default)]
pub(crate) struct SourceClaims {
    granted: Vec<(String, IpNet)>,
    pub warnings: Vec<Warning>,
}

impl SourceClaims {
    /// The prefixes granted to the pod on this interface. `taken`: whether another pod has an address in the prefix.
    pub fn grant(&mut self, pod: &Pod, interface: &Interface, taken: impl Fn(&IpNet) -> bool) -> Vec<IpNet> {
        let Some(text) = &pod.metadata.annotations.allowed_source_prefixes else { return Vec::new() };
        let name = interface.pod_name();
        let Ok(entries) = serde_json::from_str::<Vec<String>>(text) else {
            self.warn(&name, format!("{text:?} is not a JSON list of networks: no prefix is granted"));
            return Vec::new();
        };
        let allowed: Vec<IpNet> =
            interface.allowed_source_prefixes.iter().filter_map(|net| net.parse().ok()).collect();
        let mut granted = Vec::new();
        for entry in entries {
            let Some(network) = parse(&entry) else {
                self.warn(&name, format!("{entry:?} is not a network"));
                continue;
            };
            let others =
                self.granted.iter().find(|(pod, granted)| *pod != name && overlap(granted, &network));
            let reason = if !allowed.iter().any(|net| net.contains(&network)) {
                format!(
                    "{network} is not granted: policy.allowedSourcePrefixes of network {} does not allow it",
                    interface.owner.network
                )
            } else if let Some((other, _)) = others {
                format!("{network} is not granted: it overlaps a prefix of pod {other}")
            } else if taken(&network) {
                format!("{network} is not granted: it contains an address of another pod")
            } else {
                self.granted.push((name.clone(), network));
                granted.push(network);
                continue;
            };
            self.warn(&name, reason);
        }
        granted
    }

    fn warn(&mut self, pod: &str, text: String) {
        let (object, field) = (format!("Pod {pod}"), FIELD.into());
        self.warnings.push(Warning { object, field, kind: WarningKind::Invalid, text });
    }
}

fn parse(text: &str) -> Option<IpNet> {
    let network: Option<IpNet> = text.parse().ok();
    network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(|network| network.trunc())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(claims: &mut SourceClaims, name: &str, text: &str) -> Vec<String> {
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
    fn allowed_claims_are_granted_and_others_become_warnings() {
        let mut claims = SourceClaims::default();
        assert_eq!(grant(&mut claims, "a", r#"["10.8.1.7/24", "fd08::5"]"#), ["10.8.1.0/24", "fd08::5/128"]);
        assert!(claims.warnings.is_empty());
        for (text, expected) in [
            ("10.8.2.0/24", "not a JSON list"),
            (r#"["ten"]"#, "\"ten\" is not a network"),
            (r#"["10.0.0.0/8"]"#, "10.0.0.0/8 is not granted: policy.allowedSourcePrefixes of network net"),
            (r#"["10.8.1.128/25"]"#, "overlaps a prefix of pod shop/a"),
            (r#"["10.8.9.0/24"]"#, "an address of another pod"),
        ] {
            assert!(grant(&mut claims, "b", text).is_empty(), "{text}");
            let warning = claims.warnings.pop().unwrap().to_string();
            assert!(
                warning.starts_with("Pod shop/b: metadata.annotations[") && warning.contains(expected),
                "{warning}"
            );
        }
    }
}
