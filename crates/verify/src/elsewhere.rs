//! Places of other machines: nobody here can enter them, but they can answer.
//!
//! On each node of a cluster its places are let answer for a while ([`answer`]), and what they say of themselves is carried to
//! the others, which ask them ([`verify_with`](crate::verify_with)). Asked from every node, all pairs are proven.

use serde::{Deserialize, Serialize};

use crate::echo::{Door, Echo};
use crate::{Kind, Place, Result};

/// A place that answers on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// For the report.
    pub name: String,
    /// Pod or node.
    pub kind: Kind,
    /// Where it answers.
    pub doors: Vec<Door>,
}

/// Places that answer until this is dropped.
pub struct Answering {
    _echoes: Vec<Echo>,
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answering")
    }
}

/// Lets places answer others; says where.
pub fn answer(places: &[Place]) -> Result<(Answering, Vec<Elsewhere>)> {
    let echoes = places.iter().map(Echo::start).collect::<Result<Vec<_>>>()?;
    let told = places.iter().zip(&echoes).map(|(place, echo)| Elsewhere {
        name: place.name.clone(),
        kind: place.kind,
        doors: echo.doors.clone(),
    });
    let told = told.collect();
    Ok((Answering { _echoes: echoes }, told))
}
