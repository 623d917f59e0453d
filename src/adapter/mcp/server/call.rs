//! Makes one call of a host.

use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolRequestParams, CallToolResponse, JsonObject, ProtocolVersion},
    service::RequestContext,
};
use serde_json::Value as Json;

use super::{definition::promises_data, progress::Reporter, raw, result};
use tokio_util::sync::CancellationToken;

use crate::{
    Call, CallError, ErrorCode, Value,
    adapter::sink::{MAX_CALLS, OwnedTool, Room},
    tool::model_text,
};

/// Added to the error of a client that does not obey this assistant.
const BOUND_ELSEWHERE: &str = "A client obeys one assistant. Serve MCP in the process of that assistant, stop it, or name this \
     server's identity as the client's assistant.";

/// Runs a call and returns its result, or the error of an unknown tool.
pub(super) async fn call(
    shared: &Room,
    closed: &CancellationToken,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let is_modern = is_modern(&context);
    let written = |document| Ok(raw::wrapped(&result::finished(document, is_modern)));
    let Some(_permit) = shared.begin_call() else {
        let text = format!("{MAX_CALLS} calls are open already. Call again when one has ended. Nothing ran.");
        return written(result::of_failure(&text, &ErrorCode::BUSY, false));
    };
    let Some(found) = context.ct.run_until_cancelled(shared.find(&request.name)).await else {
        return written(of_error(&request.name, &CallError::Cancelled)); // the host gets no response
    };
    let Some(entry) = found else {
        return match shared.why_not_offered(&request.name) {
            error @ CallError::UnknownTool { .. } => Err(unknown(&error.to_string())),
            error => written(of_error(&request.name, &error)),
        };
    };
    let reporter = Reporter::new(&context, closed);
    match run(shared, &entry, request.arguments, &context.ct, reporter).await {
        Ok(value) if promises_data(&entry.offer.tool) => written(result::of_promised(&value)),
        Ok(value) => written(result::of_value(&value)),
        Err(error @ CallError::UnknownTool { .. }) => Err(unknown(&error.to_string())),
        Err(error) => written(of_error(&request.name, &error)),
    }
}

fn unknown(text: &str) -> ErrorData {
    ErrorData::invalid_params(format!("unknown tool: {text}"), None)
}

/// Makes the call, forwards its progress, and cancels it when the host does.
async fn run(
    shared: &Room,
    entry: &OwnedTool,
    arguments: Option<JsonObject>,
    cancelled: &CancellationToken,
    reporter: Reporter,
) -> Result<Value, CallError> {
    let arguments = Value::from(Json::Object(arguments.unwrap_or_default()));
    let mut call = shared.call(entry, arguments);
    if cancelled.run_until_cancelled(report_progress(&mut call, reporter)).await.is_none() {
        call.cancel();
    }
    call.await
}

/// Forwards the progress of a call until it has ended.
async fn report_progress(call: &mut Call, mut reporter: Reporter) {
    while let Some(step) = call.progress().await {
        reporter.report(&step).await;
    }
}

fn of_error(tool: &str, error: &CallError) -> serde_json::Map<String, Json> {
    let (code, may_have_run) = (error.code(), error.may_have_run());
    match error {
        CallError::Tool(error) => result::of_tool_error(error, may_have_run),
        CallError::NotBound { .. } => {
            let text = format!("{} {BOUND_ELSEWHERE}", model_text::text(tool, error));
            result::of_failure(&text, &code, may_have_run)
        }
        other => result::of_failure(&model_text::text(tool, other), &code, may_have_run),
    }
}

/// Whether a request is of a protocol version without `initialize`.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|it| it.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}
