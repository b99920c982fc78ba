//! Computes the fingerprint of the plugins: a hash of the sources and manifests of this crate and of every workspace
//! crate that it links, and of `Cargo.toml` and `Cargo.lock` of the workspace. The linker stores it as the build id of
//! `podwire-cni`, so that the runtime recognises its own plugins on disk and calls them in-process.
//!
//! The list of crates comes from the manifests, so a new dependency needs no change here.

use std::collections::hash_map::DefaultHasher;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The root of the workspace, seen from this crate, where Cargo runs the build script.
const WORKSPACE: &str = "../..";

fn main() {
    let root = Path::new(WORKSPACE);
    let mut files = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    for folder in linked_crates(root, "podwire-plugins").values() {
        files.push(folder.join("Cargo.toml"));
        println!("cargo:rerun-if-changed={}", folder.join("src").display());
        collect_sources(&folder.join("src"), &mut files);
    }
    files.iter().for_each(|file| println!("cargo:rerun-if-changed={}", file.display()));
    files.sort();
    let fingerprint = fingerprint(&files);
    println!("cargo:rustc-env=PODWIRE_FINGERPRINT={fingerprint}");
    println!("cargo:fingerprint={fingerprint}");
}

/// `package` and the workspace crates that it depends on, transitively, each with its folder.
pub(crate) fn linked_crates(root: &Path, package: &str) -> BTreeMap<String, PathBuf> {
    let folders = workspace_crates(root);
    let mut linked = BTreeMap::new();
    let mut pending = vec![package.to_owned()];
    while let Some(name) = pending.pop() {
        let Some(folder) = folders.get(&name).filter(|_| !linked.contains_key(&name)) else { continue };
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest of the workspace");
        pending.extend(entries(&manifest, "[dependencies]").map(|(name, _)| name.to_owned()));
        linked.insert(name, folder.clone());
    }
    linked
}

/// The crates that the root manifest lists by path: `podwire-netlink = { path = "crates/netlink" }`.
fn workspace_crates(root: &Path) -> BTreeMap<String, PathBuf> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest of the workspace");
    let by_path = entries(&manifest, "[workspace.dependencies]").filter_map(|(name, value)| {
        let path = value.split_once("path = \"")?.1.split('"').next()?;
        Some((name.to_owned(), root.join(path)))
    });
    by_path.collect()
}

/// The entries of one section of a manifest: `name.workspace = true` or `name = value`, each on one line.
fn entries<'m>(manifest: &'m str, section: &'m str) -> impl Iterator<Item = (&'m str, &'m str)> {
    let lines = manifest.lines().map(str::trim).skip_while(move |line| *line != section).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().trim_end_matches(".workspace"), value))
    })
}

/// Adds every Rust file below `folder`.
fn collect_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// 128 bits in hexadecimal digits: two hashes of the files' paths and contents, with different seeds.
fn fingerprint(files: &[PathBuf]) -> String {
    let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
    for (seed, hasher) in hashers.iter_mut().enumerate() {
        seed.hash(hasher);
        for file in files {
            file.hash(hasher);
            fs::read(file).unwrap_or_default().hash(hasher);
        }
    }
    hashers.iter().map(|hasher| format!("{:016x}", hasher.finish())).collect()
}
