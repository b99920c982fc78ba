use std::os::unix::net::UnixDatagram;

use super::*;

fn frame(kind: u16, flags: u16, seq: u32, body: &[u8]) -> Vec<u8> {
    let length = (HEADER + body.len()) as u32;
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &seq.to_ne_bytes()];
    [&head.concat()[..], &0u32.to_ne_bytes(), body].concat()
}

/// Objects may be missing after the last one.
#[test]
fn a_dump_with_the_interrupted_flag_only_at_its_end_is_repeated() {
    let (ours, kernel) = UnixDatagram::pair().unwrap();
    for (seq, objects, flags) in [(1, 1, F_DUMP_INTR), (2, 2, 0)] {
        let mut answer = frame(16, 0, seq, &[]).repeat(objects);
        answer.extend(frame(NLMSG_DONE, flags, seq, &0i32.to_ne_bytes()));
        kernel.send(&answer).unwrap();
    }
    let mut socket = Socket::from(OwnedFd::from(ours));
    let all = socket.list(Message::new(18, 0, "list"), |frame| Some(frame.kind)).unwrap();
    assert_eq!(all, [16, 16]);
}
