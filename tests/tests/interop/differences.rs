//! What we do differently on purpose.
use podwire_tests::Difference;

pub const DIFFERENCES: &[Difference] = &[];
