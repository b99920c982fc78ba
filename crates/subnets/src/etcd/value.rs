//! The value of a node's key: flannel's `LeaseAttrs`.

use std::net::{Ipv4Addr, Ipv6Addr};

use podwire_cni_spec::json;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::go_json;
use crate::node::{Backend, Underlay};

/// The value. The order and presence of keys are Go's: both addresses always, the rest only if set.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Attributes {
    #[serde(rename = "PublicIP")]
    public_ip: Ipv4Addr,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<Ipv6Addr>,
    #[serde(rename = "BackendType", skip_serializing_if = "String::is_empty")]
    backend_type: String,
    #[serde(rename = "BackendData", skip_serializing_if = "Option::is_none")]
    backend_data: Option<Value>,
    #[serde(rename = "BackendV6Data", skip_serializing_if = "Option::is_none")]
    backend_v6_data: Option<Value>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            public_ip: Ipv4Addr::UNSPECIFIED,
            public_ipv6: None,
            backend_type: String::new(),
            backend_data: None,
            backend_v6_data: None,
        }
    }
}

/// Encodes a value.
pub(super) fn write(underlay: Underlay, backend: &Backend) -> String {
    go_json::compact(&Attributes {
        public_ip: underlay.v4.unwrap_or(Ipv4Addr::UNSPECIFIED),
        public_ipv6: underlay.v6,
        backend_type: backend.kind.clone(),
        backend_data: backend.data.clone(),
        backend_v6_data: backend.data_v6.clone(),
    })
}

/// Parses a value.
pub(super) fn read(bytes: &[u8]) -> Result<(Underlay, Backend), String> {
    let value = json::parse(bytes).map_err(|error| error.msg)?;
    let Attributes { public_ip, public_ipv6, backend_type, backend_data, backend_v6_data } =
        json::decode(&value).map_err(|error| error.msg)?;
    let v4 = Some(public_ip).filter(|ip| !ip.is_unspecified());
    if v4.is_none() && public_ipv6.is_none() {
        return Err("it has no public address".into());
    }
    let backend = Backend { kind: backend_type, data: backend_data, data_v6: backend_v6_data };
    Ok((Underlay { v4, v6: public_ipv6 }, backend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Vtep, WireguardPeer};

    #[track_caller]
    fn round_trip(underlay: Underlay, backend: Backend, text: &str) {
        assert_eq!(write(underlay, &backend), text);
        assert_eq!(read(text.as_bytes()), Ok((underlay, backend)));
    }

    fn at(v4: &str, v6: &str) -> Underlay {
        Underlay { v4: v4.parse().ok(), v6: v6.parse().ok() }
    }

    #[test]
    fn values_are_flannels_bytes() {
        let vtep = |last: u8| Some(Vtep { vni: 1, mac: format!("c6:00:00:00:00:{last:02x}") });
        round_trip(
            at("192.168.64.3", ""),
            Backend::vxlan(vtep(1), None),
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:00:00:00:00:01"}}"#,
        );
        round_trip(
            at("192.168.64.3", "fd00::3"),
            Backend::vxlan(vtep(1), vtep(2)),
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":"fd00::3","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:00:00:00:00:01"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:00:00:00:00:02"}}"#,
        );
        round_trip(
            at("1.2.3.4", ""),
            Backend::named("host-gw"),
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"host-gw"}"#,
        );
        let peer = WireguardPeer { public_key: "k+/a=".into(), port: 51820 };
        round_trip(
            at("1.2.3.4", ""),
            Backend::wireguard(Some(peer), None),
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"wireguard","BackendData":{"PublicKey":"k+/a=","Port":51820}}"#,
        );
        // udp has no type; an extension's data is the output of its command.
        round_trip(at("1.2.3.4", ""), Backend::default(), r#"{"PublicIP":"1.2.3.4","PublicIPv6":null}"#);
        let extension = Backend { kind: "extension".into(), data: Some("a\u{26}b\n".into()), data_v6: None };
        round_trip(
            at("1.2.3.4", ""),
            extension,
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"extension","BackendData":"a\u0026b\n"}"#,
        );
    }

    #[test]
    fn unknown_keys_of_a_newer_flannel_are_ignored() {
        let (underlay, backend) = read(
            br#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"Zone":{"a":[1]},"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:00:00:00:00:01","Df":"set"},"BackendExtra":null}"#,
        )
        .unwrap();
        assert_eq!(underlay, at("10.0.0.1", ""));
        assert_eq!(backend.vtep(), Some(Vtep { vni: 1, mac: "c6:00:00:00:00:01".into() }));
    }

    #[test]
    fn older_values_and_other_letter_cases_are_parsed() {
        let (underlay, backend) =
            read(br#"{"publicip": "10.0.0.1", "backendType": "vxlan", "BackendData": {"VtepMAC": "c6:00:00:00:00:01"}}"#).unwrap();
        assert_eq!(underlay, at("10.0.0.1", ""));
        assert_eq!(backend.kind, "vxlan");
        assert_eq!(backend.vtep(), None, "without a VNI it is not a VXLAN endpoint");
        for bad in ["", "x", "[]", "{}", r#"{"PublicIP": "x"}"#, r#"{"PublicIP": 5}"#] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
