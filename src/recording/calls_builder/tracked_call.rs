//! One call, and the digests that detect repeated frames.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{MAX_AGAIN, MAX_TEXT};
use crate::{
    protocol::frame::{ToolUseRequest, ToolUseResult},
    recording::{Recorded, RecordedCall, RecordedOutcome},
    tool::{CallId, DEFAULT_TIMEOUT, ErrorCode},
    transport::Identity,
    value::prefix,
};

/// Memory of a call without its texts and lists, in bytes: its entries in the tree and in the maps by id, caller and
/// stanza. Measured with a counting allocator.
pub(super) const CALL_BYTES: usize = 850;

/// One call, with the state needed to classify its next frame.
#[derive(Debug)]
pub(super) struct TrackedCall {
    pub(super) call: RecordedCall,
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
    /// The caller stopped it.
    pub(super) stopped_by_caller: bool,
    /// Another participant was asked first, and then the caller ran it itself.
    pub(super) taken_over: bool,
    /// The owner answered although it does not offer the tool and others do.
    pub(super) owner_uncertain: bool,
    /// The participant that answered without offering the tool, and turned out not to be the owner.
    pub(super) wrong_owner: Option<Identity>,
}

impl TrackedCall {
    pub(super) fn new(id: &CallId, caller: Option<&Identity>) -> Self {
        Self {
            call: RecordedCall::new(id.clone(), caller.cloned()),
            weighed: 0,
            asked: None,
            answer: None,
            shown_to: Vec::new(),
            before: Vec::new(),
            stanzas: Vec::new(),
            stopped_by_caller: false,
            taken_over: false,
            owner_uncertain: false,
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
        let ended = match &call.outcome {
            RecordedOutcome::Failed { code, message } => {
                code.as_str().len() + message.as_ref().map_or(0, String::len)
            }
            _ => 0,
        };
        let lists = 16 * call.entries.len()
            + 16 * (self.before.len() + self.shown_to.len())
            + 64 * self.stanzas.len();
        CALL_BYTES + 2 * call.id.as_str().len() + call.tool.len() + ended + lists
    }

    /// Makes the caller the owner, because the participant that was asked did not run it. That participant's answer
    /// no longer counts.
    pub(super) fn take_over(&mut self) {
        self.taken_over = true;
        let caller = self.call.caller.clone();
        let before = std::mem::replace(&mut self.call.owner, caller);
        self.before.extend(before.filter(|_| self.before.len() < MAX_AGAIN));
        if self.call.outcome == RecordedOutcome::Stopped || self.was_declined() {
            self.answer = None;
            self.call.outcome = RecordedOutcome::Open;
            self.call.settled = None;
            self.call.result = None;
        }
    }

    /// Whether the first participant refused in a way that lets the caller run it.
    pub(super) fn was_declined(&self) -> bool {
        let RecordedOutcome::Failed { code, .. } = &self.call.outcome else { return false };
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
