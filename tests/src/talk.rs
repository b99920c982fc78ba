//! Packets between namespaces: listeners and clients.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};

use crate::{Node, Pod};

/// Answers every request with the listener's name and the caller's address; ends when its standard input is closed.
const LISTEN: &str = r#"
use IO::Socket::IP; use IO::Select; $| = 1;
my ($name, $protocol, $port) = @ARGV;
my @kind = $protocol eq "tcp" ? (Listen => 16, ReuseAddr => 1) : ();
my $socket = IO::Socket::IP->new(LocalHost => "::", LocalPort => $port, Proto => $protocol, V6Only => 0, @kind)
  or die "listen: $@";
print "ready\n";
my $select = IO::Select->new($socket, \*STDIN);
while (1) {
  for my $one ($select->can_read) {
    exit if $one == \*STDIN;
    my ($caller, $question) = ($socket, "");
    if ($protocol eq "tcp") { $caller = $socket->accept or next } else { $socket->recv($question, 99) }
    (my $seen = $caller->peerhost) =~ s/^::ffff://;
    $caller->send("$name $seen\n");
    close $caller if $protocol eq "tcp";
  }
}"#;

/// Sends a request and prints the answer; fails without one. A datagram is sent again each second, because it can be
/// lost.
const ASK: &str = r#"
use IO::Socket::IP; use IO::Select;
my ($protocol, $host, $port, $timeout) = @ARGV;
my $socket = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Proto => $protocol, Timeout => $timeout)
  or exit 1;
my $select = IO::Select->new($socket);
my ($times, $pause) = $protocol eq "udp" ? ($timeout, 1) : (1, $timeout);
for (1 .. $times) {
  $socket->send("?") if $protocol eq "udp";
  last if $select->can_read($pause);
}
exit 1 unless $select->can_read(0);
$socket->recv(my $answer, 99);
exit 1 unless length $answer;
print $answer;"#;

/// The timeout for an expected answer, in seconds.
const TIMEOUT: &str = "20";
/// The timeout where no answer is expected.
const SHORT_TIMEOUT: &str = "1";

/// A listening socket in a namespace, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    program: Child,
    stdin: Option<ChildStdin>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.program.wait();
    }
}

impl Node {
    /// What runs `program` in the pod, or on the node itself.
    fn words<'a>(&self, at: Option<&'a Pod>, program: &'a str) -> Vec<&'a str> {
        match at {
            Some(pod) => vec!["ip", "netns", "exec", &pod.name, program],
            None => vec![program],
        }
    }

    /// Listens to `port` (such as `tcp/80`) in the pod, or on the node itself.
    pub fn listen(&self, at: Option<&Pod>, port: &str) -> Listener {
        let (protocol, port) = split(port);
        let name = at.map_or("node", |pod| &pod.name);
        let words = self.words(at, "perl");
        let mut program = self
            .command(words[0])
            .args(&words[1..])
            .args(["-e", LISTEN, name, protocol, port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let stdin = program.stdin.take();
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("stdout"))
            .read_line(&mut line)
            .expect("the listener's first line");
        assert_eq!(line, "ready\n", "listen to {protocol}/{port} in {name}");
        Listener { program, stdin }
    }

    fn call(&self, from: Option<&Pod>, host: &str, port: &str, timeout: &str) -> Option<String> {
        let (protocol, port) = split(port);
        let words = self.words(from, "perl");
        let mut program = self.command(words[0]);
        program.args(&words[1..]).args(["-e", ASK, protocol, host, port, timeout]);
        let output = program.stdin(Stdio::null()).output().expect("perl");
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_string();
        output.status.success().then_some(answer)
    }

    /// Sends a request to `port` (such as `tcp/80`) of `host`. Returns the answering listener and the caller's address
    /// as it sees it, or `no answer` after a long timeout: use [`Node::is_silent`] where no answer is expected.
    pub fn ask(&self, from: Option<&Pod>, host: &str, port: &str) -> String {
        self.call(from, host, port, TIMEOUT).unwrap_or_else(|| "no answer".into())
    }

    /// Whether `port` of `host` gives no answer within a second.
    pub fn is_silent(&self, from: Option<&Pod>, host: &str, port: &str) -> bool {
        self.call(from, host, port, SHORT_TIMEOUT).is_none()
    }

    /// Whether `host` answers an echo request of `size` bytes that must not be fragmented.
    pub fn pings_with(&self, from: Option<&Pod>, host: &str, size: u32) -> bool {
        let program = format!("ping -q -c 1 -W 5 -M do -s {size} {host}");
        match from {
            Some(pod) => self.can(&format!("ip netns exec {} {program}", pod.name)),
            None => self.can(&program),
        }
    }

    /// Whether `host` answers an echo request.
    pub fn pings(&self, from: Option<&Pod>, host: &str) -> bool {
        self.pings_with(from, host, 56)
    }

    /// Creates a veth pair on the node, `uplink` and `far`, both up: a master for other interfaces.
    pub fn create_uplink(&self) {
        self.sh("ip link add uplink type veth peer name far && ip link set uplink up && ip link set far up");
    }

    /// A machine next to the node, on a separate link. It has the addresses `net`.2 and `net6`::2, the node has .1 and
    /// ::1 on `link-<name>`. It has no other routes.
    pub fn neighbour(&self, name: &str, net: &str, net6: &str) -> Pod {
        let machine = self.pod(name);
        self.sh(&format!(
            "ip link add link-{name} type veth peer name eth0 netns {name}
             ip address add {net}.1/24 dev link-{name}
             ip -6 address add {net6}::1/64 dev link-{name} nodad
             ip link set link-{name} up
             ip -n {name} link set lo up
             ip -n {name} address add {net}.2/24 dev eth0
             ip -n {name} -6 address add {net6}::2/64 dev eth0 nodad
             ip -n {name} link set eth0 up"
        ));
        machine
    }
}

fn split(port: &str) -> (&str, &str) {
    port.split_once('/').unwrap_or_else(|| panic!("{port}: write protocol/port"))
}
