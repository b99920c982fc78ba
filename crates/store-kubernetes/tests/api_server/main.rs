//! The store on a real kube-apiserver: it passes the conformance suite, and writes what Calico writes.
//!
//! Arguments select cases by their names. The test is skipped where Kubernetes' programs cannot be built.

mod cases;

use std::time::Instant;

use podwire_test_servers::{kubernetes_programs, KubeApiServer};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: the store on a real API server: {why}"),
    };
    let mut server = KubeApiServer::start(&programs);
    server.grant_ipam_rights();
    // It defines the custom resources for all other cases.
    cases::the_newer_group_is_used_only_without_the_older(&mut server);
    for (name, case) in cases::CASES {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            let start = Instant::now();
            case(&mut server);
            eprintln!("ok {name} ({:.1} s)", start.elapsed().as_secs_f32());
        }
    }
}
