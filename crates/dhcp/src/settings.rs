//! The settings of the daemon. The program `podwire` sets them from its flags, whose meaning is that of the Go daemon's.

use std::path::PathBuf;
use std::time::Duration;

/// The daemon's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket.
    pub socket: PathBuf,
    /// The host's root directory, if it is not this process's own.
    pub host_prefix: PathBuf,
    /// The PID file.
    pub pid_file: Option<PathBuf>,
    /// How long a server may take to confirm its offer.
    pub timeout: Duration,
    /// The longest wait between two transmissions.
    pub resend_max: Duration,
    /// How long an ADD waits for a server.
    pub resend_timeout: Duration,
}
