//! The other networks of a config folder: which of them a runtime takes is decided by their files' names.

use std::fs;
use std::path::Path;

use podwire_cni_spec::NetworkList;

use crate::{Reads, Root};

/// A config in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its file.
    pub file: String,
    /// The network's name; `None` if the file makes no sense.
    pub network: Option<String>,
}

/// All configs of a folder of the node, in the order in which runtimes read them.
pub fn neighbours(root: &Root, folder: &Path) -> Vec<Neighbour> {
    let folder = root.target(folder);
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    files.sort();
    let read = |file: String| {
        let bytes = fs::read(folder.join(&file)).unwrap_or_default();
        let list = match file.ends_with(".conflist") {
            true => NetworkList::parse(&bytes),
            false => NetworkList::from_single(&bytes),
        };
        Neighbour { network: list.ok().map(|list| list.name.to_string()), file }
    };
    files.into_iter().map(read).collect()
}

/// What people should know about `file` with the network `name` among `others`.
pub(crate) fn warnings(reads: &Reads, file: &str, name: &str, others: &[Neighbour]) -> Vec<String> {
    let others: Vec<_> = others.iter().filter(|other| other.file != file).collect();
    let called = |other: &Neighbour| match &other.network {
        Some(network) => format!("{} (network {network})", other.file),
        None => format!("{} (which makes no sense)", other.file),
    };
    let list =
        |files: Vec<&&Neighbour>| files.into_iter().map(|other| called(other)).collect::<Vec<_>>().join(", ");
    let mut warnings = Vec::new();
    let same: Vec<_> = others.iter().filter(|other| other.network.as_deref() == Some(name)).collect();
    if !same.is_empty() {
        warnings.push(format!("the network {name} is in another file too: {}", list(same)));
    }
    let (before, after): (Vec<_>, Vec<_>) = others.iter().partition(|other| other.file.as_str() < file);
    match reads {
        Reads::First(most) if before.len() >= *most => warnings.push(format!(
            "{file} is not used: {} comes before it, by name; --conf-name chooses another name",
            list(before)
        )),
        Reads::First(most) if before.len() + after.len() >= *most && !after.is_empty() => warnings.push(format!(
            "pods that start from now on are attached by {file}, no longer by {}, which comes after it by name",
            list(after)
        )),
        Reads::First(_) if !others.is_empty() => {
            warnings.push(format!("pods are attached to these networks too: {}", list(others.iter().collect())));
        }
        Reads::Named(wanted) if wanted != name => {
            warnings.push(format!("{file} is not used: the runtime's config says that pods use the network {wanted}"));
        }
        _ => {}
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(files: &[&str]) -> Vec<Neighbour> {
        let read = |file: &&str| Neighbour { file: (*file).into(), network: Some(format!("of-{file}")) };
        files.iter().map(read).collect()
    }

    fn told(reads: Reads, files: &[&str]) -> String {
        warnings(&reads, "10-podwire.conflist", "podwire", &others(files)).join("\n")
    }

    #[test]
    fn the_first_name_wins() {
        assert_eq!(told(Reads::First(1), &[]), "");
        assert_eq!(told(Reads::First(1), &["10-podwire.conflist"]), "", "it is no neighbour of itself");
        assert!(told(Reads::First(1), &["05-a.conf"]).contains("not used: 05-a.conf (network of-05-a.conf)"));
        assert!(told(Reads::First(1), &["20-b.json"]).contains("no longer by 20-b.json"));
        assert!(told(Reads::First(2), &["05-a.conf"]).contains("these networks too: 05-a.conf"));
        assert!(told(Reads::First(2), &["05-a.conf", "06-b.conf"]).contains("not used"));
        assert_eq!(told(Reads::ByName, &["05-a.conf", "20-b.json"]), "");
        assert!(told(Reads::Named("multus".into()), &[]).contains("use the network multus"));
        assert_eq!(told(Reads::Named("podwire".into()), &["05-a.conf"]), "");
    }

    #[test]
    fn two_files_with_one_network_are_told() {
        let twin = [Neighbour { file: "30-x.conflist".into(), network: Some("podwire".into()) }];
        let text = warnings(&Reads::ByName, "10-podwire.conflist", "podwire", &twin).join("");
        assert!(text.contains("another file too: 30-x.conflist"), "{text}");
    }
}
