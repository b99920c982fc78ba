//! Container ids in texts for people: the 64 digits of a container runtime become the name of the pod, if that is known, or
//! the first 12 digits, as container tools print them. JSON has the whole ids.

/// The characters of a long id that are printed.
const SHORT: usize = 12;
/// The length from which an id is long.
const LONG: usize = 32;

/// The beginning of a long hexadecimal id; any other id as it is.
pub(crate) fn short(id: &str) -> &str {
    if is_long(id) {
        &id[..SHORT]
    } else {
        id
    }
}

/// Whether a text has a long id.
pub(crate) fn has_long(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_long)
}

/// The text with short ids, or what `name` calls them. A path stays as it is, and an option gets no name but the short id,
/// so that both can be copied.
pub(crate) fn shorten(text: &str, name: impl Fn(&str) -> Option<String>) -> String {
    let mut shortened = String::with_capacity(text.len());
    let mut is_after_option = false;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_start_matches(['`', '"', '\'', '(']);
        if word.starts_with('/') {
            shortened += piece;
        } else {
            shorten_word(piece, |id| name(id).filter(|_| !is_after_option), &mut shortened);
        }
        is_after_option = word.starts_with("--");
    }
    shortened
}

fn shorten_word(word: &str, name: impl Fn(&str) -> Option<String>, shortened: &mut String) {
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let id = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if is_long(id) {
            *shortened += &name(id).unwrap_or_else(|| short(id).to_owned());
            *shortened += &part[id.len()..];
        } else {
            *shortened += part;
        }
    }
}

fn is_long(id: &str) -> bool {
    id.len() >= LONG && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff";
    const OTHER: &str = "4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1cbeef";

    #[test]
    fn only_long_hexadecimal_ids_are_short() {
        assert_eq!(short(OTHER), "4f1c2e9a0b1c");
        for id in ["web-1", "4f1c2e", "cnitool-77383ca0a0715733ca6f", &"podwire-".repeat(5)] {
            assert_eq!(short(id), id);
        }
    }

    #[test]
    fn a_text_has_names_of_pods_or_short_ids() {
        let name = |id: &str| (id == WEB).then(|| "shop/web".to_owned());
        let mut wrong = Vec::new();
        for (text, expected) in [
            ("no id\n", "no id\n".to_owned()),
            (&format!("attached {OTHER} to pods\n"), "attached 4f1c2e9a0b1c to pods\n".into()),
            (
                &format!("belongs to pods/{WEB}/eth0, and pods/{OTHER}/eth0: delete"),
                "belongs to pods/shop/web/eth0, and pods/4f1c2e9a0b1c/eth0: delete".into(),
            ),
            // Both are for copying.
            (&format!("read /results/pods-{WEB}-eth0"), format!("read /results/pods-{WEB}-eth0")),
            (&format!("`/run/x/{WEB}`: gone"), format!("`/run/x/{WEB}`: gone")),
            (
                &format!("`podwire cni del pods --container {WEB}`"),
                "`podwire cni del pods --container c0ffeec0ffee`".into(),
            ),
        ] {
            let found = shorten(text, name);
            if found != expected {
                wrong.push(format!("{text}: {found}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(has_long(&format!("pods/{WEB}/eth0")) && !has_long("pods/web-1/eth0"));
    }
}
