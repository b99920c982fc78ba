//! `CNI_ARGS`, and the names in the other `CNI_…` variables.

use podwire_cni_spec::{Args, ContainerId, IfName, NetworkName};

/// Text that parses is written as it was read, and its pairs make the same value.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(args) = Args::parse(text) {
        assert_eq!(args.to_string(), text);
        assert_eq!(Args::from_pairs(args.iter()).as_ref(), Ok(&args));
        for (key, _) in args.iter() {
            assert!(args.get(key).is_some());
        }
        let _ = args.check_known(&["IP", "MAC"]);
    }
    for line in text.lines() {
        names(line);
    }
}

/// A name that parses is unchanged, and is safe as a file name: no separators, no hidden files.
fn names(text: &str) {
    for name in [ContainerId::parse(text).map(String::from), NetworkName::parse(text).map(String::from)]
        .into_iter()
        .flatten()
    {
        assert!(name == text && !name.contains(['/', '\0', '\n']) && !name.starts_with('.'));
    }
    if let Ok(name) = IfName::parse(text) {
        assert!(name.as_str() == text && name.len() < 16 && !name.contains(['/', ':', '\0']));
    }
    let _ = podwire_cni_spec::addr::parse_ip(text)
        .map(|ip| assert_eq!(podwire_cni_spec::addr::parse_ip(&ip.to_string()), Ok(ip)));
    let _ = podwire_cni_spec::addr::parse_net(text)
        .map(|net| assert_eq!(podwire_cni_spec::addr::parse_net(&net.to_string()), Ok(net)));
    let _ = podwire_cni_spec::name::plugin_type(text);
}
