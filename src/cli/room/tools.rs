//! `toolbridge tools`: lists the tools that participants register with an observer, and how the others may be called.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
    time::Duration,
};

use clap::Args;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, timeout_at};

use crate::cli::{
    room::{connect::RoomArguments, connection_state, sources, unreadable::Advice, watch::assemble},
    terminal::{
        clock,
        failure::{Failure, hint},
        interrupt::unless_interrupted,
        table::{Column, Table},
        text,
    },
};
use toolbridge::{
    Identity, Role, ToolSource as _,
    frame::{Frame, Limits, Message, RegisteredTool},
    tools::SourceHealth,
    transport::{Incoming, Participant, StreamAssembler, Transport, TransportEvent},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// List the tools of this MCP server in place of those in a room, and whether it is up: a command or a URL, as for
    /// `toolbridge client` (repeatable). The server is started and ended
    #[arg(long, value_name = "[NAME=]COMMAND|URL", value_parser = sources::server)]
    mcp: Vec<String>,

    /// List the tools of this RAP toolset in place of those in a room: its URL, as for `toolbridge client` (repeatable)
    #[arg(long, value_name = "[NAME=]URL", value_parser = sources::toolset)]
    rap: Vec<String>,

    /// Print one JSON array with owner, name, description, via, inputSchema and annotations of each tool
    #[arg(long)]
    json: bool,

    /// How long to wait for participants that have not answered; LiveKit may announce this command's participant to them up to 3 s late
    #[arg(long, default_value = "4s", value_parser = clock::span, value_name = "TIME")]
    wait: Duration,
}

/// How a participant that registers tools is called.
const VIA_FRAMES: &str = "toolbridge";

/// The tools that each participant registered.
type Shown = BTreeMap<Identity, Vec<RegisteredTool>>;

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    if !arguments.mcp.is_empty() || !arguments.rap.is_empty() {
        return unless_interrupted(show_servers(&arguments)).await;
    }
    let target = arguments.room_arguments.target("tools", Role::Observer)?;
    if !target.observes() {
        return Err(Failure::usage(
            "listing tools needs a token with the role observer; create one with `toolbridge token --role observer`",
        ));
    }
    let mut room = target.join().await?;
    let shown = unless_interrupted(gather(&mut room, arguments.wait)).await;
    let present = room.present();
    room.close().await;
    let shown = shown?;
    if arguments.json { print_json(&shown, Some(VIA_FRAMES)) } else { print_room(&shown, &present) }
}

/// Starts MCP servers and reads RAP toolsets, and prints their health and their tools.
async fn show_servers(arguments: &Arguments) -> Result<(), Failure> {
    let mut shown = Shown::new();
    for text in &arguments.mcp {
        let tools = sources::started(sources::named(text)).await?;
        let name = tools.name().unwrap_or_default();
        hint(&format!("{name} is {}", tools.health()));
        tools.notes().iter().for_each(|note| hint(&format!("{name}: {note}")));
        shown.entry(name.as_str().into()).or_default().extend(tools.list().iter().map(RegisteredTool::from));
        tools.close().await;
    }
    let toolsets = arguments.rap.iter().map(|text| sources::named_toolset(text)).collect();
    for tools in sources::started_toolsets(toolsets).await? {
        let name = tools.name().unwrap_or_default();
        if let health @ SourceHealth::Down { .. } = tools.health() {
            return Err(Failure::failed(format!("toolset {name:?} is {health}")));
        }
        shown.entry(name.as_str().into()).or_default().extend(tools.list().iter().map(RegisteredTool::from));
        tools.close().await;
    }
    if arguments.json { print_json(&shown, None) } else { print_text(&shown) }
}

/// Waits until every participant that may offer tools has answered, or the time is up.
async fn gather(room: &mut impl Transport, wait: Duration) -> Result<Shown, Failure> {
    let until = Instant::now() + wait;
    let mut waiting: BTreeSet<Identity> =
        room.present().iter().filter(|who| may_offer(who)).map(identity).collect();
    let mut shown = Shown::new();
    let (mut streams, mut advice) = (StreamAssembler::new(Limits::BYTES), Advice::default());
    while !waiting.is_empty() {
        let Ok(event) = timeout_at(until, room.recv()).await else { break };
        // A registration that exceeds a packet arrives as a stream.
        let event = match event {
            Some(event) => match assemble(&mut streams, event) {
                Some(event) => Some(event),
                None => continue,
            },
            None => None,
        };
        match event {
            None => return Err(Failure::failed("the connection ended")),
            Some(TransportEvent::Closed(reason)) => return Err(Failure::failed(reason)),
            Some(TransportEvent::Joined(who)) if may_offer(&who) && !shown.contains_key(who.identity()) => {
                waiting.insert(identity(&who));
            }
            Some(TransportEvent::Left(who)) => {
                waiting.remove(who.identity());
                shown.remove(who.identity());
            }
            // A hidden sender or the server API cannot be called, so its tools are ignored.
            Some(TransportEvent::Packet(Incoming { from: Some(from), payload, .. })) => {
                let message = Frame::decode(payload).and_then(|frame| frame.message());
                if let Ok(Message::ToolsRegister(register)) = message {
                    waiting.remove(from.identity());
                    shown.insert(from.identity().clone(), register.tools);
                }
            }
            Some(TransportEvent::Unreadable { from, why }) => advice.print(from.as_ref(), why),
            Some(TransportEvent::ConnectionState(state)) => hint(connection_state::describe(state)),
            Some(_) => {}
        }
    }
    for silent in &waiting {
        hint(&format!("{silent} did not answer within {}", humantime::format_duration(wait)));
    }
    Ok(shown)
}

fn identity(who: &Participant) -> Identity {
    who.identity().clone()
}

fn may_offer(who: &Participant) -> bool {
    who.is_eligible_assistant() || who.token_role() == Some(Role::Client)
}

fn print_json(shown: &Shown, via: Option<&str>) -> Result<(), Failure> {
    let each = |owner: &Identity, tool: &RegisteredTool| {
        json!({
            "owner": owner.as_str(),
            "name": tool.name,
            "description": tool.description,
            "via": via,
            "inputSchema": tool.input_schema.as_ref().map(toolbridge::Value::to_json),
            "annotations": tool.annotations.as_ref().map(toolbridge::Value::to_json),
        })
    };
    let all: Vec<Json> =
        shown.iter().flat_map(|(owner, tools)| tools.iter().map(move |it| each(owner, it))).collect();
    writeln!(io::stdout(), "{}", text::json(&Json::from(all)))?;
    Ok(())
}

/// Prints the tools of servers.
fn print_text(shown: &Shown) -> Result<(), Failure> {
    let table = Table::new(&[Column::Left(16), Column::Left(24), Column::Rest]);
    for (owner, tools) in shown {
        for tool in tools {
            let (owner, name, says) =
                (text::plain(owner.as_str()), text::plain(&tool.name), described(owner, tool));
            writeln!(io::stdout(), "{}", table.row(&[&owner, &name, &says]))?;
            if let Some(schema) = &tool.input_schema {
                writeln!(io::stdout(), "{}", table.row(&["", "", &text::json(&schema.to_json())]))?;
            }
        }
    }
    hint_if_empty(shown);
    Ok(())
}

/// Prints the tools of a room's participants and how each participant is called, and the participants that may be called
/// although they register nothing.
fn print_room(shown: &Shown, present: &[Participant]) -> Result<(), Failure> {
    let table = Table::new(&[Column::Left(16), Column::Left(24), Column::Left(10), Column::Rest]);
    for (owner, tools) in shown {
        for tool in tools {
            let (owner, name, says) =
                (text::plain(owner.as_str()), text::plain(&tool.name), described(owner, tool));
            writeln!(io::stdout(), "{}", table.row(&[&owner, &name, VIA_FRAMES, &says]))?;
            if let Some(schema) = &tool.input_schema {
                writeln!(io::stdout(), "{}", table.row(&["", "", "", &text::json(&schema.to_json())]))?;
            }
        }
    }
    for who in present.iter().filter(|who| may_answer_rpc(who) && !shown.contains_key(who.identity())) {
        let via = if who.protocol() == 0 { "rpc 1" } else { "rpc 2" };
        let owner = text::plain(who.identity().as_str());
        let row = [&*owner, "–", via, "if its app has methods: toolbridge call METHOD --via rpc"];
        writeln!(io::stdout(), "{}", table.row(&row))?;
    }
    hint_if_empty(shown);
    Ok(())
}

/// Returns a tool's description, with its source if that is not its owner.
fn described(owner: &Identity, tool: &RegisteredTool) -> String {
    let source = tool.annotations.as_ref().and_then(|it| it.get("source")?.decode::<String>().ok());
    let source = source.filter(|source| source != owner.as_str()).map(|source| format!(" (of {source})"));
    text::plain(&format!("{}{}", tool.description, source.unwrap_or_default())).into_owned()
}

fn hint_if_empty(shown: &Shown) {
    if shown.values().all(Vec::is_empty) {
        hint("no participant offers a tool");
    }
}

/// Returns whether it may be an app that has LiveKit's SDK and not toolbridge.
fn may_answer_rpc(who: &Participant) -> bool {
    who.is_standard() && matches!(who.token_role(), None | Some(Role::Client))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolbridge::{Client, Outcome, Tool, ToolContext, ToolName, ToolSource, Value, memory::MemoryRoom};

    use super::*;

    /// Tools in the size of those of a server that drives a browser: 25 with descriptions and schemas of about 1 KiB.
    struct Browser;

    impl ToolSource for Browser {
        fn list(&self) -> Vec<Tool> {
            let schema = json!({"type": "object", "properties": {"element": {"type": "string", "description": "e".repeat(900)}}});
            let tool = |n: usize| {
                let name = format!("browser_{n}").parse().unwrap();
                Tool::new(name, "d".repeat(300)).schema(schema.clone())
            };
            (0..25).map(tool).collect()
        }

        async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
            Ok(arguments)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn registration_that_exceeds_a_packet_is_listed() {
        let room = MemoryRoom::new();
        let client =
            Client::builder().tools(Arc::new(Browser)).join_over(room.client("phone")).await.unwrap();
        let mut observer = room.observer("tools");
        let shown = gather(&mut observer, Duration::from_secs(10)).await;
        let Ok(shown) = shown else { panic!("nothing was gathered") };
        assert_eq!(shown.values().map(Vec::len).collect::<Vec<_>>(), [25]);
        client.close().await;
    }
}
