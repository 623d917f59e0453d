//! Reads the list of a server's tools.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value as Json, value::RawValue};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    Listed, Output, Shared,
    definition::Definition,
    headers::ParameterHeaders,
    live::{Live, Unanswered, words_of},
};
use crate::{
    ToolName,
    adapter::{json, source::SourceError},
    runtime::source::{left_out_note, renamed_note},
    tools::{DataSchema, NameMap, NameRules},
};

/// The most pages of a tool list.
const MAX_PAGES: usize = 64;

/// The most tools of a server.
const MAX_TOOLS: usize = 1_024;

/// The longest time for one page of the list.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// How long the list waits for whatever watches the server to say how it has ended.
const END_GRACE: Duration = Duration::from_secs(2);

/// The largest definition of a tool, in bytes.
const MAX_DEFINITION: usize = 256 << 10;

/// The largest list of tools, in bytes.
const MAX_LIST: usize = 16 << 20;

/// The tools of a server, by their names in the room.
#[derive(Default)]
pub(super) struct Toolset {
    pub(super) tools: BTreeMap<ToolName, Arc<Listed>>,
    /// What a person should know about tools that are left out, or have another name.
    pub(super) notes: Vec<String>,
}

/// Returns the tools of the server, which lists all of them before the deadline.
pub(super) async fn list(shared: &Shared, live: &Live, deadline: Instant) -> Result<Toolset, SourceError> {
    let mut notes = Vec::new();
    match timeout_at(deadline, pages(shared, live, &mut notes)).await {
        Ok(definitions) => {
            let definitions = definitions?;
            for note in &notes {
                tracing::warn!(server = &*shared.name, note, "the list of an MCP server is not complete");
            }
            Ok(toolset(shared, &definitions, live.has_headers && live.is_modern(), notes))
        }
        Err(_) => {
            let limit = shared.settings.start_limit.as_secs_f64();
            Err(shared.fail(format!("it did not list all its tools within {limit} s")))
        }
    }
}

/// Returns the definitions of all pages. What is missing of them is noted.
async fn pages(
    shared: &Shared,
    live: &Live,
    notes: &mut Vec<String>,
) -> Result<Vec<Box<RawValue>>, SourceError> {
    let mut definitions = Vec::new();
    let (mut cursor, mut size) = (None, 0);
    for number in 1..=MAX_PAGES {
        let page = page(shared, live, cursor.take()).await?;
        let tools = page.tools.and_then(|tools| serde_json::from_str::<Vec<Box<RawValue>>>(tools.get()).ok());
        let tools = tools.unwrap_or_else(|| {
            notes.push(format!("page {number} of its tool list has no `tools`"));
            Vec::new()
        });
        size += tools.iter().map(|text| text.get().len()).sum::<usize>();
        if size > MAX_LIST {
            let reason = format!("its tool list has more than {MAX_LIST} bytes");
            return Err(shared.fail(reason));
        }
        definitions.extend(tools);
        let goes_on = format!("its tool list goes on after page {number}");
        match page.next_cursor {
            None | Some(Json::Null) => break,
            Some(Json::String(next)) if next.is_empty() => break,
            Some(Json::String(_) | Json::Number(_))
                if number == MAX_PAGES || definitions.len() >= MAX_TOOLS =>
            {
                notes.push(format!("{goes_on}, which is the last that is read"));
                break;
            }
            Some(next @ (Json::String(_) | Json::Number(_))) => cursor = Some(next),
            Some(_) => {
                notes.push(format!("{goes_on}, but has no usable cursor"));
                break;
            }
        }
    }
    if definitions.len() > MAX_TOOLS {
        let more = definitions.len() - MAX_TOOLS;
        notes.push(format!("{more} tools of its list are not offered: the limit is {MAX_TOOLS}"));
        definitions.truncate(MAX_TOOLS);
    }
    Ok(definitions)
}

async fn page(shared: &Shared, live: &Live, cursor: Option<Json>) -> Result<Page, SourceError> {
    let cursor = cursor.map(|cursor| ("cursor".to_owned(), cursor));
    let asked = live.request("tools/list", Map::from_iter(cursor), false);
    let fail = |reason: String| Err(shared.fail(reason));
    let answer = match timeout(LIST_LIMIT, asked).await {
        Ok(answer) => answer,
        Err(_) => return fail(format!("it did not list its tools within {} s", LIST_LIMIT.as_secs_f64())),
    };
    let text = match answer {
        Ok(text) => text,
        Err(Unanswered::Error(error)) => return fail(format!("it lists no tools: {}", words_of(&error))),
        Err(Unanswered::Unreadable(reason)) => {
            return fail(format!("its tool list cannot be read: {reason}"));
        }
        Err(Unanswered::TooLarge(size)) => return fail(format!("its tool list has {size} bytes")),
        Err(Unanswered::Lost(reason)) => return fail(format!("it lists no tools: {reason}")),
        Err(Unanswered::TooMany(limit)) => {
            return fail(format!("it lists no tools: {limit} requests are open, which is the limit"));
        }
        Err(Unanswered::NotSent | Unanswered::Ended(_)) => {
            sleep(END_GRACE).await;
            return fail("it ended".to_owned());
        }
    };
    let read = json::checked(&text).map_err(|error| error.to_string());
    let read = read.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    read.or_else(|error| fail(format!("its tool list cannot be read: {error}")))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Option<Box<RawValue>>,
    next_cursor: Option<Json>,
}

/// Returns the tools that can be offered. Those that cannot are logged. With headers, those of parameters must be right.
fn toolset(
    shared: &Shared,
    definitions: &[Box<RawValue>],
    has_headers: bool,
    mut notes: Vec<String>,
) -> Toolset {
    let settings = &shared.settings;
    let mut leave_out = |tool: &str, reason: &str| {
        tracing::warn!(server = &*shared.name, tool, reason, "a tool of an MCP server is not offered");
        let tool = if tool.is_empty() { "a tool" } else { tool };
        notes.push(left_out_note(tool, reason));
    };
    let (mut read, mut repeated) = (BTreeMap::new(), BTreeMap::new());
    for text in definitions {
        if text.get().len() > MAX_DEFINITION {
            leave_out(
                "",
                &format!("its definition has {} bytes; the limit is {MAX_DEFINITION}", text.get().len()),
            );
            continue;
        }
        match Definition::read(text) {
            Ok(definition) if !settings.policy.offers(&definition.name) => {}
            Ok(definition) => {
                let headers = match definition.refusal() {
                    Some(reason) => Err(reason.to_owned()),
                    None if has_headers => definition.headers(),
                    None => Ok(ParameterHeaders::default()),
                };
                match headers {
                    Ok(_) if read.contains_key(&definition.name) => {
                        *repeated.entry(definition.name).or_insert(1) += 1;
                    }
                    Ok(headers) => _ = read.insert(definition.name.clone(), (definition, headers)),
                    Err(reason) => leave_out(&definition.name, &reason),
                }
            }
            Err(reason) => leave_out("", &reason),
        }
    }
    let repeated = repeated.into_iter();
    notes.extend(repeated.map(|(tool, n)| format!("{tool} is listed {n} times; the first one is offered")));
    let in_room = |name: &str| settings.policy.in_room(name);
    let names = NameMap::new(NameRules::Tool, read.keys().map(|name| in_room(name)));
    let tools = read.into_iter().filter_map(|(foreign, (definition, headers))| {
        let name: ToolName = names.converted(&in_room(&foreign))?.parse().ok()?;
        if name.as_str() != in_room(&foreign) {
            notes.push(renamed_note(&foreign, &name));
        }
        let tool = definition.tool(name.clone(), &shared.name, &settings.policy);
        let output = match definition.output_schema.as_ref().map(DataSchema::compile) {
            None => Output::None,
            Some(Ok(schema)) => Output::Checked(schema),
            Some(Err(error)) => Output::Unusable(error.to_string(), AtomicBool::new(false)),
        };
        Some((name, Arc::new(Listed { tool, foreign, output, headers })))
    });
    let tools = tools.collect();
    Toolset { tools, notes }
}
