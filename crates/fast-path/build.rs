//! Compiles the eBPF programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "src/fast_path.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    let object = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("fast_path.o");
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"]);
    // Without debug information the paths of the build are not in the program; -g is needed for the types of the maps.
    clang.arg(format!("-fdebug-prefix-map={}=.", env::var("CARGO_MANIFEST_DIR").unwrap_or_default()));
    for include in asm_headers() {
        clang.arg("-I").arg(include);
    }
    match clang.args(["-c", SOURCE, "-o"]).arg(&object).status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("clang cannot compile {SOURCE} ({status})"),
        Err(error) => {
            panic!("clang compiles {SOURCE}, but it cannot be started ({error}): install the package clang")
        }
    }
}

/// Debian has `asm/types.h` in a directory of the machine, which clang does not search for the target bpf.
fn asm_headers() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/include").into_iter().flatten().flatten();
    let machine = format!("{}-linux-gnu", env::consts::ARCH);
    let with_asm = |path: &PathBuf| path.ends_with(&machine) && Path::join(path, "asm/types.h").exists();
    entries.map(|entry| entry.path()).filter(with_asm).collect()
}
