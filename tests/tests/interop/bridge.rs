//! bridge.
use podwire_tests::Case;
use serde_json::json;

use crate::differences::DIFFERENCES;

#[test]
fn pods_on_a_bridge() {
    let v4 = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    Case::new("gateway", &[json!({"type": "bridge", "isGateway": true, "ipam": v4})]).run(DIFFERENCES);
}
