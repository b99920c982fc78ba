use std::os::unix::net::UnixDatagram;

use super::*;

fn frame(kind: u16, flags: u16, seq: u32, body: &[u8]) -> Vec<u8> {
    let length = (HEADER + body.len()) as u32;
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &seq.to_ne_bytes()];
    [&head.concat()[..], &0u32.to_ne_bytes(), body].concat()
}

/// Behind the last object that was shown, others may have been hidden.
#[test]
fn a_list_of_which_only_the_end_says_that_it_changed_is_read_again() {
    let (ours, kernel) = UnixDatagram::pair().unwrap();
    for (seq, objects, flags) in [(1, 1, F_DUMP_INTR), (2, 2, 0)] {
        let mut said = frame(16, 0, seq, &[]).repeat(objects);
        said.extend(frame(NLMSG_DONE, flags, seq, &0i32.to_ne_bytes()));
        kernel.send(&said).unwrap();
    }
    let mut socket = Socket::from(OwnedFd::from(ours));
    let all = socket.list(Message::new(18, 0, "list"), |frame| Some(frame.kind)).unwrap();
    assert_eq!(all, [16, 16]);
}
