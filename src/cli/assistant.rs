//! `toolbridge assistant`: an assistant that any language can drive, by JSON lines: see `assistant.md`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use tokio::time::timeout;

use self::conversation::{Conversation, End};
use super::{
    Failure,
    client::programs,
    connect::RoomArguments,
    consent::ConsentPrompt,
    file,
    interrupt::{interrupted, unless_interrupted},
    record_option::RecordOption,
    text,
};
use toolbridge::{Assistant, AssistantBuilder, CloseReason, JoinError, Role};

mod command;
mod conversation;
mod input;
mod messages;
mod output;

/// The contract of the lines.
const CONTRACT: &str = include_str!("assistant/assistant.md");

/// What `--help` says of them.
const AFTERWORD: &str = "\
Calls are JSON lines on stdin, outcomes and events are JSON lines on stdout:
  {\"type\": \"call\", \"id\": 1, \"tool\": \"get_battery\", \"arguments\": {}, \"to\": \"phone\"}
  {\"type\":\"result\",\"id\":1,\"ok\":true,\"result\":{\"level\":0.8}}
When stdin ends, open calls are waited for. All of it: toolbridge assistant --protocol";

/// On the way out nothing of ours is open but what was stopped.
const DRAIN: Duration = Duration::from_secs(1);

/// How long calls that an interruption cancels have to say so.
const LAST_RESULTS: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD)]
pub(super) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// The programs that are our own tools (see examples/tools.toml): calls of them run on this machine
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// A tool of --tools that runs though it needs consent; as often as needed. There is nobody to ask
    #[arg(long, value_name = "TOOL", requires = "tools")]
    yes: Vec<String>,

    /// A client that is known by name, so that it can be called before LiveKit announces it; as often as needed
    #[arg(long = "client", value_name = "IDENTITY")]
    clients: Vec<String>,

    #[command(flatten)]
    record: RecordOption,

    /// Print the contract of the lines, and leave
    #[arg(long)]
    protocol: bool,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    if arguments.protocol {
        io::stdout().write_all(CONTRACT.as_bytes())?;
        return Ok(());
    }
    let mut builder = Assistant::builder().drain(DRAIN);
    if let Some(path) = &arguments.tools {
        let tools = programs(path)?;
        if let Some(prompt) = ConsentPrompt::of(&tools, &arguments.yes, false)? {
            builder = builder.consent(move |request| prompt.clone().ask(request));
        }
        builder = builder.tools(tools);
    }
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    arguments.record.check()?;
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record_with(path, options);
    }
    let assistant = match join(builder, &arguments.room_arguments).await {
        // Whoever drives this reads its output alone.
        Err(Failure::Failed(reason)) => {
            writeln!(io::stdout(), "{}", text::json(&messages::join_failed(&reason)))?;
            return Err(Failure::Failed(reason));
        }
        joined => joined?,
    };
    let (out, written) = output::start(io::stdout());
    let input = input::start(io::stdin);
    let mut conversation = Conversation::new(assistant.clone(), out);
    let room = assistant.room();
    let ended = tokio::select! {
        biased;
        () = interrupted() => End::Interrupted,
        ended = conversation.run(&room, input) => ended,
    };
    if matches!(ended, End::Interrupted) {
        // Its reader may have stopped reading; then there is nobody to tell.
        let _ = timeout(LAST_RESULTS, conversation.cancel_all()).await;
    }
    let reason = assistant.close().await;
    let told = conversation.finish(&reason);
    let whole = async {
        told.await;
        // None: the thread that writes is gone without a word.
        written.await.unwrap_or(Ok(()))
    };
    if matches!(ended, End::Interrupted) {
        if let Ok(written) = timeout(LAST_RESULTS, whole).await {
            written?;
        }
    } else {
        unless_interrupted(async { Ok(whole.await?) }).await?;
    }
    match reason {
        CloseReason::Closed => Ok(()),
        reason => Err(Failure::failed(reason)),
    }
}

async fn join(builder: AssistantBuilder, room_arguments: &RoomArguments) -> Result<Assistant, Failure> {
    let target = room_arguments.target("assistant", Role::Assistant)?;
    let joining = async {
        let joined = builder.room_options(target.options.clone()).join(&target.url, &target.token).await;
        joined.map_err(|error| match error {
            JoinError::Register(error) => Failure::usage(error),
            other => file::not_joined(other),
        })
    };
    unless_interrupted(joining).await
}
