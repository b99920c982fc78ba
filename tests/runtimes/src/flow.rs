//! The throughput between two namespaces, to check limits.
//!
//! The result is a ratio: the bytes that arrived to the bytes that the limit allows in that time. The receiver measures
//! the time between two reads, so the start of programs and a slow connection do not count. It begins after the burst
//! of the bucket and the data that was already buffered. Data that arrives during the last read counts.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use podwire_tests::Pod;

use crate::Stage;

/// Accepts one connection, reads more than the burst of the bucket, and then counts for some seconds. Prints the bytes,
/// the seconds, and the seconds before the counting. While the burst passes, the bucket refills at its rate. Programs
/// see about 95.5 % of the bytes; the rest is headers (66 bytes of 1514).
const RECEIVE: &str = r#"
use IO::Socket::IP; use Time::HiRes qw(time); $| = 1; $SIG{ALRM} = sub { exit 1 };
my ($port, $burst, $rate, $rest, $duration, $timeout) = @ARGV;
alarm $timeout;
my $socket = IO::Socket::IP->new(LocalHost => "::", LocalPort => $port, Listen => 1, ReuseAddr => 1, V6Only => 0)
  or die "listen: $@";
print "ready\n";
my $caller = $socket->accept;
my ($passed, $is_dry, $bytes, $begin, $start, $now) = (0, 0, 0, time, 0, 0);
while (my $got = sysread $caller, my $data, 65536) {
  $now = time;
  $passed += $got;
  $is_dry ||= $passed >= 0.95 * ($burst + $rate * ($now - $begin));
  if ($rest > 0) {
    $rest -= $got if $is_dry;
    if ($rest <= 0) {
      $caller->blocking(0);
      for (1 .. 100) { sysread $caller, my $late, 65536 or last }
      $caller->blocking(1);
    }
    $start = time;
    next;
  }
  $bytes += $got;
  last if $now - $start >= $duration;
}
$caller->blocking(0);
while (my $got = sysread $caller, my $late, 65536) { $bytes += $got; $now = time }
printf "%d %.6f %.6f\n", $bytes, $now - $start, $start - $begin;"#;

/// Sends until the receiver closes.
const SEND: &str = r#"
use IO::Socket::IP; $SIG{PIPE} = "IGNORE"; $SIG{ALRM} = sub { exit 1 };
my ($host, $port, $timeout) = @ARGV;
alarm $timeout;
my $socket = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => 10) or exit 1;
my $data = "x" x 65536;
1 while defined syswrite $socket, $data;"#;

const PORT: &str = "5201";
/// Seconds of counting.
const DURATION: &str = "2";
/// Seconds after which both sides give up.
const TIMEOUT: &str = "90";

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits per second.
    pub rate: u64,
    /// Bytes that pass at once after an idle time.
    pub burst: u64,
}

/// The bytes that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Their number.
    pub bytes: u64,
    /// The time in which they arrived.
    pub seconds: f64,
    /// The time in which the bytes before arrived, which are not counted.
    pub before: f64,
}

impl Flow {
    /// The used share of a limit of `rate` bits per second: 1.0 is all of it.
    pub fn share_of(&self, rate: u64) -> f64 {
        self.bytes as f64 * 8.0 / (rate as f64 * self.seconds)
    }
}

/// How often a flow is measured before the test fails: on a busy machine the sender or the receiver may have had too
/// little CPU time.
const MEASUREMENTS: usize = 5;

impl Stage {
    /// Checks that a limit of `rate` bits per second, with a small burst or none, is used and not exceeded. The share
    /// of the payload is less than 1, because headers count too.
    #[track_caller]
    pub fn assert_limited(&self, rate: u64, from: &Pod, to: &Pod, address: &str) {
        let measured = |_| self.flow(from, to, address).share_of(rate);
        let mut shares: Vec<f64> = Vec::new();
        let is_kept = (0..MEASUREMENTS).map(measured).any(|share| {
            shares.push(share);
            (0.5..1.1).contains(&share)
        });
        assert!(is_kept, "from {} to {address}: {shares:?} of {rate} bits a second", from.name);
    }

    /// Sends over TCP from one namespace to another, at `address`, as fast as possible. For a limit with a small burst
    /// or none.
    pub fn flow(&self, from: &Pod, to: &Pod, address: &str) -> Flow {
        self.measure(["0", "0", "200000"], from, to, address)
    }

    /// The same, counted after the burst of this limit has passed, however large it is.
    pub fn flow_beyond(&self, limit: Limit, from: &Pod, to: &Pod, address: &str) -> Flow {
        let (burst, rate) = (limit.burst.to_string(), (limit.rate / 8).to_string());
        self.measure([&burst, &rate, "5000000"], from, to, address)
    }

    fn measure(&self, ignored: [&str; 3], from: &Pod, to: &Pod, address: &str) -> Flow {
        let perl = |at: &Pod, script: &str| {
            let mut command = self.command("nsenter");
            command.args([&format!("--net={}", at.netns), "perl", "-e", script]).stdin(Stdio::null());
            command
        };
        let mut receiver = perl(to, RECEIVE);
        receiver.arg(PORT).args(ignored).args([DURATION, TIMEOUT]).stdout(Stdio::piped());
        let mut receiver = receiver.spawn().expect("perl");
        let mut said = BufReader::new(receiver.stdout.take().expect("stdout"));
        let mut line = String::new();
        said.read_line(&mut line).expect("the receiver's first line");
        assert_eq!(line, "ready\n", "listen to {PORT} in {}", to.name);
        let mut sender = perl(from, SEND).args([address, PORT, TIMEOUT]).spawn().expect("perl");
        let sent = sender.wait().expect("the sender's end");
        line.clear();
        said.read_line(&mut line).expect("what arrived");
        receiver.wait().expect("the receiver's end");
        let [bytes, seconds, before] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("nothing gets from {} to {address}: {sent}", from.name)
        };
        let time = |text: &str| text.parse().expect("seconds");
        Flow { bytes: bytes.parse().expect("bytes"), seconds: time(seconds), before: time(before) }
    }
}
