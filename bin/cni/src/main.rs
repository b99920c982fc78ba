//! podwire-cni: all plugins in one program. The file name of the program selects the plugin. Called as `podwire pause` it is the
//! pause process of a pod (see `podwire_sandbox::pause`), and `dhcp daemon` starts the daemon of the dhcp plugin.

use std::path::Path;
use std::process::ExitCode;

use podwire_plugins::{dhcp, PLUGINS};

#[global_allocator]
static ARENA: podwire_netlink::sys::Arena = podwire_netlink::sys::Arena::new();

fn main() -> ExitCode {
    podwire_kernel::detached::set_short_lived();
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
    if name == "podwire" && std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        return podwire_sandbox::pause::main();
    }
    if dhcp::daemon::is_called(&name, std::env::args_os().nth(1).as_deref()) {
        return ExitCode::from(dhcp::daemon::execute(std::env::args_os().skip(2)));
    }
    let registry = podwire_plugins::registry();
    match registry.find(&name) {
        // Exits without Rust's cleanup, which costs two system calls: all output is written.
        Some(plugin) => podwire_netlink::sys::exit_immediately(podwire_cni_plugin::run(plugin, &registry)),
        None => {
            eprintln!("podwire-cni: all CNI plugins in one program; run it under the name of one of them:");
            PLUGINS.iter().for_each(|plugin| eprintln!("  {}", plugin.about()));
            ExitCode::from(u8::from(name != "podwire-cni"))
        }
    }
}
