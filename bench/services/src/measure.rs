//! The measurements of one proxy with one number of Services.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use outcome::Samples;
use podwire_netlink::{nft, Socket};
use podwire_tests::Process;

use crate::api::{self, Api};
use crate::objects::{EndpointPort, Service, ENDPOINTS};
use crate::proxy::Proxy;
use crate::site::{connect, connection_time, Site};
use crate::usage;

/// The time limit of everything that a proxy must do: kube-proxy with 10,000 Services takes minutes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(900);
/// The interval of attempts to reach the Services for the first time.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time from a change of the rules to the connection that looks for it, also where the rules are not those of
/// nf_tables, which announces changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// An event is measured after the proxy did nothing for this time: kube-proxy waits for a second after each sync, and
/// deletes chains in a later one.
const QUIET: Duration = Duration::from_millis(1500);
/// The processor seconds within this time of a proxy that does nothing.
const IDLE: f64 = 0.03;
/// This many events are measured in any case, and more only within this time: one takes kube-proxy half a minute with
/// 10,000 Services.
const MIN_EVENTS: u32 = 9;
const EVENTS_TIME: Duration = Duration::from_secs(180);
/// The numbers of endpoints that follow each other in the measured events.
const COUNTS: [u32; 3] = [ENDPOINTS, ENDPOINTS, ENDPOINTS - 1];
/// The events of the load, and the time between two of them.
const LOAD_EVENTS: u32 = 500;
const LOAD_INTERVAL: Duration = Duration::from_millis(10);

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub events: u32,
    pub connections: u32,
}

/// The measurements.
#[derive(Debug)]
pub struct Measured {
    pub proxy: Proxy,
    pub services: u32,
    /// The time in which the stand-in lists the EndpointSlices.
    pub list: Duration,
    /// From the start of the process until the first, the middle and the last Service answer.
    pub first: Duration,
    /// Milliseconds from an event to the kernel: the endpoints are replaced, and their number changes.
    pub replaced: Samples,
    pub resized: Samples,
    /// Memory in MB after all events, and its peak.
    pub memory: (f64, f64),
    /// Processor seconds for the load, and the time from its last event to the kernel.
    pub load: f64,
    pub lag: Duration,
    /// Microseconds of a connection to the first and to the last Service.
    pub connections: [Samples; 2],
}

/// A running proxy with its node and its API server. It ends first.
struct Running {
    process: Process,
    api: Api,
    /// Announces changes of the node's nf_tables rules.
    notices: Socket,
    site: Site,
    /// The Service whose events are measured, and the port of its endpoints.
    probe: Service,
    port: EndpointPort,
}

pub fn measure(proxy: Proxy, program: &Path, services: u32, effort: Effort) -> Result<Measured> {
    let site = Site::new()?;
    let api = Api::start(site.netns()?, services)?;
    let list = site.netns()?.run(api::list_time)??;
    let start = Instant::now();
    let process = proxy.start(program, &site.node);
    let first = wait_for_first(&site, services).with_context(|| process.said())?;
    check_all(&site, services)?;
    let notices = site.netns()?.run(|| -> Result<Socket> {
        let mut notices = Socket::netfilter()?;
        notices.subscribe(nft::GROUP)?;
        Ok(notices)
    })??;
    let mut running =
        Running { process, api, notices, site, probe: Service(services), port: EndpointPort::A };
    let (replaced, resized) = running.events(effort.events)?;
    let (load, lag) = running.load(services)?;
    Ok(Measured {
        proxy,
        services,
        list,
        first: first.duration_since(start),
        replaced,
        resized,
        memory: usage::memory(running.process.id())?,
        load,
        lag,
        connections: running.connections(services, effort.connections)?,
    })
}

/// Waits until the first, the middle and the last Service answer. Returns the time.
fn wait_for_first(site: &Site, services: u32) -> Result<Instant> {
    let end = Instant::now() + TIMEOUT;
    for service in [0, services / 2, services].map(Service) {
        while site.in_client(|| connect(service))?.is_err() {
            ensure!(Instant::now() < end, "{service:?} of {services} does not answer within {TIMEOUT:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(Instant::now())
}

/// Every Service must answer.
fn check_all(site: &Site, services: u32) -> Result<()> {
    let connect_all =
        || (0..=services).map(Service).try_for_each(|service| connection_time(service).map(drop));
    site.in_client(connect_all)?.context("after the first Services answered")
}

impl Running {
    /// Waits until the proxy and the programs that it starts do nothing.
    fn wait_until_idle(&self) -> Result<()> {
        let (pid, end) = (self.process.id(), Instant::now() + TIMEOUT);
        let mut before = usage::processor_time(pid)?;
        loop {
            std::thread::sleep(QUIET);
            let now = usage::processor_time(pid)?;
            if now - before <= IDLE && !usage::has_children(pid)? {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "the proxy is still busy after {TIMEOUT:?}: {}",
                self.process.said()
            );
            before = now;
        }
    }

    /// Measures events of the probe, one by one, at most this many.
    fn events(&mut self, count: u32) -> Result<(Samples, Samples)> {
        let (mut replaced, mut resized) = (Samples::default(), Samples::default());
        let (mut before, start) = (ENDPOINTS, Instant::now());
        for (number, endpoints) in (0..count).zip(COUNTS.into_iter().cycle()) {
            if number >= MIN_EVENTS && start.elapsed() > EVENTS_TIME {
                break;
            }
            self.wait_until_idle()?;
            let time = self.event(endpoints)?.as_secs_f64() * 1e3;
            if endpoints == before {
                replaced.add(time);
            } else {
                resized.add(time);
            }
            before = endpoints;
        }
        Ok((replaced, resized))
    }

    /// Replaces all endpoints of the probe by this number of others. Returns the time until a connection reaches one.
    fn event(&mut self, endpoints: u32) -> Result<Duration> {
        self.notices.drain(|_| {})?;
        self.port = self.port.other();
        let slice = self.probe.slice(0..endpoints, self.port);
        let start = Instant::now();
        self.api.put_slice(slice);
        loop {
            // After the timeout, and if notices were lost, the connection tells.
            self.notices.notice(LOOK_INTERVAL, nft::announced_generation)?;
            let answer = self.site.in_client(|| connect(self.probe))?;
            let time = start.elapsed();
            match answer {
                Ok(answer) if answer == self.port.answer() => return Ok(time),
                Ok(_) => {}
                Err(error) => bail!("an event interrupted {:?}: {error}", self.probe),
            }
            ensure!(
                time < TIMEOUT,
                "an event is not in the kernel within {TIMEOUT:?}: {}",
                self.process.said()
            );
        }
    }

    /// Changes an endpoint of another Service every few milliseconds. The last event is one of the probe.
    fn load(&mut self, services: u32) -> Result<(f64, Duration)> {
        self.wait_until_idle()?;
        let before = usage::processor_time(self.process.id())?;
        let start = Instant::now();
        for number in 0..LOAD_EVENTS {
            let due = start + LOAD_INTERVAL * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // In each round another endpoint is replaced by an eleventh one, or returns.
            let (service, round) = (number % services, number / services);
            let left_out = (round + 1) % (ENDPOINTS + 1);
            let endpoints = (0..=ENDPOINTS).filter(|index| *index != left_out);
            self.api.put_slice(Service(service).slice(endpoints, EndpointPort::A));
        }
        let lag = self.event(ENDPOINTS)?;
        Ok((usage::processor_time(self.process.id())? - before, lag))
    }

    /// Measures connections to the first and to the last Service in turns.
    fn connections(&self, services: u32, count: u32) -> Result<[Samples; 2]> {
        self.wait_until_idle()?;
        self.site.in_client(|| {
            let mut samples = [Samples::default(), Samples::default()];
            for _ in 0..count {
                for (samples, service) in samples.iter_mut().zip([0, services - 1]) {
                    samples.add(connection_time(Service(service))?);
                }
            }
            Ok(samples)
        })?
    }
}
