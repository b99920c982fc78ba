//! Overflows of the kernel's neighbour tables. All namespaces share one table for IPv4 and one for IPv6. While a table is full,
//! packets to new neighbours are lost, which looks like a broken network.

use std::fs;

/// How often each table was full, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overflows {
    v4: u64,
    v6: u64,
}

impl Overflows {
    pub(crate) fn read() -> Overflows {
        let read = |table: &str| {
            fs::read_to_string(format!("/proc/net/stat/{table}_cache")).map_or(0, |text| count(&text))
        };
        Overflows { v4: read("arp"), v6: read("ndisc") }
    }

    /// A warning with the sysctl to raise, if a table was full since `then`.
    pub(crate) fn warning_since(self, then: Overflows) -> Option<String> {
        let tables = [("ipv4", self.v4 - then.v4.min(self.v4)), ("ipv6", self.v6 - then.v6.min(self.v6))];
        let grown: Vec<_> = tables.into_iter().filter(|(_, count)| *count > 0).collect();
        let sysctls: Vec<_> =
            grown.iter().map(|(family, _)| format!("net.{family}.neigh.default.gc_thresh3")).collect();
        let times: u64 = grown.iter().map(|(_, count)| count).sum();
        (times > 0).then(|| {
            format!(
                "the kernel's neighbour table was full {times} times during the verification, so this machine dropped packets: \
                 raise {}",
                sysctls.join(" and ")
            )
        })
    }
}

/// The sum of the hexadecimal column `table_fulls` over all CPUs.
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
    fn the_warning_names_the_sysctl_to_raise() {
        let text =
            "entries allocs table_fulls more\n00000004 00000001 0000000a 0\n00000004 00000003 00000010 0\n";
        assert_eq!(count(text), 26);
        assert_eq!(count("entries\n1\n"), 0);
        assert_eq!(count(""), 0);
        let then = Overflows { v4: 7, v6: 1 };
        assert_eq!(then.warning_since(then), None);
        let warning = Overflows { v4: 7, v6: 27 }.warning_since(then).unwrap();
        assert!(
            warning.contains("26 times") && warning.contains("net.ipv6.neigh.default.gc_thresh3"),
            "{warning}"
        );
        assert!(!warning.contains("ipv4"), "{warning}");
    }
}
