//! Errors of plugins, and their conversion to the spec's error object.

use podwire_cni_spec::code;

/// The result of a step of a plugin.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kernel refused an operation (plugin-specific codes begin at 100).
pub const KERNEL: u32 = 100;
/// A host port belongs to another pod.
pub const PORT_TAKEN: u32 = 101;

/// An address belongs to another running pod.
pub const ADDRESS_TAKEN: u32 = 102;

/// Why a plugin call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error that already has a CNI code.
    #[error(transparent)]
    Cni(#[from] podwire_cni_spec::Error),
    /// An operation on the host failed.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The kernel refused a netlink request.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A step failed.
    #[error("{doing}: {source}")]
    Step {
        /// What was being done, to which object.
        doing: String,
        /// Why it failed.
        source: Box<Error>,
    },
    /// Several steps failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl Error {
    /// `Ok` if `errors` is empty, the error itself if there is one, else all of them.
    pub fn all(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    /// The spec's error object: code, what happened, and what to do next.
    pub fn to_cni(&self) -> podwire_cni_spec::Error {
        podwire_cni_spec::Error { msg: self.msg(), ..self.cause() }
    }

    /// What happened, without what to do next.
    fn msg(&self) -> String {
        match self {
            Error::Cni(error) => error.msg.clone(),
            Error::Step { doing, source } => format!("{doing}: {}", source.msg()),
            Error::Several(all) => all.iter().map(Error::msg).collect::<Vec<_>>().join("; "),
            Error::Kernel(_) | Error::Netlink(_) => self.to_string(),
        }
    }

    /// The first error, with its code and what to do next.
    fn cause(&self) -> podwire_cni_spec::Error {
        let of_kernel = |(code, details): (u32, String)| {
            podwire_cni_spec::Error::new(code, String::new()).with_details(details)
        };
        match self {
            Error::Cni(error) => error.clone(),
            Error::Step { source, .. } => source.cause(),
            Error::Several(all) => {
                all.first().map_or_else(|| podwire_cni_spec::Error::internal(""), Error::cause)
            }
            Error::Kernel(podwire_kernel::Error::WrongKind { name, found, .. }) => {
                let hint =
                    format!("{name} is a {found}: choose another name in the config, or remove that link");
                podwire_cni_spec::Error::invalid_config("").with_hint(hint)
            }
            Error::Kernel(error) => of_kernel(kernel_code_and_hint(error)),
            Error::Netlink(error) => of_kernel((KERNEL, netlink_hint(error))),
        }
    }
}

fn kernel_code_and_hint(error: &podwire_kernel::Error) -> (u32, String) {
    use podwire_kernel::Error::*;
    match error {
        Netlink(error) => (KERNEL, netlink_hint(error)),
        Netns { .. } => {
            (code::INVALID_NETNS, "check that the container is running and the path is its namespace".into())
        }
        File { .. } => (code::IO, String::new()),
        PortTaken { .. } => (
            PORT_TAKEN,
            "stop that container or choose another host port; if it no longer exists, `podwire cni gc` frees the port"
                .into(),
        ),
        AddressTaken { .. } => (
            ADDRESS_TAKEN,
            "two networks of this node overlap: give them different subnets, as `podwire cni lint` shows, and recreate \
             one of the pods"
                .into(),
        ),
        SubnetTaken { link, .. } => (
            ADDRESS_TAKEN,
            format!(
                "give the two networks different subnets, or one bridge; if the other network is no longer used, delete \
                 its gateway: `ip link delete {link}`"
            ),
        ),
        Tap { .. } => (KERNEL, "check that /dev/net/tun exists and that this process may open it".into()),
        NoNfTables | WrongKind { .. } | Other(_) => (code::INTERNAL, String::new()),
    }
}

fn netlink_hint(error: &podwire_netlink::Error) -> String {
    const EPERM: i32 = 1;
    const EEXIST: i32 = 17;
    const EXFULL: i32 = 54;
    const ENETDOWN: i32 = 100;
    match error.errno() {
        Some(EPERM) => "root (CAP_NET_ADMIN) is needed".into(),
        Some(EEXIST) => "the container may already be attached: run DEL first".into(),
        Some(ENETDOWN) => "the parent interface is down: set it up".into(),
        Some(EXFULL) => "a bridge has at most 1024 ports".into(),
        _ if error.is_unsupported() => "the running kernel lacks this feature".into(),
        _ => String::new(),
    }
}

/// Adds what was being done to an error.
pub trait Context<T> {
    /// Puts `doing` before the error.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Step { doing: doing(), source: Box::new(error.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_keeps_the_code_of_its_cause() {
        let cause: Result<()> = Err(podwire_cni_spec::Error::new(7, "bad subnet").into());
        let error = cause.doing(|| "allocate an address".into()).unwrap_err().to_cni();
        assert_eq!((error.code, error.msg.as_str()), (7, "allocate an address: bad subnet"));
        let cause: Result<()> =
            Err(podwire_cni_spec::Error::new(7, "bad").with_details("a").with_hint("b").into());
        let error = cause.doing(|| "allocate".into()).unwrap_err().to_cni();
        assert_eq!((error.msg.as_str(), error.advice().as_str()), ("allocate: bad", "a; b"));
    }
}
