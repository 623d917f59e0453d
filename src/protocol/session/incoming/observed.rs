//! Observes, at a client, the calls that the assistant runs itself.

use std::{collections::VecDeque, time::Duration};

use super::{Core, Event, Timer};
use crate::{
    clock::{Instant, later},
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

/// The server-executed calls that the bound assistant has shown and that have not ended, in the order of their start.
#[derive(Debug, Default)]
pub(in crate::protocol::session) struct Observed(VecDeque<Call>);

#[derive(Debug)]
struct Call {
    by: Identity,
    id: CallId,
    tool: String,
    began: Instant,
    /// Until when its end is awaited.
    until: Instant,
}

impl Observed {
    /// Notes the start of a call that the assistant runs itself.
    pub(super) fn begin(&mut self, core: &mut Core, id: &Identity, request: &ToolUseRequest) {
        if self.0.iter().any(|call| call.id == request.id) {
            return core.cx.count(Counter::Duplicate);
        }
        if self.0.len() == MAX_OBSERVED
            && let Some(oldest) = self.0.pop_front()
        {
            lost(core, oldest); // an assistant that never ends its calls costs the oldest of them
        }
        let tool = prefix(&request.tool_name, MAX_TOOL_NAME); // a longer name is invalid
        self.0.push_back(Call {
            by: id.clone(),
            id: request.id.clone(),
            tool: tool.to_owned(),
            began: core.cx.now,
            until: later(core.cx.now, limit(core, request)),
        });
        self.set_timer(core);
        core.cx.event(Event::Requested {
            call: request.id.clone(),
            tool: request.tool_name.clone(),
            execution: Execution::Server,
            owner: id.clone(),
            by: id.clone(),
        });
    }

    /// Notes the end of a call that the assistant ran itself.
    pub(crate) fn end(&mut self, core: &mut Core, result: &ToolUseResult) {
        let found = self.0.iter().position(|call| call.id == result.id);
        let Some(call) = found.and_then(|at| self.0.remove(at)) else {
            return core.cx.count(Counter::Late); // it started before the client joined
        };
        self.set_timer(core);
        let outcome = match result.success {
            true => Ok(()),
            false => Err(result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR)),
        };
        settled(core, call, outcome);
    }

    /// Ends all calls of an assistant that the client binds no longer, or whose instance was replaced.
    pub(crate) fn end_all(&mut self, core: &mut Core, id: &Identity) {
        self.end_if(core, |call| call.by == *id);
    }

    /// Ends the calls whose result must have been lost, as during an outage of the client.
    pub(crate) fn expire(&mut self, core: &mut Core) {
        let now = core.cx.now;
        self.end_if(core, |call| call.until <= now);
    }

    fn end_if(&mut self, core: &mut Core, is_over: impl Fn(&Call) -> bool) {
        let (over, open) = std::mem::take(&mut self.0).into_iter().partition::<VecDeque<_>, _>(is_over);
        self.0 = open;
        self.set_timer(core);
        for call in over {
            lost(core, call);
        }
    }

    fn set_timer(&self, core: &mut Core) {
        match self.0.iter().map(|call| call.until).min() {
            Some(until) => {
                core.cx.set_timer(Timer::Observed, until.saturating_duration_since(core.cx.now));
            }
            None => core.cx.timers.cancel(&Timer::Observed),
        }
    }
}

/// How long the end of a call is awaited: its time limit, and the grace period that its last packets may take.
fn limit(core: &Core, request: &ToolUseRequest) -> Duration {
    let times = &core.cx.config.times;
    let stated = request.timeout_ms.and_then(|limit| u64::try_from(limit).ok()).map(Duration::from_millis);
    stated.unwrap_or(times.longest_call).min(times.longest_call).saturating_add(times.grace)
}

fn lost(core: &mut Core, call: Call) {
    settled(core, call, Err(ErrorCode::LOST));
}

fn settled(core: &mut Core, call: Call, outcome: Result<(), ErrorCode>) {
    core.cx.event(Event::Settled {
        call: call.id,
        tool: call.tool,
        execution: Execution::Server,
        owner: Some(call.by.clone()),
        by: call.by,
        outcome,
        took: core.cx.now.saturating_duration_since(call.began),
    });
}
