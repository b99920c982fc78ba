//! What the linker is told of this program: the plugins' fingerprint as its build id (see `crates/plugins/build.rs`), and which
//! functions to put side by side (see `scripts/hot-functions`).

fn main() {
    if let Ok(fingerprint) = std::env::var("DEP_PODWIRE_PLUGINS_FINGERPRINT") {
        println!("cargo:rustc-link-arg-bins=-Wl,--build-id=0x{fingerprint}");
    }
    println!("cargo:rerun-if-changed=hot.ld");
    if let Ok(folder) = std::env::var("CARGO_MANIFEST_DIR") {
        println!("cargo:rustc-link-arg-bins=-Wl,--script={folder}/hot.ld");
    }
}
