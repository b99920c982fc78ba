//! The SDK with which CNI plugins are written: every plugin of this project, and yours.
//!
//! A container runtime executes a plugin with a verb and the pod's identity in environment variables and a
//! JSON config on standard input; the plugin answers with a JSON result, or an error object, on standard
//! output. This crate does all of that, so that a plugin is one `impl Plugin` that tells its network's story:
//!
//! ```no_run
//! use podwire_cni_spec::Attachment;
//! use podwire_cni_plugin::{main, Finding, Plugin, Registry, Request, Result};
//!
//! struct Hello;
//!
//! impl Plugin for Hello {
//!     fn name(&self) -> &'static str { "hello" }
//!     fn about(&self) -> &'static str { "hello: passes the result on and greets" }
//!     fn add(&self, req: &Request<'_>) -> Result<Attachment> {
//!         eprintln!("hello, {}", req.container);
//!         Ok(req.chained()?.clone())
//!     }
//!     fn del(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
//!     fn inspect<'p>(&self, _: &Request<'p>) -> Result<Vec<Finding<'p>>> { Ok(Vec::new()) }
//!     fn gc(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
//!     fn status(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
//! }
//!
//! fn hello_main() -> std::process::ExitCode {
//!     main(&Hello, &Registry::none())
//! }
//! ```
//!
//! - [`dispatch`](dispatch::dispatch) checks the variables that a verb needs, the config's version and that
//!   the pod's namespace is not the caller's own, all before the plugin is called;
//! - [`delegate`] calls another plugin (an IPAM plugin, mostly): in this process when the file that would be
//!   executed is this very program, else by executing it;
//! - [`ledger`] has every request written down before the plugin is called: DEL and GC work from it;
//! - [`exec`] is that execution, with a deadline that lets a plugin clean up.

mod conversation;
pub mod delegate;
pub mod dispatch;
mod error;
pub mod exec;
mod finding;
mod hooks;
pub mod ledger;
mod recorded;
mod registry;
mod request;
mod stop;

pub use dispatch::{main, run, Verbatim};
pub use error::{Context, Error, Result};
pub use finding::Finding;
pub use hooks::{Hooks, NoHooks};
pub use recorded::{withdraw, withdraw_unless_changed};
pub use registry::Registry;
pub use request::{Command, Request, Source, Valid};

use podwire_cni_spec::{Attachment, Version};

/// A CNI plugin.
pub trait Plugin: Sync {
    /// Its type: the name in configs and of its file.
    fn name(&self) -> &'static str;

    /// One line for people who run it by hand.
    fn about(&self) -> &'static str;

    /// The versions of the spec that it takes.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Whether its attachments are written into the [`ledger`]. Not needed for one that leaves nothing in the kernel
    /// (an IPAM plugin with a store of its own).
    fn is_recorded(&self) -> bool {
        true
    }

    /// Whether packets of its interfaces bypass the host's firewall, as those of macvlan do. The SDK does not use it;
    /// [`Hooks`] may, to refuse a network whose rules would have no effect.
    fn bypasses_host_firewall(&self) -> bool {
        false
    }

    /// What VERSION answers, in view of `CNI_ARGS`. A test double may claim what it likes.
    fn version_info(&self, _args: &str) -> serde_json::Value {
        podwire_cni_spec::version::VersionInfo::new(self.versions()).to_json()
    }

    /// What to print and how to exit, word by word, when the plugin is executed; `None` prints the result of the verb.
    /// Only a test double has words of its own: they may be none that the spec knows.
    fn verbatim(&self, _: &Request<'_>) -> Result<Option<Verbatim>> {
        Ok(None)
    }

    /// Attaches a container, or passes on and changes what plugins before it did (`req.prev`).
    /// If it fails it must leave nothing behind.
    fn add(&self, req: &Request<'_>) -> Result<Attachment>;

    /// Detaches. It may come twice, without a namespace, without a previous result, after an ADD that failed
    /// or never was: it removes what is there and succeeds.
    fn del(&self, req: &Request<'_>) -> Result<()>;

    /// Compares all that ADD made with what is there now, and says for each difference how to put it back. CHECK
    /// reports what is found here, a repair mends it.
    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>>;

    /// Removes whatever belongs to attachments of this network that are not in [`Request::valid`].
    fn gc(&self, req: &Request<'_>) -> Result<()>;

    /// The part of [`inspect`](Plugin::inspect) that is about firewall rules, for when somebody flushed them.
    fn inspect_rules<'p>(&self, _req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        Ok(Vec::new())
    }

    /// Fails if an ADD could not succeed now.
    fn status(&self, req: &Request<'_>) -> Result<()>;
}
