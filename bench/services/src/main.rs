//! podwire-bench-services: Services of `podwire agent` beside those of kube-proxy.
//!
//! Each proxy runs alone on a machine in namespaces, as a process, with the same API objects from a stand-in API server.
//! The address of every endpoint answers, so all that is measured of the kernel is measured by connecting.

mod api;
mod measure;
mod objects;
mod proxy;
mod report;
mod site;
mod usage;

use std::process::ExitCode;

use anyhow::{ensure, Result};
use clap::Parser;
use outcome::Targets;

use crate::measure::{measure, Effort};
use crate::proxy::Proxy;

/// Measures Services beside kube-proxy.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-services", version)]
struct Arguments {
    /// Numbers of Services, each with ten endpoints [default: 10,1000,10000; with --quick 10,1000]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..60_000))]
    services: Vec<u32>,
    /// What to measure [default: all]
    #[arg(long, value_name = "PROXY,PROXY", value_delimiter = ',')]
    proxies: Vec<Proxy>,
    /// Measured events of each proxy at most; after nine, only for three minutes [default: 60; with --quick 9]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    events: Option<u32>,
    /// Up to 1,000 Services and few events: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-services", arguments.enforce, || bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<Targets> {
    let sizes = match (&arguments.services[..], arguments.quick) {
        ([], true) => &[10, 1000][..],
        ([], false) => &[10, 1000, 10_000],
        (chosen, _) => chosen,
    };
    let (events, connections) = if arguments.quick { (9, 500) } else { (60, 3000) };
    let effort = Effort { events: arguments.events.unwrap_or(events), connections };
    println!("\nservices: podwire agent beside kube-proxy, {} endpoints a Service", objects::ENDPOINTS);
    let mut programs = Vec::new();
    for proxy in Proxy::ALL {
        if !arguments.proxies.is_empty() && !arguments.proxies.contains(&proxy) {
            continue;
        }
        match proxy.program() {
            Ok(program) => programs.push((proxy, program)),
            Err(why) => println!("  left out: {} ({why})", proxy.name()),
        }
    }
    ensure!(!programs.is_empty(), "none of the chosen proxies can run here");
    report::print_head();
    let mut all = Vec::new();
    for services in sizes {
        for (proxy, program) in &programs {
            match measure(*proxy, program, *services, effort) {
                Ok(row) => {
                    report::print_row(&row);
                    all.push(row);
                }
                // The others are measured all the same; a target that needs this one is missed.
                Err(error) if *proxy != Proxy::Podwire => report::print_failure(*proxy, *services, &error),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(report::report(&all, sizes.iter().copied().max().unwrap_or_default()))
}
