//! Writes a fingerprint of every source that makes up the plugins. The linker puts it into the plugins'
//! program as its build id, so that a runtime knows its own plugins when it finds them on disk.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

const CRATES: [&str; 6] = ["netlink", "kernel", "cni", "cni-plugin", "ipam", "plugins"];

fn main() {
    let mut files = vec![PathBuf::from("../../Cargo.toml")];
    for name in CRATES {
        collect(&Path::new("..").join(name).join("src"), &mut files);
        println!("cargo:rerun-if-changed=../{name}/src");
    }
    files.sort();
    let mut halves = [DefaultHasher::new(), DefaultHasher::new()];
    for (seed, half) in halves.iter_mut().enumerate() {
        seed.hash(half);
        for file in &files {
            file.hash(half);
            fs::read(file).unwrap_or_default().hash(half);
        }
    }
    let text: String = halves.iter().map(|half| format!("{:016x}", half.finish())).collect();
    println!("cargo:rustc-env=PODWIRE_FINGERPRINT={text}");
    println!("cargo:fingerprint={text}");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => collect(&path, files),
            path if path.extension().is_some_and(|end| end == "rs") => files.push(path),
            _ => {}
        }
    }
}
