//! The kernel's tables of neighbours. There is one for IPv4 and one for IPv6, of all namespaces together, and they have an end: who finds no place in
//! one cannot send, now and then, to whoever it is. That looks like a broken network, and is none.

use std::fs;

/// How often each table was too full for one more, since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overflows {
    v4: u64,
    v6: u64,
}

impl Overflows {
    pub(crate) fn until_now() -> Overflows {
        let read = |table: &str| {
            fs::read_to_string(format!("/proc/net/stat/{table}_cache")).map_or(0, |text| count(&text))
        };
        Overflows { v4: read("arp"), v6: read("ndisc") }
    }

    /// What has happened since then, in words and with what helps; nothing if nothing has.
    pub(crate) fn told_since(self, then: Overflows) -> Option<String> {
        let tables = [("ipv4", self.v4 - then.v4.min(self.v4)), ("ipv6", self.v6 - then.v6.min(self.v6))];
        let grown: Vec<_> = tables.into_iter().filter(|(_, count)| *count > 0).collect();
        let knobs: Vec<_> =
            grown.iter().map(|(family, _)| format!("net.{family}.neigh.default.gc_thresh3")).collect();
        let times: u64 = grown.iter().map(|(_, count)| count).sum();
        (times > 0).then(|| {
            format!(
                "meanwhile the kernel's table of neighbours was full {times} times, so packets were lost that the network would have carried: \
                 raise {} on this machine",
                knobs.join(" and ")
            )
        })
    }
}

/// The sum over all processors of the column `table_fulls`, in hexadecimal digits.
fn count(text: &str) -> u64 {
    let mut lines = text.lines();
    let column = lines.next().and_then(|head| head.split_whitespace().position(|name| name == "table_fulls"));
    let Some(column) = column else { return 0 };
    let number = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    lines.filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_told_with_the_knob_that_helps() {
        let text =
            "entries allocs table_fulls more\n00000004 00000001 0000000a 0\n00000004 00000003 00000010 0\n";
        assert_eq!(count(text), 26);
        assert_eq!(count("entries\n1\n"), 0);
        assert_eq!(count(""), 0);
        let then = Overflows { v4: 7, v6: 1 };
        assert_eq!(then.told_since(then), None);
        let told = Overflows { v4: 7, v6: 27 }.told_since(then).unwrap();
        assert!(told.contains("26 times") && told.contains("net.ipv6.neigh.default.gc_thresh3"), "{told}");
        assert!(!told.contains("ipv4"), "{told}");
    }
}
