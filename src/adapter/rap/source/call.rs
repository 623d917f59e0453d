//! Makes one call of a toolset's tool.

use std::{collections::VecDeque, future::Future, pin::Pin, time::Duration};

use serde_json::{Map, Value as Json, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Shared,
    inbox::{Answer, End, NewCall, OpenCall, Subscribed},
    manifest::Listed,
    questions::ask,
    reports::{Origin, Reports},
    requests::{RequestError, Requests},
};
use crate::{ErrorCode, Outcome, Progress, ToolContext, ToolError, ToolName, Value, tools::StopReason};

/// How long before its time a call fails whose reason is known: the caller's own limit would end it without that. A tenth of
/// a short limit.
const REASON_MARGIN: Duration = Duration::from_secs(1);

/// The longest id that is sent, in bytes.
const MAX_ID: usize = 128;

/// The key of the caller's metadata that holds the secondary id of the call.
const CALL_ID: &str = "bridge.rap.call_id";

type Asking<'a> = Pin<Box<dyn Future<Output = Result<(), ToolError>> + Send + 'a>>;

pub(super) async fn call(
    shared: &Shared,
    requests: &Requests,
    listed: &Listed,
    arguments: &Value,
    context: &ToolContext,
) -> Outcome {
    let invalid = |text: String| ToolError::new(ErrorCode::INVALID_PARAMETERS, text);
    let arguments = arguments.decode::<Map<String, Json>>();
    let arguments =
        arguments.map_err(|error| invalid(format!("the arguments are not a JSON object: {error}")))?;
    let arguments = Json::Object(arguments);
    listed.check(&arguments).map_err(invalid)?;

    let call_id = context.meta(CALL_ID).and_then(|it| it.as_str().map(str::to_owned));
    let call_id = call_id.filter(|it| it.len() <= MAX_ID);
    let opened = shared.inbox.open(NewCall {
        id: prefix_of_id(context.call_id().as_str()),
        call_id: call_id.clone(),
        tool: listed.tool.name().clone(),
        is_structured: listed.is_structured,
        reports: Reports::of(context, &shared.name),
        limit: context.time_left(),
    });
    let mut open =
        Guard { open: opened.map_err(ToolError::internal)?, shared, context, tool: listed.tool.name() };
    let id = open.open.id.clone();
    context.progress(Progress::started());
    let invocation = shared.invocation(&open.open, listed, &arguments, call_id.as_deref());

    let (inbox, digest) = (&shared.inbox, open.open.digest());
    let noted = |error: &RequestError| inbox.note(&digest, format!("it was not reached: {error}"));
    let mut sending = std::pin::pin!(requests.invoke(&invocation, noted));
    let deadline = Instant::from_std(context.deadline());
    let early = REASON_MARGIN.min(context.time_left() / 10);
    let mut early = std::pin::pin!(sleep_until(deadline.checked_sub(early).unwrap_or(deadline)));
    let (mut is_accepted, mut waiting) = (false, VecDeque::new());
    let mut asking: Option<Asking<'_>> = None;
    loop {
        if asking.is_none()
            && let Some(question) = waiting.pop_front()
        {
            asking = Some(Box::pin(ask(question, &shared.name, &id, requests, context)));
        }
        tokio::select! {
            biased;
            answer = &mut open.open.result => {
                return match answer.map_err(ToolError::internal)? {
                    Ok(answer) => complete(answer, shared, &id),
                    Err(reason) => {
                        let text = format!("the result of the tool of {:?} cannot be read: {reason}", shared.name);
                        Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text))
                    }
                };
            }
            () = context.cancelled() => return Err(open.stopped()),
            () = &mut early, if !early.is_elapsed() => {
                if let Some(trouble) = open.open.trouble() {
                    return Err(open.late(&trouble));
                }
            }
            () = sleep_until(deadline) => {
                let text = "the tool did not answer in time; a later answer is reported if that is possible";
                return Err(ToolError::new(ErrorCode::TIMEOUT, text));
            }
            sent = &mut sending, if !is_accepted => match sent {
                Ok(()) => is_accepted = true,
                Err(error) => return Err(open.not_accepted(&error)),
            },
            Some(question) = open.open.questions.recv() => waiting.push_back(question),
            answered = poll(&mut asking), if asking.is_some() => {
                asking = None;
                answered?;
            }
        }
    }
}

/// Returns the id of a call as far as it may be sent.
fn prefix_of_id(id: &str) -> String {
    crate::value::prefix(id, MAX_ID).to_owned()
}

async fn poll(asking: &mut Option<Asking<'_>>) -> Result<(), ToolError> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// An open call. Dropping it has its tool cancel the call, unless it has ended.
struct Guard<'a> {
    open: OpenCall,
    shared: &'a Shared,
    context: &'a ToolContext,
    tool: &'a ToolName,
}

impl Guard<'_> {
    fn stopped(&self) -> ToolError {
        match self.context.stopped() {
            Some(StopReason::Deadline) => {
                ToolError::new(ErrorCode::TIMEOUT, "the tool did not answer in time")
            }
            _ => ToolError::cancelled(),
        }
    }

    /// Ends a call whose time is almost over. Its result may still come.
    fn late(&self, trouble: &str) -> ToolError {
        if self.open.end(End::Late) {
            self.shared.inbox.cancel(&self.open.id);
        }
        // The room shows a `timeout` without the words of its error.
        ToolError::new(ErrorCode::EXECUTION_ERROR, format!("the tool did not answer in time; {trouble}"))
    }

    /// Returns the failure of a call that its server has not accepted.
    fn not_accepted(&self, error: &RequestError) -> ToolError {
        if error.is_refusal() {
            self.open.end(End::Over); // there is nothing to cancel
        }
        let text = format!("the tool of {:?} could not be called: {error}", self.shared.name);
        ToolError::new(ErrorCode::EXECUTION_ERROR, text)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let is_late = match self.context.stopped() {
            Some(reason) => reason == StopReason::Deadline,
            None => self.context.time_left().is_zero(),
        };
        if self.open.end(if is_late { End::Late } else { End::Over }) {
            self.shared.inbox.cancel(&self.open.id);
        } else if let Ok(Ok(answer)) = self.open.result.try_recv() {
            // It came while the call ended.
            self.shared.inbox.cancel_subscription(&self.open.id);
            if is_late {
                let origin = Origin { id: self.open.id.clone(), tool: self.tool.clone() };
                let _ = Reports::of(self.context, &self.shared.name).late(&origin, answer.result);
            }
        }
    }
}

/// Returns the outcome of a call that has a result.
fn complete(answer: Answer, shared: &Shared, id: &str) -> Outcome {
    let Answer { mut result, subscription } = answer;
    let text = match subscription {
        Subscribed::No => return result.into_outcome(),
        Subscribed::Yes => {
            let how = shared.cancel_name.as_ref().map(|name| {
                format!(" To end it, call {name} with the tool_call_id {id:?}.")
            });
            let started = "This call has started a subscription: its events follow by themselves.";
            format!("{started}{}", how.unwrap_or_default())
        }
        Subscribed::Ended => {
            "The subscription that this call has started is over: its last event has come already.".to_owned()
        }
        Subscribed::NotHere => {
            "The subscription that this call has started was cancelled at once, because only an assistant can receive its \
             events."
                .to_owned()
        }
        Subscribed::TooMany => {
            "The subscription that this call has started was cancelled at once, because too many others are active."
                .to_owned()
        }
    };
    result.result = result.result.with_text(text);
    result.into_outcome()
}

impl Shared {
    /// Returns the message that invokes a tool.
    fn invocation(&self, open: &OpenCall, listed: &Listed, arguments: &Json, call_id: Option<&str>) -> Json {
        let mut invocation = json!({
            "operation": listed.operation,
            "arguments": arguments,
            "id": open.id,
            "call_id": call_id,
            "callback_url": format!("{}{}/{}", self.callback, super::callback::PATH, open.token),
            "group_id": self.inbox.group(),
        });
        if let Some(user) = &self.user_id {
            invocation["user_id"] = user.as_str().into();
        }
        invocation
    }
}
