//! Resolves the flags of `podwire install` against this node: which files to install where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use podwire_cni_spec::{NetworkList, NetworkName, Version};
use podwire_install::network::{NetworkKind, NetworkSpec, DEFAULT_SUBNET};
use podwire_install::{
    config_files, dhcp_sockets, dhcp_warning, ConfigFile, Identity, Layout, Record, Root, Runtime, Target,
};
use podwire_plugins::PLUGINS;

use super::flags::Install;
use crate::failure::Failure;

const WHAT: &str = "cannot install";

/// The files to install, and warnings.
pub(super) struct ResolvedOptions {
    pub(super) program: PathBuf,
    pub(super) targets: Vec<Target>,
    pub(super) layouts: Vec<Layout>,
    pub(super) warnings: Vec<String>,
}

/// The network to install: the file name, the network name and the conflist.
struct NetworkFile {
    file: String,
    name: String,
    text: Vec<u8>,
}

impl ResolvedOptions {
    pub(super) fn new(install: &Install, root: &Root) -> Result<ResolvedOptions, Failure> {
        let program = program(install)?;
        let (layouts, mut warnings) = layouts(install, root)?;
        warnings.extend(layouts.iter().flat_map(|layout| layout.notes.clone()));
        let bytes = fs::read(&program).map_err(|error| {
            wrong(format!("read {}: {error}", program.display()), "name its directory with --from")
        })?;
        let identity = Identity::of_bytes(&bytes);
        let mut targets = Vec::new();
        for dir in distinct(root, layouts.iter().filter_map(|layout| layout.bin_dirs.first())) {
            let types = PLUGINS.iter().map(|plugin| plugin.name());
            targets.extend(types.map(|kind| Target::plugin(dir.join(kind), identity.clone())));
        }
        let record = Record::read(root).map_err(Failure::context(WHAT))?;
        for dir in distinct(root, layouts.iter().map(|layout| &layout.conf_dir)) {
            let same = |layout: &&Layout| root.canonical(&layout.conf_dir) == root.canonical(&dir);
            let readers: Vec<&Layout> = layouts.iter().filter(same).collect();
            let network = network(install, root, &dir, &readers, &mut warnings)?;
            let others = config_files(root, &dir);
            warnings.extend(dhcp_warnings(root, network.as_ref(), &others));
            let Some(network) = network else { continue };
            let path = dir.join(&network.file);
            warnings.extend(
                readers.iter().flat_map(|layout| layout.warnings(&network.file, &network.name, &others)),
            );
            // Podwire's network of an earlier installation, under another name, may shadow this one.
            let earlier = record.files.keys().filter(|file| file.parent() == Some(&dir) && **file != path);
            warnings
                .extend(earlier.map(|file| format!("{} of an earlier installation stays", file.display())));
            targets.push(Target::network(path, network.text));
        }
        Ok(ResolvedOptions { program, targets, layouts, warnings })
    }
}

/// Warnings about networks of a directory, with the one to install, whose DHCP daemon is missing.
fn dhcp_warnings(root: &Root, network: Option<&NetworkFile>, others: &[ConfigFile]) -> Vec<String> {
    let mut users: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let given = network.map(|network| ConfigFile {
        file: network.file.clone(),
        network: Some(network.name.clone()),
        dhcp_sockets: NetworkList::parse(&network.text).map(|list| dhcp_sockets(&list)).unwrap_or_default(),
    });
    let is_replaced = |other: &&ConfigFile| given.as_ref().is_some_and(|given| given.file == other.file);
    for config in others.iter().filter(|other| !is_replaced(other)).chain(&given) {
        let name = config.network.as_ref().unwrap_or(&config.file);
        let sockets = config.dhcp_sockets.iter().cloned();
        sockets.for_each(|socket| users.entry(socket).or_default().push(name.clone()));
    }
    users.iter().filter_map(|(socket, networks)| dhcp_warning(root, socket, networks)).collect()
}

/// The plugin program podwire-cni. It must be of the same build as this program, which knows its plugin types.
fn program(install: &Install) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let dir = install.directories.from.clone().or(own).unwrap_or_default();
    let file = dir.join("podwire-cni");
    if !file.is_file() {
        return Err(wrong(
            format!("{} does not exist", file.display()),
            "podwire-cni is built beside podwire; name its directory with --from",
        ));
    }
    let registry = podwire_plugins::registry();
    let knows = PLUGINS.first().is_some_and(|plugin| registry.in_file(plugin.name(), &file).is_some());
    if !knows {
        let text = format!("{} is from another build than this program", file.display());
        return Err(wrong(text, "use both programs of one build: `podwire version` prints the fingerprint"));
    }
    Ok(file)
}

/// The directories of the runtimes, and warnings.
fn layouts(install: &Install, root: &Root) -> Result<(Vec<Layout>, Vec<String>), Failure> {
    let flags = &install.directories;
    let (mut layouts, mut warnings) = (Vec::new(), Vec::new());
    let all_given = flags.bin_dir.is_some() && (flags.conf_dir.is_some() || install.network.no_conflist);
    let wanted: Vec<Runtime> = match flags.runtime.as_slice() {
        [] if all_given => Vec::new(),
        [] => Runtime::ALL.into_iter().filter(|runtime| runtime.is_on(root)).collect(),
        named => named.iter().map(|name| Runtime::from(*name)).collect(),
    };
    for runtime in wanted {
        match runtime.layout(root).map_err(Failure::context(WHAT))? {
            Some(layout) => layouts.push(layout),
            None => warnings.push(format!("{}: skipped, it uses netavark instead of CNI", runtime.name())),
        }
    }
    if layouts.is_empty() {
        if !all_given {
            warnings.push("found no runtime that uses CNI: using the default directories".to_owned());
        }
        layouts.push(Layout::default_of(Runtime::Containerd));
    }
    for layout in &mut layouts {
        layout.bin_dirs = flags.bin_dir.clone().map_or(std::mem::take(&mut layout.bin_dirs), |dir| vec![dir]);
        layout.conf_dir = flags.conf_dir.clone().unwrap_or(std::mem::take(&mut layout.conf_dir));
    }
    if let Some(dir) = [&flags.bin_dir, &flags.conf_dir].into_iter().flatten().find(|dir| dir.is_relative()) {
        return Err(wrong(
            format!("{} is not an absolute path", dir.display()),
            "give directories as absolute paths below the node's root",
        ));
    }
    Ok((layouts, warnings))
}

/// The directories without duplicates.
fn distinct<'p>(root: &Root, dirs: impl Iterator<Item = &'p PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    dirs.filter(|dir| seen.insert(root.canonical(dir))).cloned().collect()
}

/// The network for a directory; `None` to install none.
fn network(
    install: &Install,
    root: &Root,
    dir: &Path,
    readers: &[&Layout],
    warnings: &mut Vec<String>,
) -> Result<Option<NetworkFile>, Failure> {
    let flags = &install.network;
    if flags.no_conflist {
        return Ok(None);
    }
    let conf_name = flags.conf_name.clone();
    if let Some(name) = conf_name.as_ref().filter(|name| !name.ends_with(".conflist") || name.contains('/')) {
        return Err(wrong(format!("--conf-name {name}: expected a file name that ends in .conflist"), ""));
    }
    if let Some(file) = &flags.conflist {
        return given_file(file, conf_name).map(Some);
    }
    // A second network could become the default network of all pods, so it is added only on request.
    let others = config_files(root, dir);
    let asked = flags.network.is_some() || !flags.subnet.is_empty();
    if let (false, Some(first)) = (asked, others.first()) {
        warnings.push(format!(
            "{} already has a network ({}): installed none; use --network or --conflist to add one",
            dir.display(),
            first.file
        ));
        return Ok(None);
    }
    NetworkName::parse(&flags.name).map_err(Failure::context(WHAT))?;
    let kind = flags.network.map_or(NetworkKind::Bridge, NetworkKind::from);
    let mut subnets = flags.subnet.clone();
    if let (true, true, Ok(usual)) = (subnets.is_empty(), kind.has_subnets(), DEFAULT_SUBNET.parse()) {
        subnets.push(usual);
    }
    let lowest = readers.iter().map(|layout| layout.runtime.version()).min().unwrap_or("1.0.0");
    let (version, newer) = match &flags.cni_version {
        Some(text) => match Version::parse(text).filter(|version| *version >= Version::V0_4_0) {
            Some(version) => (version.as_str(), None),
            None => return Err(wrong(format!("--cni-version {text}: one of 0.4.0, 1.0.0, 1.1.0"), "")),
        },
        // Runtimes that support `cniVersions` choose 1.1.0 and use STATUS and GC; older ones ignore the key.
        None => (lowest, (lowest == "1.0.0").then_some("1.1.0")),
    };
    let spec =
        NetworkSpec { kind, name: flags.name.clone(), subnets, master: flags.master.clone(), version, newer };
    let text = spec.to_list().map_err(Failure::context(WHAT))?;
    let file = conf_name.unwrap_or_else(|| "10-podwire.conflist".to_owned());
    Ok(Some(NetworkFile { file, name: flags.name.clone(), text }))
}

/// The conflist that the user gives. It is installed unchanged if it is valid.
fn given_file(file: &Path, conf_name: Option<String>) -> Result<NetworkFile, Failure> {
    let text = fs::read(file).map_err(|error| wrong(format!("read {}: {error}", file.display()), ""))?;
    let list = NetworkList::parse(&text).map_err(|error| {
        let msg = format!("{}: {}", file.display(), error.msg);
        Failure::new(WHAT, podwire_cni_spec::Error { msg, ..error })
    })?;
    let own = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = conf_name.unwrap_or(own);
    if !name.ends_with(".conflist") {
        return Err(wrong(format!("{name} does not end in .conflist"), "set another name with --conf-name"));
    }
    Ok(NetworkFile { file: name, name: list.name.to_string(), text })
}

fn wrong(text: String, hint: &str) -> Failure {
    Failure::new(WHAT, podwire_cni_spec::Error::invalid_config(text).with_details(hint))
}
