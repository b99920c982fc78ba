//! The table and the targets.

use outcome::Targets;

use crate::measure::Measured;
use crate::proxy::Proxy;

/// The targets relative to kube-proxy in nftables mode, with the most Services: the time of the first programming and of
/// an event, and memory.
const MAX_LATENCY: f64 = 0.25;
const MAX_MEMORY: f64 = 0.5;
/// The time of a connection to the last Service, relative to one to the first.
const MAX_LAST: f64 = 1.1;

pub fn print_head() {
    println!(
        "  {:>8} {:20}{:>8}{:>9}{:>7} {:>17}{:>18}{:>8}{:>8}{:>7}{:>8}{:>16}",
        "services",
        "proxy",
        "list ms",
        "first s",
        "events",
        "event p50, p99 ms",
        "number changes ms",
        "RSS MB",
        "peak MB",
        "CPU s",
        "lag ms",
        "connection µs"
    );
}

pub fn print_row(row: &Measured) {
    let (now, peak) = row.memory;
    let quantiles = |of: &outcome::Samples| format!("{:.1}, {:.1}", of.median(), of.quantile(0.99));
    let [first, last] = &row.connections;
    println!(
        "  {:>8} {:20}{:>8.0}{:>9.2}{:>7} {:>17}{:>18}{:>8.1}{:>8.1}{:>7.2}{:>8.0}{:>16}",
        row.services,
        row.proxy.name(),
        row.list.as_secs_f64() * 1e3,
        row.first.as_secs_f64(),
        row.replaced.count() + row.resized.count(),
        quantiles(&row.replaced),
        quantiles(&row.resized),
        now,
        peak,
        row.load,
        row.lag.as_secs_f64() * 1e3,
        format!("{:.1}, {:.1}", first.median(), last.median()),
    );
}

/// Prints why a proxy was not measured, without its log.
pub fn print_failure(proxy: Proxy, services: u32, error: &anyhow::Error) {
    println!("  {services:>8} {:20} failed: {}", proxy.name(), error.root_cause());
}

/// Prints which targets are met with this number of Services.
pub fn report(all: &[Measured], services: u32) -> Targets {
    let mut targets = Targets::default();
    let find = |proxy: Proxy| all.iter().find(|row| row.services == services && row.proxy == proxy);
    let (ours, peer) = (find(Proxy::Podwire), find(Proxy::Nftables));
    let mut compare = |what: &str, limit: f64, value: fn(&Measured) -> f64| {
        let ratio = ours.zip(peer).map(|(ours, peer)| value(ours) / value(peer));
        let shown = ratio.map_or("not measured".into(), |ratio| format!("{ratio:.4}"));
        let is_met = ratio.is_some_and(|ratio| ratio <= limit);
        targets.report(
            is_met,
            &format!("{services} Services: {what} at most {limit} of kube-proxy's in nftables mode: {shown}"),
        );
    };
    compare("the first programming takes", MAX_LATENCY, |row| row.first.as_secs_f64());
    compare("new endpoints (p50) take", MAX_LATENCY, |row| row.replaced.median());
    compare("new endpoints (p99) take", MAX_LATENCY, |row| row.replaced.quantile(0.99));
    compare("another number of endpoints (p50) takes", MAX_LATENCY, |row| row.resized.median());
    compare("another number of endpoints (p99) takes", MAX_LATENCY, |row| row.resized.quantile(0.99));
    compare("memory is", MAX_MEMORY, |row| row.memory.0);
    let flat = ours.map(|row| row.connections[1].median() / row.connections[0].median());
    let shown = flat.map_or("not measured".into(), |ratio| format!("{ratio:.3}"));
    targets.report(
        flat.is_some_and(|ratio| ratio <= MAX_LAST),
        &format!("{services} Services: a connection to the last one takes at most {MAX_LAST} of one to the first: {shown}"),
    );
    targets
}
