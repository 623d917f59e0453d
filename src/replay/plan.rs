//! Which recorded calls are asked again, and which are not.

use std::{collections::BTreeSet, time::Duration};

use super::{
    NotAsked,
    tape::{Ending, Tape, Taped},
};
use crate::{
    recording::Moment,
    tool::{CallId, ErrorCode},
    transport::Identity,
    value::Value,
};

/// The recorded calls, with what would become of each.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// In recorded order.
    pub calls: Vec<PlannedCall>,
}

/// A recorded call that a client was asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedCall {
    /// The place of its request in the file, from 0, counting every entry.
    pub entry: usize,
    /// When it was asked.
    pub at: Moment,
    /// Its recorded id; it is asked under a new one.
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// Who was asked.
    pub owner: Option<Identity>,
    /// The arguments; none if they were taken out of the recording.
    pub parameters: Option<Value>,
    /// The whole time it may take.
    pub limit: Duration,
    /// How it ended: `ok`, or the code of its error; none if the recording does not say.
    pub outcome: Option<String>,
    /// Why it is not asked again, if it is not.
    pub not_asked: Option<NotAsked>,
}

impl Plan {
    /// Those that are asked.
    pub fn asked(&self) -> impl Iterator<Item = &PlannedCall> {
        self.calls.iter().filter(|call| call.not_asked.is_none())
    }
}

/// What may be asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    pub(super) tools: BTreeSet<String>,
    /// Tools that cannot be undone too.
    pub(super) destructive: bool,
}

impl Allowed {
    /// Why this call is not asked, as far as the recording says.
    pub(super) fn refuses(&self, tape: &Tape, call: &Taped) -> Option<NotAsked> {
        if !self.tools.contains(&call.tool) {
            return Some(NotAsked::NotAllowed);
        }
        if !self.destructive && tape.is_destructive(&call.tool) {
            return Some(NotAsked::Destructive);
        }
        call.parameters.is_none().then_some(NotAsked::Redacted)
    }

    pub(super) fn plan(&self, tape: &Tape) -> Plan {
        let planned = |call: &Taped| PlannedCall {
            entry: call.entry,
            at: call.asked,
            call: call.id.clone(),
            tool: call.tool.clone(),
            owner: call.owner.clone(),
            parameters: call.parameters.clone(),
            limit: call.limit,
            outcome: match call.ending() {
                Ending::Answered(answer) if answer.success => Some("ok".to_owned()),
                Ending::Answered(answer) => Some(answer.code.to_string()),
                Ending::TimedOut => Some(ErrorCode::TIMEOUT.to_string()),
                Ending::Stopped => Some(ErrorCode::CANCELLED.to_string()),
                Ending::Open => None,
            },
            not_asked: self.refuses(tape, call),
        };
        Plan { calls: tape.calls.iter().map(planned).collect() }
    }
}
