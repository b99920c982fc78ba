//! The store on a real kube-apiserver, which is started for it once and stopped after it: does it do what every store must, and is what it
//! writes what Calico writes?
//!
//! Words on the command line choose cases by their names. The test is left out where Kubernetes' programs cannot be had.

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
    // It defines the custom resources that all others need.
    cases::the_newer_group_is_taken_only_if_the_older_is_not_there(&mut server);
    for (name, case) in cases::CASES {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            let start = Instant::now();
            case(&mut server);
            eprintln!("ok {name} ({:.1} s)", start.elapsed().as_secs_f32());
        }
    }
}
