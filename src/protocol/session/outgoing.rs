//! Makes the calls of the local participant. Each has exactly one outcome.

mod calls;
mod fallback;
mod liveness;
mod local_call;
mod not_offered;
mod outcome;
mod progress;
mod reported;
mod routing;
mod rpc;
mod settled;
mod stop_requests;
mod stops;
mod turns;

use std::{collections::VecDeque, time::Duration};

use self::{
    calls::Calls, fallback::Fallback, routing::Choice, rpc::AskedByRpc, settled::Settled,
    stop_requests::StopRequests, turns::Turns,
};
pub(super) use self::{
    not_offered::{not_bound, unregistered, why_nobody, why_not},
    outcome::peer_error,
    progress::observe_progress,
    rpc::RpcOutcome,
};
pub use self::{stop_requests::StopError, turns::LateResult};
use super::{
    CallKey, CallRecord, Context, Counter, Event, JobKey, Request, TurnKey, codec,
    core::Core,
    delivery::{Purpose, Sent, Unfit},
    ids,
    ids::Instance,
    peers::{Remote, SETTLED, Selected, Window},
    timers::Timer,
};
use crate::{
    clock::{Instant, later},
    protocol::{
        frame::{Message, Meta, ToolUseRequest},
        rpc::IS_BUILT,
    },
    sorted::SortedMap,
    tool::{BargeIn, CallError, CallId, Execution, LossCause, NotOffered, Progress, Tool, ToolName},
    transport::{Identity, Peer, Sid},
    value::Value,
};

/// The prompt whose URL only one person may see.
const AUTHORIZE: &str = "bridge.authorize";

/// The replaced instances that are remembered for one call.
const MAX_EARLIER: usize = 8;

/// The open calls, the settled calls and the turns of the local participant.
///
/// Only an assistant makes calls. A client uses it for its requests to stop calls of its assistant.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    calls: Calls,
    settled: Settled,
    turns: Turns,
    stop_requests: StopRequests,
    /// Participants that are waited for without a call, with the number of waits.
    expected: SortedMap<Identity, u32>,
    /// The waiting calls whose owner the author's function selects, with the participants it selects from, in the joins
    /// that it was shown.
    selections: SortedMap<CallKey, Vec<Peer>>,
    /// The reported calls of the current second.
    reports: Window,
}

/// The time limit of a call, measured from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) limit: Duration,
    /// Whether the caller set no limit, so that the tool's patience applies.
    is_default: bool,
}

impl Budget {
    /// Applies the patience of the tool that is called, in place of that of an owner before. Returns whether the limit has
    /// changed.
    pub(super) fn apply(&mut self, cx: &Context, tool: Option<&Tool>) -> bool {
        let patience = tool.and_then(|tool| tool.tool_options().patience).unwrap_or(cx.config.times.call);
        let limit = if self.is_default { patience.min(cx.config.times.longest_call) } else { self.limit };
        std::mem::replace(&mut self.limit, limit) != limit
    }
}

/// A call that has no outcome yet.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) tool: Box<str>,
    pub(super) arguments: Value,
    /// The owner that the caller named.
    pub(super) named: Option<Identity>,
    pub(super) meta: Meta,
    pub(super) began: Instant,
    pub(super) budget: Budget,
    /// The time at which the wait for an owner ends.
    pub(super) waits_until: Instant,
    /// Indexed: only [`Calls`] changes it while the call is open.
    stage: Stage,
    /// Whether no caller waits for the outcome.
    pub(super) detached: bool,
    pub(super) earlier: EarlierOwners,
    /// The participant that has no such tool yet, and how often it was asked.
    pub(super) declined: Option<(Identity, u32)>,
    /// Whether the owner reported that the tool has started.
    pub(super) began_at_owner: bool,
    /// The progress updates of the current second.
    pub(super) rate: Window,
    /// The last of the updates beyond the limit. It is reported later, or before the outcome.
    pub(super) late: Option<Progress>,
    /// Whether the local participant may run the call instead of its owner.
    pub(super) fallback: Fallback,
    /// The turn that it belongs to.
    pub(super) turn: Option<TurnKey>,
    /// The rule by which a barge-in settled the call for its caller while the tool continues to run.
    pub(super) rest: Option<BargeIn>,
}

/// The replaced instances that a call was sent to. They may have run it, or may still run it.
#[derive(Debug, Default)]
pub(super) struct EarlierOwners {
    /// The owner of the last instance.
    last: Option<Identity>,
    /// At most [`MAX_EARLIER`].
    instances: VecDeque<(Identity, Instance)>,
}

impl EarlierOwners {
    pub(super) fn last(&self) -> Option<&Identity> {
        self.last.as_ref()
    }

    /// Adds an instance of this owner that was replaced.
    fn add(&mut self, owner: &Identity, instance: Option<Instance>) {
        self.last = Some(owner.clone());
        self.instances.extend(instance.map(|instance| (owner.clone(), instance)));
        if self.instances.len() > MAX_EARLIER {
            self.instances.pop_front();
        }
    }

    /// Removes an instance that is sent the call, again or for the first time.
    fn remove(&mut self, owner: &Identity, instance: Option<&Instance>) {
        self.instances.retain(|(id, earlier)| id != owner || Some(earlier) != instance);
    }
}

/// The stage of a call.
#[derive(Debug)]
pub(super) enum Stage {
    /// No owner has been sent the request.
    Waiting,
    /// The owner has been sent the request.
    Asked(Asked),
    /// The local participant runs the call.
    Own(JobKey),
}

/// The owner that was sent the request, and how.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) owner: Identity,
    /// The owner's instance; `None` for a plain peer, and for one that was called by RPC.
    pub(super) instance: Option<Instance>,
    /// The request, if the owner was called by RPC.
    pub(super) rpc: Option<AskedByRpc>,
    /// The join in which the owner was seen last.
    pub(super) sid: Sid,
    /// The stanza of the request, by which `Delivery` identifies the frame.
    pub(super) stanza: i32,
    pub(super) at: Instant,
    /// The latest time at which the owner ends the call itself.
    pub(super) ends: Instant,
    pub(super) delivered: bool,
    /// The highest stanza, as an absolute value, under which the owner reported progress.
    pub(super) progress: u32,
    /// Whether the owner may send its progress on the fast lane, and so more than once.
    pub(super) progress_on_lane: bool,
    /// Whether the request was sent before in the plain form. If this packet is not sent, the earlier one may still
    /// have arrived.
    pub(super) again: bool,
}

impl Asked {
    /// Creates the state of an owner that has just been sent the request, under this stanza.
    fn new(core: &Core, call: &Call, owner: &Identity, stanza: i32) -> Self {
        let sid = core.peers.get(owner).and_then(Remote::sid).cloned();
        Self {
            owner: owner.clone(),
            instance: None,
            rpc: None,
            sid: sid.unwrap_or_else(|| Sid::from("")),
            stanza,
            at: core.cx.now,
            ends: later(call.began, call.budget.limit),
            delivered: false,
            progress: 0,
            progress_on_lane: false,
            again: false,
        }
    }

    /// Returns whether the request was a frame. Others cannot be stopped, and outlive the join of their owner.
    pub(super) fn is_frame(&self) -> bool {
        !IS_BUILT || self.rpc.is_none()
    }

    /// Returns whether frames of this participant may be about the call: it was sent the request as a frame, in the same
    /// instance or, without one, the same join.
    pub(super) fn is_of(&self, id: &Identity, remote: &Remote) -> bool {
        if !self.is_frame() {
            return false;
        }
        let same = match &self.instance {
            Some(instance) => remote.present_instance() == Some(instance),
            // A plain peer shows nothing that outlives its join. A later join of its identity may be another
            // program.
            None => remote.sid() == Some(&self.sid),
        };
        self.owner == *id && same
    }

    /// Returns whether the owner cannot have the call because no packet with it was sent.
    fn was_never_sent(&self, core: &Core) -> bool {
        !self.again && core.delivery.was_never_sent(&self.owner, self.stanza)
    }

    /// Returns whether the call was sent to the owner's present instance.
    fn was_sent_to_instance(&self, id: &Identity, core: &Core) -> bool {
        let present = core.peers.get(id).and_then(Remote::instance);
        self.owner == *id && present.is_some() && self.instance.as_ref() == present
    }
}

impl Call {
    /// Creates a call that nobody has been sent yet.
    fn new(core: &mut Core, request: Request, limit: Duration, wait: Duration) -> Self {
        Self {
            id: core.cx.ids.next_call(),
            tool: request.tool.into(),
            arguments: request.arguments,
            named: request.owner,
            meta: request.meta,
            began: core.cx.now,
            budget: Budget { limit, is_default: request.timeout.is_none() },
            waits_until: later(core.cx.now, wait),
            stage: Stage::Waiting,
            detached: false,
            earlier: EarlierOwners::default(),
            declined: None,
            began_at_owner: false,
            rate: Window::default(),
            late: None,
            fallback: Fallback::Never,
            turn: request.turn,
            rest: None,
        }
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Sets the owner that was sent the request.
    pub(super) fn asking(mut self, asked: Asked) -> Self {
        self.stage = Stage::Asked(asked);
        self
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    pub(super) fn asked(&self) -> Option<&Asked> {
        match &self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Waiting | Stage::Own(_) => None,
        }
    }

    /// Returns the owner's state mutably. The owner is indexed, so only [`Calls`] may change it while the call is open.
    pub(super) fn asked_mut(&mut self) -> Option<&mut Asked> {
        match &mut self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Waiting | Stage::Own(_) => None,
        }
    }

    /// Returns the participant that must answer, if it is not the local one.
    pub(super) fn owner(&self) -> Option<Identity> {
        self.asked().map(|asked| asked.owner.clone())
    }

    pub(super) fn execution(&self) -> Execution {
        match (&self.stage, self.fallback) {
            (Stage::Own(_), _) => Execution::Server,
            (_, Fallback::Claimed(_)) => Execution::Client,
            (_, fallback) => fallback.execution(),
        }
    }
}

impl Outgoing {
    pub(super) fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns an open call's id on the wire.
    pub(super) fn call_id(&self, key: CallKey) -> Option<&CallId> {
        self.calls.get(&key).map(|call| &call.id)
    }

    /// Returns the key of the open call with this id.
    pub(super) fn key_of(&self, id: &CallId) -> Option<CallKey> {
        self.calls.key_of(id)
    }

    /// Returns whether a caller waits for the outcome of an open call: no barge-in has settled it.
    pub(super) fn is_awaited(&self, key: CallKey) -> bool {
        self.calls.get(&key).is_some_and(|call| call.rest.is_none())
    }

    /// Returns whether this peer must answer a call, or may answer one again.
    pub(super) fn awaits_answers_of(&self, core: &Core, id: &Identity) -> bool {
        self.places_at(core, id) > 0 || self.settled.remembers(id)
    }

    /// Stops settled plain-form calls again, since a new instance may be the one that received them.
    pub(super) fn stop_plain_calls_again(&mut self, core: &mut Core, id: &Identity) {
        for stanza in self.settled.stop_plain_calls_again(id) {
            core.delivery.forget_frame(id, stanza);
        }
    }

    /// Handles a stop whose packet was not sent. The stop waits until the owner is reachable.
    pub(super) fn stop_unsent(&mut self, call: &CallId, stanza: i32) {
        self.settled.stop_not_sent(call, stanza);
    }

    /// Sends a peer the frames whose last packet was not sent.
    pub(super) fn send_unsent(&mut self, core: &mut Core, id: &Identity, grants: bool) {
        for call in core.delivery.requests_unsent(id) {
            self.ask_again(core, &call);
        }
        if grants {
            // Grants have no record in `Delivery`, because the claim is repeated until one arrives.
            self.grants_again(core, id);
        }
        self.send_waiting_stops(core, id);
        self.send_stops(core, id, false);
    }

    /// Handles the heartbeat timeout of a client.
    pub(super) fn handle_heartbeat_timeout(&mut self, core: &mut Core, id: &Identity) {
        let (heard, limit) = (core.peers.get(id).map(Remote::silent_since), core.cx.config.times.heartbeat);
        // Any frame shows that it is alive, not only a heartbeat.
        let left = limit.saturating_sub(core.cx.now.saturating_duration_since(heard.unwrap_or(core.cx.now)));
        if !left.is_zero() {
            return core.cx.set_timer(Timer::Heartbeat(id.clone()), left);
        }
        tracing::info!(peer = %id, "heartbeat timed out");
        self.lose_calls(core, id, LossCause::Silent(limit), |_| true);
        core.peers.withdraw_silent_client(&mut core.cx, id);
    }

    /// Settles all open calls. `error` gets the owner, and whether the tool may have run.
    pub(super) fn close(&mut self, core: &mut Core, error: impl Fn(Option<Identity>, bool) -> CallError) {
        let open: Vec<_> = self.calls.keys().collect();
        for key in open {
            let Some(call) = self.calls.get(&key) else { continue };
            let may_have_run = match call.stage() {
                Stage::Waiting => false,
                Stage::Asked(asked) => !asked.was_never_sent(core),
                Stage::Own(job) => !core.jobs.awaits_consent(*job),
            };
            let error = error(call.owner(), may_have_run);
            self.settle_call(core, key, Err(error));
        }
    }

    /// Forgets the settled calls.
    pub(super) fn clear(&mut self) {
        self.settled = Settled::default();
    }

    /// Starts to wait for a participant without a call.
    pub(super) fn begin_expecting(&mut self, core: &mut Core, id: &Identity) {
        *self.expected.entry(id.clone()).or_default() += 1;
        self.expect(core, id);
    }

    pub(super) fn stop_expecting(&mut self, id: &Identity) {
        if let Some(times) = self.expected.get_mut(id) {
            *times -= 1;
            if *times == 0 {
                self.expected.remove(id);
            }
        }
    }

    /// Makes a call.
    pub(super) fn call(&mut self, core: &mut Core, mut request: Request) -> Result<CallKey, CallError> {
        // First, so that refused calls count too: a model in a loop repeats those as well.
        self.admit_to_turn(core, &request)?;
        let (caps, times) = (&core.cx.config.caps, &core.cx.config.times);
        let limit = request.timeout.unwrap_or(times.call);
        let wait = request.owner_wait.unwrap_or(times.owner_wait).min(limit);
        if limit < Duration::from_millis(1) || limit > times.longest_call {
            return Err(CallError::Limit { asked: limit, maximum: times.longest_call });
        }
        if self.calls.len() >= caps.calls.open_calls {
            return Err(CallError::TooManyOpen { open: self.calls.len() });
        }
        request.arguments = request.arguments.into_arguments().map_err(CallError::Arguments)?;
        let unknown = |why| CallError::unknown_tool(&request.tool, why);
        let name: ToolName = request.tool.parse().map_err(|_| unknown(NotOffered::NotAName))?;
        if core.cx.is_client() {
            return Err(unknown(NotOffered::NotAnAssistant));
        }
        if name.is_reserved() && name.as_str() != ToolName::ECHO && !name.is_prompt() {
            return Err(unknown(NotOffered::NotAName));
        }
        // A call that names a client goes to that client alone, even if the assistant offers a tool of that
        // name (`wire.md`, section 4.8).
        let is_local = request.owner.as_ref().is_none_or(|owner| owner == core.cx.local.identity())
            && core.cx.local.tools.iter().any(|tool| *tool.name() == name);
        let mut call = Call::new(core, request, limit, wait);
        if is_local {
            return Ok(self.run_or_ask(core, call, &name));
        }
        let mut selecting = None;
        match self.choose(core, &call.tool, call.named.as_ref()) {
            Choice::Fail(error) => return Err(error),
            Choice::Wait if wait.is_zero() => return Err(self.no_owner_error(core, &call)),
            Choice::Wait => {}
            Choice::Select(among) => selecting = Some(among),
            Choice::Ask(owner) => {
                call.budget.apply(&core.cx, tool_of(core, &owner, &call.tool));
                // Before the call is inserted, so that a request that is too large is an error of the command
                // and not a call that ends.
                let asked = self.send_request(core, &call, &owner)?;
                call = call.asking(asked);
            }
        }
        let key = self.insert_call(core, call);
        match selecting {
            Some(among) => self.ask_function(core, key, &among),
            None => self.await_owner(core, key, wait),
        }
        Ok(key)
    }

    /// Sends a waiting call to its owner.
    pub(super) fn ask_owner(&mut self, core: &mut Core, key: CallKey, owner: &Identity) {
        let Some(mut call) = self.calls.remove(&key) else { return };
        if call.budget.apply(&core.cx, tool_of(core, owner, &call.tool)) {
            core.cx.set_timer(Timer::Deadline(key), time_left(&core.cx, &call));
        }
        let waited = call.is_waiting();
        // The owner's own limit may have passed while the call waited for the owner.
        let is_over = waited && time_left(&core.cx, &call).is_zero();
        let limit = call.budget.limit;
        let sent = match is_over {
            true => Err(CallError::NotDelivered { limit }),
            false => self.send_request(core, &call, owner),
        };
        let first = waited && call.earlier.last().is_none() && call.declined.is_none();
        self.calls.insert(key, call);
        core.cx.timers.cancel(&Timer::OwnerWait(key));
        match sent {
            Ok(asked) => {
                if let Some(call) = self.calls.get_mut(&key) {
                    // This instance is the owner again, so it must not be sent the stop for replaced
                    // instances when the call ends.
                    call.earlier.remove(owner, asked.instance.as_ref());
                }
                self.calls.set_stage(key, Stage::Asked(asked));
                match self.calls.get(&key) {
                    Some(call) if !first => core.cx.log.owned(
                        &(call.id.clone(), core.cx.local.identity().clone()),
                        call.execution(),
                        owner,
                    ),
                    _ => self.requested(core, key),
                }
                self.watch(core, owner);
            }
            Err(error) if waited => self.settle_call(core, key, Err(error)),
            Err(error) => {
                tracing::debug!(%owner, %error, "the request was not sent again; the one in the plain form remains")
            }
        }
    }

    pub(super) fn insert_call(&mut self, core: &mut Core, call: Call) -> CallKey {
        let key = CallKey(core.cx.next_key());
        core.cx.count(Counter::Calls);
        core.cx.set_timer(Timer::Deadline(key), call.budget.limit);
        let local = core.cx.local.identity();
        let record = CallRecord {
            turn: call.turn,
            request_bytes: call.arguments.as_bytes().len(),
            ..CallRecord::requested(&call.id, &call.tool, call.execution(), local, call.began)
        };
        core.cx.log.insert(record);
        self.calls.insert(key, call);
        key
    }

    /// Returns the open call with this id if this is its owner: the same identity, in the same instance or join.
    pub(super) fn call_owned_by(&self, core: &Core, call: &CallId, id: &Identity) -> Option<CallKey> {
        let key = self.calls.key_of(call)?;
        let asked = self.calls.get(&key)?.asked()?;
        asked.is_of(id, core.peers.get(id)?).then_some(key)
    }

    /// Notes that a request has arrived at its owner.
    pub(super) fn request_delivered(&mut self, core: &mut Core, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let name = call.id.clone();
        if let Some(asked) = call.asked_mut().filter(|asked| !asked.delivered) {
            asked.delivered = true;
            core.cx.event(Event::Delivered { call: name, owner: asked.owner.clone() });
        }
    }

    /// Resumes the open calls of an owner whose Configuration has crossed with the local one. The calls of another
    /// instance are lost.
    pub(super) fn resume_calls(&mut self, core: &mut Core, id: &Identity) {
        let Some(remote) = core.peers.get(id) else { return };
        let (instance, sid) = (remote.instance().cloned(), remote.sid().cloned());
        let mut again = Vec::new();
        let mut lost = Vec::new();
        let open: Vec<_> = self.calls.of_owner(id).map(|(key, _)| key).collect();
        for key in open {
            let Some(asked) = self.calls.get_mut(&key).and_then(Call::asked_mut) else { continue };
            if !asked.is_frame() {
                continue; // its answer comes by RPC, and a request as a frame could run twice
            }
            let same_join = Some(&asked.sid) == sid.as_ref();
            match (&asked.instance, &instance) {
                (Some(before), Some(present)) if before == present => {
                    asked.sid = sid.clone().unwrap_or_else(|| asked.sid.clone());
                }
                // A plain peer in another join falls through: nothing shows that it is the program that was
                // asked.
                (None, None) if same_join => {}
                (None, Some(_)) if same_join => again.push(key), // the peer uses the handshake after all
                (Some(_), Some(_)) => lost.push((key, LossCause::Restarted)),
                _ => lost.push((key, LossCause::Left)),
            }
        }
        for (key, why) in lost {
            self.lose_call(core, key, id, why);
        }
        for key in again {
            self.ask_owner(core, key, id);
        }
        if self.calls.of_owner(id).next().is_some() {
            self.watch(core, id); // its pings ended when it rejoined
        }
    }

    /// Returns whether the open calls of this owner reach the limit on bytes of arguments. A single call may exceed it.
    fn is_full_with(&self, core: &Core, owner: &Identity, arguments: &Value) -> bool {
        let open = self.calls.bytes_of(owner);
        open > 0 && open + arguments.as_bytes().len() > core.cx.config.caps.calls.open_bytes
    }

    /// Sends a request again with the remaining time limit. Returns `None` if that is unnecessary.
    pub(super) fn ask_again(&mut self, core: &mut Core, id: &CallId) -> Option<Sent> {
        let call = self.calls.get(&self.calls.key_of(id)?)?;
        let asked = call.asked().filter(|asked| !asked.delivered || !asked.is_frame())?;
        if !asked.is_frame() {
            return self.ask_again_by_rpc(core, id);
        }
        let (owner, stanza) = (asked.owner.clone(), asked.stanza);
        let is_it = |remote: &Remote| remote.is_reachable() && asked.is_of(&owner, remote);
        core.peers.get(&owner).filter(|remote| is_it(remote))?;
        let (meta, message) = request(core, call, asked.instance.as_ref());
        // Under its first stanza. An owner that has forgotten the request has a floor above it and answers
        // 304. Under a new stanza it would take the request for a new one and run the tool again (`wire.md`,
        // section 5.1).
        let sent = core.to(&owner).post_again(stanza, &meta, &message, Some(Purpose::Request(id.clone())));
        sent.inspect_err(|error| tracing::warn!(?error, "a request cannot be sent again")).ok()
    }

    pub(super) fn requested(&mut self, core: &mut Core, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        let owner = call.owner().unwrap_or_else(|| core.cx.local.identity().clone());
        let event = Event::Requested {
            call: call.id.clone(),
            tool: call.tool.to_string(),
            execution: call.execution(),
            owner: owner.clone(),
            by: core.cx.local.identity().clone(),
        };
        core.cx.event(event);
        if owner != *core.cx.local.identity() {
            self.watch(core, &owner);
        }
    }

    pub(super) fn await_owner(&mut self, core: &mut Core, key: CallKey, wait: Duration) {
        let Some(call) = self.calls.get(&key) else { return };
        if !call.is_waiting() {
            return self.requested(core, key);
        }
        // Shortly before the wait ends, the clients that may still register are pinged.
        core.cx.set_timer(Timer::OwnerWait(key), wait.saturating_sub(SETTLED));
        let wanted = call.named.clone().or_else(|| core.cx.config.pins.get(&*call.tool).cloned());
        if let Some(wanted) = wanted {
            core.peers.expect(&mut core.cx, &mut core.delivery, &wanted);
        }
    }

    /// Sends the request, with the remaining time limit.
    pub(super) fn send_request(
        &mut self,
        core: &mut Core,
        call: &Call,
        owner: &Identity,
    ) -> Result<Asked, CallError> {
        let open = self.places_at(core, owner);
        let full = open >= core.cx.config.caps.calls.open_per_peer
            || self.is_full_with(core, owner, &call.arguments);
        // A call that is sent again, because its plain owner has turned out to use the handshake, has its
        // place already.
        if full && call.asked().is_none() {
            return Err(CallError::TooManyOpen { open });
        }
        let remote = core.peers.get(owner).ok_or_else(|| {
            let (owner, why) = (owner.clone(), LossCause::Left);
            CallError::Lost { owner, why }
        })?;
        if let Some(reach) = remote.reach(&core.cx).filter(|reach| rpc::by_rpc(*reach)) {
            return self.send_by_rpc(core, call, owner, reach);
        }
        let instance = remote.instance().cloned().filter(|_| !remote.is_plain());
        let (meta, message) = request(core, call, instance.as_ref());
        let purpose = Some(Purpose::Request(call.id.clone()));
        let sent = core.to(owner).post(&meta, &message, purpose).map_err(|unfit| match unfit {
            Unfit::TooLarge { size, limit } => CallError::TooLarge { size, limit },
            Unfit::Encode(error) => CallError::from(error),
        })?;
        // The call's own `meta`: `bridge.to` would show observers a hash of the owner's instance (`wire.md`,
        // section 4.12).
        core.copy(&call.meta, &for_observers(message));
        if let Some(before) = call.asked() {
            core.delivery.forget_frame(&before.owner, before.stanza);
        }
        let again = call.asked().is_some();
        Ok(Asked { instance, again, ..Asked::new(core, call, owner, sent.stanza) })
    }
}

/// Returns the tool as this participant registered it.
fn tool_of<'a>(core: &'a Core, owner: &Identity, tool: &str) -> Option<&'a Tool> {
    core.peers.get(owner).and_then(|remote| remote.tool(tool))
}

/// Returns the remaining time of a call.
fn time_left(cx: &Context, call: &Call) -> Duration {
    call.budget.limit.saturating_sub(cx.now.saturating_duration_since(call.began))
}

/// Builds a call's request, with the remaining time limit.
fn request(core: &Core, call: &Call, instance: Option<&Instance>) -> (Meta, Message) {
    let message = tool_use(core, call, call.fallback.execution(), time_left(&core.cx, call));
    let meta = match instance {
        Some(instance) => codec::addressed(&call.meta, &ids::address_of(instance.as_str())),
        None => call.meta.clone(),
    };
    (meta, message)
}

/// Builds the message of a call's request, with this time limit.
fn tool_use(core: &Core, call: &Call, execution: Execution, limit: Duration) -> Message {
    Message::ToolUseRequest(ToolUseRequest {
        id: call.id.clone(),
        tool_name: call.tool.to_string(),
        parameters: call.arguments.clone(),
        execution: Ok(execution),
        timeout_ms: Some(milliseconds(limit)),
        conversation_id: Some(core.cx.config.room.clone()),
        message_id: None,
    })
}

/// Returns the request for observers, without the sign-in URL.
fn for_observers(message: Message) -> Message {
    match message {
        Message::ToolUseRequest(request) if request.tool_name == AUTHORIZE => {
            Message::ToolUseRequest(ToolUseRequest { parameters: Value::empty(), ..request })
        }
        other => other,
    }
}

/// Converts a duration to `timeoutMs`, at least 1.
pub(super) fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}
