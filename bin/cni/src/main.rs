//! podwire-cni: every plugin in one program. The name under which it is called picks the plugin.

use std::path::Path;
use std::process::ExitCode;

use podwire_cni_plugin::Registry;
use podwire_plugins::{FINGERPRINT, PLUGINS};

#[global_allocator]
static ARENA: podwire_netlink::sys::Arena = podwire_netlink::sys::Arena::new();

fn main() -> ExitCode {
    podwire_kernel::detached::set_short_lived();
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
    let registry = Registry::new(PLUGINS, FINGERPRINT);
    match registry.find(&name) {
        // All is said and written: what else a program does at its end, the kernel does faster.
        Some(plugin) => podwire_netlink::sys::exit_immediately(podwire_cni_plugin::run(plugin, &registry)),
        None => {
            eprintln!("podwire-cni: CNI plugins in one program; call it by the name of one of them:");
            PLUGINS.iter().for_each(|plugin| eprintln!("  {}", plugin.about()));
            ExitCode::from(u8::from(name != "podwire-cni"))
        }
    }
}
