//! `toolbridge assistant`: runs an assistant that a program in any language controls through JSON lines: see
//! `assistant.md`.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use tokio::time::{sleep, timeout};

use self::conversation::{Conversation, End};
use crate::cli::{
    room::{
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        consent::Asked,
        offered::OfferOptions,
        record_option::RecordOption,
        sources::{SourceArguments, with_sources},
    },
    serve::{mcp::ServingOptions, rap::ToolsetOptions},
    terminal::{
        failure::Failure,
        file,
        interrupt::{interrupted, unless_interrupted},
        text,
    },
};
use toolbridge::{
    Assistant, AssistantBuilder, CloseReason, Role,
    vocabulary::{Line, LineEvent},
};

mod command;
mod conversation;
mod input;
mod output;

/// The specification of the line protocol.
const PROTOCOL_TEXT: &str = include_str!("assistant/assistant.md");

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
Write calls to stdin as JSON lines; results and events arrive on stdout as JSON lines:
  {\"type\": \"call\", \"id\": 1, \"tool\": \"get_battery\", \"arguments\": {}, \"to\": \"phone\"}
  {\"type\":\"result\",\"id\":1,\"value\":{\"level\":0.8}}
After stdin ends, the command waits for open calls. For the full protocol run:
  toolbridge assistant --protocol";

/// How long closing waits for open calls; only cancelled calls can be open then.
const DRAIN: Duration = Duration::from_secs(1);

/// The time that calls cancelled by an interrupt have to deliver their results.
const LAST_RESULTS: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    #[command(flatten)]
    sources: SourceArguments,

    /// Identity of a known client, which can be called before LiveKit announces it (repeatable)
    #[arg(long = "client", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    clients: Vec<String>,

    #[command(flatten)]
    record: RecordOption,

    /// Print the specification of the line protocol and exit
    #[arg(long)]
    protocol: bool,

    /// Also serve the tools of the room to MCP hosts over HTTP at this address; URL and bearer token are in the event `mcp`
    #[arg(long, value_name = "ADDRESS", help_heading = "MCP")]
    mcp_listen: Option<SocketAddr>,

    #[command(flatten, next_help_heading = "MCP")]
    serving: ServingOptions,

    /// Also serve the tools of the room to RAP runtimes over HTTP at this address; the URL is in the event `rap`
    #[arg(long, value_name = "ADDRESS", help_heading = "RAP")]
    rap_listen: Option<SocketAddr>,

    #[command(flatten, next_help_heading = "RAP")]
    toolset: ToolsetOptions,

    #[command(flatten, next_help_heading = "MCP and RAP")]
    offered: OfferOptions,
}

impl Arguments {
    /// Refuses options of a server that is not asked for.
    fn check(&self) -> Result<(), Failure> {
        let (mcp, rap) = (self.mcp_listen.is_some(), self.rap_listen.is_some());
        if !mcp && self.serving.is_given() {
            return Err(Failure::usage("--allow-host needs --mcp-listen"));
        }
        if !rap && self.toolset.is_given() {
            return Err(Failure::usage("--public and --allow-callback need --rap-listen"));
        }
        if !mcp && !rap && self.offered.is_given() {
            return Err(Failure::usage("--allow and --deny need --mcp-listen or --rap-listen"));
        }
        Ok(())
    }
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    if arguments.protocol {
        io::stdout().write_all(PROTOCOL_TEXT.as_bytes())?;
        return Ok(());
    }
    arguments.check()?;
    let mut builder = Assistant::builder().drain(DRAIN);
    let sources = unless_interrupted(arguments.sources.start(Asked::Nobody)).await?;
    let agents = sources.agents.clone();
    builder = with_sources(builder, sources);
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    arguments.record.check(arguments.room_arguments.is_encrypted())?;
    [arguments.mcp_listen, arguments.rap_listen].into_iter().flatten().try_for_each(file::can_listen)?;
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record(path).record_options(options);
    }
    let assistant = match join(builder, &arguments.room_arguments).await {
        // The controlling program reads standard output only.
        Err(Failure::Failed(reason)) => {
            writeln!(io::stdout(), "{}", text::json_text(&failed(&reason)))?;
            return Err(Failure::Failed(reason));
        }
        joined => joined?,
    };
    let started = async {
        for agent in &agents {
            agent.offer_tools(&assistant).await.map_err(Failure::failed)?;
        }
        let listener = match arguments.mcp_listen {
            Some(address) => Some(arguments.serving.listen(&assistant, &arguments.offered, address).await?),
            None => None,
        };
        let toolset = match arguments.rap_listen {
            Some(address) => Some(arguments.toolset.listen(&assistant, &arguments.offered, address).await?),
            None => None,
        };
        Ok((listener, toolset))
    };
    let (listener, toolset) = match started.await {
        Ok(started) => started,
        Err(error) => {
            assistant.close().await; // which finishes its recording
            return Err(error);
        }
    };
    let (out, written) = output::start(io::stdout());
    let input = input::start(io::stdin);
    let mut conversation = Conversation::new(assistant.clone(), out).recorded(&arguments.record);
    if let Some(listener) = &listener {
        conversation =
            conversation.announce(LineEvent::Mcp { url: listener.url(), token: listener.token().to_owned() });
    }
    if let Some(toolset) = &toolset {
        conversation = conversation.announce(LineEvent::Rap { url: toolset.url().to_owned() });
    }
    let room = assistant.room();
    let ended = tokio::select! {
        biased;
        () = interrupted() => End::Interrupted,
        ended = conversation.run(&room, input) => ended,
    };
    if matches!(ended, End::Interrupted) {
        // The reader of standard output may be gone; then the results are discarded.
        let _ = timeout(LAST_RESULTS, conversation.cancel_all()).await;
    }
    if let Some(listener) = listener {
        listener.close().await;
    }
    if let Some(toolset) = toolset {
        toolset.close().await;
    }
    let reason = assistant.close().await;
    let recorded = arguments.record.outcome(assistant.recording());
    let finished = conversation.finish(&reason);
    let flushed = async {
        finished.await;
        // An error means that the writer thread ended without a result.
        written.await.unwrap_or(Ok(()))
    };
    last_lines(flushed, interrupted()).await?;
    match reason {
        CloseReason::Closed => recorded,
        reason => Err(Failure::failed(reason)),
    }
}

/// Waits until the last lines are written. A reader that does not read delays the end only until a signal arrives, which may
/// have been long ago, and for [`LAST_RESULTS`] after it.
async fn last_lines(
    flushed: impl Future<Output = io::Result<()>>,
    stopped: impl Future<Output = ()>,
) -> io::Result<()> {
    let given_up = async {
        stopped.await;
        sleep(LAST_RESULTS).await;
    };
    tokio::select! {
        biased;
        written = flushed => written,
        () = given_up => Ok(()),
    }
}

/// The only line if the room was not joined.
fn failed(reason: &str) -> String {
    Line::Event { event: LineEvent::JoinFailed { reason: reason.to_owned() } }.to_json()
}

async fn join(builder: AssistantBuilder, room_arguments: &RoomArguments) -> Result<Assistant, Failure> {
    let target = room_arguments.target("assistant", Role::Assistant)?;
    let joining = async {
        let joined = builder.connect_options(target.options.clone()).join(&target.url, &target.token).await;
        joined.map_err(file::not_joined)
    };
    unless_interrupted(joining).await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn last_lines_are_written_after_a_signal_too() {
        let flushed = async {
            sleep(LAST_RESULTS / 2).await;
            Err(io::Error::other("written"))
        };
        assert_eq!(last_lines(flushed, ready(())).await.unwrap_err().to_string(), "written");
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_does_not_read_delays_the_end_after_a_signal_for_a_second() {
        let began = Instant::now();
        let stopped = sleep(Duration::from_secs(60));
        assert!(last_lines(pending(), stopped).await.is_ok());
        assert_eq!(began.elapsed(), Duration::from_secs(61));
    }
}
