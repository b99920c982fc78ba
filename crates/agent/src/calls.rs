//! What plugins tell of their calls: a datagram each, counted and forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use podwire_agent_ipc::calls::Call;
use tokio::net::UnixDatagram;

use crate::metrics::Metrics;
use crate::{Error, Result};

/// So many types of plugins are told apart; nobody has more, and a flood of made-up names must not fill the memory.
const TYPES: usize = 64;
/// A line is shorter.
const LINE: usize = 256;

/// Listens until the runtime ends.
pub(crate) fn listen(socket: &Path, metrics: Arc<Metrics>) -> Result<()> {
    if let Some(folder) = socket.parent() {
        fs::create_dir_all(folder).map_err(Error::file("make folder", folder))?;
    }
    // That of the agent before this one: nobody listens there any more.
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::file("remove", socket)(error));
        }
        _ => {}
    }
    let ear = UnixDatagram::bind(socket).map_err(Error::file("listen at", socket))?;
    // Plugins are root's.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600)).map_err(Error::file("guard", socket))?;
    tokio::spawn(async move {
        let (mut buffer, mut types) = ([0; LINE], BTreeSet::new());
        while let Ok(length) = ear.recv(&mut buffer).await {
            if let Some(call) = heard(&buffer[..length], &mut types) {
                metrics.called(&call);
            }
        }
    });
    Ok(())
}

fn heard<'a>(line: &'a [u8], types: &mut BTreeSet<String>) -> Option<Call<'a>> {
    let call = Call::parse(std::str::from_utf8(line).ok()?)?;
    let known = types.contains(call.plugin) || (types.len() < TYPES && types.insert(call.plugin.to_owned()));
    (known && matches!(call.verb, "ADD" | "DEL")).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_not_counted_and_names_do_not_fill_the_memory() {
        let mut types = BTreeSet::new();
        assert!(heard(b"ADD bridge 1234 0", &mut types).is_some());
        for line in [&b"\xff\xfe"[..], b"", b"SING bridge 1 0", b"ADD bridge x 0"] {
            assert!(heard(line, &mut types).is_none(), "{line:?}");
        }
        for number in 0..1000 {
            heard(format!("ADD made-up-{number} 1 0").as_bytes(), &mut types);
        }
        assert_eq!(types.len(), TYPES);
        assert!(heard(b"DEL bridge 1234 0", &mut types).is_some());
    }
}
