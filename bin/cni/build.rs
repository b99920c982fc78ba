//! Links the plugins' fingerprint into the program as its build id; see `crates/plugins/build.rs`.

fn main() {
    if let Ok(fingerprint) = std::env::var("DEP_PODWIRE_PLUGINS_FINGERPRINT") {
        println!("cargo:rustc-link-arg-bins=-Wl,--build-id=0x{fingerprint}");
    }
}
