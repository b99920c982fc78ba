//! Controllers against a real kube-apiserver with a real etcd: no two nodes get the same pod CIDR, whatever happens.
//!
//! The API server starts once, with the rights for the controller that docs/controller.md lists, and every case begins
//! without nodes. This program is both the test and the controllers that it starts and kills, so it has its own `main`
//! instead of the test harness. Arguments select cases by their names.

mod blocks;
mod cases;
mod cluster;
mod controller;
mod node;

use std::time::Instant;

use cluster::Cluster;
use podwire_test_servers::kubernetes_programs;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|word| word == controller::WORD) {
        return controller::main(&args[1..]);
    }
    let programs = match kubernetes_programs(&["kube-controller-manager"]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: controllers against a real API server: {why}"),
    };
    let wanted: Vec<&String> = args.iter().filter(|word| !word.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
    // Dropped outside of `block_on`: the cluster has a runtime of its own.
    let mut cluster = runtime.block_on(Cluster::start(&programs));
    runtime.block_on(async {
        for case in cases::CASES.iter().filter(|case| chosen(case.name, &wanted)) {
            let start = Instant::now();
            cluster.clear().await;
            (case.run)(&mut cluster).await;
            eprintln!("ok {} ({:.1} s)", case.name, start.elapsed().as_secs_f32());
        }
    });
}

fn chosen(name: &str, wanted: &[&String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str()))
}
