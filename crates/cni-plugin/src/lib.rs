//! The SDK for CNI plugins: every plugin of this project uses it, and yours can.
//!
//! A container runtime executes a plugin with a verb and the pod's identity in environment variables and a
//! JSON config on standard input; the plugin answers with a JSON result, or an error object, on standard
//! output. This crate does all of that; a plugin is one `impl Plugin`:
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
//! - [`dispatch`](dispatch::dispatch) checks the variables that a verb requires, the config's version and that
//!   the pod's namespace is not the caller's own, before it calls the plugin;
//! - [`delegate`] calls another plugin (usually an IPAM plugin): in this process if the file to be executed is
//!   this program, otherwise by executing it;
//! - [`ledger`] records every request before the plugin is called; DEL and GC use the records;
//! - [`exec`] executes a plugin, with a deadline that lets it clean up;
//! - [`Hooks`] run code of the program around every call.

mod command;
pub mod delegate;
pub mod dispatch;
mod error;
pub mod exec;
mod finding;
mod hooks;
mod keys;
pub mod ledger;
mod pipes;
mod recorded;
mod registry;
pub mod repair;
mod request;
mod stop;

pub use command::Command;
pub use dispatch::{main, run, RawOutput};
pub use error::{Context, Error, Result};
pub use finding::Finding;
pub use hooks::{Hooks, NoHooks};
pub use keys::Keys;
pub use recorded::{delete_recorded, delete_recorded_unless_changed};
pub use registry::Registry;
pub use request::{Request, Source, Valid};

use podwire_cni_spec::{Attachment, Version};

/// A CNI plugin.
pub trait Plugin: Sync {
    /// The plugin's type: its name in configs and the name of its file.
    fn name(&self) -> &'static str;

    /// One line of help, printed when a user runs the plugin without `CNI_COMMAND`.
    fn about(&self) -> &'static str;

    /// The versions of the spec that it supports.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// The keys that it reads from its config. With them, `podwire cni lint` reports other keys. `None` if not known.
    fn keys(&self) -> Option<Keys> {
        None
    }

    /// Whether its attachments are recorded in the [`ledger`]. A plugin that leaves nothing in the kernel (an IPAM
    /// plugin with its own store) does not need it.
    fn is_recorded(&self) -> bool {
        true
    }

    /// Whether packets of its interfaces bypass the host's firewall, as those of macvlan do. The SDK does not use it;
    /// [`Hooks`] may, to refuse a network whose rules would have no effect.
    fn bypasses_host_firewall(&self) -> bool {
        false
    }

    /// The answer to VERSION. A test double may choose it by `CNI_ARGS`.
    fn version_info(&self, _args: &str) -> serde_json::Value {
        podwire_cni_spec::version::VersionInfo::new(self.versions()).to_json()
    }

    /// The exact output and exit status when the plugin is executed; `None` prints the result of the verb. For test
    /// doubles, whose output may violate the spec.
    fn raw_output(&self, _: &Request<'_>) -> Result<Option<RawOutput>> {
        Ok(None)
    }

    /// Checks the text of the config before ADD, CHECK and STATUS when the plugin is executed: the parsed config does not
    /// show that a key is there twice.
    fn check_text(&self, _config: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Attaches a container, or changes the result of the previous plugin (`req.prev`).
    /// If it fails, it must leave nothing behind.
    fn add(&self, req: &Request<'_>) -> Result<Attachment>;

    /// Detaches a container. Runtimes call it twice, without a namespace, without a previous result, and after an ADD
    /// that failed or never ran: it removes what exists and succeeds.
    fn del(&self, req: &Request<'_>) -> Result<()>;

    /// Compares what ADD created with the current state; each difference comes with its repair. CHECK reports the
    /// differences, `podwire cni check --repair` repairs them, also those of an executed plugin ([`repair`]).
    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>>;

    /// Removes what belongs to attachments of this network that are not in [`Request::valid`].
    fn gc(&self, req: &Request<'_>) -> Result<()>;

    /// The firewall part of [`inspect`](Plugin::inspect), for a ruleset that was flushed.
    fn inspect_rules<'p>(&self, _req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        Ok(Vec::new())
    }

    /// Fails if an ADD could not succeed at this time.
    fn status(&self, req: &Request<'_>) -> Result<()>;
}
