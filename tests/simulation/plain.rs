//! Those who know only the seed's messages, and those who only listen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use toolbridge::{
    CallError, CallId, ErrorCode, Execution, Identity, Lane, Peer, ToolError,
    frame::{ControlStop, Frame, Kind, Message, Meta, ToolUseRequest, ToolUseResult},
};

use crate::{
    acts::{Answer, Arguments},
    room::{Happens, Load},
    rules::{Asked, Rule},
    schedule::{How, Ms, Who},
    trace,
    world::{Program, World},
};

/// A client or an assistant without our handshake.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    stanza: i32,
    jobs: BTreeMap<(Identity, CallId), How>,
    seen: BTreeSet<(Identity, CallId)>,
}

impl World<'_> {
    /// A frame came to one that no session plays.
    pub(crate) fn heard_by_others(&mut self, process: usize, from: &Peer, frame: &Frame) {
        let who = self.processes[process].who;
        match who {
            Who::O => {
                let kind = frame.kind();
                if matches!(kind, Kind::ACKNOWLEDGEMENT | Kind::CONFIGURATION)
                    || frame.meta_str("bridge.to").is_some()
                {
                    let text = format!("the observer was sent {}", trace::show(frame));
                    self.ledger.broken(Rule::ForWhom, text);
                }
            }
            Who::X => self.heard_by_stranger(from, frame),
            _ => match frame.message() {
                Ok(Message::ToolUseRequest(request)) if matches!(who, Who::C(_)) => {
                    self.plain_begins(process, from, &request);
                }
                Ok(Message::ToolUseResult(result)) if who == Who::A => {
                    self.plain_settles(process, from, &result)
                }
                Ok(Message::ControlStop(stop)) if matches!(who, Who::C(_)) => {
                    self.plain_stops(process, from, &stop)
                }
                _ => {}
            },
        }
    }

    /// Broadcasts are for everybody; beyond them a stranger is told that he has no rights, and no more.
    fn heard_by_stranger(&mut self, from: &Peer, frame: &Frame) {
        let fits = match frame.message() {
            Ok(Message::ToolUseRequest(request)) => request.execution == Ok(Execution::Server),
            Ok(Message::ToolUseResult(result)) => {
                let of = self.ledger.by_id.get(&result.id).map(|call| &self.ledger.calls[*call]);
                self.is_denial(&result)
                    || of.is_some_and(|call| call.owners.is_empty())
                    || self.ran(from, &result.id)
            }
            Ok(Message::ToolsRegisterAck(answer)) => !answer.success,
            _ => false,
        };
        if !fits {
            let text = format!("the stranger was sent {}", trace::show(frame));
            self.ledger.broken(Rule::ForWhom, text);
        }
        let denied = matches!(frame.kind(), Kind::TOOLS_REGISTER_ACK)
            || matches!(frame.message(), Ok(Message::ToolUseResult(it)) if !it.success && self.is_denial(&it));
        // Whoever the room has not announced says it without a name: nobody knows then who it was.
        if denied && !from.sid().is_empty() && !self.ledger.denied.insert(from.sid().clone()) {
            let text = format!(
                "{} tells the stranger more than once a minute that he has no rights",
                from.identity()
            );
            self.ledger.broken(Rule::Stranger, text);
        }
    }

    /// Whether this participant has begun the call itself.
    fn ran(&self, who: &Peer, id: &CallId) -> bool {
        let mut starts = self.ledger.starts.get(id).into_iter().flatten();
        starts.any(|it| {
            let names = self.processes[it.process].who.to_string();
            who.identity().is_empty() || names == who.identity().as_str()
        })
    }

    fn is_denial(&self, result: &ToolUseResult) -> bool {
        result.error_code == Some(ErrorCode::PERMISSION_DENIED)
    }

    fn plain_begins(&mut self, process: usize, from: &Peer, request: &ToolUseRequest) {
        let asked = matches!(request.execution, Ok(Execution::Client | Execution::Either));
        if !asked || !matches!(from.identity().as_str(), "a" | "b") {
            return;
        }
        let names = self.processes[process].who.to_string();
        let Program::Plain(plain) = &mut self.processes[process].program else { return };
        let key = (from.identity().clone(), request.id.clone());
        if !plain.seen.insert(key.clone()) {
            return;
        }
        if request.tool_name != format!("t{names}") {
            let error = ToolError::new(ErrorCode::UNKNOWN_TOOL, "no such tool");
            return self.plain_answers(process, from.identity(), &request.id, Err(error));
        }
        let how = Arguments::read(&request.parameters);
        plain.jobs.insert(key, how);
        trace!(self, "{names} begins {:?} ({how:?})", request.id);
        self.ledger.started(process, &names, from.identity(), &request.id, how != How::BadArguments);
        if let Some(join) = self.processes[process].join {
            let sid = self.room.joins[join].participant.sid().clone();
            self.ledger.taken_as.insert(request.id.clone(), sid);
        }
        if let Some(takes) = how.takes() {
            let (caller, call) = (from.identity().clone(), request.id.clone());
            self.room.after(takes, Happens::PlainJobEnds { process, caller, call });
        }
    }

    pub(crate) fn plain_job_ends(&mut self, process: usize, caller: &Identity, call: &CallId) {
        let Program::Plain(plain) = &mut self.processes[process].program else { return };
        let Some(how) = plain.jobs.remove(&(caller.clone(), call.clone())) else { return };
        if !self.processes[process].alive {
            return;
        }
        let outcome = match how {
            How::Fails | How::Panics | How::SaysBusy => Err(ToolError::new("odd", "it went wrong")),
            How::BadArguments => Err(ToolError::new("invalid_parameters", "not a number")),
            _ => Ok(Answer::body(process, call, How::Quick)),
        };
        self.ledger.ended(process, call, Some(outcome.is_ok()));
        self.plain_answers(process, caller, call, outcome);
    }

    fn plain_stops(&mut self, process: usize, from: &Peer, stop: &ControlStop) {
        let Program::Plain(plain) = &mut self.processes[process].program else { return };
        let is_it = |(caller, call): &(Identity, CallId)| {
            caller == from.identity() && stop.target_id.as_ref().is_none_or(|target| call.as_str() == target)
        };
        let stopped: Vec<_> = plain.jobs.keys().filter(|key| is_it(key)).cloned().collect();
        plain.jobs.retain(|key, _| !is_it(key));
        for (_, call) in stopped {
            self.ledger.ended(process, &call, None);
        }
    }

    fn plain_answers(&mut self, process: usize, to: &Identity, call: &CallId, outcome: toolbridge::Outcome) {
        let (success, result, error) = match outcome {
            Ok(body) => (true, Some(body), None),
            Err(error) => (false, None, Some(error)),
        };
        let result = with!(
            ToolUseResult::new(call.clone(), success),
            result = result,
            error_code = error.as_ref().map(ToolError::code),
            error_message = error.map(|error| error.message().to_owned())
        );
        self.plain_says(process, to, &Message::ToolUseResult(result));
    }

    /// A plain assistant asks: it sends its request, and waits.
    pub(crate) fn plain_asks(
        &mut self,
        process: usize,
        tool: &str,
        owner: Who,
        how: How,
        limit: Ms,
        probe: bool,
    ) {
        if self.processes[process].join.is_none_or(|join| !self.room.joins[join].open) {
            return;
        }
        let id = CallId::try_from(format!("plain-{}", self.ledger.calls.len())).unwrap();
        let call = self.ledger.asked(Asked {
            caller: process,
            who: Who::A,
            key: None,
            id: Some(id.clone()),
            how,
            tool: None,
            at: self.room.now,
            limit,
            echo: tool.starts_with("bridge."),
            // First frames may be lost, and nobody sends them again.
            probe: probe && !self.schedule.weather.nameless,
            again: false,
            rests: false,
            asks: matches!(tool, "careful" | "grave"),
            cancelled: false,
            detached: false,
            owners: Default::default(),
            plainly: false,
            owner_is_news: false,
            outcome: None,
        });
        self.room.after(limit, Happens::PlainDeadline { call });
        let request = with!(
            ToolUseRequest::new(
                id,
                tool,
                Arguments::body(if how == How::HugeRequest { How::Quick } else { how }),
                Ok(Execution::Client)
            ),
            timeout_ms = Some(limit as i32)
        );
        self.plain_says(process, &owner.to_string().into(), &Message::ToolUseRequest(request));
    }

    pub(crate) fn plain_deadline(&mut self, call: usize) {
        let limit = Duration::from_millis(self.ledger.calls[call].limit);
        self.plain_gives_up(call, CallError::Timeout { limit });
    }

    /// A plain assistant ends a call, and tells its owner to stop.
    pub(crate) fn plain_gives_up(&mut self, call: usize, why: CallError) {
        let it = &self.ledger.calls[call];
        let (process, owner) = (it.caller, it.owners.first().cloned());
        if it.outcome.is_some() || !self.processes[process].alive {
            return;
        }
        let target_id = it.id.as_ref().map(|id| id.as_str().to_owned());
        self.ledger.settled(call, &Err(why));
        if let Some(owner) = owner {
            let stop = with!(ControlStop::default(), target_id = target_id);
            self.plain_says(process, &owner, &Message::ControlStop(stop));
        }
    }

    fn plain_settles(&mut self, process: usize, from: &Peer, result: &ToolUseResult) {
        let Some(call) = self.ledger.by_id.get(&result.id).copied() else { return };
        let it = &self.ledger.calls[call];
        if it.caller != process || it.outcome.is_some() || !it.owners.contains(from.identity()) {
            return;
        }
        let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
        let read = match result.success {
            true => Ok(result.result.clone().unwrap_or_default()),
            false if code == ErrorCode::BUSY && it.how != How::SaysBusy => {
                Err(CallError::Busy { owner: from.identity().clone() })
            }
            false => Err(CallError::Tool(ToolError::new("odd", code.as_str()))),
        };
        self.ledger.settled(call, &read);
    }

    fn plain_says(&mut self, process: usize, to: &Identity, message: &Message) {
        let who = self.processes[process].who;
        let join = self.processes[process].join.filter(|join| self.room.joins[*join].open);
        let (Some(join), Program::Plain(plain)) = (join, &mut self.processes[process].program) else {
            return;
        };
        plain.stanza += if who == Who::A { -1 } else { 1 };
        let Ok(bytes) = Frame::write(plain.stanza, "room", &Meta::new(), message) else { return };
        if let Ok(frame) = Frame::decode(bytes.clone()) {
            trace!(self, "{who} says {} to {to}", trace::show(&frame));
            self.ledger.sent(process, &frame, Some(std::slice::from_ref(to)));
        }
        self.room.send(join, Some(vec![to.clone()]), Load::Packet(Lane::Reliable, bytes));
    }
}
