//! A door that is made anew, as by an agent that was killed and started again.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use podwire_agent_ipc::dhcp::{Answer, Question};

/// Whoever finds no door believes that there never was anybody behind it.
#[test]
fn it_is_never_missing() {
    let path = std::env::temp_dir().join(format!("podwire-doors-{}.sock", std::process::id()));
    let again = || podwire_agent_ipc::door::open(&path, |_: io::Result<Question>| Answer::Done).unwrap();
    again();
    std::thread::scope(|scope| {
        let doors = scope.spawn(|| (0..50).for_each(|_| again()));
        while !doors.is_finished() {
            UnixStream::connect(&path).unwrap();
        }
    });
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!path.with_extension("new").exists());
    fs::remove_file(&path).unwrap();
}
