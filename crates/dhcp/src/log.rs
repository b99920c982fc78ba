//! The daemon's log: one line of fields for each event, on standard error.

use std::fmt::Display;
use std::io::Write;

use podwire_agent_ipc::Owner;

/// An event of an attachment.
pub(crate) fn attachment(event: &str, owner: &Owner, fields: impl Display) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "event={event} owner={owner} {fields}");
}

/// An event of the daemon itself.
pub(crate) fn daemon(event: &str, fields: impl Display) {
    let _ = writeln!(std::io::stderr(), "event={event} {fields}");
}
