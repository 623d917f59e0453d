//! Defines the lines sent to the controlling program.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::{
    command::{BAD_COMMAND, COMMANDS, CommandError, Id, Refusal},
    conversation::OPEN_CALLS,
    input::MAX_LINE,
};
use toolbridge::{
    CallError, CallId, CloseReason, ConnectionState, ErrorCode, Identity, LateResult, Progress, ToolResult,
    Value,
    session::Counter,
    tools::{Execution, Offer},
    transport::{Participant, Peer},
};

/// The name of the line protocol.
const PROTOCOL: &str = "toolbridge-assistant";

/// The version of the line protocol. It changes only when a conforming controlling program would no longer work.
const VERSION: u32 = 1;

/// Returns the first line.
pub(super) fn hello(identity: &Identity, room: &str) -> Json {
    json!({
        "type": "hello",
        "protocol": PROTOCOL,
        "version": VERSION,
        "program": concat!("toolbridge/", env!("CARGO_PKG_VERSION")),
        "identity": identity.as_str(),
        "room": room,
        "commands": COMMANDS,
        "limits": {"lineBytes": MAX_LINE, "openCalls": OPEN_CALLS},
    })
}

/// Returns the event for the MCP server of `--mcp-listen`.
pub(super) fn mcp(url: &str, token: &str) -> Json {
    json!({"type": "event", "event": "mcp", "url": url, "token": token})
}

/// Returns the event for the RAP toolset of `--rap-listen`.
pub(super) fn rap(url: &str) -> Json {
    json!({"type": "event", "event": "rap", "url": url})
}

/// Returns the answer to `forget_permissions`.
pub(super) fn permissions_forgotten(count: usize) -> Json {
    json!({"type": "event", "event": "permissions_forgotten", "count": count})
}

/// Returns the result line of a call.
pub(super) fn result(id: &Id, result: &Result<Value, CallError>) -> Json {
    let mut line = json!({"type": "result", "id": id.to_json()});
    outcome(&mut line, result);
    line
}

/// Returns the event for the outcome of a call that kept running after a barge-in.
pub(super) fn late(id: Option<&Id>, late: &LateResult) -> Json {
    let mut line = step("late_result", id, &late.id, late.owner.as_ref());
    line["tool"] = (*late.tool).into();
    if let Some(event) = &late.event {
        line["parameters"] = event.to_json();
    }
    outcome(&mut line, &late.result);
    line
}

fn outcome(line: &mut Json, result: &Result<Value, CallError>) {
    line["ok"] = result.is_ok().into();
    match result {
        // On the wire a result that is not a map is wrapped in one. Results of local tools are wrapped the same way.
        Ok(body) if body.is_map() => line["result"] = body.to_json(),
        Ok(body) => line["result"] = json!({"value": body.to_json()}),
        Err(error) => line["error"] = failure(error),
    }
    // A plain value is what the model reads.
    if let Ok(body) = result {
        let read = ToolResult::of(body);
        if !read.is_plain_value() || body.get(RESULT).is_some() {
            views(line, &read);
        }
    }
}

/// The key of a result that is more than a plain value (`wire.md`, section 3.3).
const RESULT: &str = "bridge.result";

/// Adds what the model reads of a result, and what is spoken exactly.
fn views(line: &mut Json, result: &ToolResult) {
    line["forModel"] = result.for_model(ToolResult::MAX_TEXT).text.into();
    line["needsModel"] = result.needs_model().into();
    if let Some(spoken) = result.spoken() {
        line["spoken"] = spoken.into();
    }
}

/// Returns the result of a call whose line is invalid.
pub(super) fn refused(id: &Id, Refusal { code, message }: &Refusal) -> Json {
    let error = json!({"code": code, "message": message, "mayHaveRun": false});
    json!({"type": "result", "id": id.to_json(), "ok": false, "error": error})
}

fn failure(error: &CallError) -> Json {
    // The model reads the partial result. The message is for everybody.
    let (code, message) = match error {
        CallError::Tool(error) => (error.code(), error.for_clients().to_string()),
        other => (word(other), other.to_string()),
    };
    let mut failure = json!({"code": code.as_str(), "message": message, "mayHaveRun": error.may_have_run()});
    match error {
        CallError::Tool(error) => {
            if let Some(partial) = error.partial() {
                failure["partial"] = partial.to_json();
            }
        }
        CallError::Ambiguous { owners, .. } | CallError::NotBound { clients: owners, .. } => {
            failure["owners"] = owners.iter().map(Identity::as_str).collect();
        }
        _ => {}
    }
    failure
}

/// Returns the error code for the controlling program, which distinguishes more causes than the code for a model.
fn word(error: &CallError) -> ErrorCode {
    match error {
        CallError::TurnOver => "turn_over".into(),
        CallError::Arguments(_) | CallError::Limit { .. } => BAD_COMMAND.into(),
        CallError::TooManyOpen { .. } => "too_many_open".into(),
        other => other.code(),
    }
}

/// Returns the progress line of a call.
pub(super) fn progress(id: &Id, progress: &Progress) -> Json {
    let mut line = json!({"type": "progress", "id": id.to_json(), "status": progress.status.as_str()});
    if let Some(message) = &progress.message {
        line["message"] = message.as_str().into();
    }
    if let Some(content) = &progress.content {
        line["content"] = content.to_json();
    }
    line
}

/// Returns the list of callable tools.
pub(super) fn tools(id: Option<&Id>, offers: &[Offer], local: &Identity) -> Json {
    let tool = |offer: &Offer| {
        let options = offer.tool.tool_options();
        let execution = match offer.owner == *local {
            true if options.prefer_client => Execution::Either,
            true => Execution::Server,
            false => Execution::Client,
        };
        json!({
            "name": offer.tool.name().as_str(),
            "owner": offer.owner.as_str(),
            "execution": execution.as_str(),
            "description": offer.tool.description(),
            "inputSchema": offer.tool.input_schema(),
            "destructive": options.destructive,
            "idempotent": options.idempotent,
        })
    };
    let mut line = json!({"type": "tools"});
    if let Some(id) = id {
        line["id"] = id.to_json();
    }
    line["tools"] = offers.iter().map(tool).collect();
    line
}

/// Returns the error line for an invalid command.
pub(super) fn wrong(number: u64, wrong: &CommandError) -> Json {
    let mut line = json!({"type": "error", "line": number, "code": wrong.code, "message": wrong.message});
    if let Some(id) = &wrong.id {
        line["id"] = id.to_json();
    }
    line
}

fn event(name: &str) -> Json {
    json!({"type": "event", "event": name})
}

pub(super) fn joined(who: &Participant) -> Json {
    let mut line = event("joined");
    line["identity"] = who.identity().as_str().into();
    line["sid"] = who.sid().as_str().into();
    line["role"] = who.token_role().map(|role| role.as_str()).into();
    line["agent"] = who.is_agent().into();
    line
}

pub(super) fn left(who: &Peer) -> Json {
    let mut line = event("left");
    line["identity"] = who.identity().as_str().into();
    line["sid"] = who.sid().as_str().into();
    line
}

/// Returns the event for a participant's changed tools.
pub(super) fn tools_changed(owner: &Identity, offers: &[Offer]) -> Json {
    let mut line = event("tools_changed");
    line["owner"] = owner.as_str().into();
    let its = offers.iter().filter(|offer| offer.owner == *owner);
    line["tools"] = its.map(|offer| offer.tool.name().as_str()).collect();
    line
}

/// Returns the event for a client that offers tools and offered none before.
pub(super) fn ready(owner: &Identity, offers: &[Offer]) -> Json {
    let mut line = tools_changed(owner, offers);
    line["event"] = "ready".into();
    line
}

/// Returns the event for a failed join, which replaces `hello`.
pub(super) fn join_failed(reason: &str) -> Json {
    let mut line = event("join_failed");
    line["reason"] = reason.into();
    line
}

/// Returns the event for a call that was assigned to an owner or delivered to it.
pub(super) fn step(name: &str, id: Option<&Id>, call: &CallId, owner: Option<&Identity>) -> Json {
    let mut line = event(name);
    if let Some(id) = id {
        line["id"] = id.to_json();
    }
    line["call"] = call.as_str().into();
    line["owner"] = owner.map(Identity::as_str).into();
    line
}

/// Returns the event for the end of a call that the controlling program did not make.
pub(super) fn settled(
    call: &CallId,
    tool: &str,
    owner: Option<&Identity>,
    outcome: &Result<(), ErrorCode>,
    took: Duration,
) -> Json {
    let mut line = event("settled");
    line["call"] = call.as_str().into();
    line["tool"] = tool.into();
    line["owner"] = owner.map(Identity::as_str).into();
    line["ok"] = outcome.is_ok().into();
    if let Err(code) = outcome {
        line["code"] = code.as_str().into();
    }
    line["tookMs"] = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into();
    line
}

pub(super) fn violation(by: Option<&Identity>, what: Counter, times: u64) -> Json {
    let mut line = event("violation");
    line["by"] = by.map(Identity::as_str).into();
    line["what"] = what.as_str().into();
    line["times"] = times.into();
    if let Some(why) = what.unreadable() {
        line["message"] = why.to_string().into();
    }
    line
}

pub(super) fn peer_error(by: &Identity, code: i32, message: &str, recoverable: bool) -> Json {
    let mut line = event("peer_error");
    line["by"] = by.as_str().into();
    line["code"] = code.into();
    line["message"] = message.into();
    line["recoverable"] = recoverable.into();
    line
}

pub(super) fn link(state: ConnectionState) -> Json {
    let mut line = event("link");
    line["up"] = (state == ConnectionState::Connected).into();
    line
}

pub(super) fn tool_failed(call: &CallId, tool: &str, reason: &str) -> Json {
    let mut line = event("tool_failed");
    line["call"] = call.as_str().into();
    line["tool"] = tool.into();
    line["reason"] = reason.into();
    line
}

pub(super) fn frame(from: &Peer, frame: Json) -> Json {
    let mut line = event("frame");
    line["from"] = from.identity().as_str().into();
    line["frame"] = frame;
    line
}

pub(super) fn not_allowed() -> Json {
    let mut line = event("not_allowed");
    line["message"] = "the token does not allow sending data; have `canPublishData` granted".into();
    line
}

pub(super) fn recording_stopped(reason: &str) -> Json {
    let mut line = event("recording_stopped");
    line["message"] = reason.into();
    line
}

pub(super) fn missed(events: u64) -> Json {
    let mut line = event("missed");
    line["events"] = events.into();
    line
}

/// Returns the last line.
pub(super) fn closed(reason: &CloseReason) -> Json {
    let mut line = event("closed");
    line["orderly"] = (*reason == CloseReason::Closed).into();
    line["reason"] = reason.to_string().into();
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::room::assistant::command::{Command, parse};

    #[test]
    fn every_result_of_its_own_form_says_what_the_model_reads() {
        let Ok(Command::Cancel(id)) = parse(r#"{"type":"cancel","id":1}"#) else { panic!("no id") };
        let line = |value: Json| result(&id, &Ok(Value::from(value)));
        let data = line(json!({"bridge.result": 1, "text": "", "structured": {"latitude": 52}}));
        assert_eq!(
            (&data["forModel"], &data["needsModel"]),
            (&json!(r#"{"latitude":52}"#), &json!(true)),
            "{data}"
        );
        let nothing = line(json!({"bridge.result": 1, "text": "", "content": []}));
        assert!(nothing["forModel"].is_string() && nothing["needsModel"].is_boolean(), "{nothing}");
        assert_eq!(line(json!({"latitude": 52})).get("forModel"), None);
    }
}
