//! One call of a server's tool.

use rmcp::{
    RoleClient,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, InputResponses, JsonObject},
    service::{PeerRequestOptions, RequestHandle},
};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{
    Listed, Shared,
    connection::Live,
    elicitation::{self, Inputs},
    requests::{Answer, Handover, MAX_RESULT, Requests},
};
use crate::{ErrorCode, Outcome, StopReason, ToolContext, ToolError, Value, adapter::mcp::CallToolResult};

/// How often a server may ask for input during one call.
const MAX_ROUNDS: usize = 16;

/// The JSON-RPC error of invalid parameters. It also stands for an unknown tool.
const INVALID_PARAMS: i64 = -32_602;

/// A request that its server is to cancel, and why.
pub(super) type Cancel = (RequestHandle<RoleClient>, String);

/// The part of a result that says whether it is one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intermediate {
    #[serde(default)]
    result_type: Option<String>,
    #[serde(default)]
    input_requests: Option<Inputs>,
    #[serde(default)]
    request_state: Option<String>,
}

pub(super) async fn call(
    shared: &Shared,
    live: &Live,
    listed: &Listed,
    arguments: &Value,
    context: &ToolContext,
) -> Outcome {
    let arguments = arguments.decode::<JsonObject>().map_err(|error| {
        ToolError::new(ErrorCode::INVALID_PARAMETERS, format!("the arguments are no JSON object: {error}"))
    })?;
    let mut params = CallToolRequestParams::new(listed.foreign.clone()).with_arguments(arguments);
    for _ in 0..MAX_ROUNDS {
        let text = request(shared, live, params.clone(), context).await?;
        let Some(asked) = intermediate(&text)? else {
            return complete(shared, listed, &text);
        };
        let answers: InputResponses =
            elicitation::answer_all(asked.input_requests.unwrap_or_default(), context).await?;
        params.input_responses = (!answers.is_empty()).then_some(answers);
        params.request_state = asked.request_state;
    }
    Err(failed(format!("the MCP server {:?} asked for input {MAX_ROUNDS} times", shared.name)))
}

/// Sends one request, and returns the text of its result.
async fn request(
    shared: &Shared,
    live: &Live,
    params: CallToolRequestParams,
    context: &ToolContext,
) -> Result<String, ToolError> {
    let (handover, answered) = Handover::new(Some(context.clone()));
    let mut request = CallToolRequest::new(params);
    request.extensions.insert(handover);
    let request = ClientRequest::CallToolRequest(request);
    let sent = live.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let handle = sent.map_err(|_| not_sent(shared))?;
    let mut open =
        OpenCall { handle: Some(handle), requests: &live.requests, context, cancels: &shared.cancels };
    let answer = tokio::select! {
        biased;
        answer = answered => answer,
        () = context.cancelled() => return Err(ToolError::cancelled()), // `open` cancels it
    };
    open.handle = None;
    match answer {
        Ok(Answer::Result(text)) => Ok(text),
        Ok(Answer::Error { code, message }) => Err(json_rpc_error(code, &message)),
        Ok(Answer::TooLarge(size)) => Err(ToolError::new(
            ErrorCode::RESULT_TOO_LARGE,
            format!("the result has {size} bytes; the limit is {MAX_RESULT}"),
        )),
        Ok(Answer::Ended(reason)) => {
            Err(failed(format!("the MCP server {:?} does not answer: {reason}", shared.name)))
        }
        Ok(Answer::NotSent) | Err(_) => Err(not_sent(shared)),
    }
}

/// An open request. Dropping it tells the server that nobody waits for the answer.
struct OpenCall<'a> {
    /// `None` once it was answered.
    handle: Option<RequestHandle<RoleClient>>,
    requests: &'a Requests,
    context: &'a ToolContext,
    cancels: &'a mpsc::UnboundedSender<Cancel>,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        self.requests.forget(&handle.id);
        let reason = self.context.stopped().unwrap_or(StopReason::Caller);
        let _ = self.cancels.send((handle, reason.to_string())); // nobody listens after the source was closed
    }
}

/// Returns the request for input that the text is, if it is one.
fn intermediate(text: &str) -> Result<Option<Intermediate>, ToolError> {
    // Few documents name the member, and a large one is read only once then.
    if !text.contains("\"resultType\"") {
        return Ok(None);
    }
    let Ok(read) = serde_json::from_str::<Intermediate>(text) else { return Ok(None) };
    match read.result_type.as_deref() {
        Some("input_required") => Ok(Some(read)),
        Some("task") => Err(failed("the MCP server started a task, which cannot be followed".to_owned())),
        _ => Ok(None),
    }
}

fn complete(shared: &Shared, listed: &Listed, text: &str) -> Outcome {
    let result = CallToolResult::read(text).map_err(|error| {
        failed(format!("the result of the MCP server {:?} cannot be read: {error}", shared.name))
    })?;
    if let Some(problem) = listed.violation(&result) {
        // It is delivered all the same: the model may understand it.
        tracing::warn!(
            server = &*shared.name,
            tool = listed.foreign,
            problem,
            "a result violates its output schema"
        );
    }
    result.into_outcome()
}

fn json_rpc_error(code: i64, message: &str) -> ToolError {
    let lower = message.to_ascii_lowercase();
    let kind = match code {
        INVALID_PARAMS if lower.contains("unknown tool") || lower.contains("not found") => {
            ErrorCode::UNKNOWN_TOOL
        }
        INVALID_PARAMS => ErrorCode::INVALID_PARAMETERS,
        _ => ErrorCode::EXECUTION_ERROR,
    };
    let message = if message.is_empty() { "the MCP server gave no reason" } else { message };
    ToolError::new(kind, format!("{message} (MCP error {code})"))
}

fn not_sent(shared: &Shared) -> ToolError {
    failed(format!("the MCP server {:?} is not running", shared.name))
}

fn failed(message: String) -> ToolError {
    ToolError::new(ErrorCode::EXECUTION_ERROR, message)
}
