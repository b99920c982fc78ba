//! What the daemon tells about itself: a line for each event, fields and not prose, to standard error.

use std::fmt::Display;
use std::io::Write;

use podwire_agent_ipc::Owner;

/// An event of an attachment.
pub(crate) fn note(event: &str, owner: &Owner, fields: impl Display) {
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "event={event} owner={owner} {fields}");
}

/// An event of the daemon itself.
pub(crate) fn say(event: &str, fields: impl Display) {
    let _ = writeln!(std::io::stderr(), "event={event} {fields}");
}
