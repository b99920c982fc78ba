//! Encoding of messages (`struct nlmsghdr`, the family's fixed header, attributes) and decoding of answers.

use std::net::IpAddr;

use crate::attr;

/// Size of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const NLA_F_NESTED: u16 = 1 << 15;

/// A message to the kernel, with a description of the request.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) doing: String,
}

impl Message {
    /// A message of type `kind` with `flags` (`NLM_F_REQUEST` is always set). `doing` describes the request with the
    /// object's name; error texts start with it.
    pub fn new(kind: u16, flags: u16, doing: impl Into<String>) -> Message {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        Message { bytes, doing: doing.into() }
    }

    /// The description of the request.
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// Appends raw bytes (the family's fixed header), padded to four.
    pub fn raw(mut self, bytes: &[u8]) -> Message {
        self.push_raw(bytes);
        self
    }

    /// As [`raw`](Self::raw), in place.
    pub fn push_raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends an attribute with these bytes.
    pub fn push(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Appends an attribute with these bytes.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Message {
        self.push(kind, value);
        self
    }

    /// Appends a flag: an attribute without payload.
    pub fn flag(self, kind: u16) -> Message {
        self.bytes(kind, &[])
    }

    /// Appends a byte.
    pub fn u8(self, kind: u16, value: u8) -> Message {
        self.bytes(kind, &[value])
    }

    /// Appends a 16-bit number in host byte order.
    pub fn u16(self, kind: u16, value: u16) -> Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 32-bit number in host byte order.
    pub fn u32(self, kind: u16, value: u32) -> Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 64-bit number in host byte order.
    pub fn u64(self, kind: u16, value: u64) -> Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 16-bit number in network byte order.
    pub fn be16(self, kind: u16, value: u16) -> Message {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a 32-bit number in network byte order.
    pub fn be32(self, kind: u16, value: u32) -> Message {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a 64-bit number in network byte order.
    pub fn be64(self, kind: u16, value: u64) -> Message {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends text with its final NUL.
    pub fn string(mut self, kind: u16, value: &str) -> Message {
        let length = (4 + value.len() + 1) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
        self
    }

    /// Appends an address: four or sixteen bytes.
    pub fn ip(self, kind: u16, value: IpAddr) -> Message {
        match value {
            IpAddr::V4(v4) => self.bytes(kind, &v4.octets()),
            IpAddr::V6(v6) => self.bytes(kind, &v6.octets()),
        }
    }

    /// Appends what `fill` appends, nested in an attribute.
    pub fn nest(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        let mut inner = fill(self);
        let length = (inner.bytes.len() - at) as u16;
        inner.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        inner
    }

    /// Applies `fill` if there is a value: for optional attributes.
    pub fn maybe<T>(self, value: Option<T>, fill: impl FnOnce(Message, T) -> Message) -> Message {
        match value {
            Some(value) => fill(self, value),
            None => self,
        }
    }

    /// The bytes of a complete message that requests an acknowledgement, to be sent without [`Socket`](crate::Socket).
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.seal(libc::NLM_F_ACK as u16, 1);
        self.bytes
    }

    /// Writes length, flags and sequence number into the header.
    pub(crate) fn seal(&mut self, flags: u16, seq: u32) {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        let old = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes[6..8].copy_from_slice(&(old | flags).to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
    }
}

/// Messages that are sent to the kernel in one write. The kernel executes them in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) messages: Vec<Message>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Appends a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }
}

impl Extend<Message> for Batch {
    fn extend<I: IntoIterator<Item = Message>>(&mut self, messages: I) {
        self.messages.extend(messages);
    }
}

/// One message from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its type.
    pub kind: u16,
    /// `NLM_F_…` flags.
    pub flags: u16,
    /// The sequence number of the request that it answers.
    pub seq: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The attributes after a fixed header of `header` bytes.
    pub fn attrs(&self, header: usize) -> attr::Attrs<'a> {
        attr::attrs(self.body.get(header.next_multiple_of(4)..).unwrap_or(&[]))
    }
}

/// The messages in a received buffer; ends at the first invalid length.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// The messages of one datagram.
    pub fn new(datagram: &'a [u8]) -> Frames<'a> {
        Frames { rest: datagram }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let head = self.rest.get(..HEADER)?;
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let short = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let length = word(0) as usize;
        let body = self.rest.get(HEADER..length)?;
        let frame = Frame { kind: short(4), flags: short(6), seq: word(8), body };
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::attrs;

    #[test]
    fn nested_attributes_read_back() {
        let mut message = Message::new(16, 0, "test")
            .raw(&[0; 16])
            .string(3, "eth0")
            .nest(18, |m| m.string(1, "veth").nest(2, |m| m.u32(1, 7)));
        message.seal(0, 1);
        let frame = Frames::new(&message.bytes).next().unwrap();
        let all: Vec<_> = frame.attrs(16).collect();
        assert_eq!(all[0].string(), "eth0");
        let info: Vec<_> = all[1].nested().collect();
        assert_eq!((info[0].string(), info[1].kind), ("veth".to_string(), 2));
        assert_eq!(attrs(info[1].value).next().unwrap().u32(), Some(7));
    }
}
