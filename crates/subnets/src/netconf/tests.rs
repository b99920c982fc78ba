use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> NetConf {
    NetConf::parse("net-conf.json", text).unwrap()
}

fn pools(text: &str) -> Pools {
    parse(text).pools().unwrap()
}

fn refused(text: &str) -> String {
    NetConf::parse("net-conf.json", text).and_then(|conf| conf.pools().map(|_| ())).unwrap_err().to_string()
}

#[test]
fn the_config_of_flannels_manifest_is_parsed() {
    let conf = parse(
        r#"{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan", "VNI": 1}}"#,
    );
    assert_eq!(conf.network.unwrap().to_string(), "10.244.0.0/16");
    assert_eq!((conf.enable_ipv4, conf.enable_ipv6), (true, false));
    assert_eq!((conf.backend_type.as_str(), &conf.backend["VNI"]), ("vxlan", &Value::from(1)));
}

#[test]
fn keys_match_in_any_case_and_host_bits_are_cut_as_in_go() {
    let conf = parse(
        r#"{"network": "10.244.3.7/16", "ENABLEIPV6": true, "ipv6network": "fd00:10:244::5/56",
            "backend": {"type": "host-gw"}, "subnetlen": 26}"#,
    );
    assert_eq!(conf.network.unwrap().to_string(), "10.244.0.0/16");
    assert_eq!(conf.ipv6_network.unwrap().to_string(), "fd00:10:244::/56");
    assert_eq!((conf.enable_ipv6, conf.backend_type.as_str(), conf.subnet_len), (true, "host-gw", 26));
}

#[test]
fn no_backend_is_udp() {
    assert_eq!(parse(r#"{"Network": "10.0.0.0/8"}"#).backend_type, "udp");
    assert_eq!(parse(r#"{"Network": "10.0.0.0/8", "Backend": {"Port": 1}}"#).backend_type, "");
}

#[test]
fn defaults_are_flannels() {
    let v4 = |text: &str| pools(text).v4.unwrap().to_string();
    assert_eq!(v4(r#"{"Network": "10.3.0.0/16"}"#), "10.3.1.0 to 10.3.255.0 of /24");
    assert_eq!(v4(r#"{"Network": "10.3.0.0/23"}"#), "10.3.0.128 to 10.3.1.128 of /25");
    assert_eq!(v4(r#"{"Network": "10.3.0.0/28"}"#), "10.3.0.4 to 10.3.0.12 of /30");
    let v6 = |net: &str| {
        let text = format!(r#"{{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "{net}"}}"#);
        pools(&text).v6.unwrap().to_string()
    };
    assert_eq!(v6("fc00::/48"), "fc00:0:0:1:: to fc00:0:0:ffff:: of /64");
    assert_eq!(v6("fc00::/63"), "fc00::8000:0:0:0 to fc00:0:0:1:8000:: of /65");
    assert_eq!(v6("fc00::/124"), "fc00::4 to fc00::c of /126");
}

#[test]
fn bounds_are_respected() {
    let text =
        r#"{"Network": "10.3.0.0/16", "SubnetMin": "10.3.5.0", "SubnetMax": "10.3.8.0", "SubnetLen": 28}"#;
    assert_eq!(pools(text).v4.unwrap().to_string(), "10.3.5.0 to 10.3.8.0 of /28");
}

#[test]
fn invalid_configs_are_rejected_with_flannels_messages() {
    for (text, words) in [
        (r#"{}"#, "please define a correct Network parameter in the flannel config"),
        (r#"{"Network": "10.0.0.0/16", "SubnetLen": 31}"#, "SubnetLen must be less than /31"),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetLen": 17}"#,
            "network must be able to accommodate at least four subnets",
        ),
        (r#"{"Network": "10.0.0.0/29"}"#, "network is too small. Minimum useful network prefix is /28"),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetMin": "10.1.0.0"}"#,
            "SubnetMin is not in the range of the Network",
        ),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetMax": "10.1.0.0"}"#,
            "SubnetMax is not in the range of the Network",
        ),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetMin": "10.0.0.7"}"#,
            "SubnetMin is not on a SubnetLen boundary: 10.0.0.7",
        ),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetMax": "10.0.9.7"}"#,
            "SubnetMax is not on a SubnetLen boundary: 10.0.9.7",
        ),
        (
            r#"{"Network": "10.0.0.0/16", "SubnetMin": "10.0.9.0", "SubnetMax": "10.0.8.0"}"#,
            "SubnetMin 10.0.9.0 is after SubnetMax 10.0.8.0",
        ),
        (r#"{"EnableIPv4": false}"#, "both false"),
        (
            r#"{"EnableIPv6": true, "Network": "10.0.0.0/16"}"#,
            "please define a correct IPv6Network parameter in the flannel config",
        ),
        (
            r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fc00::/125"}"#,
            "IPv6Network is too small. Minimum useful network prefix is /124",
        ),
        (
            r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fc00::/48", "IPv6SubnetLen": 127}"#,
            "SubnetLen must be less than /127",
        ),
        (
            r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fc00::/48", "IPv6SubnetMin": "fd00::"}"#,
            "IPv6SubnetMin is not in the range of the IPv6Network",
        ),
        (
            r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fc00::/48", "IPv6SubnetMax": "fc00::1"}"#,
            "IPv6SubnetMax is not on a SubnetLen boundary: fc00::1",
        ),
        (r#"{"Network": "10.0.0.0"}"#, "Network: "),
        (r#"{"Network": "fd00::/64"}"#, "Network: "),
        (r#"{"Network": 5}"#, "Network: invalid type"),
        (r#"{"Network": "10.0.0.0/16", "SubnetLen": -1}"#, "SubnetLen: invalid value"),
        (r#"{"Network": "10.0.0.0/16", "SubnetLen": 264}"#, "SubnetLen is 264"),
        (r#"{"Network": "10.0.0.0/16", "Backend": "vxlan"}"#, "error decoding Backend property of config"),
        (
            r#"{"Network": "10.0.0.0/16", "Backend": {"Type": 5}}"#,
            "error decoding Backend property of config",
        ),
        (r#"{"Network": "#, "invalid JSON"),
    ] {
        let error = refused(text);
        assert!(error.starts_with("net-conf.json: ") && error.contains(words), "{text}: {error}");
    }
}

#[test]
fn a_pod_cidr_of_another_network_is_rejected() {
    let conf = parse(r#"{"Network": "10.244.0.0/16"}"#);
    let cidrs = |text: &str| PodCidrs { v4: text.parse().ok(), v6: None };
    assert!(conf.check_pod_cidrs("a", cidrs("10.244.3.0/24")).is_ok());
    let error = conf.check_pod_cidrs("a", cidrs("10.245.3.0/24")).unwrap_err().to_string();
    let words = "subnet 10.244.0.0/16 specified in the flannel net config doesn't contain 10.245.3.0/24 PodCIDR of the \"a\" node";
    assert!(error.starts_with(words), "{error}");
    assert!(conf.check_pod_cidrs("a", cidrs("10.0.0.0/8")).is_err());
    let v6 = PodCidrs { v4: None, v6: "fd00::/64".parse().ok() };
    assert!(conf.check_pod_cidrs("a", v6).unwrap_err().to_string().starts_with("subnet (none) specified"));
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "\\PC{0,60}") {
        let _ = NetConf::parse("x", &text);
    }

    #[test]
    fn an_accepted_pool_offers_subnets_of_its_network(
        net in any::<u32>(), prefix in 0u8..33, len in 0u32..34, min in proptest::option::of(any::<u32>()), max in proptest::option::of(any::<u32>()),
    ) {
        let ip = |number: Option<u32>| number.map_or("null".to_string(), |n| format!("\"{}\"", Ipv4Addr::from(n)));
        let net = Ipv4Addr::from(net);
        let text = format!(r#"{{"Network": "{net}/{prefix}", "SubnetLen": {len}, "SubnetMin": {}, "SubnetMax": {}}}"#, ip(min), ip(max));
        if let Ok(pools) = NetConf::parse("x", &text).and_then(|conf| conf.pools()) {
            let pool = pools.v4.unwrap();
            let network: IpNet = format!("{net}/{prefix}").parse::<IpNet>().unwrap().trunc();
            for subnet in pool.free(&[]).take(50) {
                prop_assert!(network.contains(&subnet) && subnet.trunc() == subnet && pool.fits(subnet));
            }
        }
    }
}
