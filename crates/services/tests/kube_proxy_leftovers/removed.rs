//! The removal takes what is kube-proxy's, and nothing else.

use podwire_netlink::nft;

use crate::proxy::{
    create_device, create_iptables_mode, create_nftables_mode, create_others, find, in_namespace, remove,
    restore, ruleset, sockets, texts, IPTABLES_MODE, OTHERS,
};
use crate::testbed::run;

#[test]
fn everything_of_kube_proxy_goes_and_everything_else_stays() {
    in_namespace(|| {
        create_others();
        let before = ruleset();
        create_nftables_mode();
        create_iptables_mode();
        create_device();
        let found = find();
        assert_eq!(found.len(), 9, "{found:?}");
        let removal = remove();
        assert!(removal.failures.is_empty(), "{removal:?}");
        assert_eq!(removal.removed, found);
        assert_eq!(texts(), [""; 0]);
        assert_eq!(ruleset(), before);
        assert!(!run("ip -o link").contains("kube-ipvs0"));
    });
}

#[test]
fn a_second_removal_changes_nothing() {
    in_namespace(|| {
        create_others();
        create_iptables_mode();
        remove();
        let generation = || nft::generation(&mut sockets().0).unwrap();
        let before = generation();
        let removal = remove();
        assert!(removal.removed.is_empty() && removal.failures.is_empty(), "{removal:?}");
        assert_eq!(generation(), before);
    });
}

/// A chain of another program that uses one of kube-proxy's would lose a rule: its table stays as it is.
#[test]
fn a_table_whose_chains_others_use_is_not_changed() {
    in_namespace(|| {
        create_iptables_mode();
        run("iptables-nft -t nat -N CNI-DN-1; iptables-nft -t nat -A CNI-DN-1 -s 10.1.0.1 -j KUBE-MARK-MASQ");
        let table = || run("nft -s list table ip nat 2>/dev/null");
        let before = table();
        let removal = remove();
        let failures: Vec<String> = removal.failures.iter().map(ToString::to_string).collect();
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        for part in ["CNI-DN-1", "table ip nat", "KUBE-MARK-MASQ", "nothing in this table was changed"] {
            assert!(failure.contains(part), "{failure}");
        }
        assert_eq!(table(), before);
        assert_eq!(removal.removed.len(), 5, "{removal:?}");
        run("iptables-nft -t nat -F CNI-DN-1");
        assert_eq!(remove().removed.len(), 1);
        assert!(!table().contains("KUBE-") && table().contains("CNI-DN-1"), "{}", table());
    });
}

/// The kernel refuses to delete a chain that a map leads to. Then it deletes nothing, and the error names the chain.
#[test]
fn a_refused_transaction_changes_nothing() {
    in_namespace(|| {
        create_iptables_mode();
        run("nft 'add chain ip nat mine { type nat hook prerouting priority -90; }'");
        run("nft add rule ip nat mine tcp dport vmap '{ 80 : jump KUBE-SERVICES }'");
        let table = || run("nft -s list table ip nat 2>/dev/null");
        let before = table();
        let removal = remove();
        let failures: Vec<String> = removal.failures.iter().map(ToString::to_string).collect();
        assert!(failures.len() == 1 && failures[0].contains("delete chain KUBE-SERVICES"), "{failures:?}");
        assert_eq!(table(), before);
    });
}

#[test]
fn chains_of_iptables_legacy_stay() {
    in_namespace(|| {
        restore("iptables-legacy", IPTABLES_MODE);
        create_nftables_mode();
        // Without comments and counters, which packets change.
        let rules = || run("iptables-legacy-save | sed '/^#/d; s/ \\[.*//'");
        let before = rules();
        assert_eq!(remove().removed.len(), 2);
        assert_eq!(rules(), before);
        assert_eq!(texts().len(), 3);
    });
}

/// The commands in docs/migration-from-kube-proxy.md.
#[test]
fn chains_of_iptables_legacy_go_by_the_documented_commands() {
    let page = include_str!("../../../../docs/migration-from-kube-proxy.md");
    let section = page.split("### Chains in iptables-legacy").nth(1).unwrap();
    let commands = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    in_namespace(|| {
        let rules = || run("for f in ip ip6; do ${f}tables-legacy-save | sed '/^#/d; s/ \\[.*//'; done");
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            restore(program, OTHERS);
        }
        let before = rules();
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            restore(program, IPTABLES_MODE);
        }
        assert_eq!(texts().len(), 6);
        run(commands);
        assert_eq!(texts(), [""; 0]);
        assert_eq!(rules(), before);
    });
}

/// As many chains as kube-proxy has for 2,000 Services with 5 endpoints.
#[test]
fn thousands_of_chains_are_one_transaction() {
    in_namespace(|| {
        let mut rules = String::from("\n*nat\n:KUBE-SERVICES - [0:0]\n");
        for service in 0..2000 {
            rules += &format!(":KUBE-SVC-{service} - [0:0]\n");
            (0..5).for_each(|endpoint| rules += &format!(":KUBE-SEP-{service}-{endpoint} - [0:0]\n"));
        }
        rules += "-A PREROUTING -j KUBE-SERVICES\n";
        for service in 0..2000 {
            rules += &format!(
                "-A KUBE-SERVICES -d 10.96.{}.{} -j KUBE-SVC-{service}\n",
                service / 250,
                service % 250
            );
            (0..5).for_each(|endpoint| {
                rules += &format!("-A KUBE-SVC-{service} -j KUBE-SEP-{service}-{endpoint}\n")
            });
        }
        restore("iptables-nft", &(rules + "COMMIT"));
        assert_eq!(texts(), ["12001 chains, KUBE-SEP-0-0 among them, of iptables-nft in table ip nat"]);
        let generation = || nft::generation(&mut sockets().0).unwrap();
        let before = generation();
        let removal = remove();
        assert!(removal.failures.is_empty() && removal.removed.len() == 1, "{removal:?}");
        assert_eq!((texts(), generation()), (Vec::new(), before + 1));
    });
}
