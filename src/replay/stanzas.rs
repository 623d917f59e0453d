//! Compares the recorded participant's stanzas with those of its replayed session.
//!
//! A session numbers every frame it sends. A timing-dependent frame that occurs on one side only shifts all later
//! numbers by one, so numbers are compared by rank without such frames. Two frames at nearly the same time may also
//! be swapped, because the recorded session received frames slightly later than the recorder.

use std::{collections::BTreeSet, time::Duration};

use super::script::DecodedFrame;
use crate::{protocol::frame::Kind, recording::Moment};

/// The maximum time between two swapped frames.
const TOGETHER: Duration = Duration::from_millis(250);

/// The maximum number of frames between two swapped frames.
const NEIGHBOURS: usize = 64;

/// The stanzas of all frames.
#[derive(Default)]
pub(super) struct Stanzas {
    both: Vec<Numbered>,
    in_file: BTreeSet<u32>,
    said: BTreeSet<u32>,
}

struct Numbered {
    entry: usize,
    at: Moment,
    kind: Kind,
    /// In the file, and in the session.
    file: u32,
    said: u32,
}

impl Stanzas {
    pub(super) fn both(&mut self, entry: usize, at: Moment, kind: Kind, (file, said): (u32, u32)) {
        self.both.push(Numbered { entry, at, kind, file, said });
    }

    pub(super) fn only_in_file(&mut self, decoded: &DecodedFrame) {
        self.in_file.extend(decoded.stanza());
    }

    pub(super) fn only_said(&mut self, decoded: &DecodedFrame) {
        self.said.extend(decoded.stanza());
    }

    /// Returns the frames whose numbers differ, with both numbers.
    pub(super) fn differences(&self) -> Vec<(usize, Kind, (String, String, String))> {
        let (in_file, said): (Vec<_>, Vec<_>) =
            (self.in_file.iter().copied().collect(), self.said.iter().copied().collect());
        let rank = |number: u32, without: &[u32]| {
            i64::from(number) - i64::try_from(without.partition_point(|it| *it < number)).unwrap_or(i64::MAX)
        };
        let ranked = |it: &Numbered| (rank(it.file, &in_file), rank(it.said, &said));
        let odd: Vec<_> =
            self.both.iter().map(|it| (it, ranked(it))).filter(|(_, (file, said))| file != said).collect();
        let (mut found, mut known) = (Vec::new(), 0);
        for (at, (it, (file, said))) in odd.iter().enumerate() {
            let around = &odd[at.saturating_sub(NEIGHBOURS)..(at + NEIGHBOURS).min(odd.len())];
            let near = |other: &Numbered| it.at.since(other.at).max(other.at.since(it.at)) <= TOGETHER;
            let is_said = around.iter().any(|(other, (_, rank))| rank == file && near(other));
            let is_in_file = around.iter().any(|(other, (rank, _))| rank == said && near(other));
            // A number that is wrong from some frame on is reported once.
            if (is_said && is_in_file) || file - said == known {
                continue;
            }
            known = file - said;
            let field = ("stanzaId".to_owned(), it.file.to_string(), it.said.to_string());
            found.push((it.entry, it.kind, field));
        }
        found
    }
}
