//! A server that replaces another one at the same path, as an agent does that was killed and started again.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use podwire_agent_ipc::dhcp::{Request, Response};

/// A plugin that finds no socket concludes that this node has no agent.
#[test]
fn the_socket_is_never_missing() {
    let path = std::env::temp_dir().join(format!("podwire-servers-{}.sock", std::process::id()));
    let again = || podwire_agent_ipc::server::serve(&path, |_: io::Result<Request>| Response::Done).unwrap();
    again();
    std::thread::scope(|scope| {
        let servers = scope.spawn(|| (0..50).for_each(|_| again()));
        while !servers.is_finished() {
            UnixStream::connect(&path).unwrap();
        }
    });
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!path.with_extension("new").exists());
    fs::remove_file(&path).unwrap();
}
