//! One call of a server's tool.

use std::time::Duration;

use rmcp::{
    RoleClient,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, InputResponses, JsonObject},
    service::{PeerRequestOptions, RequestHandle},
};
use serde::Deserialize;
use serde_json::{Value as Json, value::RawValue};
use tokio::{sync::mpsc, time::timeout};

use super::{
    Listed, Shared,
    connection::Live,
    elicitation::{self, Inputs},
    requests::{Answer, Handover, MAX_RESULT, Requests, words_of},
};
use crate::{
    ErrorCode, Outcome, ToolContext, ToolError, Value,
    adapter::{json::value, jsonrpc::failure::Failure, mcp::CallToolResult},
    tools::StopReason,
};

/// How often a server may ask for input during one call.
const MAX_ROUNDS: usize = 16;

/// The JSON-RPC error of invalid parameters. It also stands for an unknown tool.
const INVALID_PARAMS: i64 = -32_602;

/// The JSON-RPC error of a call that first needs the person to open addresses (protocol version 2025-11-25).
const OPEN_FIRST: i64 = -32_042;

/// How long the reason for the end of a connection is awaited.
const REASON_GRACE: Duration = Duration::from_secs(2);

/// A request that its server is to cancel, and why.
pub(super) type Cancel = (RequestHandle<RoleClient>, String);

/// The part of a result that says what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind<'a> {
    #[serde(default, borrow)]
    result_type: Option<&'a RawValue>,
}

/// What a server needs before it can answer.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Needed {
    #[serde(default)]
    input_requests: Option<Inputs>,
    #[serde(default)]
    request_state: Option<String>,
}

/// The data of [`OPEN_FIRST`].
#[derive(Deserialize)]
struct Addresses {
    elicitations: Vec<Json>,
}

pub(super) async fn call(
    shared: &Shared,
    live: &Live,
    listed: &Listed,
    arguments: &Value,
    context: &ToolContext,
) -> Outcome {
    let arguments = arguments.decode::<JsonObject>().map_err(|error| {
        ToolError::new(ErrorCode::INVALID_PARAMETERS, format!("the arguments are not a JSON object: {error}"))
    })?;
    let mut params = CallToolRequestParams::new(listed.foreign.clone()).with_arguments(arguments);
    for _ in 0..MAX_ROUNDS {
        let needed = match request(shared, live, params.clone(), context).await? {
            Answer::Result(text) => match needed(&text, live)? {
                Some(needed) => needed,
                None => return complete(shared, listed, &text, context),
            },
            Answer::Error(Failure { code: Some(OPEN_FIRST), data: Some(data), .. }) => {
                open_all(shared, &data, context).await?;
                Needed::default()
            }
            other => return Err(failure(shared, listed, other)),
        };
        let inputs = needed.input_requests.unwrap_or_default();
        let answers: InputResponses = elicitation::answer_all(&shared.name, inputs, context).await?;
        params.input_responses = (!answers.is_empty()).then_some(answers);
        params.request_state = needed.request_state;
    }
    Err(failed(format!("the MCP server {:?} asked for input {MAX_ROUNDS} times", shared.name)))
}

/// Sends one request, and returns its answer.
async fn request(
    shared: &Shared,
    live: &Live,
    params: CallToolRequestParams,
    context: &ToolContext,
) -> Result<Answer, ToolError> {
    let (handover, mut answered) = Handover::new(Some(context.clone()));
    let mut request = CallToolRequest::new(params);
    request.extensions.insert(handover);
    let request = ClientRequest::CallToolRequest(request);
    let sent = live.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let handle = sent.map_err(|_| not_sent(shared))?;
    let mut open =
        OpenCall { handle: Some(handle), requests: &live.requests, context, cancels: &shared.cancels };
    let answer = tokio::select! {
        biased;
        answer = &mut answered => answer.ok(),
        () = context.cancelled() => return Err(ToolError::cancelled()), // `open` cancels it
        // The reason follows, once it is known how the server has ended.
        () = open.given_up() => timeout(REASON_GRACE, answered).await.ok().and_then(Result::ok),
    };
    open.handle = None;
    answer.ok_or_else(|| failed(format!("the connection to the MCP server {:?} has ended", shared.name)))
}

/// Asks the person to open addresses, as an error demands.
async fn open_all(shared: &Shared, data: &str, context: &ToolContext) -> Result<(), ToolError> {
    let unreadable = |_| failed("the MCP server wants addresses to be opened, and names none".to_owned());
    let addresses: Addresses = serde_json::from_str(data).map_err(unreadable)?;
    elicitation::open_all(&shared.name, addresses.elicitations, context).await
}

/// An open request. Dropping it cancels the request at the server.
struct OpenCall<'a> {
    /// `None` once it was answered.
    handle: Option<RequestHandle<RoleClient>>,
    requests: &'a Requests,
    context: &'a ToolContext,
    cancels: &'a mpsc::UnboundedSender<Cancel>,
}

impl OpenCall<'_> {
    /// Resolves when `rmcp` has an answer, or none will come because its connection has ended.
    async fn given_up(&mut self) {
        match &mut self.handle {
            Some(handle) => _ = (&mut handle.rx).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        self.requests.forget(&handle.id);
        let reason = self.context.stopped().unwrap_or(StopReason::Caller);
        let _ = self.cancels.send((handle, reason.to_string())); // nobody listens after the source was closed
    }
}

/// Returns what the server needs, if the text is not a final result.
fn needed(text: &str, live: &Live) -> Result<Option<Needed>, ToolError> {
    // Without the member it is a final result, and a large one is read only once.
    if !text.contains("\"resultType\"") {
        return Ok(None);
    }
    let Ok(Kind { result_type: Some(kind) }) = serde_json::from_str(text) else { return Ok(None) };
    match kind.get() {
        "\"complete\"" => Ok(None),
        "\"input_required\"" => match value(text).map(serde_json::from_value) {
            Ok(Ok(needed)) => Ok(Some(needed)),
            Ok(Err(_)) => Err(failed("the MCP server asks for input in an unknown form".to_owned())),
            Err(error) => Err(failed(format!("what the MCP server asks for cannot be read: {error}"))),
        },
        "\"task\"" => Err(failed("the MCP server started a task, which cannot be followed".to_owned())),
        // In earlier versions of the protocol the member has no meaning.
        _ if !live.has_result_types() => Ok(None),
        _ => Err(failed("the MCP server returned a result of an unknown type".to_owned())),
    }
}

fn complete(shared: &Shared, listed: &Listed, text: &str, context: &ToolContext) -> Outcome {
    let result = CallToolResult::read(text).map_err(|error| {
        failed(format!("the result of the MCP server {:?} cannot be read: {error}", shared.name))
    })?;
    if let Some(warning) = listed.warning(&result) {
        context.warn(&warning); // it is delivered all the same: the model may understand it
    }
    if result.is_bare {
        context.warn("the result has neither `content` nor `structuredContent`; its JSON is given as a text");
    }
    result.into_outcome()
}

/// Returns the error of an answer other than a result.
fn failure(shared: &Shared, listed: &Listed, answer: Answer) -> ToolError {
    match answer {
        Answer::Error(error) => json_rpc_error(&error, &listed.foreign),
        Answer::Unreadable(reason) => {
            failed(format!("the answer of the MCP server {:?} cannot be read: {reason}", shared.name))
        }
        Answer::TooLarge(size) => ToolError::new(
            ErrorCode::RESULT_TOO_LARGE,
            format!("the result has {size} bytes; the limit is {MAX_RESULT}"),
        ),
        Answer::Ended(reason) => {
            failed(format!("the MCP server {:?} does not answer: {reason}", shared.name))
        }
        Answer::NotSent | Answer::Result(_) => not_sent(shared),
    }
}

fn json_rpc_error(error: &Failure, tool: &str) -> ToolError {
    let message = &error.message;
    let lower = message.to_ascii_lowercase();
    // Other things than the tool may not be found.
    let names_it =
        || message.split(|it: char| it.is_whitespace() || "\"'`:,".contains(it)).any(|it| it == tool);
    let is_unknown = lower.contains("unknown tool") || lower.contains("not found") && names_it();
    let kind = match error.code {
        Some(INVALID_PARAMS) if is_unknown => ErrorCode::UNKNOWN_TOOL,
        Some(INVALID_PARAMS) => ErrorCode::INVALID_PARAMETERS,
        _ => ErrorCode::EXECUTION_ERROR,
    };
    ToolError::new(kind, words_of(error))
}

fn not_sent(shared: &Shared) -> ToolError {
    failed(format!("the MCP server {:?} is not running", shared.name))
}

fn failed(message: String) -> ToolError {
    ToolError::new(ErrorCode::EXECUTION_ERROR, message)
}
