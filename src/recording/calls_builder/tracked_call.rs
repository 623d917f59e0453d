//! Tracks one call, and the digests that detect repeated frames.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{MAX_AGAIN, MAX_TEXT};
use crate::{
    protocol::frame::{ToolUseRequest, ToolUseResult},
    recording::{Moment, Recorded, RecordedCall, RecordedOutcome},
    tool::{CallId, DEFAULT_TIMEOUT, ErrorCode, StopReason},
    transport::{Identity, Sid},
    value::prefix,
};

/// Memory of a call without its texts and lists, in bytes: its entries in the tree and in the maps by id, caller and
/// stanza. Measured with a counting allocator.
pub(super) const CALL_BYTES: usize = 850;

/// A stop this shortly before the limit, or later, counts as the limit: its sender measures the limit, and packets
/// take different times.
const AT_THE_LIMIT: Duration = Duration::from_millis(100);

/// One call, with the state needed to classify its next frame.
#[derive(Debug)]
pub(super) struct TrackedCall {
    /// What is known of it. Its outcome is derived from the fields below by [`resolve`](Self::resolve).
    pub(super) call: RecordedCall,
    /// When its owner answered.
    pub(super) answered: Option<Moment>,
    /// What its owner answered.
    pub(super) answer_outcome: RecordedOutcome,
    /// The size of the answer's result.
    pub(super) answer_size: Option<usize>,
    /// When and how its caller ended it, from the event of the caller's own recorder.
    pub(super) ended_by_caller: Option<(Moment, ErrorCode)>,
    /// The caller's first stop.
    pub(super) stop: Option<Stop>,
    /// Its memory cost when last measured, in bytes.
    pub(super) weighed: usize,
    /// Digest of tool, execution and parameters of its first request.
    pub(super) asked: Option<[u8; 32]>,
    /// Digest of the result that settled it.
    pub(super) answer: Option<[u8; 32]>,
    /// The participants that were sent a result, as far as the packets name them.
    pub(super) shown_to: Vec<Identity>,
    /// The participants asked before the current owner.
    pub(super) before: Vec<Identity>,
    /// The stanzas of its requests.
    pub(super) stanzas: Vec<i32>,
    /// The caller stopped it, there or at an earlier owner.
    pub(super) stopped_by_caller: bool,
    /// Another participant was asked first, and then the caller ran it itself.
    pub(super) taken_over: bool,
    /// The owner answered although it does not offer the tool and others do.
    pub(super) owner_uncertain: bool,
    /// What is known of a call by RPC.
    pub(super) rpc: ByRpc,
    /// The participant that answered without offering the tool, and turned out not to be the owner.
    pub(super) wrong_owner: Option<Identity>,
}

/// The state of a call by RPC.
#[derive(Debug, Default)]
pub(super) struct ByRpc {
    /// The join of its caller.
    pub(super) sid: Option<Sid>,
    /// The id of its latest request.
    pub(super) wire: Option<CallId>,
    /// How many of its repeated requests have no answer.
    pub(super) again: u32,
}

/// A stop by the caller, who has settled the call by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) at: Moment,
    pub(super) reason: Option<StopReason>,
    /// The answer precedes it in the file.
    pub(super) is_after_answer: bool,
}

impl TrackedCall {
    pub(super) fn new(id: &CallId, caller: Option<&Identity>) -> Self {
        Self {
            call: RecordedCall::new(id.clone(), caller.cloned()),
            answered: None,
            answer_outcome: RecordedOutcome::Open,
            answer_size: None,
            ended_by_caller: None,
            stop: None,
            weighed: 0,
            asked: None,
            answer: None,
            shown_to: Vec::new(),
            before: Vec::new(),
            stanzas: Vec::new(),
            stopped_by_caller: false,
            taken_over: false,
            owner_uncertain: false,
            rpc: ByRpc::default(),
            wrong_owner: None,
        }
    }

    /// Whether the packet shows the result of a call that its caller ran to participants that were sent none before.
    pub(super) fn is_for_others(&self, packet: &Recorded) -> bool {
        let is_own = packet.sender().is_some() && packet.sender() == self.call.caller.as_ref();
        is_own && !packet.to.is_empty() && !packet.to.iter().any(|to| self.shown_to.contains(to))
    }

    /// An upper estimate of its memory cost, in bytes.
    pub(super) fn cost(&self) -> usize {
        let call = &self.call;
        let size_of = |outcome: &RecordedOutcome| match outcome {
            RecordedOutcome::Failed { code, message } => {
                code.as_str().len() + message.as_ref().map_or(0, String::len)
            }
            _ => 0,
        };
        let by_caller = self.ended_by_caller.as_ref().map_or(0, |(_, code)| code.as_str().len());
        let ended = size_of(&call.outcome) + size_of(&self.answer_outcome) + by_caller;
        let lists = 16 * call.entries.len()
            + 16 * (self.before.len() + self.shown_to.len())
            + 64 * self.stanzas.len();
        let sid = self.rpc.sid.as_ref().map_or(0, |sid| sid.as_str().len());
        let wire = self.rpc.wire.as_ref().map_or(0, |wire| wire.as_str().len());
        sid + wire + CALL_BYTES + 2 * call.id.as_str().len() + call.tool.len() + ended + lists
    }

    /// Makes the caller the owner, because the participant that was asked did not run it. That participant's answer
    /// no longer counts.
    pub(super) fn take_over(&mut self) {
        self.taken_over = true;
        let caller = self.call.caller.clone();
        let before = std::mem::replace(&mut self.call.owner, caller);
        self.before.extend(before.filter(|_| self.before.len() < MAX_AGAIN));
        self.stop = None;
        if self.was_declined() {
            self.forget_answer();
        }
    }

    /// Forgets an answer that does not count.
    pub(super) fn forget_answer(&mut self) {
        (self.answer, self.answered, self.answer_size) = (None, None, None);
        self.answer_outcome = RecordedOutcome::Open;
    }

    /// Derives the outcome from what is known.
    ///
    /// A caller that stops a call has settled it without the answer (`wire.md`, section 5.4), so the stop decides,
    /// although the owner may have answered by then. In the caller's own file what came first decides.
    pub(super) fn resolve(&mut self, is_callers_file: bool) {
        let failed = |code: ErrorCode| RecordedOutcome::Failed { code, message: None };
        let by_answer = (self.answer_outcome.clone(), self.answered, self.answer_size);
        let by_caller = match (&self.ended_by_caller, &self.stop) {
            (Some((at, code)), _) => Some((failed(code.clone()), Some(*at), None)),
            (None, Some(stop)) if !(is_callers_file && stop.is_after_answer) => match self.code_of(stop) {
                Some(code) => Some((failed(code), Some(stop.at), None)),
                None if self.answered.is_none() => Some((RecordedOutcome::Stopped, None, None)),
                None => None,
            },
            _ => None,
        };
        let (outcome, settled, size) = match by_caller {
            // The answer says the same, and more.
            Some((outcome, ..)) if outcome.as_str() == self.answer_outcome.as_str() => by_answer,
            Some(ended) => ended,
            None => by_answer,
        };
        (self.call.outcome, self.call.settled, self.call.result) = (outcome, settled, size);
    }

    /// The code with which the caller ended a call that it stopped. Without a reason only the limit shows it.
    fn code_of(&self, stop: &Stop) -> Option<ErrorCode> {
        match stop.reason {
            Some(StopReason::Deadline) => Some(ErrorCode::TIMEOUT),
            Some(StopReason::Lost) => Some(ErrorCode::LOST),
            Some(_) => Some(ErrorCode::CANCELLED),
            None => {
                let ends = stop.at.since(self.call.requested?).saturating_add(AT_THE_LIMIT);
                (ends >= self.call.limit?).then_some(ErrorCode::TIMEOUT)
            }
        }
    }

    /// Whether the first participant refused in a way that lets the caller run it.
    pub(super) fn was_declined(&self) -> bool {
        let RecordedOutcome::Failed { code, .. } = &self.answer_outcome else { return false };
        matches!(code.as_str(), "unknown_tool" | "busy" | "cancelled" | "lost" | "error 301" | "error 304")
    }
}

/// A request's time limit as its receiver reads it: 30 s by default, zero if negative.
pub(super) fn limit_of(request: &ToolUseRequest) -> Duration {
    request
        .timeout_ms
        .map_or(DEFAULT_TIMEOUT, |millis| Duration::from_millis(u64::try_from(millis).unwrap_or_default()))
}

/// The digest that equal requests of one id share.
pub(super) fn content_of(request: &ToolUseRequest) -> [u8; 32] {
    let execution = match &request.execution {
        Ok(execution) => execution.as_str(),
        Err(written) => written,
    };
    let digest = Sha256::new_with_prefix(request.tool_name.as_bytes());
    let digest = digest.chain_update([0]).chain_update(execution.as_bytes()).chain_update([0]);
    digest.chain_update(request.parameters.as_bytes()).finalize().into()
}

/// The digest that equal results of one call share. Refusals for load are generated each time, so their text may
/// differ.
pub(super) fn answer_of(result: &ToolUseResult) -> [u8; 32] {
    let code = result.error_code.as_ref().map_or("", ErrorCode::as_str);
    let digest = Sha256::new_with_prefix([u8::from(result.success)]).chain_update(code.as_bytes());
    if matches!(code, "busy" | "permission_denied") {
        return digest.finalize().into();
    }
    let digest = digest.chain_update([0]).chain_update(result.error_message.as_deref().unwrap_or_default());
    let data = result.result.as_ref().map_or(&[][..], |body| body.as_bytes());
    digest.chain_update([0]).chain_update(data).finalize().into()
}

pub(super) fn shortened(text: &str) -> String {
    prefix(text, MAX_TEXT).to_owned()
}
