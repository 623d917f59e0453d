//! Plans which recorded calls a live replay makes.

use std::{collections::BTreeSet, time::Duration};

use super::{
    NotAsked,
    recorded_calls::{ClientCall, Ending, RecordedCalls},
};
use crate::{
    recording::Moment,
    tool::{CallId, ErrorCode},
    transport::Identity,
    value::Value,
};

/// The recorded calls, and whether each would be made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// In recorded order.
    pub calls: Vec<PlannedCall>,
}

/// A recorded call to a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedCall {
    /// The position of its request in the file, counting every entry from 0.
    pub entry: usize,
    /// When it was requested.
    pub at: Moment,
    /// Its recorded id; the replay uses a new one.
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// The client that was asked.
    pub owner: Option<Identity>,
    /// The arguments; none if they are redacted.
    pub parameters: Option<Value>,
    /// Its time limit.
    pub limit: Duration,
    /// The outcome: `ok` or an error code; none if the recording does not have it.
    pub outcome: Option<String>,
    /// Why it is not made, if it is not.
    pub not_asked: Option<NotAsked>,
}

impl Plan {
    /// Returns the calls that are made.
    pub fn asked(&self) -> impl Iterator<Item = &PlannedCall> {
        self.calls.iter().filter(|call| call.not_asked.is_none())
    }
}

/// The allowed calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    pub(super) tools: BTreeSet<String>,
    /// Destructive tools are allowed, too.
    pub(super) destructive: bool,
}

impl Allowed {
    /// Why this call is not made, as far as the recording shows.
    pub(super) fn refuses(&self, recorded: &RecordedCalls, call: &ClientCall) -> Option<NotAsked> {
        if !self.tools.contains(&call.tool) {
            return Some(NotAsked::NotAllowed);
        }
        if !self.destructive && recorded.is_destructive(&call.tool) {
            return Some(NotAsked::Destructive);
        }
        call.parameters.is_none().then_some(NotAsked::Redacted)
    }

    pub(super) fn plan(&self, recorded: &RecordedCalls) -> Plan {
        let planned = |call: &ClientCall| PlannedCall {
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
            not_asked: self.refuses(recorded, call),
        };
        Plan { calls: recorded.calls.iter().map(planned).collect() }
    }
}
