//! `toolbridge acp`: holds a conversation with an agent at the terminal, in a room whose tools the agent can
//! call.

use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;

use crate::cli::{
    room::{
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        connection_state, prompts,
        record_option::RecordOption,
        sources::{in_current_folder, started_agent, variable},
    },
    terminal::{
        failure::{Failure, hint},
        file,
        interrupt::{interrupted, unless_interrupted},
        output,
        questions::Terminal,
        screen, text,
    },
};
use toolbridge::{
    Assistant, Call, Consent, Progress, Role, ToolError, ToolName, ToolResult, ToolSource as _,
    adapter::acp::{self, AcpCommand, AcpTool},
    result::ContentBlock,
};

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
Each line that you type is a prompt. While the agent works, `cancel` stops it, and lines such as \
`option 1` answer its questions; `forget` takes back what was allowed for always.
  toolbridge acp --room home -- npx -y @zed-industries/codex-acp";

/// The longest line of progress, in characters.
const LONGEST_PROGRESS: usize = 200;

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Identity of a known client, which can be called before LiveKit announces it (repeatable)
    #[arg(long = "client", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    clients: Vec<String>,

    /// Let the agent read and write the files of this folder, and of no other, through toolbridge
    #[arg(long, value_name = "DIR")]
    allow_fs: Option<std::path::PathBuf>,

    /// Let the agent run commands through toolbridge. You are asked before each, with the exact command
    #[arg(long)]
    allow_terminal: bool,

    /// Pass this environment variable on to the agent, such as the one with its API key (repeatable)
    #[arg(long, value_name = "NAME", value_parser = variable)]
    agent_env: Vec<String>,

    #[command(flatten)]
    record: RecordOption,

    /// Agent of the Agent Client Protocol (ACP): its program and arguments. It works in the current folder
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.room_arguments.target("acp", Role::Assistant)?;
    arguments.record.check(arguments.room_arguments.is_encrypted())?;
    let agent = arguments.agent_env.iter().fold(acp::stdio(arguments.command), AcpCommand::inherit);
    let agent = in_current_folder(agent, arguments.allow_fs.as_deref(), arguments.allow_terminal)?;
    // Whoever types the command wants the agent to run.
    let agent = unless_interrupted(started_agent(agent.consent(Consent::Never))).await?;
    let mut builder = Assistant::builder().tools(agent.clone()).prompt(prompts::ask);
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record(path).record_options(options);
    }
    let joining = async {
        let joined = builder.connect_options(target.options.clone()).join(&target.url, &target.token).await;
        joined.map_err(file::not_joined)
    };
    let assistant = unless_interrupted(joining).await?;
    let ended = tokio::select! {
        biased;
        () = interrupted() => Ok(()),
        () = connection_state::print_changes(&assistant, Some(&arguments.record)) => Ok(()), // never completes
        ended = converse(&assistant, &agent) => ended,
    };
    assistant.close().await;
    let recorded = arguments.record.outcome(assistant.recording());
    ended.and(recorded)
}

/// Sends each line as a prompt, until standard input ends.
async fn converse(assistant: &Assistant, agent: &AcpTool) -> Result<(), Failure> {
    agent.offer_tools(assistant).await.map_err(Failure::failed)?;
    let tool = agent.list().first().map(|tool| tool.name().clone());
    let tool = tool.ok_or_else(|| Failure::failed("the agent has no tool"))?;
    let mut lines = Terminal::shared().lines();
    hint(&format!("{} listens; type a prompt", agent.name()));
    while let Some(line) = lines.recv().await {
        if !line.trim().is_empty() {
            prompt(assistant, &tool, &line, &mut lines).await?;
        }
    }
    Ok(())
}

/// Runs one prompt, and prints what the agent does and says.
async fn prompt(
    assistant: &Assistant,
    tool: &ToolName,
    line: &str,
    lines: &mut tokio::sync::mpsc::Receiver<String>,
) -> Result<(), Failure> {
    let mut call: Call = assistant.call(tool.as_str(), json!({ "prompt": line })).start();
    let mut shown = String::new();
    let mut is_open = true;
    // What the agent says is printed once, when it is complete.
    let is_said = |progress: &Progress| {
        progress.content.as_ref().and_then(|it| it.get("said")).is_some_and(|it| it.decode().unwrap_or(false))
    };
    while is_open {
        tokio::select! {
            progress = call.progress() => match progress {
                Some(progress) if is_said(&progress) => {}
                Some(progress) => {
                    if let Some(message) = progress.message {
                        // A text that grows is not repeated, and a plan has several lines.
                        for line in message.lines().filter(|line| shown.lines().all(|it| it != *line)) {
                            screen::print_foreign(&text::line(line, LONGEST_PROGRESS));
                        }
                        shown = message;
                    }
                }
                None => is_open = false,
            },
            Some(line) = lines.recv() => match line.trim() {
                "" => {}
                "cancel" => call.cancel(),
                _ => hint("the agent works; type `cancel` to stop it"),
            },
        }
    }
    match call.await {
        Ok(value) => {
            let result = ToolResult::of(&value).for_clients();
            for text in result.content().iter().filter_map(ContentBlock::as_text) {
                for line in screen::foreign_on_stdout(text) {
                    output::print(&line)?;
                }
            }
            Terminal::shared().disturb();
            // Progress may have been skipped.
            let data = result.structured().map(|it| it.to_json()).unwrap_or_default();
            for decided in data["permissions"].as_array().into_iter().flatten().filter_map(|it| it.as_str()) {
                screen::print_foreign(&text::line(decided, LONGEST_PROGRESS));
            }
        }
        Err(error) => {
            let rows =
                screen::labelled("the prompt failed: ", ToolError::from(error).for_clients().message());
            screen::print(&rows);
        }
    }
    Ok(())
}
