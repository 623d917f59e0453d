//! Matches live calls to recorded calls by tool and parameters.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    MismatchReason,
    recorded_calls::{ClientCall, Ending, RecordedCalls},
    value::key,
};
use crate::value::Value;

/// Recorded calls that can be matched.
#[derive(Debug)]
pub(super) struct Matcher {
    /// By tool and parameters: the indexes of the recorded calls, and how many of them were used.
    alike: HashMap<[u8; 32], EqualCalls>,
    /// The number of calls with redacted parameters, by tool.
    redacted: BTreeMap<String, usize>,
    calls: usize,
    given: usize,
}

#[derive(Debug, Default)]
struct EqualCalls {
    places: Vec<usize>,
    given: usize,
}

impl Matcher {
    pub(super) fn new(recorded: &RecordedCalls) -> Self {
        let (mut alike, mut redacted, mut calls) =
            (HashMap::<_, EqualCalls>::new(), BTreeMap::<String, usize>::new(), 0);
        // Calls without an offered tool are left out, such as prompts, which have reserved names.
        let offered: HashSet<_> = recorded.tools.iter().map(|it| it.name().as_str()).collect();
        let is_offered = |tool: &str| offered.contains(tool);
        for (place, call) in recorded.calls.iter().enumerate().filter(|(_, call)| is_offered(&call.tool)) {
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

    /// Returns the next unused recorded call of this tool with these parameters, in recorded order. With `loose`,
    /// returns the last one again when all are used.
    pub(super) fn take(
        &mut self,
        recorded: &RecordedCalls,
        tool: &str,
        parameters: &Value,
        loose: bool,
    ) -> Result<usize, MismatchReason> {
        let Some(alike) = self.alike.get_mut(&key(tool, parameters)) else {
            return Err(match self.redacted.get(tool) {
                Some(calls) => MismatchReason::PerhapsRedacted { calls: *calls },
                None => MismatchReason::NothingAlike,
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
                None => return Err(MismatchReason::UsedUp { calls: alike.given }),
            },
        };
        match recorded.calls.get(place).map(ClientCall::ending) {
            Some(Ending::Answered(answer)) if answer.redacted => Err(MismatchReason::Redacted),
            _ => Ok(place),
        }
    }

    /// The number of calls that can be matched.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// The number of these that were used.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// The number of calls that cannot be matched.
    pub(super) fn redacted(&self) -> usize {
        self.redacted.values().sum()
    }
}
