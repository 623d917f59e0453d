//! `toolbridge client`: runs a client that offers programs, MCP servers, RAP toolsets or agents as tools.

use std::io::{self, IsTerminal as _};

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::cli::{
    room::{
        connect::RoomArguments,
        connection_state,
        consent::Asked,
        prompts,
        record_option::RecordOption,
        sources::{SourceArguments, with_sources},
        unreadable,
    },
    terminal::{
        failure::{Failure, hint, tool_failed},
        file,
        interrupt::{interrupted, unless_interrupted},
        output,
        questions::Terminal,
        screen,
    },
};
use toolbridge::{Client, CloseReason, ErrorCode, Event, Identity, Role, ToolName, session::Unaccepted};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Assistant whose calls are accepted [default: the only assistant in the room]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    assistant: Option<String>,

    /// Answer LiveKit's RPC (performRpc) of the assistant
    #[arg(long)]
    answer_rpc: bool,

    /// Participant that may also call by RPC without being the assistant (repeatable)
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new(), requires = "answer_rpc")]
    rpc_caller: Vec<String>,

    #[command(flatten)]
    sources: SourceArguments,

    #[command(flatten)]
    record: RecordOption,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let mut builder = Client::builder();
    let sources = unless_interrupted(arguments.sources.start(Asked::Terminal)).await?;
    if sources.may_ask() && io::stdin().is_terminal() {
        builder = builder.prompt(prompts::ask);
    }
    let offers_none = sources.offer_none();
    builder = with_sources(builder, sources);
    if let Some(assistant) = &arguments.assistant {
        builder = builder.assistant(assistant.as_str());
    }
    if arguments.answer_rpc {
        builder = builder.answer_rpc();
    }
    for caller in &arguments.rpc_caller {
        builder = builder.rpc_caller(caller.as_str());
    }
    arguments.record.check(arguments.room_arguments.is_encrypted())?;
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record(path).record_options(options);
    }
    let target = arguments.room_arguments.target("client", Role::Client)?;
    let joining = async {
        let joined = builder.connect_options(target.options.clone()).join(&target.url, &target.token).await;
        joined.map_err(file::not_joined)
    };
    let client = unless_interrupted(joining).await?;
    if offers_none {
        hint("this client offers no tools; name some with --tools, --mcp, --rap or --acp");
    }
    let shown = tokio::select! {
        biased;
        () = interrupted() => Ok(CloseReason::Closed),
        shown = show(&client, &arguments.record) => shown,
    };
    // Leave the room in an orderly way even if standard output is closed.
    client.close().await;
    let recorded = arguments.record.outcome(client.recording());
    match shown? {
        CloseReason::Closed => recorded,
        reason => Err(Failure::failed(reason)),
    }
}

/// Prints events until the client leaves the room. Returns why it left.
async fn show(client: &Client, record: &RecordOption) -> io::Result<CloseReason> {
    let mut events = client.events();
    say(&format!("joined as {}", client.identity()))?;
    let mut noted: Vec<String> = client.tool_notes().iter().filter_map(line).collect();
    for line in &noted {
        say(line)?;
    }
    let mut muted = false;
    while let Some(event) = events.recv().await {
        // The event repeats for each packet; it is printed once.
        if matches!(event, Event::NotAllowed) && std::mem::replace(&mut muted, true) {
            continue;
        }
        match &event {
            Event::ToolFailed { tool, reason, .. } => tool_failed(tool, reason),
            Event::RecordingStopped { reason } => record.stopped(reason),
            _ => {}
        }
        let Some(line) = line(&event) else { continue };
        if is_of_others(&event) {
            print(&screen::foreign_on_stdout(&line))?;
            continue;
        }
        // It may have happened between the two reads.
        match noted.iter().position(|it| *it == line) {
            Some(at) => _ = noted.swap_remove(at),
            None => say(&line)?,
        }
    }
    Ok(client.closed().await)
}

/// Describes an event for a person, without arguments or results.
pub(in crate::cli) fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::Bound(Some(assistant)) => format!("bound to the assistant {assistant}"),
        Event::Bound(None) => "not bound to an assistant".to_owned(),
        Event::AmbiguousAssistant { candidates } => {
            let names: Vec<_> = candidates.iter().map(Identity::as_str).collect();
            format!("not bound: several participants could be the assistant; choose one of {} with --assistant", names.join(", "))
        }
        // The event before it says so.
        Event::Unaccepted { why: Unaccepted::Refused { .. } } => return None,
        Event::Unaccepted { why } => why.to_string(),
        Event::Registered { by, refused: Some(why), .. } => {
            format!("{by} rejected some of this client's tools: {why}")
        }
        Event::PeerError { by, code, message, .. } => format!("{by} reported an error: {message} (code {code})"),
        Event::ConnectionState(state) => connection_state::describe(*state).to_owned(),
        // Pings are not printed: there may be thousands.
        Event::Requested { tool, .. } | Event::Settled { tool, .. } if tool == ToolName::ECHO => return None,
        Event::Requested { tool, by, .. } => format!("{by} called {tool}"),
        Event::Settled { tool, outcome, took, .. } => {
            let word = outcome.as_ref().map_or_else(ErrorCode::to_string, |()| "ok".to_owned());
            format!("{tool}: {word} after {:.1} ms", took.as_secs_f64() * 1e3)
        }
        Event::NotAllowed => {
            "the token does not allow sending data: no assistant can see this client; have `canPublishData` granted".to_owned()
        }
        Event::Violation { by, what, times, why } => {
            if let Some(why) = what.unreadable() {
                return Some(format!("{} ({times} packets)", unreadable::describe(by.as_ref(), why)));
            }
            let by = by.as_ref().map_or("a participant without an identity", Identity::as_str);
            let why = why.as_deref().map(|why| format!(", {why}")).unwrap_or_default();
            format!("{by} violated the protocol: {what}{why} ({times} times)")
        }
        Event::Source(status) => format!("{} is {}", status.name, status.health),
        Event::ToolRenamed { source, tool, offered_as } => {
            format!("{tool} of {source} is offered as {offered_as}: another source offers {tool}")
        }
        Event::ToolLeftOut { tool, why } => format!("{tool} is not offered: {why}"),
        Event::PatternUnchecked { tool, pattern } => {
            format!("{tool}: the pattern {pattern:?} of its schema is not checked, because it cannot be compiled to a search in linear time")
        }
        Event::SourceNote { source, text } => format!("{source}: {text}"),
        Event::DescriptionCut { tool, size, offered } => {
            format!("the description of {tool} is cut to {offered} of its {size} bytes")
        }
        Event::ToolWarning { tool, text, .. } => format!("{tool}: {text}"),
        Event::View { view, .. } if view.content.is_nil() => format!("view {:?} ended", view.view),
        Event::View { view, .. } => format!("view {:?}: {} B", view.view, view.content.as_bytes().len()),
        Event::Closed(reason) => format!("left: {reason}"),
        _ => return None,
    })
}

/// Returns whether the line about an event has a text of somebody else.
fn is_of_others(event: &Event) -> bool {
    matches!(
        event,
        Event::Registered { .. }
            | Event::PeerError { .. }
            | Event::SourceNote { .. }
            | Event::ToolWarning { .. }
            | Event::View { .. }
    )
}

/// Prints a line of the program, in which others' names may occur.
pub(in crate::cli) fn say(line: &str) -> io::Result<()> {
    print(&screen::own_on_stdout(line))
}

fn print(rows: &[String]) -> io::Result<()> {
    let printed = output::print(&rows.join("\n"));
    Terminal::shared().disturb();
    printed
}
