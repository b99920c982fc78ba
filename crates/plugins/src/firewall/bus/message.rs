//! Messages of D-Bus: calls with strings as arguments, and answers that are a string, a boolean or an error.
//!
//! A message is a prefix of 16 bytes, header fields, each a code and a value with its type, and a body whose
//! types are one of the fields. Numbers stand at multiples of their size from the message's beginning, which is
//! where the prefix, the fields and the body each begin anew.

/// More than firewalld ever says; the specification's own limit is 128 MiB.
const LONGEST: usize = 64 << 10;

const VERSION: u8 = 1;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// A service that does not run is not to be started by our asking.
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

/// What is wrong with a message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in super::super) struct Malformed(pub &'static str);

const CUT: Malformed = Malformed("a message ends before its end");
const TOO_LONG: Malformed = Malformed("a message is too long");

/// A call of a method.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Call<'a> {
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
    /// A call of the bus itself.
    pub fn to_bus(member: &'a str, args: &'a [&'a str]) -> Call<'a> {
        let name = "org.freedesktop.DBus";
        Call { destination: name, path: "/org/freedesktop/DBus", interface: name, member, args }
    }

    /// The bytes of the message, as little-endian as all are here that we send.
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
        let number = u32::try_from(length).ok().filter(|_| length <= LONGEST);
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

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A method's result.
    Return,
    /// A method's failure.
    Error,
    /// Nothing that we asked for.
    Other,
}

/// The first bytes of a message, which tell how long it is.
#[derive(Debug)]
pub(super) struct Prefix {
    kind: u8,
    order: Order,
    fields: usize,
    body: usize,
}

impl Prefix {
    /// How many bytes that is.
    pub const LENGTH: usize = 16;

    /// Reads it.
    pub fn decode(bytes: &[u8; Prefix::LENGTH]) -> Result<Prefix, Malformed> {
        let order = match bytes[0] {
            b'l' => Order::Little,
            b'B' => Order::Big,
            _ => return Err(Malformed("a message has no byte order")),
        };
        if bytes[3] != VERSION {
            return Err(Malformed("a message is of another version of D-Bus"));
        }
        let mut reader = Reader { bytes, at: 4, order };
        let (body, _serial, fields) = (reader.length()?, reader.u32()?, reader.length()?);
        match fields + body > LONGEST {
            true => Err(TOO_LONG),
            false => Ok(Prefix { kind: bytes[1], order, fields, body }),
        }
    }

    /// How many bytes follow.
    pub fn rest(&self) -> usize {
        self.fields.next_multiple_of(8) + self.body
    }

    /// The message, from the bytes that followed.
    pub fn message(&self, rest: &[u8]) -> Result<Message, Malformed> {
        let kind = match self.kind {
            METHOD_RETURN => Kind::Return,
            ERROR => Kind::Error,
            _ => Kind::Other,
        };
        let body =
            rest.get(self.fields.next_multiple_of(8)..).filter(|body| body.len() == self.body).ok_or(CUT)?;
        let mut message = Message {
            kind,
            answers: None,
            error: None,
            signature: String::new(),
            order: self.order,
            body: body.to_vec(),
        };
        let mut reader = Reader { bytes: rest.get(..self.fields).ok_or(CUT)?, at: 0, order: self.order };
        while reader.at < self.fields {
            reader.align(8)?;
            match (reader.u8()?, reader.value()?) {
                (field::REPLY_SERIAL, Field::Number(serial)) => message.answers = Some(serial),
                (field::ERROR_NAME, Field::Text(name)) => message.error = Some(name),
                (field::SIGNATURE, Field::Text(types)) => message.signature = types,
                _ => {}
            }
        }
        Ok(message)
    }
}

/// A message that came.
#[derive(Debug)]
pub(in super::super) struct Message {
    pub(super) kind: Kind,
    /// The call that it answers, by its number.
    pub(super) answers: Option<u32>,
    /// The name of the error.
    pub(super) error: Option<String>,
    signature: String,
    order: Order,
    body: Vec<u8>,
}

impl Message {
    fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, order: self.order }
    }

    /// The string that the body begins with.
    pub fn text(&self) -> Result<String, Malformed> {
        match self.signature.starts_with('s') {
            true => self.reader().string(),
            false => Err(Malformed("an answer is not the string that it should be")),
        }
    }

    /// The boolean that is the body.
    pub fn boolean(&self) -> Result<bool, Malformed> {
        match (self.signature.as_str(), self.reader().u32()) {
            ("b", Ok(number @ (0 | 1))) => Ok(number == 1),
            _ => Err(Malformed("an answer is not the boolean that it should be")),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
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
    order: Order,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(CUT)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT)?;
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
        let bytes = self.take(4)?.try_into().map_err(|_| CUT)?;
        Ok(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| TOO_LONG)?;
        if length > LONGEST {
            return Err(TOO_LONG);
        }
        Ok(length)
    }

    fn string(&mut self) -> Result<String, Malformed> {
        let length = self.length()?;
        self.ended(length)
    }

    fn signature(&mut self) -> Result<String, Malformed> {
        let length = self.u8()?;
        self.ended(length.into())
    }

    /// Text of this length and the NUL behind it.
    fn ended(&mut self, length: usize) -> Result<String, Malformed> {
        let text = self.take(length)?;
        if self.u8()? != 0 || text.contains(&0) {
            return Err(Malformed("a string does not end where it should"));
        }
        String::from_utf8(text.to_vec()).map_err(|_| Malformed("a string is not UTF-8"))
    }

    /// A value behind its type. Header fields have no other types than these.
    fn value(&mut self) -> Result<Field, Malformed> {
        match self.signature()?.as_str() {
            "s" | "o" => Ok(Field::Text(self.string()?)),
            "g" => Ok(Field::Text(self.signature()?)),
            "u" => Ok(Field::Number(self.u32()?)),
            _ => Err(Malformed("a header field has a type that none has")),
        }
    }
}

#[cfg(test)]
mod tests;
