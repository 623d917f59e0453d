//! Applies messages of RPC. They name their caller, have no stanzas, and are never sent to observers.

use std::time::Duration;

use super::{CallUpdate, CallsBuilder, TrackedCall, tracked_call::answer_of};
use crate::{
    protocol::frame::{Frame, Message},
    recording::{Direction, Moment, Recorded, RecordedOutcome},
    tool::CallId,
    transport::Identity,
};

/// The codes of refusals that their owner does not remember: nothing has run.
const NOT_REMEMBERED: &[&str] = &["unknown_tool", "busy", "permission_denied", "invalid_parameters"];

/// The time limit of a request that has none.
const DEFAULT_LIMIT: Duration = Duration::from_secs(15);

impl CallsBuilder {
    pub(super) fn rpc(
        &mut self,
        at: Moment,
        packet: &Recorded,
        frame: &Frame,
        message: &Message,
    ) -> Option<(u64, CallUpdate)> {
        let is_own = match message {
            Message::ToolUseRequest(_) => packet.direction == Direction::Sent,
            _ => packet.direction == Direction::Heard,
        };
        match message {
            Message::ToolUseRequest(request) => {
                let mut request = request.clone();
                let wire = request.id.clone();
                request.id = call_of(&wire, is_own);
                let caller = packet.sender().cloned();
                let before = self.keys.get(&(request.id.clone(), caller)).copied();
                let was_asked = before
                    .and_then(|serial| self.tracked.get(&serial))
                    .is_some_and(|tracked_call| tracked_call.asked.is_some());
                let (serial, update) = self.request(at, packet, frame, &request)?;
                let tracked_call = self.tracked.get_mut(&serial)?;
                if request.timeout_ms.is_none_or(|limit| limit <= 0) && !was_asked {
                    tracked_call.call.limit = Some(DEFAULT_LIMIT);
                }
                tracked_call.call.rpc = Some(if packet.stream { 2 } else { 1 });
                let sid = packet.from.as_ref().map(|from| from.sid().clone());
                let is_other_join = was_asked && tracked_call.rpc.sid != sid;
                tracked_call.rpc.sid = sid;
                tracked_call.rpc.wire = Some(wire);
                if is_own {
                    // Its owner knows each of its requests as another one. After "no such tool" it is made again.
                    if tracked_call.was_refused() {
                        tracked_call.forget_answer();
                    }
                } else if is_other_join {
                    // In another join, an id is another request.
                    tracked_call.forget_answer();
                    tracked_call.rpc.again = 0;
                } else if was_asked {
                    tracked_call.rpc.again = tracked_call.rpc.again.saturating_add(1);
                } else if let Some(delivered) = tracked_call.call.delivered {
                    // The header of a stream was acknowledged, and its end is recorded.
                    tracked_call.call.requested = Some(delivered);
                }
                let is_first = !was_asked && tracked_call.answer.is_none();
                Some((serial, if is_first { CallUpdate::Requested } else { update }))
            }
            Message::Acknowledgement(ack) => {
                let wire = CallId::known(ack.acknowledged_message_id.as_deref()?);
                let serial =
                    self.of_rpc(packet, &call_of(&wire, is_own), packet.direction == Direction::Sent)?;
                let (serial, update) = self.by_owner(serial, packet, |call| {
                    call.delivered.get_or_insert(at);
                })?;
                let tracked_call = self.tracked.get(&serial)?;
                let is_open = tracked_call.asked.is_some() && tracked_call.answer.is_none();
                let is_first = is_open && update == CallUpdate::Other;
                Some((serial, if is_first { CallUpdate::Acknowledged } else { update }))
            }
            Message::ToolUseResult(result) => {
                let serial = self.of_rpc(packet, &call_of(&result.id, is_own), true)?;
                let tracked_call = self.tracked.get_mut(&serial)?;
                if is_own && tracked_call.rpc.wire.as_ref().is_some_and(|wire| *wire != result.id) {
                    return Some((serial, CallUpdate::Other)); // of an earlier request, which no longer counts
                }
                let (answer, is_known) = (answer_of(result), tracked_call.asked.is_some());
                let may_answer =
                    tracked_call.call.owner.as_ref().is_none_or(|it| Some(it) == packet.sender());
                let again = tracked_call.rpc.again;
                if may_answer {
                    tracked_call.rpc.again = again.saturating_sub(1);
                }
                if may_answer && again > 0 && tracked_call.answer.is_some_and(|first| first != answer) {
                    if tracked_call.was_refused() {
                        tracked_call.forget_answer(); // it has not run before
                    } else if result.success {
                        return Some((serial, CallUpdate::RanAgain));
                    } else {
                        return Some((serial, CallUpdate::Other)); // the repeated request was refused
                    }
                }
                let (serial, update) = self.result_of(at, serial, packet, frame, result)?;
                let is_first = matches!(update, CallUpdate::Settled);
                Some((serial, if is_first && !is_known { CallUpdate::NotAsked } else { update }))
            }
            _ => None,
        }
    }

    /// Returns the call that an acknowledgement or an answer belongs to. Its request may follow: a stream is recorded when it
    /// ends, and its header is acknowledged. Then the call is added, if `adds`.
    fn of_rpc(&mut self, packet: &Recorded, id: &CallId, adds: bool) -> Option<u64> {
        let caller: Option<Identity> = match packet.direction {
            Direction::Sent => packet.to.first().cloned(),
            Direction::Heard => self.here.clone(),
        };
        if let Some(serial) = self.keys.get(&(id.clone(), caller.clone())) {
            return Some(*serial);
        }
        // The server itself calls under the id of its call.
        let is_servers = caller.as_ref().is_some_and(|caller| caller.as_str() == id.as_str());
        if is_servers && let Some(serial) = self.keys.get(&(id.clone(), None)) {
            return Some(*serial);
        }
        if adds { self.insert(id, caller.as_ref()) } else { None }
    }
}

/// Returns the id of the call. An assistant that sends a request again appends a number to its id (`wire.md`, section
/// 10.2).
fn call_of(id: &CallId, is_own: bool) -> CallId {
    let is_number = |times: &str| !times.is_empty() && times.bytes().all(|byte| byte.is_ascii_digit());
    let again = id.as_str().rsplit_once('.').filter(|(_, times)| is_own && is_number(times));
    again.map_or_else(|| id.clone(), |(call, _)| CallId::known(call))
}

impl TrackedCall {
    /// Whether its answer says that nothing has run.
    fn was_refused(&self) -> bool {
        let RecordedOutcome::Failed { code, .. } = &self.answer_outcome else { return false };
        NOT_REMEMBERED.contains(&code.as_str())
    }
}
