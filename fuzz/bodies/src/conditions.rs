//! `conditionsV4` and `conditionsV6` of portmap, in the syntax of nft or of iptables.

use serde_json::json;

use crate::status;

/// Each line is a word. Sends STATUS with a list of the words, and with all of them as one string.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.lines().collect();
    for conditions in [json!(words), json!([text])] {
        for key in ["conditionsV4", "conditionsV6"] {
            let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "portmap", (key): conditions});
            status::call(status::plugin("portmap"), config.to_string().as_bytes());
        }
    }
}
