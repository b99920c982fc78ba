use super::*;

const BRIDGE: &str = "/opt/cni/bin/bridge";
const LIST: &str = "/etc/cni/net.d/10-podwire.conflist";

fn id(text: &str) -> Identity {
    Identity::of_bytes(text.as_bytes())
}

fn bridge() -> Target {
    Target::plugin(BRIDGE.into(), id("ours"))
}

fn survey(here: Option<&str>, entry: Option<Entry>, backup: bool) -> Survey {
    let mut survey = Survey::default();
    survey.files.extend(here.map(|text| (PathBuf::from(BRIDGE), id(text))));
    survey.record.files.extend(entry.map(|entry| (PathBuf::from(BRIDGE), entry)));
    survey.backups.extend(backup.then(|| PathBuf::from(BRIDGE)));
    survey
}

fn entry(ours: &str, replaced: Option<&str>) -> Entry {
    Entry { kind: Kind::Plugin, ours: vec![id(ours)], replaced: replaced.map(id) }
}

fn verbs(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(Step::verb).chain(plan.remarks.iter().map(|remark| remark.why.word())).collect()
}

#[test]
fn every_state_of_a_file_has_its_step() {
    let (new, old) = (Some(entry("ours", None)), Some(entry("older", None)));
    let over_go = || Some(entry("ours", Some("go")));
    // What is there, what the record says, whether there is a backup, --replace: what install does, what uninstall does.
    let table = [
        (None, None, false, false, vec!["put"], vec![]),
        (Some("ours"), None, false, false, vec!["alreadyThere"], vec![]),
        (Some("ours"), new.clone(), false, false, vec!["alreadyThere"], vec!["remove"]),
        (Some("older"), old.clone(), false, false, vec!["update"], vec!["remove"]),
        (Some("go"), None, false, false, vec!["foreign"], vec![]),
        (Some("go"), None, false, true, vec!["replace"], vec![]),
        (Some("edited"), new.clone(), false, false, vec!["changed"], vec!["changed"]),
        (Some("edited"), over_go(), true, false, vec!["changed"], vec!["setAside", "changed"]),
        (Some("ours"), over_go(), true, false, vec!["alreadyThere"], vec!["restore"]),
        (Some("ours"), over_go(), false, false, vec!["alreadyThere"], vec!["remove", "backupLost"]),
        (Some("go"), over_go(), true, false, vec!["dropBackup", "foreign"], vec!["dropBackup"]),
        (Some("go"), over_go(), false, true, vec!["replace"], vec![]),
        (None, over_go(), true, false, vec!["put"], vec!["restore"]),
        (None, new.clone(), false, false, vec!["put"], vec!["gone"]),
        (Some("go"), None, true, true, vec!["setAside", "replace"], vec![]),
    ];
    for (here, entry, backup, replace, install, uninstall) in table {
        let survey = survey(here, entry.clone(), backup);
        let row = format!("{here:?} {entry:?} backup {backup} replace {replace}");
        assert_eq!(verbs(&Plan::install(&[bridge()], replace, &survey)), install, "install: {row}");
        assert_eq!(verbs(&Plan::uninstall(&survey)), uninstall, "uninstall: {row}");
    }
}

#[test]
fn the_record_knows_both_versions_while_one_replaces_the_other() {
    let plan =
        Plan::install(&[bridge()], false, &survey(Some("older"), Some(entry("older", Some("go"))), true));
    let path = Path::new(BRIDGE);
    assert_eq!(plan.before.files[path].ours, [id("ours"), id("older")]);
    assert_eq!(plan.after.files[path].ours, [id("ours")]);
    assert_eq!(
        plan.after.files[path].replaced,
        Some(id("go")),
        "an update does not forget what was there first"
    );
}

#[test]
fn what_is_left_alone_is_not_written_down_as_ours() {
    for here in ["ours", "go"] {
        assert!(Plan::install(&[bridge()], false, &survey(Some(here), None, false)).after.is_empty());
    }
}

#[test]
fn the_network_comes_last_and_goes_first() {
    let list = Target::network(LIST.into(), b"{}".to_vec());
    let plan = Plan::install(&[list, bridge()], false, &Survey::default());
    let paths: Vec<_> = plan.steps.iter().map(Step::path).collect();
    assert_eq!(paths, [PathBuf::from(BRIDGE), PathBuf::from(LIST)]);
    let files = plan.after.files.iter().map(|(path, entry)| (path.clone(), entry.ours[0].clone())).collect();
    let back = Plan::uninstall(&Survey { record: plan.after, files, ..Survey::default() });
    let paths: Vec<_> = back.steps.iter().map(Step::path).collect();
    assert_eq!(paths, [PathBuf::from(LIST), PathBuf::from(BRIDGE)]);
}

#[test]
fn folders_go_from_the_inside_out() {
    let mut survey = Survey::default();
    survey.record.folders = ["/opt", "/opt/cni", "/opt/cni/bin"].map(PathBuf::from).to_vec();
    let paths: Vec<_> = Plan::uninstall(&survey).steps.iter().map(Step::path).collect();
    assert_eq!(paths, ["/opt/cni/bin", "/opt/cni", "/opt"].map(PathBuf::from));
}
