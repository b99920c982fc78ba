//! Counts the calls of plugins: each plugin reports a call with one datagram.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use podwire_agent_ipc::calls::Call;
use podwire_fs::FileError;
use tokio::net::UnixDatagram;

use crate::metrics::Metrics;
use crate::Result;

/// The maximum number of plugin types that are counted. The limit keeps invented names from filling the memory.
const MAX_TYPES: usize = 64;
/// The maximum length of a datagram.
const MAX_LENGTH: usize = 256;

/// Counts calls until the runtime ends.
pub(crate) fn listen(socket: &Path, metrics: Arc<Metrics>) -> Result<()> {
    if let Some(dir) = socket.parent() {
        podwire_fs::create_state_dir(dir).map_err(FileError::at("create", dir))?;
    }
    // The socket of the previous agent.
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(FileError::at("remove", socket)(error).into());
        }
        _ => {}
    }
    let datagrams = UnixDatagram::bind(socket).map_err(FileError::at("bind", socket))?;
    // Plugins run as root.
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(socket, private).map_err(FileError::at("set the mode of", socket))?;
    tokio::spawn(async move {
        let (mut buffer, mut types) = ([0; MAX_LENGTH], BTreeSet::new());
        while let Ok(length) = datagrams.recv(&mut buffer).await {
            if let Some((metrics, call)) = metrics.flannel().zip(parse(&buffer[..length], &mut types)) {
                metrics.called(&call);
            }
        }
    });
    Ok(())
}

fn parse<'a>(line: &'a [u8], types: &mut BTreeSet<String>) -> Option<Call<'a>> {
    let call = Call::parse(std::str::from_utf8(line).ok()?)?;
    let known =
        types.contains(call.plugin) || (types.len() < MAX_TYPES && types.insert(call.plugin.to_owned()));
    (known && matches!(call.verb, "ADD" | "DEL")).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_datagrams_are_ignored_and_the_number_of_types_is_limited() {
        let mut types = BTreeSet::new();
        assert!(parse(b"ADD bridge 1234 0", &mut types).is_some());
        for line in [&b"\xff\xfe"[..], b"", b"SING bridge 1 0", b"ADD bridge x 0"] {
            assert!(parse(line, &mut types).is_none(), "{line:?}");
        }
        for number in 0..1000 {
            parse(format!("ADD made-up-{number} 1 0").as_bytes(), &mut types);
        }
        assert_eq!(types.len(), MAX_TYPES);
        assert!(parse(b"DEL bridge 1234 0", &mut types).is_some());
    }
}
