//! Observes, at a client, the calls that the assistant runs itself.

use std::collections::VecDeque;

use super::{Core, Event};
use crate::{
    clock::Instant,
    protocol::{
        frame::{ToolUseRequest, ToolUseResult},
        session::Counter,
    },
    tool::{CallId, ErrorCode, Execution, MAX_TOOL_NAME},
    transport::Identity,
    value::prefix,
};

/// The limit on unfinished server-executed calls that a client remembers. They are searched linearly.
const MAX_OBSERVED: usize = 64;

/// The server-executed calls that were broadcast and have not ended.
#[derive(Debug, Default)]
pub(super) struct Observed(VecDeque<(Identity, CallId, String, Instant)>);

impl Observed {
    /// Notes the start of a call that the assistant runs itself.
    pub(super) fn begin(&mut self, core: &mut Core, id: &Identity, request: &ToolUseRequest) {
        if request.id.as_str().len() > core.cx.config.caps.frames.id_bytes {
            return core.cx.complain(id, Counter::Malformed);
        }
        if self.0.iter().any(|(by, call, ..)| by == id && *call == request.id) {
            return core.cx.count(Counter::Duplicate);
        }
        if self.0.len() == MAX_OBSERVED {
            // An assistant that never ends its calls costs the oldest of them, whose end is then not
            // reported.
            self.0.pop_front();
        }
        let tool = prefix(&request.tool_name, MAX_TOOL_NAME); // a longer name is invalid
        self.0.push_back((id.clone(), request.id.clone(), tool.to_owned(), core.cx.now));
        core.cx.event(Event::Requested {
            call: request.id.clone(),
            tool: request.tool_name.clone(),
            execution: Execution::Server,
            owner: id.clone(),
            by: id.clone(),
        });
    }

    /// Notes the end of a call that the assistant ran itself.
    pub(super) fn end(&mut self, core: &mut Core, id: &Identity, result: &ToolUseResult) {
        let is_it = |(by, call, ..): &(Identity, CallId, String, Instant)| by == id && *call == result.id;
        let found = self.0.iter().position(is_it).and_then(|at| self.0.remove(at));
        let Some((_, call, tool, since)) = found else {
            return core.cx.count(Counter::Late); // it started before the client joined
        };
        let outcome = match result.success {
            true => Ok(()),
            false => Err(result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR)),
        };
        core.cx.event(Event::Settled {
            call,
            tool,
            execution: Execution::Server,
            owner: Some(id.clone()),
            outcome,
            took: core.cx.now.saturating_duration_since(since),
        });
    }
}
