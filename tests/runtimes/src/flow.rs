//! How fast bytes get from one namespace to another: is a limit kept?
//!
//! A limit is judged by a ratio: the bytes that arrived, to those that the limit allows in the time in which they
//! arrived. The receiver looks at the clock itself, between two of its own reads, so neither the start of programs nor a
//! slow connection counts; and it begins only after a bucket's burst has passed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use podwire_tests::Pod;

use crate::Stage;

/// Takes one connection; lets the first bytes pass, then counts for a while; prints bytes, seconds, and the
/// seconds that the first bytes took.
const RECEIVE: &str = r#"
use IO::Socket::IP; use Time::HiRes qw(time); $| = 1;
my ($port, $ignored, $duration) = @ARGV;
my $socket = IO::Socket::IP->new(LocalHost => "::", LocalPort => $port, Listen => 1, ReuseAddr => 1, V6Only => 0)
  or die "listen: $@";
print "ready\n";
my $caller = $socket->accept;
my ($bytes, $begin, $start, $now) = (0, time, 0, 0);
while (my $got = sysread $caller, my $data, 65536) {
  if ($ignored > 0) { $ignored -= $got; $start = time; next }
  $bytes += $got;
  $now = time;
  last if $now - $start >= $duration;
}
printf "%d %.6f %.6f\n", $bytes, $now - $start, $start - $begin;"#;

/// Sends until nobody listens any more.
const SEND: &str = r#"
use IO::Socket::IP; $SIG{PIPE} = "IGNORE"; $SIG{ALRM} = sub { exit 1 };
my ($host, $port, $patience) = @ARGV;
alarm $patience;
my $socket = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => 10) or exit 1;
my $data = "x" x 65536;
1 while defined syswrite $socket, $data;"#;

const PORT: &str = "5201";
/// Seconds of counting.
const DURATION: &str = "1.2";
/// Seconds after which a sender gives up: nothing gets through.
const PATIENCE: &str = "60";

/// What arrived.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// How much.
    pub bytes: u64,
    /// In which time.
    pub seconds: f64,
    /// In which time the bytes before had come, those that are not counted.
    pub before: f64,
}

impl Flow {
    /// How much of a limit of `rate` bits a second was used: 1.0 is all of it.
    pub fn share_of(&self, rate: u64) -> f64 {
        self.bytes as f64 * 8.0 / (rate as f64 * self.seconds)
    }
}

impl Stage {
    /// Sends over TCP from one namespace to another, at `address`, as fast as it goes, and counts once `ignored` bytes
    /// (more than a bucket's burst) have passed.
    pub fn flow_after(&self, ignored: u64, from: &Pod, to: &Pod, address: &str) -> Flow {
        let perl = |at: &Pod, script: &str| {
            let mut command = self.command("nsenter");
            command.args([&format!("--net={}", at.netns), "perl", "-e", script]).stdin(Stdio::null());
            command
        };
        let mut receiver = perl(to, RECEIVE);
        receiver.args([PORT, &ignored.to_string(), DURATION]).stdout(Stdio::piped());
        let mut receiver = receiver.spawn().expect("perl");
        let mut said = BufReader::new(receiver.stdout.take().expect("stdout"));
        let mut line = String::new();
        said.read_line(&mut line).expect("the receiver's word");
        assert_eq!(line, "ready\n", "listen to {PORT} in {}", to.name);
        let mut sender = perl(from, SEND).args([address, PORT, PATIENCE]).spawn().expect("perl");
        line.clear();
        let sent = sender.wait().expect("the sender's end");
        if !sent.success() {
            let _ = receiver.kill();
        }
        said.read_line(&mut line).expect("what arrived");
        receiver.wait().expect("the receiver's end");
        assert!(sent.success(), "nothing gets from {} to {address}", from.name);
        let [bytes, seconds, before] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("what arrived: {line}")
        };
        let time = |text: &str| text.parse().expect("seconds");
        Flow { bytes: bytes.parse().expect("bytes"), seconds: time(seconds), before: time(before) }
    }

    /// As [`flow_after`](Self::flow_after), for a limit with a small burst.
    pub fn flow(&self, from: &Pod, to: &Pod, address: &str) -> Flow {
        self.flow_after(200_000, from, to, address)
    }
}
