//! Participants without a session: plain peers, which know only the base protocol, and participants that only listen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use toolbridge::{
    CallError, CallId, ErrorCode, Identity, ToolError,
    frame::{ControlStop, Frame, Kind, Message, Meta, ToolUseRequest, ToolUseResult},
    tools::Execution,
    transport::{Lane, Peer},
};

use crate::{
    actions::{Answer, Arguments},
    room::{Load, Scheduled},
    rules::{CallRecord, Rule},
    schedule::{Actor, Behavior, Ms},
    trace,
    world::{Program, World},
};

/// A client or an assistant that does not know the handshake.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    stanza: i32,
    jobs: BTreeMap<(Identity, CallId), Behavior>,
    seen: BTreeSet<(Identity, CallId)>,
}

impl World<'_> {
    /// Handles a frame that arrives at a participant without a session.
    pub(crate) fn received_without_session(&mut self, process: usize, from: &Peer, frame: &Frame) {
        let actor = self.processes[process].actor;
        match actor {
            Actor::Observer => {
                let kind = frame.kind();
                if matches!(kind, Kind::ACKNOWLEDGEMENT | Kind::CONFIGURATION)
                    || frame.meta_str("bridge.to").is_some()
                {
                    let text = format!("the observer was sent {}", trace::show(frame));
                    self.ledger.broken(Rule::Receivers, text);
                }
            }
            Actor::Stranger => self.received_by_stranger(from, frame),
            _ => match frame.message() {
                Ok(Message::ToolUseRequest(request)) if matches!(actor, Actor::Client(_)) => {
                    self.plain_starts(process, from, &request);
                }
                Ok(Message::ToolUseResult(result)) if actor == Actor::Assistant => {
                    self.plain_receives_result(process, from, &result)
                }
                Ok(Message::ControlStop(stop)) if matches!(actor, Actor::Client(_)) => {
                    self.plain_stops(process, from, &stop)
                }
                _ => {}
            },
        }
    }

    /// Checks what the stranger receives: broadcasts, and denials of its own messages.
    fn received_by_stranger(&mut self, from: &Peer, frame: &Frame) {
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
            self.ledger.broken(Rule::Receivers, text);
        }
        let denied = matches!(frame.kind(), Kind::TOOLS_REGISTER_ACK);
        // A packet of a participant that is not announced yet has no sender, so its denials cannot be counted.
        if denied && !from.sid().is_empty() && !self.ledger.denied.insert(from.sid().clone()) {
            let text =
                format!("{} refuses the stranger's registration more than once a minute", from.identity());
            self.ledger.broken(Rule::Unauthorized, text);
        }
    }

    /// Returns whether this participant started the call itself.
    fn ran(&self, peer: &Peer, id: &CallId) -> bool {
        let mut starts = self.ledger.starts.get(id).into_iter().flatten();
        starts.any(|it| {
            let name = self.processes[it.process].actor.to_string();
            peer.identity().as_str().is_empty() || name == peer.identity().as_str()
        })
    }

    fn is_denial(&self, result: &ToolUseResult) -> bool {
        result.error_code == Some(ErrorCode::PERMISSION_DENIED)
    }

    fn plain_starts(&mut self, process: usize, from: &Peer, request: &ToolUseRequest) {
        let asked = matches!(request.execution, Ok(Execution::Client | Execution::Either));
        if !asked || !matches!(from.identity().as_str(), "a" | "b") {
            return;
        }
        let name = self.processes[process].actor.to_string();
        let Program::Plain(plain) = &mut self.processes[process].program else { return };
        let key = (from.identity().clone(), request.id.clone());
        if !plain.seen.insert(key.clone()) {
            return;
        }
        if request.tool_name != format!("t{name}") {
            let error = ToolError::new(ErrorCode::UNKNOWN_TOOL, "no such tool");
            return self.plain_answers(process, from.identity(), &request.id, Err(error));
        }
        let behavior = Arguments::read(&request.parameters);
        plain.jobs.insert(key, behavior);
        trace!(self, "{name} starts {:?} ({behavior:?})", request.id);
        self.ledger.started(process, &name, from.identity(), &request.id, behavior != Behavior::BadArguments);
        if let Some(join) = self.processes[process].join {
            let sid = self.room.joins[join].participant.sid().clone();
            self.ledger.taken_as.insert(request.id.clone(), sid);
        }
        if let Some(takes) = behavior.takes() {
            let (caller, call) = (from.identity().clone(), request.id.clone());
            self.room.after(takes, Scheduled::PlainJobEnds { process, caller, call });
        }
    }

    pub(crate) fn plain_job_ends(&mut self, process: usize, caller: &Identity, call: &CallId) {
        let Program::Plain(plain) = &mut self.processes[process].program else { return };
        let Some(behavior) = plain.jobs.remove(&(caller.clone(), call.clone())) else { return };
        if !self.processes[process].alive {
            return;
        }
        let outcome = match behavior {
            Behavior::Fails | Behavior::Panics | Behavior::FailsAsBusy => {
                Err(ToolError::new("odd", "it went wrong"))
            }
            Behavior::BadArguments => Err(ToolError::new("invalid_parameters", "not a number")),
            _ => Ok(Answer::body(process, call, Behavior::Quick)),
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
        self.plain_sends(process, to, &Message::ToolUseResult(result));
    }

    /// A plain assistant makes a call: it sends one request and waits.
    pub(crate) fn plain_calls(
        &mut self,
        process: usize,
        tool: &str,
        owner: Actor,
        behavior: Behavior,
        limit: Ms,
        probe: bool,
    ) {
        if self.processes[process].join.is_none_or(|join| !self.room.joins[join].open) {
            return;
        }
        let id = CallId::try_from(format!("plain-{}", self.ledger.calls.len())).unwrap();
        let call = self.ledger.add_call(CallRecord {
            caller: process,
            actor: Actor::Assistant,
            key: None,
            id: Some(id.clone()),
            behavior,
            tool: None,
            at: self.room.now,
            limit,
            echo: tool.starts_with("bridge."),
            // The first frame may be lost, and a plain assistant does not retransmit.
            probe: probe && !self.schedule.network.unknown_senders,
            idempotent: false,
            may_continue: false,
            consent: matches!(tool, "careful" | "grave"),
            cancelled: false,
            detached: false,
            owners: Default::default(),
            sent_plain: false,
            owner_is_recent: false,
            outcome: None,
        });
        self.room.after(limit, Scheduled::PlainDeadline { call });
        let request = with!(
            ToolUseRequest::new(
                id,
                tool,
                Arguments::body(if behavior == Behavior::HugeRequest { Behavior::Quick } else { behavior }),
                Ok(Execution::Client)
            ),
            timeout_ms = Some(limit as i32)
        );
        self.plain_sends(process, &owner.to_string().into(), &Message::ToolUseRequest(request));
    }

    pub(crate) fn plain_deadline(&mut self, call: usize) {
        let limit = Duration::from_millis(self.ledger.calls[call].limit);
        self.plain_cancels(call, CallError::Timeout { limit });
    }

    /// A plain assistant ends a call and sends a stop to its owner.
    pub(crate) fn plain_cancels(&mut self, call: usize, why: CallError) {
        let it = &self.ledger.calls[call];
        let (process, owner) = (it.caller, it.owners.first().cloned());
        if it.outcome.is_some() || !self.processes[process].alive {
            return;
        }
        let target_id = it.id.as_ref().map(|id| id.as_str().to_owned());
        self.ledger.settled(call, &Err(why));
        if let Some(owner) = owner {
            let stop = with!(ControlStop::default(), target_id = target_id);
            self.plain_sends(process, &owner, &Message::ControlStop(stop));
        }
    }

    fn plain_receives_result(&mut self, process: usize, from: &Peer, result: &ToolUseResult) {
        let Some(call) = self.ledger.by_id.get(&result.id).copied() else { return };
        let it = &self.ledger.calls[call];
        if it.caller != process || it.outcome.is_some() || !it.owners.contains(from.identity()) {
            return;
        }
        let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
        let read = match result.success {
            true => Ok(result.result.clone().unwrap_or_default()),
            false if code == ErrorCode::BUSY && it.behavior != Behavior::FailsAsBusy => {
                Err(CallError::Busy { owner: from.identity().clone(), limit: None })
            }
            false => Err(CallError::Tool(ToolError::new("odd", code.as_str()))),
        };
        self.ledger.settled(call, &read);
    }

    fn plain_sends(&mut self, process: usize, to: &Identity, message: &Message) {
        let actor = self.processes[process].actor;
        let join = self.processes[process].join.filter(|join| self.room.joins[*join].open);
        let (Some(join), Program::Plain(plain)) = (join, &mut self.processes[process].program) else {
            return;
        };
        plain.stanza += if actor == Actor::Assistant { -1 } else { 1 };
        let Ok(bytes) = Frame::write(plain.stanza, "room", &Meta::new(), message) else { return };
        if let Ok(frame) = Frame::decode(bytes.clone()) {
            trace!(self, "{actor} sends {} to {to}", trace::show(&frame));
            self.ledger.sent(process, &frame, Some(std::slice::from_ref(to)));
        }
        self.room.send(join, Some(vec![to.clone()]), Load::Packet(Lane::Reliable, bytes));
    }
}
