use super::*;

const CALL: Call<'_> = Call {
    destination: "a.b",
    path: "/a",
    interface: "a.c",
    member: "add",
    args: &["trusted", "10.1.0.5/32"],
};

/// A message in the sender's byte order, as it comes from the bus.
fn incoming(kind: u8, order: ByteOrder, fields: &[(u8, &str, &[u8])], body: &[u8]) -> Vec<u8> {
    let number = |n: usize| match order {
        ByteOrder::Little => (n as u32).to_le_bytes(),
        ByteOrder::Big => (n as u32).to_be_bytes(),
    };
    let mut area = Writer::default();
    for (code, types, value) in fields {
        area.field(*code, types).unwrap();
        if *types != "g" {
            area.align(4);
        }
        area.0.extend(*value);
    }
    let first = if matches!(order, ByteOrder::Big) { b'B' } else { b'l' };
    let mut all = vec![first, kind, 1, VERSION];
    all.extend(number(body.len()));
    all.extend(number(77));
    all.extend(number(area.0.len()));
    all.extend(&area.0);
    all.resize(all.len().next_multiple_of(8), 0);
    all.extend(body);
    all
}

fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    let (prefix, rest) = bytes.split_first_chunk().ok_or(TRUNCATED)?;
    Prefix::decode(prefix)?.message(rest)
}

fn refusal() -> Vec<u8> {
    let fields: [(u8, &str, &[u8]); 3] = [
        (field::REPLY_SERIAL, "u", &[7, 0, 0, 0]),
        (field::ERROR_NAME, "s", b"\x03\0\0\0a.E\0"),
        (field::SIGNATURE, "g", b"\x01s\0"),
    ];
    incoming(ERROR, ByteOrder::Little, &fields, b"\x02\0\0\0no\0")
}

#[test]
fn a_call_is_encoded_as_specified() {
    let expected = [
        b"l\x01\x02\x01\x1c\0\0\0\x05\0\0\0\x48\0\0\0".as_slice(),
        b"\x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0",
        b"\x02\x01s\0\x03\0\0\0a.c\0\0\0\0\0",
        b"\x03\x01s\0\x03\0\0\0add\0\0\0\0\0",
        b"\x06\x01s\0\x03\0\0\0a.b\0\0\0\0\0",
        b"\x08\x01g\0\x02ss\0",
        b"\x07\0\0\0trusted\0\x0b\0\0\x0010.1.0.5/32\0",
    ];
    assert_eq!(CALL.encode(5).unwrap(), expected.concat());
}

#[test]
fn an_encoded_call_can_be_decoded() {
    let encoded = CALL.encode(5).unwrap();
    let message = decode(&encoded).unwrap();
    assert_eq!((message.kind, message.reply_to), (Kind::Other, None));
    assert_eq!((message.signature.as_str(), message.text().unwrap().as_str()), ("ss", "trusted"));
    let bare = Call { args: &[], ..CALL };
    assert_eq!(decode(&bare.encode(1).unwrap()).unwrap().signature, "");
}

#[test]
fn invalid_arguments_are_not_encoded() {
    assert!(Call { args: &["a\0b"], ..CALL }.encode(1).is_err());
    assert_eq!(Call { args: &[&"x".repeat(MAX_LENGTH + 1)], ..CALL }.encode(1), Err(TOO_LONG));
    assert_eq!(Call { args: &[""; 300], ..CALL }.encode(1), Err(TOO_LONG));
}

#[test]
fn errors_have_a_name_and_a_text() {
    let message = decode(&refusal()).unwrap();
    assert_eq!((message.kind, message.reply_to), (Kind::Error, Some(7)));
    assert_eq!((message.error.as_deref(), message.text()), (Some("a.E"), Ok("no".into())));
    assert!(message.boolean().is_err());
}

#[test]
fn booleans_come_in_either_byte_order() {
    let orders = [(ByteOrder::Little, [1, 0, 0, 0]), (ByteOrder::Big, [0, 0, 0, 1])];
    for (order, one) in orders {
        let fields: [(u8, &str, &[u8]); 2] =
            [(field::SIGNATURE, "g", b"\x01b\0"), (field::REPLY_SERIAL, "u", &one)];
        let message = decode(&incoming(METHOD_RETURN, order, &fields, &one)).unwrap();
        assert_eq!((message.reply_to, message.boolean()), (Some(1), Ok(true)));
        assert!(message.text().is_err());
        let two = one.map(|byte| byte * 2);
        assert!(decode(&incoming(METHOD_RETURN, order, &fields, &two)).unwrap().boolean().is_err());
    }
}

#[test]
fn unknown_fields_are_skipped() {
    let fields: [(u8, &str, &[u8]); 2] =
        [(200, "o", b"\x01\0\0\0/\0"), (field::REPLY_SERIAL, "u", &[9, 0, 0, 0])];
    assert_eq!(decode(&incoming(METHOD_RETURN, ByteOrder::Little, &fields, b"")).unwrap().reply_to, Some(9));
    let wrong: [(u8, &str, &[u8]); 1] = [(field::REPLY_SERIAL, "a{sv}", &[0; 8])];
    assert!(decode(&incoming(METHOD_RETURN, ByteOrder::Little, &wrong, b"")).is_err());
}

#[test]
fn excessive_lengths_are_refused() {
    for place in [4, 12] {
        let mut bytes = refusal();
        bytes[place..place + 4].fill(0xff);
        let prefix: &[u8; Prefix::LENGTH] = bytes.first_chunk().unwrap();
        assert_eq!(Prefix::decode(prefix).unwrap_err(), TOO_LONG);
    }
}

#[test]
fn truncated_or_changed_messages_cause_no_panic() {
    let whole = refusal();
    for length in 0..whole.len() {
        assert!(decode(&whole[..length]).is_err(), "{length} bytes");
    }
    for place in 0..whole.len() {
        for value in 0..=u8::MAX {
            let mut bytes = whole.clone();
            bytes[place] = value;
            if let Ok(message) = decode(&bytes) {
                let _ = (message.text(), message.boolean());
            }
        }
    }
}
