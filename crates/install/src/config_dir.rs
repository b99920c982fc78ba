//! The network configs of a directory. Their file names decide which of them a runtime uses.

use std::fs;
use std::path::{Path, PathBuf};

use podwire_cni_spec::NetworkList;

use crate::dhcp_daemon::dhcp_sockets;
use crate::Root;

/// Which networks of a directory pods are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The first files by name, at most this many.
    First(usize),
    /// The network with this name.
    Named(String),
    /// Those that are named when a container is started.
    ByName,
}

/// A network config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file name.
    pub file: String,
    /// The network's name; `None` if the file is invalid.
    pub network: Option<String>,
    /// The sockets at which it expects a DHCP daemon.
    pub dhcp_sockets: Vec<PathBuf>,
}

/// All configs of a directory of the node, in the order in which runtimes read them.
pub fn config_files(root: &Root, dir: &Path) -> Vec<ConfigFile> {
    let dir = root.target(dir);
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    files.sort();
    let read = |file: String| {
        let bytes = fs::read(dir.join(&file)).unwrap_or_default();
        let list = if file.ends_with(".conflist") {
            NetworkList::parse(&bytes)
        } else {
            NetworkList::from_single(&bytes)
        };
        let list = list.ok();
        ConfigFile {
            network: list.as_ref().map(|list| list.name.to_string()),
            dhcp_sockets: list.as_ref().map(dhcp_sockets).unwrap_or_default(),
            file,
        }
    };
    files.into_iter().map(read).collect()
}

/// Warnings about `file` with the network `name` among `others`.
pub(crate) fn warnings(selection: &Selection, file: &str, name: &str, others: &[ConfigFile]) -> Vec<String> {
    let others: Vec<_> = others.iter().filter(|other| other.file != file).collect();
    let describe = |other: &ConfigFile| match &other.network {
        Some(network) => format!("{} (network {network})", other.file),
        None => format!("{} (which is invalid)", other.file),
    };
    let list = |files: Vec<&&ConfigFile>| {
        files.into_iter().map(|other| describe(other)).collect::<Vec<_>>().join(", ")
    };
    let mut warnings = Vec::new();
    let same: Vec<_> = others.iter().filter(|other| other.network.as_deref() == Some(name)).collect();
    if !same.is_empty() {
        warnings.push(format!("the network {name} is in another file too: {}", list(same)));
    }
    let (before, after): (Vec<_>, Vec<_>) = others.iter().partition(|other| other.file.as_str() < file);
    match selection {
        Selection::First(most) if before.len() >= *most => warnings.push(format!(
            "{file} is not used: {} sorts before it; choose another name with --conf-name",
            list(before)
        )),
        Selection::First(most) if before.len() + after.len() >= *most && !after.is_empty() => warnings.push(
            format!("new pods are attached by {file} instead of {}, which sorts after it", list(after)),
        ),
        Selection::First(_) if !others.is_empty() => {
            warnings
                .push(format!("pods are attached to these networks too: {}", list(others.iter().collect())));
        }
        Selection::Named(wanted) if wanted != name => {
            warnings.push(format!(
                "{file} is not used: the runtime's config says that pods use the network {wanted}"
            ));
        }
        _ => {}
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(file: &str, network: &str) -> ConfigFile {
        ConfigFile { file: file.into(), network: Some(network.into()), dhcp_sockets: Vec::new() }
    }

    fn others(files: &[&str]) -> Vec<ConfigFile> {
        let read = |file: &&str| config(file, &format!("of-{file}"));
        files.iter().map(read).collect()
    }

    fn warn(selection: Selection, files: &[&str]) -> String {
        warnings(&selection, "10-podwire.conflist", "podwire", &others(files)).join("\n")
    }

    #[test]
    fn the_first_name_wins() {
        assert_eq!(warn(Selection::First(1), &[]), "");
        assert_eq!(
            warn(Selection::First(1), &["10-podwire.conflist"]),
            "",
            "a file does not conflict with itself"
        );
        assert!(
            warn(Selection::First(1), &["05-a.conf"]).contains("not used: 05-a.conf (network of-05-a.conf)")
        );
        assert!(warn(Selection::First(1), &["20-b.json"]).contains("instead of 20-b.json"));
        assert!(warn(Selection::First(2), &["05-a.conf"]).contains("these networks too: 05-a.conf"));
        assert!(warn(Selection::First(2), &["05-a.conf", "06-b.conf"]).contains("not used"));
        assert_eq!(warn(Selection::ByName, &["05-a.conf", "20-b.json"]), "");
        assert!(warn(Selection::Named("multus".into()), &[]).contains("use the network multus"));
        assert_eq!(warn(Selection::Named("podwire".into()), &["05-a.conf"]), "");
    }

    #[test]
    fn two_files_with_one_network_cause_a_warning() {
        let twin = [config("30-x.conflist", "podwire")];
        let text = warnings(&Selection::ByName, "10-podwire.conflist", "podwire", &twin).join("");
        assert!(text.contains("another file too: 30-x.conflist"), "{text}");
    }
}
