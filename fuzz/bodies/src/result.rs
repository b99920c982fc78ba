//! Results of ADD in each version of the protocol.

use podwire_cni_spec::{json, Attachment, Version};

/// A result that was parsed and written parses and is written again without a change.
pub fn run(bytes: &[u8]) {
    let Ok(value) = json::parse(bytes) else { return };
    let _ = podwire_cni_spec::Error::from_json(&value)
        .map(|error| assert_eq!(podwire_cni_spec::Error::from_json(&error.to_json()), Some(error)));
    for fallback in Version::ALL {
        let Ok(attachment) = Attachment::from_json(&value, *fallback) else { continue };
        for version in Version::ALL {
            round_trip(&attachment, *version);
        }
    }
}

fn round_trip(attachment: &Attachment, version: Version) {
    let Ok(written) = attachment.to_json(version) else { return };
    let read = Attachment::from_json(&written, version).expect("a written result parses");
    assert_eq!(read.to_json(version).as_ref(), Ok(&written), "{version}");
    if version == Version::CURRENT {
        assert_eq!(&read, attachment, "the newest version keeps every field");
    }
}
