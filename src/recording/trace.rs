//! Exports calls in Chrome's trace format, which ui.perfetto.dev opens.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
};

use serde_json::{Value, json};

use super::{Calls, Moment, RecordedCall};
use crate::{escape, transport::Identity};

/// Writes calls as a trace: one process for each owner (or caller, if a call has no owner) and one asynchronous slice
/// for each call, so that calls may overlap. Times count from `begun`; a call without an end extends to `end`.
/// Arguments and results are omitted.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_trace(calls: &Calls, begun: Moment, end: Moment, out: &mut impl Write) -> io::Result<()> {
    let mut processes = HashMap::new();
    let mut names = BTreeMap::new();
    for call in &calls.calls {
        let owner = owner_of(call);
        let next = 1 + processes.len() as u64;
        let number = *processes.entry(owner).or_insert(next);
        names.entry(number).or_insert(owner);
    }
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut comma = "\n";
    let mut put = |event: &Value| {
        out.write_all(comma.as_bytes())?;
        comma = ",\n";
        escape::write_json(out, event)
    };
    for (number, name) in &names {
        put(&json!({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}))?;
    }
    for call in &calls.calls {
        let owner = owner_of(call);
        let process = processes.get(owner).copied().unwrap_or_default();
        for event in events(call, process, begun, end) {
            put(&event)?;
        }
    }
    writeln!(out, "\n]}}")
}

/// The participant in whose track a call is shown: its owner, or else its caller.
fn owner_of(call: &RecordedCall) -> &str {
    call.owner.as_ref().or(call.caller.as_ref()).map_or("", Identity::as_str)
}

/// The events of one call, in order of time.
fn events(call: &RecordedCall, process: u64, begun: Moment, end: Moment) -> Vec<Value> {
    let Some(first) = call.requested.or(call.settled).or(call.stopped) else { return Vec::new() };
    let last = call.settled.or(call.stopped).unwrap_or(end).max(first);
    // Ids include the caller, since two callers may use the same id.
    let caller = call.caller.as_ref().map_or("", Identity::as_str);
    let id = format!("{caller}/{}", call.id);
    let name = if call.tool.is_empty() { "(unknown)" } else { &call.tool };
    let event = |phase: &str, name: &str, at: Moment, args: Value| {
        let micros = at.since(begun).as_nanos() as f64 / 1e3;
        json!({"ph": phase, "cat": "call", "id": id, "name": name, "pid": process, "tid": 1, "ts": micros, "args": args})
    };
    let args = json!({
        "id": call.id.as_str(),
        "caller": caller,
        "execution": call.execution.map(|it| it.as_str()),
        "rpc": call.rpc,
        "parameters": call.parameters,
        "result": call.result,
        "outcome": call.outcome.as_str(),
    });
    let mut events = vec![event("b", name, first, args)];
    let marks = [("delivered", call.delivered), ("started", call.started), ("stopped", call.stopped)];
    let mut marks: Vec<_> = marks.into_iter().filter_map(|(word, at)| Some((at?, word))).collect();
    marks.sort_unstable();
    for (at, word) in marks {
        events.push(event("n", word, at.clamp(first, last), json!({})));
    }
    events.push(event("e", name, last, json!({})));
    events
}
