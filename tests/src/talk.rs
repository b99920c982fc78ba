//! Packets between namespaces: somebody who listens, somebody who asks.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};

use crate::{Node, Pod};

/// Answers whoever comes with the listener's name and the address it sees the caller at; ends with its standard
/// input.
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

/// Asks, and prints the answer; fails if none comes. A datagram may be lost, so it is sent again each second.
const ASK: &str = r#"
use IO::Socket::IP; use IO::Select;
my ($protocol, $host, $port, $patience) = @ARGV;
my $socket = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Proto => $protocol, Timeout => $patience)
  or exit 1;
my $select = IO::Select->new($socket);
my ($times, $pause) = $protocol eq "udp" ? ($patience, 1) : (1, $patience);
for (1 .. $times) {
  $socket->send("?") if $protocol eq "udp";
  last if $select->can_read($pause);
}
exit 1 unless $select->can_read(0);
$socket->recv(my $answer, 99);
exit 1 unless length $answer;
print $answer;"#;

/// Patience with an answer that should come, seconds.
const PATIENCE: &str = "20";
/// Patience with an answer that should not come.
const IMPATIENCE: &str = "1";

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
            .expect("the listener's word");
        assert_eq!(line, "ready\n", "listen to {protocol}/{port} in {name}");
        Listener { program, stdin }
    }

    fn call(&self, from: Option<&Pod>, host: &str, port: &str, patience: &str) -> Option<String> {
        let (protocol, port) = split(port);
        let words = self.words(from, "perl");
        let mut program = self.command(words[0]);
        program.args(&words[1..]).args(["-e", ASK, protocol, host, port, patience]);
        let output = program.stdin(Stdio::null()).output().expect("perl");
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_string();
        output.status.success().then_some(answer)
    }

    /// Asks `port` (such as `tcp/80`) of `host`: who answers, and at which address it sees the caller. `nobody`
    /// if no answer comes, after a long while: ask [`Node::is_silent`] where none should.
    pub fn ask(&self, from: Option<&Pod>, host: &str, port: &str) -> String {
        self.call(from, host, port, PATIENCE).unwrap_or_else(|| "nobody".into())
    }

    /// Whether nobody answers at `port` of `host`. (Asked only where an answer, if any, comes at once.)
    pub fn is_silent(&self, from: Option<&Pod>, host: &str, port: &str) -> bool {
        self.call(from, host, port, IMPATIENCE).is_none()
    }

    /// Whether `host` answers an echo request of `size` bytes that must not be cut.
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

    /// A wire both ends of which, `wire` and `far`, are on the node and up: something for interfaces to hang on.
    pub fn lay_wire(&self) {
        self.sh("ip link add wire type veth peer name far && ip link set wire up && ip link set far up");
    }

    /// A machine next to the node, on a wire of its own: it has the addresses `net`.2 and `net6`::2, the node
    /// has .1 and ::1 on `wire-<name>`. It knows no way to anywhere else.
    pub fn neighbour(&self, name: &str, net: &str, net6: &str) -> Pod {
        let machine = self.pod(name);
        self.sh(&format!(
            "ip link add wire-{name} type veth peer name wire netns {name}
             ip address add {net}.1/24 dev wire-{name}
             ip -6 address add {net6}::1/64 dev wire-{name} nodad
             ip link set wire-{name} up
             ip -n {name} link set lo up
             ip -n {name} address add {net}.2/24 dev wire
             ip -n {name} -6 address add {net6}::2/64 dev wire nodad
             ip -n {name} link set wire up"
        ));
        machine
    }
}

fn split(port: &str) -> (&str, &str) {
    port.split_once('/').unwrap_or_else(|| panic!("{port}: write protocol/port"))
}
