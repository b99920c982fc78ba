//! Each leftover is found and named.

use crate::proxy::{
    create_device, create_iptables_mode, create_nftables_mode, create_others, in_namespace, restore, texts,
    IPTABLES_MODE,
};
use crate::testbed::run;

#[test]
fn nothing_is_found_where_only_others_have_rules() {
    in_namespace(|| {
        assert_eq!(texts(), [""; 0]);
        create_others();
        run("iptables-legacy -t nat -N KUBE-KUBELET-CANARY; ip6tables-legacy -t filter -N KUBE-FIREWALL");
        assert_eq!(texts(), [""; 0]);
    });
}

#[test]
fn each_leftover_is_found_and_named() {
    in_namespace(|| {
        create_others();
        create_nftables_mode();
        create_iptables_mode();
        create_device();
        let mut expected = vec!["table ip kube-proxy".to_owned(), "table ip6 kube-proxy".to_owned()];
        for family in ["ip", "ip6"] {
            expected.extend([
                format!("8 chains, KUBE-MARK-MASQ among them, of iptables-nft in table {family} nat"),
                format!(
                    "6 chains, KUBE-EXTERNAL-SERVICES among them, of iptables-nft in table {family} filter"
                ),
                format!("chain KUBE-PROXY-CANARY of iptables-nft in table {family} mangle"),
            ]);
        }
        expected.push("device kube-ipvs0".to_owned());
        assert_eq!(texts(), expected);
    });
}

/// iptables-legacy has rules of its own, which nf_tables does not show.
#[test]
fn chains_of_iptables_legacy_are_found() {
    in_namespace(|| {
        restore("iptables-legacy", IPTABLES_MODE);
        run("ip6tables-legacy -t filter -N KUBE-FIREWALL; ip6tables-legacy -t filter -N KUBE-FORWARD");
        assert_eq!(run("nft list ruleset 2>/dev/null"), "");
        assert_eq!(
            texts(),
            [
                "8 chains, KUBE-MARK-MASQ among them, of iptables-legacy in table nat",
                "6 chains, KUBE-EXTERNAL-SERVICES among them, of iptables-legacy in table filter",
                "chain KUBE-PROXY-CANARY of iptables-legacy in table mangle",
                "chain KUBE-FORWARD of ip6tables-legacy in table filter",
            ]
        );
    });
}

/// Reading a table of iptables-legacy creates it, so only existing ones are read.
#[test]
fn looking_creates_no_table() {
    in_namespace(|| {
        let tables =
            || run("cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names");
        run("iptables-legacy -t filter -N MINE");
        assert_eq!(texts(), [""; 0]);
        assert_eq!(tables(), "filter\n");
        assert_eq!(run("nft list tables"), "");
    });
}
