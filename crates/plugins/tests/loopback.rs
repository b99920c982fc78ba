//! loopback against the real kernel.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use podwire_cni_plugin::{Command, Source};
use podwire_plugins::loopback::Loopback;
use serde_json::{json, Value};
use test_pod::{call, go, with_pod, Pod};

fn config() -> Value {
    json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"})
}

fn is_up(pod: &Pod) -> bool {
    pod.json("ip -j link show lo")[0]["flags"].as_array().unwrap().contains(&json!("UP"))
}

#[test]
fn lo_is_brought_up_reported_and_taken_down() {
    with_pod(|pod| {
        assert!(!is_up(pod));
        let result = pod.call(&Loopback, Command::Add, "eth0", &config()).unwrap();
        assert!(is_up(pod));
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.netns}],
            "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "::1/128"}],
        });
        assert_eq!(result, expected);
        let again = pod.call(&Loopback, Command::Add, "lo", &config()).unwrap();
        assert_eq!(again, result);
        pod.call(&Loopback, Command::Check, "lo", &config()).unwrap();
        pod.call(&Loopback, Command::Del, "lo", &config()).unwrap();
        assert!(!is_up(pod));
        let error = pod.call(&Loopback, Command::Check, "lo", &config()).unwrap_err().to_string();
        assert!(error.starts_with("loopback interface is down"), "{error}");
        pod.call(&Loopback, Command::Del, "lo", &config()).unwrap();
    });
}

#[test]
fn the_result_equals_gos() {
    with_pod(|pod| {
        let Some(theirs) = go("loopback", "ADD", &pod.source("lo"), &config()) else { return };
        let ours = pod.call(&Loopback, Command::Add, "lo", &config()).unwrap();
        // Go always prints an empty "dns" in its 1.0.0 results; readers take it for absent.
        assert_eq!(test_pod::attachment(&ours), test_pod::attachment(&theirs));
    });
}

#[test]
fn a_previous_result_is_passed_on() {
    with_pod(|pod| {
        let mut config = config();
        config["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}]});
        let result = pod.call(&Loopback, Command::Add, "eth0", &config).unwrap();
        assert_eq!(result["ips"], config["prevResult"]["ips"]);
        assert!(is_up(pod));
    });
}

#[test]
fn a_foreign_address_on_lo_is_refused_and_lo_is_taken_down() {
    with_pod(|pod| {
        pod.run("ip address add 10.9.9.9/32 dev lo");
        let error = pod.call(&Loopback, Command::Add, "lo", &config()).unwrap_err().to_string();
        assert!(
            error.starts_with("loopback interface found with non-loopback address \"10.9.9.9\""),
            "{error}"
        );
        assert!(!is_up(pod));
    });
}

#[test]
fn del_succeeds_without_the_namespace() {
    with_pod(|pod| {
        let source = pod.source("lo");
        pod.vanish();
        call(&Loopback, Command::Del, &source, &config()).unwrap();
        call(&Loopback, Command::Del, &Source { netns: String::new(), ..source }, &config()).unwrap();
        assert!(!pod.netns.exists());
    });
}
