//! The survey: follows the store, and tells the works what it has learned.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::Duration;

use podwire_block_ipam::store::StoreError;
use podwire_block_ipam::BlockIndex;

use crate::{thread, Board, Opener, Patience, Result};

/// How long it listens at a stretch.
const LONG: Duration = Duration::from_secs(600);

pub(crate) fn start(
    opener: Arc<Opener>,
    has_bgp: bool,
    atlases: Sender<BlockIndex>,
    bell: File,
    board: Board,
) -> Result<()> {
    let mut survey =
        Survey { opener, has_bgp, atlases, bell, board, atlas: BlockIndex::default(), has_told: false };
    thread("survey", move || survey.live())
}

struct Survey {
    opener: Arc<Opener>,
    has_bgp: bool,
    atlases: Sender<BlockIndex>,
    bell: File,
    board: Board,
    atlas: BlockIndex,
    has_told: bool,
}

impl Survey {
    fn live(&mut self) {
        let mut patience = Patience::new();
        loop {
            let Err(error) = self.follow(&mut patience) else { return };
            let text = format!("{error}; what is known stays as it is, and it is asked again");
            self.board.problem("the store", Some(text));
            std::thread::park_timeout(patience.next());
        }
    }

    /// Follows the store until it fails; `Ok` if nobody listens any more.
    fn follow(&mut self, patience: &mut Patience) -> Result<(), StoreError> {
        let store = (self.opener)()?;
        let mut follow = store.follow(&BlockIndex::prefixes(self.has_bgp))?;
        // A new list says what is there: what is gone must not stay.
        let mut whole = Some(BlockIndex::default());
        loop {
            let Some(changes) = follow.wait(LONG)? else { continue };
            *patience = Patience::new();
            self.board.problem("the store", None);
            let news = match whole.take() {
                Some(mut atlas) => {
                    atlas.apply(changes);
                    atlas.inherit(&self.atlas);
                    std::mem::replace(&mut self.atlas, atlas) != self.atlas
                }
                None => self.atlas.apply(changes),
            };
            if (news || !self.has_told) && self.tell().is_err() {
                return Ok(());
            }
        }
    }

    fn tell(&mut self) -> Result<(), ()> {
        self.has_told = true;
        let malformed = self.atlas.malformed.iter().map(|(key, why)| format!("{key} makes no sense: {why}"));
        let malformed: Vec<String> = malformed.collect();
        self.board.problem("records", (!malformed.is_empty()).then(|| malformed.join("; ")));
        let none = "there are none, and so no addresses: `podwire ipam pool` makes one";
        self.board.problem("pools", self.atlas.pools.is_empty().then(|| none.into()));
        self.atlases.send(self.atlas.clone()).map_err(drop)?;
        self.bell.write_all(b"!").map_err(drop)
    }
}
