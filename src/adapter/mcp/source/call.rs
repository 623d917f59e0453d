//! Makes one call of a server's tool.

use serde::Deserialize;
use serde_json::{Map, Value as Json, value::RawValue};

use super::{
    Listed, Shared,
    elicitation::{self, Inputs},
    headers::encoded,
    live::{Live, MAX_RESULT, Unanswered, words_of},
};
use crate::{
    ErrorCode, Outcome, ToolContext, ToolError, Value,
    adapter::{
        json::value,
        jsonrpc::{error::INVALID_PARAMS, failure::Failure, peer::Headers},
        mcp::CallToolResult,
    },
};

/// How often a server may ask for input during one call.
const MAX_ROUNDS: usize = 16;

/// The JSON-RPC error of a call that first needs the person to open addresses (protocol version 2025-11-25).
const OPEN_FIRST: i64 = -32_042;

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
    let arguments = arguments.decode::<Map<String, Json>>().map_err(|error| {
        ToolError::new(ErrorCode::INVALID_PARAMETERS, format!("the arguments are not a JSON object: {error}"))
    })?;
    let headers = headers(live, listed, &arguments);
    let mut params = Map::from_iter([
        ("name".to_owned(), Json::from(&*listed.foreign)),
        ("arguments".to_owned(), Json::Object(arguments)),
    ]);
    for _ in 0..MAX_ROUNDS {
        let answer = tokio::select! {
            biased;
            answer = live.call(params.clone(), headers.clone(), context) => answer,
            () = context.cancelled() => return Err(ToolError::cancelled()),
        };
        let needed = match answer {
            Ok(text) => match needed(&text, live)? {
                Some(needed) => needed,
                None => return complete(shared, listed, &text, context),
            },
            Err(Unanswered::Error(Failure { code: Some(OPEN_FIRST), data: Some(data), .. })) => {
                open_all(shared, &data, context).await?;
                Needed::default()
            }
            Err(unanswered) => return Err(failure(shared, listed, unanswered)),
        };
        let inputs = needed.input_requests.unwrap_or_default();
        let answers = elicitation::answer_all(&shared.name, inputs, context).await?;
        params.remove("inputResponses");
        params.remove("requestState");
        if !answers.is_empty() {
            params.insert("inputResponses".to_owned(), answers.into());
        }
        if let Some(state) = needed.request_state {
            params.insert("requestState".to_owned(), state.into());
        }
    }
    Err(failed(format!("the MCP server {:?} asked for input {MAX_ROUNDS} times", shared.name)))
}

/// Returns what a server at an address is to know without reading the call, from version 2026-07-28 on.
fn headers(live: &Live, listed: &Listed, arguments: &Map<String, Json>) -> Headers {
    if !live.has_headers || !live.is_modern() {
        return Headers::new();
    }
    let mut headers = listed.headers.of(arguments);
    headers.push(("mcp-name".to_owned(), encoded(&listed.foreign)));
    headers
}

/// Asks the person to open addresses, as an error demands.
async fn open_all(shared: &Shared, data: &str, context: &ToolContext) -> Result<(), ToolError> {
    let unreadable = |_| failed("the MCP server wants addresses to be opened, and names none".to_owned());
    let addresses: Addresses = serde_json::from_str(data).map_err(unreadable)?;
    elicitation::open_all(&shared.name, addresses.elicitations, context).await
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
        _ if !live.is_modern() => Ok(None),
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

/// Returns the error of a call without a result.
fn failure(shared: &Shared, listed: &Listed, unanswered: Unanswered) -> ToolError {
    let name = &*shared.name;
    match unanswered {
        Unanswered::Error(error) => json_rpc_error(&error, &listed.foreign),
        Unanswered::Unreadable(reason) => {
            failed(format!("the answer of the MCP server {name:?} cannot be read: {reason}"))
        }
        Unanswered::TooLarge(size) => ToolError::new(
            ErrorCode::RESULT_TOO_LARGE,
            format!("the result has {size} bytes; the limit is {MAX_RESULT}"),
        ),
        Unanswered::TooMany(limit) => {
            failed(format!("the MCP server {name:?} has {limit} open requests, which is the limit"))
        }
        Unanswered::Lost(reason) => failed(format!("the MCP server {name:?} does not answer: {reason}")),
        Unanswered::Ended(Some(reason)) => {
            failed(format!("the MCP server {name:?} does not answer: {reason}"))
        }
        Unanswered::Ended(None) => failed(format!("the connection to the MCP server {name:?} has ended")),
        Unanswered::NotSent => failed(format!("the MCP server {name:?} is not running")),
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

fn failed(message: String) -> ToolError {
    ToolError::new(ErrorCode::EXECUTION_ERROR, message)
}
