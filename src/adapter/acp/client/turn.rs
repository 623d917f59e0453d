//! Sends one prompt to an agent, cancels it, and reads its answer.

use std::{future::pending, sync::Arc, time::Duration};

use serde_json::{Value as Json, json};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    calls,
    connection::{Live, words},
};
use crate::{
    ErrorCode, Outcome, ToolError, ToolResult,
    adapter::{jsonrpc::peer::Unanswered, words},
};

/// The time that an agent has to end its turn after a cancel. Then its process group is killed.
pub(super) const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// How long the reason for the end of an agent is awaited.
const REASON_GRACE: Duration = Duration::from_secs(2);

/// A prompt whose turn has begun.
pub(super) struct Prompt {
    pub(super) agent: Arc<str>,
    pub(super) live: Live,
    pub(super) text: String,
    /// Cancels the turn.
    pub(super) cancel: CancellationToken,
    pub(super) outcome: oneshot::Sender<Outcome>,
    /// Until it is dropped, no other prompt is sent.
    pub(super) permit: OwnedSemaphorePermit,
}

impl Prompt {
    /// Runs the turn to its end, also if nobody waits for it any longer.
    pub(super) async fn run(self) {
        let session = &self.live.session;
        if self.cancel.is_cancelled() {
            session.end(&calls::cancelled());
            drop(self.permit);
            let _ = self.outcome.send(Err(calls::cancelled())); // the caller may have gone
            return;
        }
        let params = json!({"sessionId": session.id(), "prompt": [{"type": "text", "text": self.text}]});
        let mut answer = std::pin::pin!(self.live.peer.request("session/prompt", params));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = self.cancel.cancelled() => {
                session.cancel();
                let cancel = async {
                    self.live.peer.notify("session/cancel", json!({"sessionId": session.id()})).await;
                    pending().await
                };
                let ending = async { tokio::select! { _ = &mut answer => {}, () = cancel => {} } };
                if timeout(CANCEL_GRACE, ending).await.is_err() {
                    tracing::warn!(agent = &*self.agent, "an agent has ignored a cancel, so it is killed");
                    self.live.kill.cancel();
                    self.gone().await;
                }
                session.end(&calls::cancelled());
                drop(self.permit);
                let _ = self.outcome.send(Err(calls::cancelled())); // the caller may have gone
                return;
            }
        };
        let outcome = match answer {
            Ok(answer) => self.ended(&answer),
            Err(error) => {
                let reason = match &error {
                    Unanswered::Refused(failure) => match self.live.demand(&self.agent, failure) {
                        Some(demand) => demand.to_string(),
                        None => format!("the agent {:?} failed: {}", self.agent, words(failure)),
                    },
                    Unanswered::Ended | Unanswered::TooMany(_) => {
                        format!("the agent {:?} has ended: {}", self.agent, self.gone().await)
                    }
                };
                let failure = ToolError::new(ErrorCode::EXECUTION_ERROR, reason);
                let said = session.end(&failure);
                let partial = said.remark().into_iter().fold(said.result(), ToolResult::with_text);
                Err(match partial.content().is_empty() {
                    true => failure,
                    false => failure.with_partial(partial.to_value()),
                })
            }
        };
        drop(self.permit); // first: the caller may send its next prompt at once
        let _ = self.outcome.send(outcome);
    }

    /// Returns why the agent has ended, once that is known.
    async fn gone(&self) -> Arc<str> {
        let mut end = self.live.end.subscribe();
        let known = timeout(REASON_GRACE, end.wait_for(Option::is_some)).await;
        known.ok().and_then(|end| end.ok()?.clone()).unwrap_or_else(|| "its connection is closed".into())
    }

    /// Returns the outcome of a turn that the agent has ended.
    fn ended(&self, answer: &Json) -> Outcome {
        let reason = answer["stopReason"].as_str().unwrap_or("unknown");
        if reason == "cancelled" {
            self.live.session.cancel();
            self.live.session.end(&calls::cancelled());
            return Err(ToolError::cancelled());
        }
        let open = ToolError::new(
            ErrorCode::EXECUTION_ERROR,
            "the agent ended its turn without a result of this call",
        );
        let said = self.live.session.end(&open);
        let remark = match reason {
            "end_turn" => None,
            "max_tokens" => Some("The agent stopped at its limit of tokens."),
            "max_turn_requests" => Some("The agent stopped at its limit of requests to its model."),
            "refusal" => Some("The agent refused to go on."),
            _ => Some("The agent stopped for a reason that is not known."),
        };
        let left_out = said.remark();
        let mut result = said.result();
        for remark in left_out.into_iter().chain(remark.map(str::to_owned)) {
            result = result.with_text(remark);
        }
        if result.content().is_empty() {
            result = result.with_text("The agent ended its turn and said nothing.");
        }
        let words = said.shown().map(|said| format!(": {}", words::line(&said)));
        let mut data = json!({ "stopReason": reason });
        if !said.decided.is_empty() {
            data["permissions"] = said.decided.into();
        }
        let value = result.with_structured(data).to_value();
        if reason == "refusal" {
            let text = format!("the agent refused to go on{}", words.unwrap_or_default());
            return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text).with_partial(value));
        }
        Ok(value)
    }
}
