//! Decoding into any `Deserialize` type.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::node::Node;
use crate::Error;

/// Reads a value as Go would, whatever struct asks for it.
///
/// - Keys of structs match in any ASCII case; the exact spelling wins, then the last of the others. Keys of maps
///   keep their case.
/// - Null is absent: `None`, the field's `#[serde(default)]`, or "missing field". In a list it is the type's zero.
/// - Unknown keys are skipped.
/// - Whole numbers may be written as floats (`1500.0`, `1e3`), because a pass through Go may have done that.
///
/// Errors have code 7 and begin with the path: ``ipam.ranges[0][1].subnet: invalid type: integer `5`, expected a
/// string``.
///
/// Serde buffers the content of `#[serde(untagged)]`, internally tagged and `#[serde(flatten)]` types before it
/// asks for fields, so inside of them keys match exactly.
///
/// ```
/// #[derive(serde::Deserialize)]
/// #[serde(rename_all = "camelCase")]
/// struct Port {
///     host_port: u16,
/// }
/// let port: Port = podwire_cni_spec::json::decode(&serde_json::json!({"HostPort": 8080, "HostIP": null}))?;
/// assert_eq!(port.host_port, 8080);
/// # Ok::<(), podwire_cni_spec::Error>(())
/// ```
pub fn decode<T: DeserializeOwned>(v: &Value) -> Result<T, Error> {
    decode_under(&[], v)
}

/// [`decode`] for a value inside a document, whose keys down to it go in front of the path.
pub(crate) fn decode_under<T: DeserializeOwned>(keys: &[&str], v: &Value) -> Result<T, Error> {
    T::deserialize(Node(v)).map_err(|decode_error| {
        let decode_error =
            keys.iter().rev().fold(decode_error, |decode_error, key| decode_error.under_key(key));
        Error::invalid_config(decode_error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::{json, Map};

    use super::*;
    use crate::code;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Conf {
        mtu: u32,
        name: String,
        is_gateway: bool,
        ratio: f64,
        snat: Option<bool>,
        ipam: Option<Ipam>,
        sysctl: BTreeMap<String, String>,
        mode: Option<Mode>,
        anything: Value,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Ipam {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        ranges: Vec<Vec<Range>>,
        #[serde(default)]
        weights: Vec<Option<i8>>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Range {
        #[serde(with = "crate::addr::net")]
        subnet: ipnet::IpNet,
        #[serde(default)]
        range_start: String,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        L2,
        Vlan(u16),
        Pair(u8, u8),
        Tunnel { id: u32 },
    }

    fn read(v: Value) -> Conf {
        decode(&v).unwrap()
    }

    fn decode_error(v: Value) -> String {
        let error = decode::<Conf>(&v).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        error.msg
    }

    #[test]
    fn struct_keys_match_in_any_case_and_map_keys_in_theirs() {
        let conf = read(json!({
            "MTU": 1500, "ISGATEWAY": true, "Ipam": {"TYPE": "host-local", "Ranges": [[{"Subnet": "10.0.0.0/8"}]]},
            "SysCtl": {"A": "1", "a": "2"}, "unknown": [{}],
        }));
        assert_eq!((conf.mtu, conf.is_gateway), (1500, true));
        let ipam = conf.ipam.unwrap();
        assert_eq!((ipam.kind.as_str(), ipam.ranges[0][0].subnet.prefix_len()), ("host-local", 8));
        assert_eq!(conf.sysctl, BTreeMap::from([("A".into(), "1".into()), ("a".into(), "2".into())]));
    }

    #[test]
    fn the_exact_key_wins_then_the_last() {
        assert_eq!(read(json!({"mtu": 1, "MTU": 2})).mtu, 1);
        assert_eq!(read(json!({"Mtu": 1, "MTU": 2})).mtu, 2);
        assert_eq!(read(json!({"mtu": null, "MTU": 2, "Mtu": null})).mtu, 2);
    }

    #[test]
    fn null_is_absent_and_zero_in_lists() {
        let nothing =
            json!({"mtu": null, "name": null, "snat": null, "ipam": null, "sysctl": null, "mode": null});
        assert_eq!(read(nothing), Conf::default());
        assert_eq!(read(json!(null)), Conf::default());
        let ipam = json!({"ipam": {"type": "x", "ranges": [null, []], "weights": [null, -1]}});
        let ipam = read(ipam).ipam.unwrap();
        assert_eq!((ipam.ranges.len(), ipam.weights), (2, vec![None, Some(-1)]));
        assert_eq!(read(json!({"sysctl": {"a": null}})).sysctl["a"], "");
        assert_eq!(decode_error(json!({"ipam": {"type": null}})), "ipam: missing field `type`");
        assert_eq!(
            decode_error(json!({"ipam": {"type": "x", "ranges": [[null]]}})),
            "ipam.ranges[0][0]: missing field `subnet`"
        );
    }

    #[test]
    fn numbers_may_have_passed_through_a_float() {
        assert_eq!(read(json!({"mtu": 1500.0})).mtu, 1500);
        assert_eq!(
            decode::<Vec<u64>>(&json!([1e15, 18446744073709551615u64])),
            Ok(vec![1_000_000_000_000_000, u64::MAX])
        );
        assert_eq!(decode::<Vec<i8>>(&json!([-3.0])), Ok(vec![-3]));
        assert_eq!(read(json!({"ratio": 2})).ratio, 2.0);
        assert_eq!(
            decode_error(json!({"mtu": 1.5})),
            "mtu: invalid type: floating point `1.5`, expected u32"
        );
        assert_eq!(decode_error(json!({"mtu": -1.0})), "mtu: invalid value: integer `-1`, expected u32");
        assert_eq!(
            decode_error(json!({"mtu": 4294967296u64})),
            "mtu: invalid value: integer `4294967296`, expected u32"
        );
    }

    #[test]
    fn errors_begin_with_the_path_as_the_author_spelled_it() {
        let v = json!({"IPAM": {"type": "x", "ranges": [[{"subnet": "10.0.0.0/8"}, {"subnet": 5}]]}});
        assert_eq!(decode_error(v), "IPAM.ranges[0][1].subnet: invalid type: integer `5`, expected a string");
        let v = json!({"ipam": {"type": "x", "ranges": [[{"subnet": "10.0.0.0"}]]}});
        assert!(decode_error(v).starts_with("ipam.ranges[0][0].subnet: invalid CIDR address: \"10.0.0.0\""));
        assert_eq!(
            decode_error(json!({"ipam": "dhcp"})),
            "ipam: invalid type: string \"dhcp\", expected an object"
        );
        assert_eq!(
            decode_error(json!({"ipam": ["dhcp"]})),
            "ipam: invalid type: an array, expected an object"
        );
        assert_eq!(decode_error(json!({"name": {}})), "name: invalid type: map, expected a string");
        assert_eq!(
            decode_error(json!({"sysctl": {"a b": 1}})),
            "sysctl.a b: invalid type: integer `1`, expected a string"
        );
        assert_eq!(decode_error(json!([])), "invalid type: an array, expected an object");
    }

    #[test]
    fn enums_are_names_or_one_key() {
        let mode = |v: Value| decode::<Mode>(&v);
        assert_eq!(mode(json!("l2")), Ok(Mode::L2));
        assert_eq!(mode(json!({"l2": null})), Ok(Mode::L2));
        assert_eq!(mode(json!({"vlan": 5})), Ok(Mode::Vlan(5)));
        assert_eq!(mode(json!({"pair": [1, 2]})), Ok(Mode::Pair(1, 2)));
        assert_eq!(mode(json!({"tunnel": {"ID": 7}})), Ok(Mode::Tunnel { id: 7 }));
        for bad in [
            json!("l9"),
            json!({}),
            json!({"l2": 1}),
            json!({"vlan": "x"}),
            json!(1),
            json!(null),
            json!({"vlan": 1, "l2": null}),
            json!({"pair": [1]}),
            json!("vlan "),
        ] {
            assert!(mode(bad.clone()).is_err(), "{bad}");
        }
        assert_eq!(
            decode_error(json!({"mode": {"tunnel": {"id": []}}})),
            "mode.tunnel.id: invalid type: sequence, expected u32"
        );
    }

    #[test]
    fn a_wide_document_costs_no_more_than_its_size() {
        let wide: Map<String, Value> = (0..100_000).map(|i| (format!("k{i}"), json!(i))).collect();
        assert_eq!(read(Value::Object(wide)), Conf::default());
    }

    /// Arbitrary JSON that likes the keys of `Conf`.
    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        let key = prop_oneof!["(?i)mtu|name|ipam|type|ranges|subnet|sysctl|mode|tunnel|weights", "\\PC{0,4}"];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn decode_never_panics(v in documents()) {
            let _ = decode::<Conf>(&v);
            let _ = decode::<Mode>(&v);
            let _ = decode::<Vec<Range>>(&v);
        }

        #[test]
        fn decoding_to_a_value_changes_nothing(v in documents()) {
            prop_assert_eq!(decode::<Value>(&v), Ok(v));
        }
    }
}
