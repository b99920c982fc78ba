//! Generic netlink (`linux/genetlink.h`): message families with dynamic numbers, which are looked up by name.

use crate::error::{found, Result};
use crate::message::Message;
use crate::socket::Socket;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// `struct genlmsghdr`: command, version, two reserved bytes.
pub const HEADER: usize = 4;

/// A message of a family: its number, the command, and the description of the request.
pub fn message(family: u16, command: u8, doing: impl Into<String>) -> Message {
    Message::new(family, 0, doing).raw(&[command, 1, 0, 0])
}

/// The number of the family `name`, if the kernel has it.
pub fn family(generic: &mut Socket, name: &str) -> Result<Option<u16>> {
    let request = message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, format!("look for the netlink family {name}"))
        .string(CTRL_ATTR_FAMILY_NAME, name);
    found(generic.query(request, |frame| {
        frame.attrs(HEADER).find(|attr| attr.kind == CTRL_ATTR_FAMILY_ID).and_then(|attr| attr.u16())
    }))
}
