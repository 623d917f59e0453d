//! `replay --as client`: a client whose tools answer from the recording.

use std::io::{self, Write as _};

use serde_json::json;

use super::{Arguments, Read, read};
use crate::cli::{
    Failure, client, file,
    interrupt::{interrupted, unless_interrupted},
    text, tool_failed,
};
use toolbridge::{
    Client, CloseReason, Event, JoinError, Role,
    replay::{Cassette, Miss, Timing},
};

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Read { what: cassette, damaged, .. } = read(&arguments.file, |entries| Cassette::new(entries))?;
    let mut cassette = cassette.timing(arguments.timing.map_or_else(Timing::default, Timing::from));
    if arguments.loose {
        cassette = cassette.loose();
    }
    let mut builder = Client::builder().tools(cassette.clone());
    if let Some(assistant) = &arguments.assistant {
        builder = builder.assistant(assistant.as_str());
    }
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record_with(path, options);
    }
    let target = arguments.room_arguments.target("replay", Role::Client)?;
    let joining = async {
        builder.room_options(target.options.clone()).join(&target.url, &target.token).await.map_err(|error| {
            match error {
                // What a file offers may be more than anybody may.
                JoinError::Register(error) => {
                    Failure::Failed(format!("{}: {error}", arguments.file.display()))
                }
                other => file::not_joined(other),
            }
        })
    };
    let client = unless_interrupted(joining).await?;
    let shown = tokio::select! {
        biased;
        () = interrupted() => Ok(CloseReason::Closed),
        shown = show(&client, &cassette, arguments.json) => shown,
    };
    // Also when nobody reads any more what we show: the room should hear that we leave.
    client.close().await;
    let reason = shown?;
    summary(&cassette, arguments.json)?;
    match reason {
        CloseReason::Closed if cassette.missed() > 0 || damaged => Err(Failure::ProblemsFound),
        CloseReason::Closed => Ok(()),
        reason => Err(Failure::failed(reason)),
    }
}

/// Shows what happens until the room is left, and why it was. What is for programs comes at the end alone.
async fn show(client: &Client, cassette: &Cassette, quiet: bool) -> io::Result<CloseReason> {
    let mut events = client.events();
    if !quiet {
        client::say(&format!("joined as {}", client.identity()))?;
        client::say(&format!("{} recorded calls can be answered", cassette.calls()))?;
        match cassette.redacted() {
            0 => {}
            calls => client::say(&format!("{calls} cannot be: their parameters are redacted"))?,
        }
    }
    let mut muted = false;
    while let Some(event) = events.recv().await {
        // Once is enough: it is told for each packet.
        if quiet || (matches!(event, Event::NotAllowed) && std::mem::replace(&mut muted, true)) {
            continue;
        }
        if let Event::ToolFailed { tool, reason, .. } = &event {
            tool_failed(tool, reason);
        }
        if let Some(line) = line(&event, cassette) {
            client::say(&line)?;
        }
    }
    Ok(client.closed().await)
}

/// What a person wants to know of an event: of a miss, why it is one.
fn line(event: &Event, cassette: &Cassette) -> Option<String> {
    if let Event::Settled { call, outcome: Err(code), .. } = event
        && code.as_str() == Miss::CODE
        && let Some(miss) = cassette.misses().iter().rfind(|miss| miss.call == *call)
    {
        return Some(format!("{}: {}: {}", miss.tool, Miss::CODE, miss.reason));
    }
    client::line(event)
}

fn summary(cassette: &Cassette, as_json: bool) -> Result<(), Failure> {
    let (answered, missed, left) = (cassette.answered(), cassette.missed(), cassette.left());
    let mut out = io::stdout().lock();
    if as_json {
        let misses = serde_json::to_value(cassette.misses()).map_err(Failure::failed)?;
        let redacted = cassette.redacted();
        let all = json!({
            "answered": answered, "missed": missed, "misses": misses, "left": left, "redacted": redacted,
        });
        writeln!(out, "{}", text::json(&all))?;
    } else {
        writeln!(
            out,
            "{answered} calls answered, {missed} not recorded; {left} recorded calls were not asked for"
        )?;
    }
    out.flush()?;
    Ok(())
}
