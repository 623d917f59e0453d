//! Recorded calls by what they ask for: which of them answers the next one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    MissReason,
    tape::{Ending, Tape, Taped},
    value::key,
};
use crate::value::Value;

/// Recorded calls that can be matched.
#[derive(Debug)]
pub(super) struct Shelf {
    /// By tool and parameters: their places on the tape, and how many of them were given.
    alike: HashMap<[u8; 32], Alike>,
    /// Calls of a tool whose parameters were taken out.
    redacted: BTreeMap<String, usize>,
    calls: usize,
    given: usize,
}

#[derive(Debug, Default)]
struct Alike {
    places: Vec<usize>,
    given: usize,
}

impl Shelf {
    pub(super) fn new(tape: &Tape) -> Self {
        let (mut alike, mut redacted, mut calls) =
            (HashMap::<_, Alike>::new(), BTreeMap::<String, usize>::new(), 0);
        // What is not offered is never asked for: questions to a person, for one, which have reserved names.
        let offered: HashSet<_> = tape.tools.iter().map(|it| it.name().as_str()).collect();
        let is_offered = |tool: &str| offered.contains(tool);
        for (place, call) in tape.calls.iter().enumerate().filter(|(_, call)| is_offered(&call.tool)) {
            match &call.parameters {
                Some(parameters) => {
                    alike.entry(key(&call.tool, parameters)).or_default().places.push(place);
                    calls += 1;
                }
                None => *redacted.entry(call.tool.clone()).or_default() += 1,
            }
        }
        Self { alike, redacted, calls, given: 0 }
    }

    /// The next recorded call of this tool with these parameters, in recorded order and each once; loosely, the last
    /// again when all were given.
    pub(super) fn take(
        &mut self,
        tape: &Tape,
        tool: &str,
        parameters: &Value,
        loose: bool,
    ) -> Result<usize, MissReason> {
        let Some(alike) = self.alike.get_mut(&key(tool, parameters)) else {
            return Err(match self.redacted.get(tool) {
                Some(calls) => MissReason::PerhapsRedacted { calls: *calls },
                None => MissReason::NothingAlike,
            });
        };
        let place = match alike.places.get(alike.given) {
            Some(place) => {
                alike.given += 1;
                self.given += 1;
                *place
            }
            None => match alike.places.last().filter(|_| loose) {
                Some(last) => *last,
                None => return Err(MissReason::UsedUp { calls: alike.given }),
            },
        };
        match tape.calls.get(place).map(Taped::ending) {
            Some(Ending::Answered(answer)) if answer.redacted => Err(MissReason::Redacted),
            _ => Ok(place),
        }
    }

    /// How many calls can be matched.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// How many of those were asked for so far.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// How many cannot be matched.
    pub(super) fn redacted(&self) -> usize {
        self.redacted.values().sum()
    }
}
