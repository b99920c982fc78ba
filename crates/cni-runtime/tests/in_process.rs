//! In-process plugins behave like executed ones.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use bench::{list, pod, Bench};
use podwire_cni_plugin::{delegate, Command, Finding, Plugin, Registry, Request, Result};
use podwire_cni_spec::{addr, code, Attachment, Ip};

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The tests share `CALLS`.
static TURN: Mutex<()> = Mutex::new(());

/// The differences that the test plugin finds.
static WRONG: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// Its name decides: repairable, reveals another difference, not repairable, or reappears.
fn finding<'p>(name: &'static str) -> Finding<'p> {
    let repair = move || {
        match name {
            "failing" => return Err(podwire_cni_spec::Error::internal("no such luck").into()),
            "panicking" => panic!("as the test requests"),
            "stubborn" => return Ok(()),
            _ => {}
        }
        let mut wrong = WRONG.lock().unwrap();
        wrong.retain(|other| *other != name);
        wrong.extend((name == "hiding").then_some("hidden"));
        Ok(())
    };
    match name {
        "lost" => Finding::new(name),
        _ => Finding::new(name).repaired_by(repair),
    }
}

struct Ours;

impl Ours {
    fn note(&self, req: &Request<'_>) {
        let prev = req.prev.as_ref().map_or(0, |prev| prev.ips.len());
        CALLS.lock().unwrap().push(format!("{} {} {prev}", req.command.as_str(), req.container));
    }
}

impl Plugin for Ours {
    fn name(&self) -> &'static str {
        "ours"
    }
    fn about(&self) -> &'static str {
        "ours: one address"
    }
    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        assert_eq!(req.command, Command::Add);
        self.note(req);
        assert!(req.container != "panic", "as the test requests");
        let mut attachment = req.prev.clone().unwrap_or_default();
        attachment.ips.push(Ip::new(addr::parse_net("10.1.0.5/16")?));
        Ok(attachment)
    }
    fn del(&self, req: &Request<'_>) -> Result<()> {
        self.note(req);
        Ok(())
    }
    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        self.note(req);
        let found = WRONG.lock().unwrap().clone();
        Ok(found.into_iter().map(finding).collect())
    }
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        assert!(req.valid()?.contains("keep", "eth0"));
        self.note(req);
        Ok(())
    }
    fn status(&self, req: &Request<'_>) -> Result<()> {
        self.note(req);
        Ok(())
    }
}

/// Delegates to another IPAM plugin.
struct Asks;

impl Plugin for Asks {
    fn name(&self) -> &'static str {
        "asks"
    }
    fn about(&self) -> &'static str {
        "asks: an address of theirs"
    }
    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        delegate::add(req, "theirs")
    }
    fn del(&self, req: &Request<'_>) -> Result<()> {
        delegate::del(req, "theirs")
    }
    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        delegate::inspect(req, "theirs")
    }
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        delegate::gc(req, "theirs")
    }
    fn status(&self, req: &Request<'_>) -> Result<()> {
        delegate::status(req, "theirs")
    }
}

const PLUGINS: &[&dyn Plugin] = &[&Ours, &Asks];

/// A file that is not executable, with our build id.
fn bench() -> Bench {
    let bench = Bench::new(&["theirs"]);
    let mut program = b"\x7fELF".to_vec();
    program.extend(2_u32.to_ne_bytes());
    program.extend(b"\x03\0\0\0GNU\0\xab\xcd");
    for kind in ["ours", "asks"] {
        fs::write(bench.plugin(kind), &program).unwrap();
    }
    bench.says("theirs", "ADD", r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.9/16"}]}"#);
    bench
}

#[test]
fn in_process_and_executed_plugins_work_together() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let list = list("1.1.0", &["theirs", "ours", "ours"]);
    let attachment = runtime.add(&list, &pod()).unwrap();
    assert_eq!(attachment.ips.len(), 3);
    runtime.check(&list, &pod()).unwrap();
    runtime.status(&list).unwrap();
    let keep = (
        podwire_cni_spec::ContainerId::parse("keep").unwrap(),
        podwire_cni_spec::IfName::parse("eth0").unwrap(),
    );
    runtime.gc(&list, &[keep]).done().unwrap();
    assert!(runtime.version_info("ours").unwrap().supports(podwire_cni_spec::Version::V1_1_0));
    let calls = std::mem::take(&mut *CALLS.lock().unwrap());
    let expected = "ADD pod1 1,ADD pod1 2,CHECK pod1 3,CHECK pod1 3,STATUS  0,STATUS  0,DEL pod1 3,DEL pod1 3,GC  0,GC  0";
    assert_eq!(calls.join(","), expected);
}

#[test]
fn a_file_with_another_build_id_is_executed() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "dcba"));
    let error = runtime.add(&list("1.1.0", &["ours"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("execute plugin "), "{error}");
    assert!(CALLS.lock().unwrap().is_empty());
}

#[test]
fn the_nodes_own_namespace_is_refused() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let error = runtime.add(&list("1.1.0", &["ours"]), &pod().netns("/proc/self/ns/net")).unwrap_err();
    assert_eq!(error.code(), code::INVALID_NETNS);
    assert!(CALLS.lock().unwrap().is_empty());
}

#[test]
fn an_add_without_a_namespace_is_refused_as_that_of_a_program_is() {
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let nowhere = podwire_cni_runtime::Identity::new("nowhere", "eth0").unwrap();
    let error = runtime.add(&list("1.1.0", &["asks"]), &nowhere).unwrap_err();
    assert_eq!(error.code(), code::INVALID_ENV);
    assert!(error.to_string().contains("required env variables [CNI_NETNS] missing"), "{error}");
}

#[test]
fn a_panic_is_a_failure_and_the_add_is_undone() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let pod = podwire_cni_runtime::Identity::new("panic", "eth0").unwrap().netns("/x");
    let error = runtime.add(&list("1.1.0", &["theirs", "ours"]), &pod).unwrap_err();
    assert!(error.to_string().contains("the plugin panicked"), "{error}");
    assert_eq!(std::mem::take(&mut *CALLS.lock().unwrap()), ["ADD panic 1", "DEL panic 1"]);
    assert_eq!(bench.calls(), ["ADD theirs panic", "DEL theirs panic"]);
    assert!(bench.records().is_empty());
}

/// The trace context and the deadline apply to programs that in-process plugins execute, too.
#[test]
fn a_delegate_gets_the_trace_and_is_stopped_at_the_deadline() {
    let bench = bench();
    let trace = podwire_cni_runtime::Trace { parent: "00-4bf9-00f0-01".into(), ..Default::default() };
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd")).trace(trace);
    let list = list("1.1.0", &["asks"]);
    runtime.add(&list, &pod()).unwrap();
    assert_eq!(bench.env("theirs", "ADD", "TRACEPARENT"), "00-4bf9-00f0-01");
    runtime.del(&list, &pod()).unwrap();
    bench.does("theirs", "ADD", "while :; do sleep 0.05; done").calls();
    let error = runtime.timeout(Duration::from_secs(10)).add(&list, &pod()).unwrap_err();
    assert!(error.to_string().contains("theirs did not end before its deadline and was stopped"), "{error}");
    assert_eq!(error.code(), code::TRY_AGAIN);
    // After the deadline the delegate's DEL runs, then the whole ADD is undone.
    assert_eq!(bench.calls(), ["ADD theirs pod1", "DEL theirs pod1", "DEL theirs pod1"]);
    assert!(bench.records().is_empty());
}

/// Repairs an attachment with these differences: what was repaired, and what remains and why.
fn repair(bench: &Bench, kinds: &[&str], wrong: &[&'static str]) -> (Vec<String>, Vec<String>) {
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let list = list("1.1.0", kinds);
    runtime.add(&list, &pod()).unwrap();
    *WRONG.lock().unwrap() = wrong.to_vec();
    let report = runtime.repair(&list, &pod()).unwrap();
    WRONG.lock().unwrap().clear();
    CALLS.lock().unwrap().clear();
    runtime.del(&list, &pod()).unwrap();
    CALLS.lock().unwrap().clear();
    assert_eq!(report.is_complete(), report.remaining.is_empty());
    let repaired = report.repaired.iter().map(|one| format!("{}: {}", one.plugin, one.what));
    let remaining = report.remaining.iter().map(|one| {
        let reason = one.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        format!("{}: {}{reason}", one.plugin, one.what)
    });
    (repaired.collect(), remaining.collect())
}

#[test]
fn a_repair_fixes_what_it_can_and_reports_the_rest() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let none: Vec<String> = Vec::new();
    assert_eq!(repair(&bench, &["theirs", "ours"], &[]), (none.clone(), none.clone()));
    let (repaired, left) = repair(&bench, &["theirs", "ours"], &["hiding", "down"]);
    assert_eq!((repaired.join(","), left), ("ours: hiding,ours: down,ours: hidden".into(), none.clone()));
    let (repaired, left) = repair(&bench, &["ours"], &["lost", "failing", "panicking", "down"]);
    assert_eq!(repaired, ["ours: down"]);
    let panicked = "ours: panicking (the plugin panicked: this is a bug in it)";
    assert_eq!(left, ["ours: lost", "ours: failing (no such luck)", panicked]);
    let (repaired, left) = repair(&bench, &["ours"], &["stubborn"]);
    assert_eq!((repaired, left), (none.clone(), vec!["ours: stubborn".into()]), "it does not stay");
    bench.fails("theirs", "CHECK", 100, "eth0 is down");
    let (repaired, left) = repair(&bench, &["theirs", "ours"], &["down"]);
    let complaint = r#"theirs: plugin type="theirs" name="net" failed (check): eth0 is down"#;
    assert_eq!((repaired, left), (vec!["ours: down".into()], vec![complaint.into()]));
}

/// An executed IPAM plugin of the SDK, as a script. Each of its differences is a file in this folder: `sticky` has no
/// repair.
const DELEGATE_OF_THE_SDK: &str = r#"
cd "${0%/*}/../damage"
list=
for what in *; do
  [ -e "$what" ] || exit 0
  case $PODWIRE_REPAIR:$what in
  *:sticky) outcome=notRepaired ;;
  repair:*) rm "$what"; outcome=repaired ;;
  *) outcome=repairable ;;
  esac
  list="$list${list:+,}{\"what\": \"$what\", \"outcome\": \"$outcome\"}"
done
if [ -z "$PODWIRE_REPAIR" ]; then echo '{"code": 999, "msg": "damaged"}'; exit 1; fi
echo "{\"podwireRepair\": [$list]}"
exit 0
"#;

#[test]
fn an_executed_delegate_of_the_sdk_repairs() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let folder = bench.root.join("damage");
    fs::create_dir(&folder).unwrap();
    bench.does("theirs", "CHECK", DELEGATE_OF_THE_SDK);
    for what in ["address", "route", "sticky"] {
        fs::write(folder.join(what), "").unwrap();
    }
    let (repaired, left) = repair(&bench, &["asks"], &[]);
    assert_eq!(repaired, ["asks: address", "asks: route"]);
    assert_eq!(left, ["asks: sticky"]);
    fs::remove_file(folder.join("sticky")).unwrap();
    let none: Vec<String> = Vec::new();
    assert_eq!(repair(&bench, &["asks"], &[]), (none.clone(), none));
}

#[test]
fn a_network_with_disabled_checks_is_not_repaired() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = bench();
    let runtime = bench.runtime().registry(Registry::new(PLUGINS, "abcd"));
    let config =
        r#"{"cniVersion": "1.1.0", "name": "net", "disableCheck": true, "plugins": [{"type": "ours"}]}"#;
    let off = podwire_cni_spec::NetworkList::parse(config.as_bytes()).unwrap();
    assert_eq!(runtime.repair(&off, &pod()).unwrap(), podwire_cni_runtime::RepairReport::default());
    assert!(CALLS.lock().unwrap().is_empty());
    let error = runtime.repair(&list("0.3.1", &["ours"]), &pod()).unwrap_err();
    assert_eq!(error.code(), code::INCOMPATIBLE_VERSION);
}
