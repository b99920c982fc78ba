//! Repair by executed plugins.

#![allow(clippy::unwrap_used)]

mod bench;

use bench::{list, pod, Bench};
use podwire_cni_runtime::{Difference, Remaining};

/// A plugin of the SDK, as a script: its difference is the file `damage`.
const OF_THE_SDK: &str = r#"
damage=${0%/*}/../damage
if [ -f "$damage" ]; then
  case $PODWIRE_REPAIR in
  repair) rm "$damage"
    echo '{"podwireRepair": [{"what": "the alias is gone", "outcome": "repaired"},
                             {"what": "eth0 is another", "outcome": "notRepaired"}]}' ;;
  *) echo "unexpected: $PODWIRE_REPAIR" > "$at.out"; echo 1 > "$at.exit" ;;
  esac
else
  echo '{"podwireRepair": [{"what": "eth0 is another", "outcome": "notRepaired"}]}'
fi
exit 0
"#;

#[test]
fn an_executed_plugin_of_the_sdk_repairs() {
    let bench = Bench::new(&["ours"]);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["ours"]));
    runtime.add(&list, &pod()).unwrap();
    bench.does("ours", "CHECK", OF_THE_SDK);
    std::fs::write(bench.root.join("damage"), "").unwrap();
    let report = runtime.repair(&list, &pod()).unwrap();
    let (plugin, what) = ("ours".to_owned(), "the alias is gone".to_owned());
    assert_eq!(report.repaired, [Difference { plugin: plugin.clone(), what }]);
    assert_eq!(report.remaining, [Remaining { plugin, what: "eth0 is another".into(), reason: None }]);
    assert!(!bench.root.join("damage").exists());
}

#[test]
fn an_executed_plugin_of_another_kind_answers_check() {
    let bench = Bench::new(&["theirs"]);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["theirs"]));
    runtime.add(&list, &pod()).unwrap();
    bench.says("theirs", "CHECK", r#"{"cniVersion": "1.0.0"}"#);
    assert!(runtime.repair(&list, &pod()).unwrap().is_complete());
    bench.fails("theirs", "CHECK", 999, "eth0 is down");
    let remaining = runtime.repair(&list, &pod()).unwrap().remaining;
    assert!(remaining.len() == 1 && remaining[0].what.contains("eth0 is down"), "{remaining:?}");
    // An ordinary CHECK does not ask for a repair.
    bench.works_again("theirs", "CHECK");
    runtime.check(&list, &pod()).unwrap();
    assert_eq!(bench.env("theirs", "CHECK", "PODWIRE_REPAIR"), "");
}
