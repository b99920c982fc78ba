//! Mutations of a corpus that come out the same on every machine and every day.

/// What breaks parsers: numbers at the edges of their types, and the words of the formats.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "-1", "0", "1", "255", "256", "4095", "65535", "65536", "4294967295", "4294967296", "18446744073709551615", "1e9",
    "1e400", "0.5", "null", "true", "false", "{}", "[]", "[[]]", "\"\"", "\"", "\\u0000", "\\ud800", ",", ":", "/",
    "..", "%", "::", "0.0.0.0/0", "::/0", "10.0.0.0/8", "255.255.255.255", "fd00::/64", "/31", "/33", "/129", "::ffff:10.0.0.1",
    "!", "!=", "-d", "-s", "-i", "ip", "ip6", "daddr", "saddr", "iifname", "=", ";", "IP=", "é", "\u{0}", "\n", "\r\n",
    "cniVersion", "CNIVERSION", "name", "type", "ipam", "plugins", "prevResult", "runtimeConfig", "routes", "ranges",
];

/// Pseudo-random numbers (xorshift64*): the same ones for the same seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
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
    let mut dice = Dice::new(number + 1);
    let mut bytes = corpus[dice.below(corpus.len())].clone();
    for _ in 0..=dice.below(4) {
        step(&mut bytes, corpus, &mut dice);
    }
    bytes
}

fn step(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut Dice) {
    let length = bytes.len();
    let at = dice.below(length + 1);
    let some = dice.below(16.min(length - at) + 1);
    match dice.below(9) {
        0 if at < length => bytes[at] ^= 1 << dice.below(8),
        1 if at < length => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'9'][dice.below(8)],
        2 => drop(bytes.drain(at..at + some)),
        3 => bytes.truncate(at),
        // A piece twice.
        4 => drop(bytes.splice(at..at, bytes[at..at + some].to_vec())),
        // A word, put in or in the place of something.
        5 => drop(bytes.splice(at..at, WORDS[dice.below(WORDS.len())].bytes())),
        6 => drop(bytes.splice(at..at + some, WORDS[dice.below(WORDS.len())].bytes())),
        // The end of another one.
        7 => {
            let other = &corpus[dice.below(corpus.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        _ => number(bytes, dice),
    }
}

/// Puts another number in the place of a number, in text or in bytes.
fn number(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let start = dice.below(bytes.len());
    match (start..bytes.len()).find(|at| bytes[*at].is_ascii_digit()) {
        Some(from) => {
            let to = (from..bytes.len()).find(|at| !bytes[*at].is_ascii_digit()).unwrap_or(bytes.len());
            bytes.splice(from..to, WORDS[dice.below(14)].bytes());
        }
        None => {
            let value = [0u16, 1, 3, 4, 5, 0x7fff, 0xffff, 0x8000][dice.below(8)].to_ne_bytes();
            let place = start & !3;
            if let Some(two) = bytes.get_mut(place..place + 2) {
                two.copy_from_slice(&value);
            }
        }
    }
}
