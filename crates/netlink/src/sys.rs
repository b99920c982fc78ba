//! Safe wrappers of system calls that neither `std` nor another dependency offers. All `unsafe` code of the project is
//! in the files of this module; each function checks its own arguments, and each `unsafe` block states why it is sound.

mod arena;
mod call;
mod detached;
mod fd;
mod inotify;
mod iptables;
mod mount;
mod namespace;
mod packet;
mod process;
mod signal;
mod socket;
mod system;
mod tap;
mod terminal;

pub use arena::Arena;
pub use detached::{detach_process, detach_thread, Detached};
pub use fd::{duplicate, pipe, readable, ready, set_nonblocking};
pub use inotify::{open_inotify, watch_directory, watch_written_files};
pub use iptables::{query_iptables, IptablesQuery};
pub use mount::{
    bind_mount, file_system_type, make_mounts_slave, mount_tmpfs, mount_virtual, unmount, unshare_mounts,
};
pub use namespace::{
    current_network_namespace, enter_namespaces_of, enter_network_namespace, network_namespace_cookie,
    new_network_namespace, set_host_name,
};
pub use packet::{packet_socket, receive_packet, send_packet, ReceivedPacket};
pub use process::{
    exit_immediately, open_pidfd, reap, signal_process, spawn_in_new_namespaces, IsolatedProcess,
};
pub use signal::{open_signalfd, spawn_unblocked, wait_for_termination};
pub use socket::{
    bind_netlink, connect_unix, disable_fragmentation, icmp_socket, interface, interface_name,
    netlink_socket, path_mtu, receive, send, set_netlink_option, set_send_buffer,
};
pub use system::{max_open_files, random, since_boot, user_id};
pub use tap::{create_tap, TapFailure, TapSpec};
pub use terminal::terminal_columns;
