//! Passes the plugins' fingerprint to the linker as the build id of this program (see `crates/plugins/build.rs`).

fn main() {
    if let Ok(fingerprint) = std::env::var("DEP_PODWIRE_PLUGINS_FINGERPRINT") {
        println!("cargo:rustc-link-arg-bins=-Wl,--build-id=0x{fingerprint}");
    }
}
