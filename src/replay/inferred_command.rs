//! Infers what an application must have done for a frame to be sent.

use std::time::Duration;

use super::{
    endpoint::{Endpoint, meta_of},
    script::{DecodedFrame, RecordedPacket},
    setup::tools,
};
use crate::{
    protocol::{
        frame::{ControlStop, Message, ToolProgress, ToolUseRequest, ToolUseResult, ViewUpdate},
        session::{Destination, Request},
    },
    recording::{REDACTED, RpcRecord},
    tool::{CallId, Execution, Outcome, Progress, StopReason, ToolError, ToolResult},
    transport::{Identity, Role},
    value::Value,
};

impl Endpoint {
    /// Does what the application must have done.
    pub(super) fn infer(&mut self, packet: &RecordedPacket, decoded: &DecodedFrame, to: &[Identity]) {
        match &decoded.message {
            Message::ToolUseRequest(it) => self.infer_call(decoded, it, to, Duration::ZERO),
            Message::ToolUseResult(it) if decoded.is_rpc => self.infer_answer(packet, it, to),
            Message::ToolUseResult(it) => self.infer_result(decoded, it, to),
            Message::ToolProgress(it) => self.infer_progress(it, to),
            Message::ControlStop(it) => self.infer_stop(decoded, it),
            Message::ViewUpdate(it) => self.infer_view(packet, it),
            Message::ToolsRegister(it) => {
                self.offered.clone_from(&it.tools);
                let offered = tools(&it.tools);
                if let Err(error) = self.act(|session, now| session.offer(now, offered)) {
                    tracing::debug!(entry = packet.entry, %error, "a registration cannot be offered");
                }
            }
            Message::Other(_, body) => {
                let to = if packet.to.is_empty() && self.is_home { None } else { Some(to.to_vec()) };
                let to = to.map_or(Destination::Room, Destination::Peers);
                let (meta, body, kind) = (meta_of(&decoded.frame), body.clone(), decoded.kind());
                if let Err(error) = self.act(|session, now| session.send(now, to, kind, meta, body)) {
                    tracing::debug!(entry = packet.entry, %error, "a frame cannot be sent");
                }
            }
            _ => {}
        }
    }

    fn infer_view(&mut self, packet: &RecordedPacket, it: &ViewUpdate) {
        let shown = self.act(|session, now| {
            let shown = session.show_view(now, &it.view, it.content.clone(), it.text.clone());
            session.send_views_at_once(now); // they had waited before they were recorded
            shown
        });
        if let Err(error) = shown {
            tracing::debug!(entry = packet.entry, %error, "a view cannot be shown");
        }
    }

    /// Makes the call whose request is sent only after so much time.
    pub(super) fn call_before(&mut self, packet: &RecordedPacket, decoded: &DecodedFrame, time: Duration) {
        if let Message::ToolUseRequest(it) = &decoded.message {
            self.infer_call(decoded, it, &packet.to, time);
        }
    }

    fn infer_call(&mut self, decoded: &DecodedFrame, it: &ToolUseRequest, to: &[Identity], before: Duration) {
        if self.role != Role::Assistant || self.is_known(&it.id) {
            return;
        }
        let mut request = Request::new(it.tool_name.as_str(), it.parameters.clone());
        request.timeout =
            it.timeout_ms.and_then(|limit| u64::try_from(limit).ok()).map(Duration::from_millis);
        request.timeout = request.timeout.map(|limit| limit.saturating_add(before));
        request.meta = meta_of(&decoded.frame);
        for ours in ["bridge.to", REDACTED] {
            request.meta.remove(ours);
        }
        match it.execution {
            Ok(Execution::Client) => request.owner = to.first().cloned(),
            Ok(Execution::Either) => self.next_owner.set(to.first().cloned()),
            _ => {}
        }
        let id = it.id.clone();
        if decoded.frame.meta_bool("bridge.reported") {
            if let Ok(job) = self.act(|session, now| session.report_as(now, request, id)) {
                self.jobs.insert((self.id.clone(), it.id.clone()), job);
            }
            return;
        }
        let key = self.act(|session, now| session.call_as(now, request, id));
        self.next_owner.set(None);
        if let Ok(key) = key {
            self.calls.insert(it.id.clone(), key);
        }
    }

    fn infer_result(&mut self, decoded: &DecodedFrame, it: &ToolUseResult, to: &[Identity]) {
        let Some(job) = self.job(&it.id, to) else { return };
        if decoded.frame.meta_bool("bridge.began") {
            self.act(|session, now| session.progress(now, job, Progress::started()));
        }
        let outcome = outcome(it);
        self.act(|session, now| session.settle(now, job, outcome));
        self.jobs.retain(|_, other| *other != job);
    }

    /// The outcome of a call by RPC: what is sent for it is the payload.
    fn infer_answer(&mut self, packet: &RecordedPacket, it: &ToolUseResult, to: &[Identity]) {
        let (Some(RpcRecord::Response(response)), Some(job)) = (&packet.rpc, self.job(&it.id, to)) else {
            return;
        };
        let outcome = match &response.outcome {
            Ok(payload) => Ok(ToolResult::text(String::from_utf8_lossy(payload)).to_value()),
            Err(error) => {
                let told = |key: &str| {
                    let data = it.result.as_ref()?.get(key)?;
                    data.as_str().map(str::to_owned)
                };
                let code = it.error_code.clone().unwrap_or(crate::tool::ErrorCode::EXECUTION_ERROR);
                let message = told("message").unwrap_or_else(|| error.message.clone());
                Err(ToolError::new(code, message))
            }
        };
        self.act(|session, now| session.settle(now, job, outcome));
        self.jobs.retain(|_, other| *other != job);
    }

    fn infer_progress(&mut self, it: &ToolProgress, to: &[Identity]) {
        let Some(job) = self.job(&it.id, to) else { return };
        let mut progress = Progress::started();
        (progress.status, progress.message, progress.content) =
            (it.status, it.message.clone(), it.content.clone());
        self.act(|session, now| {
            session.progress(now, job, progress);
            session.progress_at_once(now, job); // it had waited before it was recorded
        });
    }

    fn infer_stop(&mut self, decoded: &DecodedFrame, it: &ControlStop) {
        if decoded.is_goodbye() {
            return self.act(crate::protocol::session::Session::close);
        }
        let call = it.target_id.as_deref().map(CallId::known);
        match (self.role, call) {
            (Role::Assistant, Some(call)) => {
                if let Some(key) = self.calls.get(&call).copied() {
                    let reason =
                        it.reason.as_deref().and_then(StopReason::from_text).unwrap_or(StopReason::Caller);
                    self.act(|session, now| session.cancel_for(now, key, reason));
                }
            }
            (Role::Client, call) => {
                if let Err(error) = self.act(|session, now| session.ask_to_stop(now, call.as_ref())) {
                    tracing::debug!(%error, "the assistant cannot be asked to stop");
                }
            }
            _ => {}
        }
    }

    /// Whether it has made or reported this call.
    fn is_known(&self, call: &CallId) -> bool {
        self.calls.contains_key(call) || self.jobs.contains_key(&(self.id.clone(), call.clone()))
    }

    /// The job of this call, for one of these; of a broadcast, our own.
    fn job(&self, call: &CallId, to: &[Identity]) -> Option<crate::tool::JobKey> {
        let of = |caller: &Identity| self.jobs.get(&(caller.clone(), call.clone())).copied();
        to.iter().find_map(of).or_else(|| of(&self.id))
    }
}

fn outcome(it: &ToolUseResult) -> Outcome {
    if it.success {
        return Ok(it.result.clone().unwrap_or_else(Value::empty));
    }
    let code = it.error_code.clone().unwrap_or(crate::tool::ErrorCode::EXECUTION_ERROR);
    let error = ToolError::new(code, it.error_message.as_deref().unwrap_or_default());
    Err(match &it.result {
        Some(partial) => error.with_partial(partial.clone()),
        None => error,
    })
}
