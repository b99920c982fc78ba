//! What a command line asks for, on this node.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use podwire_cni_spec::{NetworkList, NetworkName, Version};
use podwire_install::network::{NetworkKind, NetworkSpec, DEFAULT_SUBNET};
use podwire_install::{config_files, Identity, Layout, Record, Root, Runtime, Target};
use podwire_plugins::PLUGINS;

use super::Install;
use crate::Failure;

const WHAT: &str = "cannot install";

/// The files that are wished for, and what people should know before.
pub(super) struct Wish {
    pub(super) program: PathBuf,
    pub(super) targets: Vec<Target>,
    pub(super) layouts: Vec<Layout>,
    pub(super) warnings: Vec<String>,
}

/// A network that is wished for: its file's name, its own name, its text.
struct Chosen {
    file: String,
    name: String,
    text: Vec<u8>,
}

impl Wish {
    pub(super) fn new(install: &Install, root: &Root) -> Result<Wish, Failure> {
        let program = program(install)?;
        let (layouts, mut warnings) = layouts(install, root)?;
        warnings.extend(layouts.iter().flat_map(|layout| layout.notes.clone()));
        let bytes = fs::read(&program).map_err(|error| {
            wrong(format!("read {}: {error}", program.display()), "name its folder with --from")
        })?;
        let identity = Identity::of_bytes(&bytes);
        let mut targets = Vec::new();
        for folder in distinct(root, layouts.iter().filter_map(|layout| layout.bin_dirs.first())) {
            let types = PLUGINS.iter().map(|plugin| plugin.name());
            targets.extend(types.map(|kind| Target::plugin(folder.join(kind), identity.clone())));
        }
        let record = Record::read(root).map_err(Failure::to(WHAT))?;
        for folder in distinct(root, layouts.iter().map(|layout| &layout.conf_dir)) {
            let same = |layout: &&Layout| root.canonical(&layout.conf_dir) == root.canonical(&folder);
            let readers: Vec<&Layout> = layouts.iter().filter(same).collect();
            let Some(chosen) = choose(install, root, &folder, &readers, &mut warnings)? else { continue };
            let path = folder.join(&chosen.file);
            let others = config_files(root, &folder);
            warnings.extend(
                readers.iter().flat_map(|layout| layout.warnings(&chosen.file, &chosen.name, &others)),
            );
            // Ours from an earlier install, under another name, would be in the way of this one.
            let earlier = record.files.keys().filter(|file| file.parent() == Some(&folder) && **file != path);
            warnings.extend(
                earlier.map(|file| format!("{} is from an earlier install, and stays", file.display())),
            );
            targets.push(Target::network(path, chosen.text));
        }
        Ok(Wish { program, targets, layouts, warnings })
    }
}

/// The plugins' program, of the same build as this one: it knows the types for which links are made.
fn program(install: &Install) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let folder = install.place.from.clone().or(own).unwrap_or_default();
    let file = folder.join("podwire-cni");
    if !file.is_file() {
        return Err(wrong(
            format!("there is no podwire-cni in {}", folder.display()),
            "it lies beside podwire where both were built; name its folder with --from",
        ));
    }
    let registry = podwire_plugins::registry();
    let knows = PLUGINS.first().is_some_and(|plugin| registry.in_file(plugin.name(), &file).is_some());
    if !knows {
        let text = format!("{} is of another build than this program", file.display());
        return Err(wrong(text, "take both from one build: `podwire version` tells its fingerprint"));
    }
    Ok(file)
}

/// Where to install.
fn layouts(install: &Install, root: &Root) -> Result<(Vec<Layout>, Vec<String>), Failure> {
    let place = &install.place;
    let (mut layouts, mut warnings) = (Vec::new(), Vec::new());
    let everywhere = place.bin_dir.is_some() && (place.conf_dir.is_some() || install.network.no_conflist);
    let wanted: Vec<Runtime> = match place.runtime.as_slice() {
        [] if everywhere => Vec::new(),
        [] => Runtime::ALL.into_iter().filter(|runtime| runtime.is_on(root)).collect(),
        named => named.iter().map(|name| Runtime::from(*name)).collect(),
    };
    for runtime in wanted {
        match runtime.layout(root).map_err(Failure::to(WHAT))? {
            Some(layout) => layouts.push(layout),
            None => {
                warnings.push(format!("{}: its networks are netavark's, not CNI's: left out", runtime.name()))
            }
        }
    }
    if layouts.is_empty() {
        if !everywhere {
            warnings.push("no runtime that uses CNI was found: the usual folders are taken".to_owned());
        }
        layouts.push(Layout::default_of(Runtime::Containerd));
    }
    for layout in &mut layouts {
        layout.bin_dirs =
            place.bin_dir.clone().map_or(std::mem::take(&mut layout.bin_dirs), |folder| vec![folder]);
        layout.conf_dir = place.conf_dir.clone().unwrap_or(std::mem::take(&mut layout.conf_dir));
    }
    if let Some(folder) =
        [&place.bin_dir, &place.conf_dir].into_iter().flatten().find(|folder| folder.is_relative())
    {
        return Err(wrong(
            format!("{} is not an absolute path", folder.display()),
            "folders are named from the node's root",
        ));
    }
    Ok((layouts, warnings))
}

/// Folders under their names, each once.
fn distinct<'p>(root: &Root, folders: impl Iterator<Item = &'p PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    folders.filter(|folder| seen.insert(root.canonical(folder))).cloned().collect()
}

/// The network for a folder; `None` if none is to be written.
fn choose(
    install: &Install,
    root: &Root,
    folder: &Path,
    readers: &[&Layout],
    warnings: &mut Vec<String>,
) -> Result<Option<Chosen>, Failure> {
    let wish = &install.network;
    if wish.no_conflist {
        return Ok(None);
    }
    let conf_name = wish.conf_name.clone();
    if let Some(name) = conf_name.as_ref().filter(|name| !name.ends_with(".conflist") || name.contains('/')) {
        return Err(wrong(format!("--conf-name {name}: a file's name that ends in .conflist"), ""));
    }
    if let Some(file) = &wish.conflist {
        return own_file(file, conf_name).map(Some);
    }
    // Whoever only wants plugins must not find all pods in another network.
    let others = config_files(root, folder);
    let asked = wish.network.is_some() || !wish.subnet.is_empty();
    if let (false, Some(first)) = (asked, others.first()) {
        warnings.push(format!(
            "{} has a network already ({}): none is added; --network or --conflist adds one",
            folder.display(),
            first.file
        ));
        return Ok(None);
    }
    NetworkName::parse(&wish.name).map_err(Failure::to(WHAT))?;
    let shape = wish.network.map_or(NetworkKind::Bridge, NetworkKind::from);
    let mut subnets = wish.subnet.clone();
    if let (true, true, Ok(usual)) = (subnets.is_empty(), shape.has_subnets(), DEFAULT_SUBNET.parse()) {
        subnets.push(usual);
    }
    let lowest = readers.iter().map(|layout| layout.runtime.version()).min().unwrap_or("1.0.0");
    let (version, newer) = match &wish.cni_version {
        Some(text) => match Version::parse(text).filter(|version| *version >= Version::V0_4_0) {
            Some(version) => (version.as_str(), None),
            None => return Err(wrong(format!("--cni-version {text}: one of 0.4.0, 1.0.0, 1.1.0"), "")),
        },
        // Runtimes that know `cniVersions` choose 1.1.0, and so have STATUS and GC; older ones read over it.
        None => (lowest, (lowest == "1.0.0").then_some("1.1.0")),
    };
    let design = NetworkSpec {
        kind: shape,
        name: wish.name.clone(),
        subnets,
        master: wish.master.clone(),
        version,
        newer,
    };
    let text = design.to_list().map_err(Failure::to(WHAT))?;
    let file = conf_name.unwrap_or_else(|| "10-podwire.conflist".to_owned());
    Ok(Some(Chosen { file, name: wish.name.clone(), text }))
}

/// A list that somebody wrote. It is put as it is, if it makes sense.
fn own_file(file: &Path, conf_name: Option<String>) -> Result<Chosen, Failure> {
    let text = fs::read(file).map_err(|error| wrong(format!("read {}: {error}", file.display()), ""))?;
    let list = NetworkList::parse(&text).map_err(Failure::to(WHAT))?;
    let own = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = conf_name.unwrap_or(own);
    if !name.ends_with(".conflist") {
        return Err(wrong(format!("{name} does not end in .conflist"), "--conf-name gives it another name"));
    }
    Ok(Chosen { file: name, name: list.name.to_string(), text })
}

fn wrong(text: String, hint: &str) -> Failure {
    Failure::new(WHAT, podwire_cni_spec::Error::invalid_config(text).with_details(hint))
}
