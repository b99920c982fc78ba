//! What the runtime's records say about attachments.

use podwire_cni_runtime::Record;

/// The addresses of an attachment.
pub(super) fn addresses(record: &Record) -> Vec<String> {
    let ips = record.attachment().map(|attachment| attachment.ips).unwrap_or_default();
    ips.iter().map(|ip| ip.address.to_string()).collect()
}
