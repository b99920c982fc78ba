//! D-Bus messages: calls with string arguments, and responses that are a string, a boolean or an error.
//!
//! A message has a prefix of 16 bytes, header fields, and a body. A header field is a code and a typed value. One of
//! the fields holds the body's signature. Numbers are aligned to their size; prefix, fields and body each start aligned
//! to 8 bytes.

/// More than firewalld sends; the specification's limit is 128 MiB.
const MAX_LENGTH: usize = 64 << 10;

const VERSION: u8 = 1;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// The flag that keeps the bus from starting a service that does not run.
const NO_AUTO_START: u8 = 2;

/// Header fields.
mod field {
    pub const PATH: u8 = 1;
    pub const INTERFACE: u8 = 2;
    pub const MEMBER: u8 = 3;
    pub const ERROR_NAME: u8 = 4;
    pub const REPLY_SERIAL: u8 = 5;
    pub const DESTINATION: u8 = 6;
    pub const SIGNATURE: u8 = 8;
}

/// The reason why a message is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::firewall) struct Malformed(pub &'static str);

const TRUNCATED: Malformed = Malformed("a message is truncated");
const TOO_LONG: Malformed = Malformed("a message is too long");

/// A call of a method.
#[derive(Clone, Copy, Debug)]
pub(in crate::firewall) struct Call<'a> {
    /// The bus name of the service.
    pub destination: &'a str,
    /// The object.
    pub path: &'a str,
    /// Which of its interfaces.
    pub interface: &'a str,
    /// The method.
    pub member: &'a str,
    /// The arguments.
    pub args: &'a [&'a str],
}

impl<'a> Call<'a> {
    /// A call to the bus itself.
    pub fn to_bus(member: &'a str, args: &'a [&'a str]) -> Call<'a> {
        let name = "org.freedesktop.DBus";
        Call { destination: name, path: "/org/freedesktop/DBus", interface: name, member, args }
    }

    /// The bytes of the message, in little-endian order.
    pub fn encode(&self, serial: u32) -> Result<Vec<u8>, Malformed> {
        let mut body = Writer::default();
        for arg in self.args {
            body.string(arg)?;
        }
        let mut fields = Writer::default();
        fields.field(field::PATH, "o")?.string(self.path)?;
        fields.field(field::INTERFACE, "s")?.string(self.interface)?;
        fields.field(field::MEMBER, "s")?.string(self.member)?;
        fields.field(field::DESTINATION, "s")?.string(self.destination)?;
        if !self.args.is_empty() {
            fields.field(field::SIGNATURE, "g")?.signature(&"s".repeat(self.args.len()))?;
        }
        let mut message = Writer(vec![b'l', METHOD_CALL, NO_AUTO_START, VERSION]);
        message.length(body.0.len())?;
        message.u32(serial);
        message.length(fields.0.len())?;
        message.0.extend(fields.0);
        message.align(8);
        message.0.extend(body.0);
        Ok(message.0)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn length(&mut self, length: usize) -> Result<(), Malformed> {
        let number = u32::try_from(length).ok().filter(|_| length <= MAX_LENGTH);
        self.u32(number.ok_or(TOO_LONG)?);
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Malformed> {
        if text.contains('\0') {
            return Err(Malformed("a string holds a NUL"));
        }
        self.length(text.len())?;
        self.0.extend(text.as_bytes());
        self.0.push(0);
        Ok(())
    }

    fn signature(&mut self, types: &str) -> Result<(), Malformed> {
        self.0.push(u8::try_from(types.len()).map_err(|_| TOO_LONG)?);
        self.0.extend(types.as_bytes());
        self.0.push(0);
        Ok(())
    }

    fn field(&mut self, code: u8, kind: &str) -> Result<&mut Writer, Malformed> {
        self.align(8);
        self.0.push(code);
        self.signature(kind)?;
        Ok(self)
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A method's result.
    Return,
    /// A method's failure.
    Error,
    /// Not a response.
    Other,
}

/// The first bytes of a message, which hold its length.
#[derive(Debug)]
pub(super) struct Prefix {
    kind: u8,
    order: ByteOrder,
    fields: usize,
    body: usize,
}

impl Prefix {
    /// The length of a prefix in bytes.
    pub const LENGTH: usize = 16;

    /// Decodes a prefix.
    pub fn decode(bytes: &[u8; Prefix::LENGTH]) -> Result<Prefix, Malformed> {
        let order = match bytes[0] {
            b'l' => ByteOrder::Little,
            b'B' => ByteOrder::Big,
            _ => return Err(Malformed("a message has no byte order")),
        };
        if bytes[3] != VERSION {
            return Err(Malformed("a message is of another version of D-Bus"));
        }
        let mut reader = Reader { bytes, at: 4, order };
        let (body, _serial, fields) = (reader.length()?, reader.u32()?, reader.length()?);
        if fields + body > MAX_LENGTH {
            return Err(TOO_LONG);
        }
        Ok(Prefix { kind: bytes[1], order, fields, body })
    }

    /// The number of bytes that follow.
    pub fn rest(&self) -> usize {
        self.fields.next_multiple_of(8) + self.body
    }

    /// Decodes the message from the bytes after the prefix.
    pub fn message(&self, rest: &[u8]) -> Result<Message, Malformed> {
        let kind = match self.kind {
            METHOD_RETURN => Kind::Return,
            ERROR => Kind::Error,
            _ => Kind::Other,
        };
        let body = rest
            .get(self.fields.next_multiple_of(8)..)
            .filter(|body| body.len() == self.body)
            .ok_or(TRUNCATED)?;
        let mut message = Message {
            kind,
            reply_to: None,
            error: None,
            signature: String::new(),
            order: self.order,
            body: body.to_vec(),
        };
        let mut reader =
            Reader { bytes: rest.get(..self.fields).ok_or(TRUNCATED)?, at: 0, order: self.order };
        while reader.at < self.fields {
            reader.align(8)?;
            match (reader.u8()?, reader.value()?) {
                (field::REPLY_SERIAL, Field::Number(serial)) => message.reply_to = Some(serial),
                (field::ERROR_NAME, Field::Text(name)) => message.error = Some(name),
                (field::SIGNATURE, Field::Text(types)) => message.signature = types,
                _ => {}
            }
        }
        Ok(message)
    }
}

/// A received message.
#[derive(Debug)]
pub(in crate::firewall) struct Message {
    pub(super) kind: Kind,
    /// The serial of the call that it responds to.
    pub(super) reply_to: Option<u32>,
    /// The name of the error.
    pub(super) error: Option<String>,
    signature: String,
    order: ByteOrder,
    body: Vec<u8>,
}

impl Message {
    fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, order: self.order }
    }

    /// The string at the start of the body.
    pub fn text(&self) -> Result<String, Malformed> {
        if !self.signature.starts_with('s') {
            return Err(Malformed("a response is not a string"));
        }
        self.reader().string()
    }

    /// The boolean that is the body.
    pub fn boolean(&self) -> Result<bool, Malformed> {
        match (self.signature.as_str(), self.reader().u32()) {
            ("b", Ok(number @ (0 | 1))) => Ok(number == 1),
            _ => Err(Malformed("a response is not a boolean")),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum ByteOrder {
    Little,
    Big,
}

/// The value of a header field.
enum Field {
    Number(u32),
    Text(String),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    order: ByteOrder,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(TRUNCATED)?;
        let taken = self.bytes.get(self.at..end).ok_or(TRUNCATED)?;
        self.at = end;
        Ok(taken)
    }

    fn align(&mut self, to: usize) -> Result<(), Malformed> {
        self.take(self.at.next_multiple_of(to) - self.at).map(drop)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().map_err(|_| TRUNCATED)?;
        Ok(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| TOO_LONG)?;
        if length > MAX_LENGTH {
            return Err(TOO_LONG);
        }
        Ok(length)
    }

    fn string(&mut self) -> Result<String, Malformed> {
        let length = self.length()?;
        self.terminated(length)
    }

    fn signature(&mut self) -> Result<String, Malformed> {
        let length = self.u8()?;
        self.terminated(length.into())
    }

    /// Text of this length, followed by a NUL.
    fn terminated(&mut self, length: usize) -> Result<String, Malformed> {
        let text = self.take(length)?;
        if self.u8()? != 0 || text.contains(&0) {
            return Err(Malformed("a string has no NUL at its end, or one inside"));
        }
        String::from_utf8(text.to_vec()).map_err(|_| Malformed("a string is not UTF-8"))
    }

    /// A value after its type. Header fields have only these types.
    fn value(&mut self) -> Result<Field, Malformed> {
        match self.signature()?.as_str() {
            "s" | "o" => Ok(Field::Text(self.string()?)),
            "g" => Ok(Field::Text(self.signature()?)),
            "u" => Ok(Field::Number(self.u32()?)),
            _ => Err(Malformed("a header field has an unknown type")),
        }
    }
}

#[cfg(test)]
mod tests;
