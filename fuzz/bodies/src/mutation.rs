//! Deterministic mutations of a corpus: the same on every machine and in every run.

/// Text that often breaks parsers: numbers at the limits of their types, and keywords of the formats.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "-1", "0", "1", "255", "256", "4095", "65535", "65536", "4294967295", "4294967296", "18446744073709551615", "1e9",
    "1e400", "0.5", "null", "true", "false", "{}", "[]", "[[]]", "\"\"", "\"", "\\u0000", "\\ud800", ",", ":", "/",
    "..", "%", "::", "0.0.0.0/0", "::/0", "10.0.0.0/8", "255.255.255.255", "fd00::/64", "/31", "/33", "/129", "::ffff:10.0.0.1",
    "!", "!=", "-d", "-s", "-i", "ip", "ip6", "daddr", "saddr", "iifname", "=", ";", "IP=", "é", "\u{0}", "\n", "\r\n",
    "cniVersion", "CNIVERSION", "name", "type", "ipam", "plugins", "prevResult", "runtimeConfig", "routes", "ranges",
];

/// Pseudo-random numbers (xorshift64*). The same seed gives the same numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// The `number`th mutation of a corpus.
pub fn mutate(corpus: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut random = Random::new(number + 1);
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        step(&mut bytes, corpus, &mut random);
    }
    bytes
}

fn step(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let length = bytes.len();
    let at = random.below(length + 1);
    let some = random.below(16.min(length - at) + 1);
    match random.below(9) {
        0 if at < length => bytes[at] ^= 1 << random.below(8),
        1 if at < length => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'9'][random.below(8)],
        2 => drop(bytes.drain(at..at + some)),
        3 => bytes.truncate(at),
        // Duplicate a slice.
        4 => drop(bytes.splice(at..at, bytes[at..at + some].to_vec())),
        // Insert a word, or replace a slice by it.
        5 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        6 => drop(bytes.splice(at..at + some, WORDS[random.below(WORDS.len())].bytes())),
        // Replace the end by the end of another entry of the corpus.
        7 => {
            let other = &corpus[random.below(corpus.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => number(bytes, random),
    }
}

/// Replaces a number, in text or in binary.
fn number(bytes: &mut Vec<u8>, random: &mut Random) {
    let start = random.below(bytes.len());
    match (start..bytes.len()).find(|at| bytes[*at].is_ascii_digit()) {
        Some(from) => {
            let to = (from..bytes.len()).find(|at| !bytes[*at].is_ascii_digit()).unwrap_or(bytes.len());
            bytes.splice(from..to, WORDS[random.below(14)].bytes());
        }
        None => {
            let value = [0u16, 1, 3, 4, 5, 0x7fff, 0xffff, 0x8000][random.below(8)].to_ne_bytes();
            let place = start & !3;
            if let Some(two) = bytes.get_mut(place..place + 2) {
                two.copy_from_slice(&value);
            }
        }
    }
}
