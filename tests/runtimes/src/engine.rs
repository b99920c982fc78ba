//! The container engines with a command line, and the checks that all of them must pass.
//!
//! podman calls the plugins itself. Docker creates a container without a network, and `podwire cni` attaches it.
//! [`Engine::packets_pass`] and [`Engine::crowd`] check both.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use podwire_tests::{differences, Pod};

use crate::Stage;

/// The command of a container: it serves a page with its name.
pub const SERVE: &str = "mkdir -p /www && echo $NAME > /www/index.html && exec httpd -f -p 80 -h /www";

/// The configuration of a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// Host ports and the container's TCP ports that they map to.
    pub ports: Vec<(u16, u16)>,
    /// Additional options of the engine's `run`.
    pub options: Vec<String>,
}

impl ContainerSpec {
    /// A container with this name.
    pub fn named(name: &str) -> ContainerSpec {
        ContainerSpec { name: name.into(), ..ContainerSpec::default() }
    }

    /// Adds a host port that maps to a port of the container.
    pub fn port(mut self, host: u16, container: u16) -> ContainerSpec {
        self.ports.push((host, container));
        self
    }

    /// Adds options of the engine's `run`.
    pub fn with(mut self, options: &[&str]) -> ContainerSpec {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }
}

/// A running container.
#[derive(Clone, Debug)]
pub struct ContainerInfo {
    /// The engine's id of the container, which is the plugins' container id.
    pub id: String,
    /// Its network namespace, with a name for the stage's functions (ping, listen).
    pub pod: Pod,
    /// The addresses of its `eth0`, IPv4 first.
    pub addresses: Vec<String>,
}

/// An engine on a stage.
pub trait Engine: Sync {
    /// The stage.
    fn stage(&self) -> &Stage;

    /// Starts a container that serves a page with its name. The error is the engine's.
    fn try_run(&self, spec: &ContainerSpec) -> Result<ContainerInfo, String>;

    /// Runs a shell script in a container. The error is what it prints.
    fn try_exec(&self, name: &str, script: &str) -> Result<String, String>;

    /// Removes a container and its network.
    fn remove(&self, name: &str);

    /// Starts a container that serves a page with its name; panics if that fails.
    #[track_caller]
    fn run(&self, spec: &ContainerSpec) -> ContainerInfo {
        self.try_run(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.name))
    }

    /// Runs a shell script in a container and returns what it prints; panics if it fails.
    #[track_caller]
    fn exec(&self, name: &str, script: &str) -> String {
        self.try_exec(name, script).unwrap_or_else(|error| panic!("{script} in {name}: {error}"))
    }

    /// Checks two containers, `web` with host port 8080 and another: they reach each other and the machine outside, and
    /// the machine outside reaches them, over both families.
    #[track_caller]
    fn packets_pass(&self, outside: &Pod, web: &ContainerInfo, (name, other): (&str, &ContainerInfo)) {
        let stage = self.stage();
        assert_eq!(web.addresses.len(), 2, "IPv4 and IPv6: {:?}", web.addresses);
        for address in &other.addresses {
            self.exec("web", &format!("ping -c 1 -W 10 {address}"));
        }
        for address in &web.addresses {
            self.exec(name, &format!("ping -c 1 -W 10 {address}"));
        }
        for address in [stage.address().to_owned(), format!("[{}]", stage.address6())] {
            let port = format!("{address}:8080");
            assert_eq!(stage.page(outside, &port), "web", "from outside, {port}");
            assert_eq!(stage.page(&other.pod, &port), "web", "from behind the same bridge, {port}");
        }
        // The machine outside sees the node's address.
        let _listener = stage.listen(Some(outside), "tcp/99");
        for (world, node) in [("192.0.2.2", stage.address()), ("2001:db8:2::2", stage.address6())] {
            assert_eq!(
                self.exec("web", &format!("nc {world} 99 </dev/null")).trim(),
                format!("outside {node}")
            );
        }
    }

    /// Starts fifty containers with a host port each, eight at a time: all have different addresses and answer. Then
    /// removes them, eight at a time.
    fn crowd(&self, outside: &Pod) {
        let names: Vec<String> = (0..50).map(|n| format!("box-{n}")).collect();
        let containers =
            at_once(8, &names, |n, name| self.run(&ContainerSpec::named(name).port(20_000 + n, 80)));
        let stage = self.stage();
        let addresses: BTreeSet<_> = containers.iter().flat_map(|container| &container.addresses).collect();
        assert_eq!(addresses.len(), 2 * names.len(), "each has two addresses, and no two the same");
        let pings = addresses
            .iter()
            .map(|address| format!("ping -q -c 1 -W 10 {address} >/dev/null || echo {address}\n"));
        assert_eq!(stage.sh(&(pings.collect::<String>() + "true")), "", "addresses that do not answer");
        for n in [0, 17, 49] {
            let port = format!("{}:{}", stage.address(), 20_000 + n);
            assert_eq!(stage.page(outside, &port), names[n], "{port}");
        }
        at_once(8, &names, |_, name| self.remove(name));
    }
}

/// Calls a function for each item, `width` at a time. Returns the results in the order of the items.
fn at_once<T: Send>(width: usize, all: &[String], work: impl Fn(u16, &str) -> T + Sync) -> Vec<T> {
    let next = Mutex::new(all.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let take = || next.lock().expect("the queue").next();
    std::thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                while let Some((n, name)) = take() {
                    let made = work(n as u16, name);
                    done.lock().expect("the results").push((n, made));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("the results");
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, made)| made).collect()
}

impl Stage {
    /// The page at this address, requested from a network namespace.
    #[track_caller]
    pub fn page(&self, at: &Pod, address: &str) -> String {
        let fetch = format!("nsenter --net={} timeout 10 busybox wget -qO- http://{address}/", at.netns);
        // The server may not have opened its port yet.
        self.sh(&format!("for try in $(seq 150); do {fetch} && exit; sleep 0.2; done; exit 1")).trim().into()
    }

    /// The addresses of an interface in a namespace, IPv4 first, without link-local ones. None if the interface does
    /// not exist.
    pub fn addresses(&self, netns: &str, ifname: &str) -> Vec<String> {
        let found =
            self.json(&format!("nsenter --net={netns} ip -j address show dev {ifname} 2>/dev/null || true"));
        let all = found[0]["addr_info"].as_array().cloned().unwrap_or_default();
        let wide = all.iter().filter(|one| one["scope"] == "global");
        wide.filter_map(|one| one["local"].as_str()).map(String::from).collect()
    }

    /// Panics if the stage differs from `before`. The kernel deletes links in the background, so this waits.
    #[track_caller]
    pub fn assert_nothing_left(&self, before: &str) {
        self.assert_no_change(before, |_| true);
    }

    /// Panics if anything is on the stage that was not there `before`. Missing objects are allowed: Podwire's plugins
    /// remove more of what Go's leave, and the index of host-local has other files after a crash.
    #[track_caller]
    pub fn assert_nothing_new(&self, before: &str) {
        self.assert_no_change(before, |line| line.starts_with('+'));
    }

    #[track_caller]
    fn assert_no_change(&self, before: &str, counts: impl Fn(&str) -> bool) {
        let changed = |stage: &Stage| -> Vec<String> {
            let changed = differences(before, &stage.traces());
            changed.lines().filter(|line| !line.is_empty() && counts(line)).map(String::from).collect()
        };
        settle_at(self, "left behind", changed, &Vec::new());
    }
}

/// Waits until `look` returns what is expected: an engine ends and cleans up shortly after it has reported success.
#[track_caller]
pub fn settle_at<S, T: PartialEq + Debug>(stage: &S, what: &str, look: impl Fn(&S) -> T, wanted: &T) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let found = look(stage);
        if found == *wanted {
            return;
        }
        assert!(Instant::now() < end, "{what}: {found:#?}, not {wanted:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
