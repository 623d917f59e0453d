//! `replay --as client`: joins as a client whose tools answer from the recording.

use std::io::{self, Write as _};

use serde_json::json;

use super::{Arguments, Read, read};
use crate::cli::{
    room::client,
    terminal::{
        failure::{Failure, tool_failed},
        file,
        interrupt::{interrupted, unless_interrupted},
        text,
    },
};
use toolbridge::{
    Client, CloseReason, Event, JoinError, Role,
    replay::{Cassette, Mismatch, Timing},
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
        builder = builder.record(path).record_options(options);
    }
    let target = arguments.room_arguments.target("replay", Role::Client)?;
    let joining = async {
        builder.connect_options(target.options.clone()).join(&target.url, &target.token).await.map_err(
            |error| {
                match error {
                    // The recording may contain more tools than a client may offer.
                    JoinError::Register(error) => {
                        Failure::Failed(format!("{}: {error}", arguments.file.display()))
                    }
                    other => file::not_joined(other),
                }
            },
        )
    };
    let client = unless_interrupted(joining).await?;
    let shown = tokio::select! {
        biased;
        () = interrupted() => Ok(CloseReason::Closed),
        shown = show(&client, &cassette, arguments) => shown,
    };
    // Leave the room in an orderly way even if standard output is closed.
    client.close().await;
    let recorded = arguments.record.outcome(client.recording());
    let reason = shown?;
    summary(&cassette, arguments.json)?;
    match reason {
        CloseReason::Closed if cassette.missed() > 0 || damaged => Err(Failure::ProblemsFound),
        CloseReason::Closed => recorded,
        reason => Err(Failure::failed(reason)),
    }
}

/// Prints events until the client leaves the room, and returns why it left. JSON output is printed at the end only.
async fn show(client: &Client, cassette: &Cassette, arguments: &Arguments) -> io::Result<CloseReason> {
    let (mut events, quiet) = (client.events(), arguments.json);
    if !quiet {
        client::say(&format!("joined as {}", client.identity()))?;
        client::say(&format!("{} recorded calls can be answered", cassette.calls()))?;
        match cassette.redacted() {
            0 => {}
            calls => client::say(&format!(
                "{calls} recorded calls cannot be answered: their parameters are redacted"
            ))?,
        }
    }
    let mut muted = false;
    while let Some(event) = events.recv().await {
        if let Event::RecordingStopped { reason } = &event {
            arguments.record.stopped(reason);
        }
        // The event repeats for each packet; it is printed once.
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

/// Describes an event for a person; for a call without a recorded answer, includes the reason.
fn line(event: &Event, cassette: &Cassette) -> Option<String> {
    if let Event::Settled { call, outcome: Err(code), .. } = event
        && code.as_str() == Mismatch::CODE
        && let Some(miss) = cassette.misses().iter().rfind(|miss| miss.call == *call)
    {
        return Some(format!("{}: {}: {}", miss.tool, Mismatch::CODE, miss.reason));
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
        writeln!(out, "{answered} calls answered, {missed} not recorded; {left} recorded calls not used")?;
    }
    out.flush()?;
    Ok(())
}
