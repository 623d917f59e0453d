//! `toolbridge acp-agent`: serves a room as the agent of an editor that speaks the Agent Client Protocol (ACP).

use std::{future::pending, time::Duration};

use clap::{Args, builder::NonEmptyStringValueParser};
use tokio::time::{Instant, timeout_at};

use crate::cli::{
    room::{
        client,
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        consent::Asked,
        sources::{SourceArguments, with_sources},
    },
    terminal::{
        failure::{Failure, hint, tool_failed},
        file,
        interrupt::{interrupted, unless_interrupted},
    },
};
use toolbridge::{
    Assistant, CallError, DecodeError, Event, Role, ToolError, ToolResult, ToolSource as _, Value,
    adapter::acp::{self, AgentTurn, Editor, TurnEnd, UserPrompt},
};

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
Configuration of an editor, here Zed:
  {\"agent_servers\": {\"room\": {\"command\": \"toolbridge\", \"args\": [\"acp-agent\", \"--room\", \"home\"]}}}
The agent contains no model. A prompt such as `ring {\"times\": 2}` calls a tool, and any other prompt lists the tools.
The editor asks its user before a tool of this machine runs that needs consent, and what such a tool asks.";

/// How long after joining a list waits for the tools of a client. LiveKit announces participants up to 3 s late.
const SETTLE: Duration = Duration::from_secs(4);

/// The longest text of a result, in bytes, that the agent says. The call has all of it.
const MAX_SAID: usize = 4 << 10;

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Identity of a known client, which can be called before LiveKit announces it (repeatable)
    #[arg(long = "client", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    clients: Vec<String>,

    #[command(flatten)]
    sources: SourceArguments,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.room_arguments.target("acp-agent", Role::Assistant)?;
    let mut sources = unless_interrupted(arguments.sources.start(Asked::Editor)).await?;
    let agents = sources.agents.clone();
    let editor = Editor::new();
    let (allowed, consent) = (sources.consent.take(), editor.consent());
    let mut builder = Assistant::builder()
        .connect_options(target.options.clone())
        .consent(move |request| {
            let is_allowed = allowed.as_ref().is_some_and(|it| it.allows(request.tool()));
            let asking = consent(request);
            async move { is_allowed || asking.await }
        })
        .prompt(editor.prompt());
    builder = with_sources(builder, sources);
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    let joining = async { builder.join(&target.url, &target.token).await.map_err(file::not_joined) };
    let assistant = unless_interrupted(joining).await?;
    for agent in &agents {
        agent.offer_tools(&assistant).await.map_err(Failure::failed)?;
    }
    let (room, settled) = (assistant.clone(), Instant::now() + SETTLE);
    let agent =
        acp::agent(assistant.clone(), move |prompt, turn| answer(room.clone(), settled, prompt, turn));
    let ended = tokio::select! {
        biased;
        () = interrupted() => Ok(()),
        () = print_events(&assistant) => Ok(()), // never completes
        ended = agent.editor(editor).stdio() => ended.map_err(Failure::failed),
    };
    assistant.close().await;
    ended
}

/// Prints what happens to the connection and to the tools of this machine, on standard error. The future never completes.
async fn print_events(assistant: &Assistant) {
    let mut events = assistant.events();
    for line in assistant.tool_notes().iter().filter_map(client::line) {
        hint(&line);
    }
    while let Some(event) = events.recv().await {
        let line = match &event {
            Event::ToolFailed { tool, reason, .. } => {
                tool_failed(tool, reason);
                None
            }
            Event::Violation { what, .. } if what.unreadable().is_some() => client::line(&event),
            Event::ConnectionState(_)
            | Event::Source(_)
            | Event::ToolRenamed { .. }
            | Event::ToolLeftOut { .. }
            | Event::DescriptionCut { .. }
            | Event::PatternUnchecked { .. }
            | Event::SourceNote { .. }
            | Event::ToolWarning { .. } => client::line(&event),
            _ => None,
        };
        if let Some(line) = line {
            hint(&line);
        }
    }
    pending().await
}

/// Answers one prompt: it calls a tool, or lists the tools.
async fn answer(
    assistant: Assistant,
    settled: Instant,
    prompt: UserPrompt,
    turn: AgentTurn,
) -> Result<TurnEnd, ToolError> {
    let text = prompt.text();
    match command(&text) {
        Some((tool, Ok(arguments))) => call(&turn, tool, arguments).await,
        Some((tool, Err(error))) => {
            turn.say(format!("The arguments of `{tool}` are not a JSON object: {error}")).await;
        }
        None => list(&assistant, settled, &turn).await,
    }
    Ok(TurnEnd::EndTurn)
}

/// The arguments of a call, or what is wrong with them.
type ParsedArguments = Result<Value, DecodeError>;

/// Reads a prompt that calls a tool: its name, and its arguments or what is wrong with them.
fn command(text: &str) -> Option<(&str, ParsedArguments)> {
    let (tool, arguments) = text.trim().split_once(char::is_whitespace)?;
    let arguments = arguments.trim_start();
    arguments.starts_with('{').then(|| (tool, Value::from_json(arguments)))
}

async fn call(turn: &AgentTurn, tool: &str, arguments: Value) {
    let said = match turn.call(tool, arguments).await {
        Ok(value) => shown(tool, &value),
        Err(CallError::Cancelled) => return,
        Err(error) => format!("`{tool}` failed: {error}"),
    };
    turn.say(said).await;
}

/// Returns what the person at the editor may read of a result.
fn shown(tool: &str, value: &Value) -> String {
    let result = ToolResult::of(value).for_clients();
    let exact = result.person_text().map(|it| it.into_owned());
    let text = exact.unwrap_or_else(|| result.for_model(MAX_SAID).text.to_string());
    if text.trim().is_empty() { format!("`{tool}` succeeded; its result is not for people") } else { text }
}

async fn list(assistant: &Assistant, settled: Instant, turn: &AgentTurn) {
    let of_a_client = async {
        while assistant.tools().iter().all(|offer| offer.owner == *assistant.identity()) {
            assistant.changed().await;
        }
    };
    let _ = timeout_at(settled, of_a_client).await;
    let offers = assistant.tools();
    if offers.is_empty() {
        turn.say("No participant of the room offers a tool.").await;
        return;
    }
    let lines =
        offers.iter().map(|it| format!("- `{}` ({}): {}", it.tool.name(), it.owner, it.tool.description()));
    let lines = lines.collect::<Vec<_>>().join("\n");
    turn.say(format!("A prompt such as `NAME {{\"key\": \"value\"}}` calls one of these tools:\n\n{lines}"))
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_reads_nothing_that_is_for_the_model_alone() {
        let hidden = ToolResult::default().with_model_text("planted");
        for (result, says) in [
            (hidden.clone().with_text("seen"), "seen"),
            (hidden, "`t` succeeded; its result is not for people"),
            (ToolResult::text("seen"), "seen"),
        ] {
            assert_eq!(shown("t", &Value::from(result)), says);
        }
    }

    #[test]
    fn only_a_name_with_an_object_is_a_call() {
        let read =
            |text| command(text).map(|(tool, arguments)| (tool, arguments.ok().map(|it| it.to_json())));
        assert_eq!(read(" ring {\"times\": 2}\n"), Some(("ring", Some(serde_json::json!({"times": 2})))));
        assert_eq!(read("ring {\"times\""), Some(("ring", None)));
        for other in ["", "ring", "what can you do?", "{}", "ring [1]"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
