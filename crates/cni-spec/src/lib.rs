//! The types of the Container Network Interface (CNI). No I/O.
//!
//! A container runtime that wants a pod on the network reads a *network config list*, a JSON file with a name and
//! a chain of plugins, and runs each plugin as a program: the verb and the container go into environment
//! variables, the plugin's config into stdin, and a *result* (interfaces, addresses, routes) or an *error* (code
//! and text) comes back on stdout. Seven versions of that protocol are in use. This crate is everything of it that
//! needs no operating system: [`NetworkList`] and [`PluginConfig`] are what the administrator wrote, [`Attachment`]
//! is the result in any version, [`Error`] the error, [`Args`], [`ContainerId`] and [`IfName`] what arrives in the
//! environment, and [`json`] reads all of it with the habits of Go that the field relies on.
//!
//! ```
//! use podwire_cni_spec::{Attachment, NetworkList, Version};
//!
//! // The runtime's side: a list, and the request for its first plugin.
//! let list = NetworkList::parse(
//!     br#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local"}}]}"#,
//! )?;
//! let request = list.plugins[0].request(&list, None, &Default::default());
//! assert_eq!(request["name"], "pods");
//!
//! // The plugin's side: a result that the plugin made, in the version that the runtime speaks.
//! let mut attachment = Attachment::default();
//! attachment.ips.push(podwire_cni_spec::Ip::new(podwire_cni_spec::addr::parse_net("10.1.0.5/16")?));
//! let printed = attachment.to_json(list.version)?;
//! assert_eq!(printed["ips"][0]["version"], "4");
//!
//! // And back, whatever version it was.
//! assert_eq!(Attachment::from_json(&printed, list.version)?, attachment);
//! assert_eq!(list.version, Version::V0_4_0);
//! # Ok::<(), podwire_cni_spec::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod addr;
pub mod args;
pub mod attachment;
pub mod capability;
pub mod config;
pub mod error;
pub mod json;
pub mod name;
pub mod suggestion;
pub mod version;

pub use args::Args;
pub use attachment::{Attachment, Dns, Interface, Ip, Route};
pub use config::{valid_attachments, NetworkList, PluginConfig, ValidAttachment};
pub use error::{code, Error};
pub use name::{ContainerId, IfName, NetworkName};
pub use version::{Version, VersionInfo};
