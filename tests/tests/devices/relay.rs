//! A program that opens TAP devices and forwards frames between them, as a virtual switch does.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};

use podwire_tests::{Node, Pod};

/// Opens `eth0` of two namespaces and copies frames from each to the other; ends with its standard input.
const RELAY: &str = r#"
use strict; use IO::Select; $| = 1;
my ($flags, @namespaces) = @ARGV;
my $setns = {x86_64 => 308, aarch64 => 268}->{(split " ", `uname -m`)[0]};
my @taps = map {
  open(my $netns, "<", $_) or die "$_: $!";
  syscall($setns, fileno($netns), 0x40000000) == 0 or die "setns: $!";
  open(my $tap, "+<", "/dev/net/tun") or die "tun: $!";
  ioctl($tap, 0x400454ca, pack("a16 S x22", "eth0", hex $flags)) or die "TUNSETIFF: $!";
  $tap;
} @namespaces;
print "ready\n";
my $select = IO::Select->new(@taps, \*STDIN);
while (1) {
  for my $one ($select->can_read) {
    exit if $one == \*STDIN;
    sysread($one, my $frame, 70000) or exit;
    syswrite($_, $frame) for grep { $_ != $one } @taps;
  }
}"#;

/// TAP, no header before a frame (linux/if_tun.h).
pub const PLAIN: &str = "1002";
/// The same for one of several queues.
pub const QUEUE: &str = "1102";

/// The program, until it is dropped.
pub struct Relay {
    program: Child,
    stdin: Option<ChildStdin>,
}

impl Relay {
    /// Opens the TAP devices of the pods with these flags; `None` if the kernel refuses.
    pub fn open(node: &Node, flags: &str, pods: &[&Pod]) -> Option<Relay> {
        let mut program = node
            .command("perl")
            .args(["-e", RELAY, flags])
            .args(pods.iter().map(|pod| &pod.netns))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("perl");
        let stdin = program.stdin.take();
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("stdout")).read_line(&mut line).expect("its first line");
        let relay = Relay { program, stdin };
        (line == "ready\n").then_some(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.program.wait();
    }
}
