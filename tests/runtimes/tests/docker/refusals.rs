//! Failures are reported clearly and leave nothing behind.

use podwire_runtime_tests::{ContainerSpec, Docker, Engine, Plugins};

use crate::scene;

/// A registry without a listener: the machine outside.
const NOWHERE: &str = "192.0.2.2:5000/nothing:1";

/// The change to the stage, the arguments, and the texts of the error.
struct Refusal {
    spoil: fn(&Docker),
    words: &'static [&'static str],
    says: &'static [&'static str],
}

const ADD: &[&str] = &["docker-net", "add", "pods", "other", "--publish", "8081:80"];

const REFUSALS: &[Refusal] = &[
    Refusal {
        spoil: |_| (),
        words: &["docker-net", "add", "nowhere", "other"],
        says: &["no net configuration with name \"nowhere\"", "hint: there are: pods"],
    },
    Refusal { spoil: |_| (), words: &["docker-net", "add", "pods", "nobody"], says: &["No such", "nobody"] },
    Refusal {
        spoil: |_| (),
        words: &["docker", "run", "--net", "none", NOWHERE],
        says: &["docker: Error response from daemon", NOWHERE, "connection refused"],
    },
    Refusal {
        spoil: |docker| drop(docker.sh("rm /opt/cni/bin/portmap")),
        // Without this, the plugin would be found among Debian's.
        words: &["docker-net", "add", "pods", "other", "--plugin-dir", "/opt/cni/bin"],
        says: &["failed to find plugin \"portmap\"", "/opt/cni/bin"],
    },
    Refusal {
        spoil: |docker| docker.set_network("{ broken"),
        words: ADD,
        says: &["no net configuration with name \"pods\"", "10-pods.conflist"],
    },
    Refusal {
        spoil: |docker| docker.set_network(&Docker::network().replace("fd87::/64", "fd87::/129")),
        words: ADD,
        says: &["plugin type=\"bridge\"", "failed (add)", "fd87::/129"],
    },
    // The third plugin of the chain fails: the work of the others is undone.
    Refusal {
        spoil: |_| (),
        words: &[
            "docker-net",
            "add",
            "pods",
            "other",
            "--publish",
            "8081:80",
            "--capability",
            "bandwidth={\"ingressRate\": 9}",
        ],
        says: &["plugin type=\"bandwidth\"", "failed (add)", "ingressBurst"],
    },
    Refusal {
        spoil: |_| (),
        words: &["docker-net", "add", "pods", "other", "--publish", "8080:80"],
        says: &["host port 8080/tcp is taken by pods/", "hint: stop that container"],
    },
    Refusal { spoil: |_| (), words: &["docker-net", "add", "pods", "web"], says: &["already attached"] },
];

#[test]
fn failures_are_reported_once_and_leave_nothing() {
    let (docker, outside) = scene(Plugins::Ours);
    let web = docker.run(&ContainerSpec::named("web").port(8080, 80));
    docker.try_create(&ContainerSpec::named("other")).expect("a container");
    docker.container("other");
    let before = docker.traces();
    for Refusal { spoil, words, says } in REFUSALS {
        spoil(&docker);
        let refused = docker.call(words);
        assert_ne!(refused.status, 0, "{words:?}: {}", refused.stdout);
        println!("{}", refused.stderr);
        assert!(
            says.iter().all(|words| refused.stderr.contains(words)),
            "{says:?} is not in: {}",
            refused.stderr
        );
        docker.install(Plugins::Ours);
        docker.set_network(&Docker::network());
        docker.assert_nothing_left(&before);
    }
    docker.must(ADD);
    docker.packets_pass(&outside, &web, ("other", &docker.container("other")));
}
