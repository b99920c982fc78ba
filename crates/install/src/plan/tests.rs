use super::*;

const BRIDGE: &str = "/opt/cni/bin/bridge";
const LIST: &str = "/etc/cni/net.d/10-podwire.conflist";

fn id(text: &str) -> Identity {
    Identity::of_bytes(text.as_bytes())
}

fn bridge() -> Target {
    Target::plugin(BRIDGE.into(), id("ours"))
}

fn state(here: Option<&str>, entry: Option<Entry>, backup: bool) -> NodeState {
    let mut state = NodeState::default();
    state.files.extend(here.map(|text| (PathBuf::from(BRIDGE), id(text))));
    state.record.files.extend(entry.map(|entry| (PathBuf::from(BRIDGE), entry)));
    state.backups.extend(backup.then(|| PathBuf::from(BRIDGE)));
    state
}

fn entry(ours: &str, replaced: Option<&str>) -> Entry {
    Entry { kind: Kind::Plugin, ours: vec![id(ours)], replaced: replaced.map(id) }
}

fn verbs(plan: &InstallPlan) -> Vec<&'static str> {
    plan.steps.iter().map(Step::verb).chain(plan.remarks.iter().map(|remark| remark.reason.name())).collect()
}

#[test]
fn every_file_state_has_its_step() {
    let (new, old) = (Some(entry("ours", None)), Some(entry("older", None)));
    let over_go = || Some(entry("ours", Some("go")));
    // File, record entry, backup, --replace: steps of install, steps of uninstall.
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
        let state = state(here, entry.clone(), backup);
        let row = format!("{here:?} {entry:?} backup {backup} replace {replace}");
        assert_eq!(verbs(&InstallPlan::install(&[bridge()], replace, &state)), install, "install: {row}");
        assert_eq!(verbs(&InstallPlan::uninstall(&state)), uninstall, "uninstall: {row}");
    }
}

#[test]
fn the_record_knows_both_versions_while_one_replaces_the_other() {
    let plan = InstallPlan::install(
        &[bridge()],
        false,
        &state(Some("older"), Some(entry("older", Some("go"))), true),
    );
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
fn unchanged_files_are_not_recorded() {
    for here in ["ours", "go"] {
        assert!(InstallPlan::install(&[bridge()], false, &state(Some(here), None, false)).after.is_empty());
    }
}

#[test]
fn the_network_config_is_installed_last_and_removed_first() {
    let list = Target::network(LIST.into(), b"{}".to_vec());
    let plan = InstallPlan::install(&[list, bridge()], false, &NodeState::default());
    let paths: Vec<_> = plan.steps.iter().map(Step::path).collect();
    assert_eq!(paths, [PathBuf::from(BRIDGE), PathBuf::from(LIST)]);
    let files = plan.after.files.iter().map(|(path, entry)| (path.clone(), entry.ours[0].clone())).collect();
    let back = InstallPlan::uninstall(&NodeState { record: plan.after, files, ..NodeState::default() });
    let paths: Vec<_> = back.steps.iter().map(Step::path).collect();
    assert_eq!(paths, [PathBuf::from(LIST), PathBuf::from(BRIDGE)]);
}

#[test]
fn inner_directories_are_removed_first() {
    let mut state = NodeState::default();
    state.record.dirs = ["/opt", "/opt/cni", "/opt/cni/bin"].map(PathBuf::from).to_vec();
    let paths: Vec<_> = InstallPlan::uninstall(&state).steps.iter().map(Step::path).collect();
    assert_eq!(paths, ["/opt/cni/bin", "/opt/cni", "/opt"].map(PathBuf::from));
}
