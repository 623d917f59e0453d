//! Runs the command line. Each subcommand has its own file, and each exit status has one meaning.

use std::{fmt, io, pin::Pin, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

use toolbridge::{
    ToolName,
    programs::{SUPERVISE, supervise},
    session::LocalText,
};

mod acp;
mod acp_agent;
mod assistant;
mod call;
mod calls;
mod cat;
mod check;
mod client;
mod clock;
mod completions;
mod connect;
mod connection_state;
mod consent;
mod demo;
mod dev;
mod doctor;
mod export;
mod file;
mod forms;
mod frame;
mod grant;
mod info;
mod interrupt;
mod mcp;
mod offered;
mod ping;
mod prompts;
mod questions;
mod rap;
mod record;
mod record_option;
mod recording_file;
mod redact;
mod render;
mod repair;
mod replay;
mod report;
mod screen;
mod sources;
mod table;
mod text;
mod token;
mod token_role;
mod tools;
mod watch;

/// The notes at the end of `toolbridge --help`.
const AFTERWORD: &str = "\
Every command that connects takes the server from --url or LIVEKIT_URL, and credentials from
--api-key and --api-secret (LIVEKIT_API_KEY, LIVEKIT_API_SECRET) or --token (LIVEKIT_TOKEN).
TIME is a number with a unit: 500ms, 5s, 2m. RUST_LOG=toolbridge=debug prints a log to stderr.

Exit status: 0 success; 1 failure; 2 usage error; 3 the recording is damaged, violates the
protocol, or differs from its replay; 4 (`call` only) the call failed and the tool did not run;
130 interrupted by Ctrl-C before its work was done. Commands that run until they are stopped, such
as client, assistant, mcp, watch, record and dev, end with 0.";

/// Tool calls between a voice assistant and the apps in its LiveKit room
#[derive(Debug, Parser)]
#[command(name = "toolbridge", version, about, max_term_width = 100, after_help = AFTERWORD)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a client with four tools and an assistant that calls them
    Demo(demo::Arguments),
    /// Run an embedded LiveKit-compatible server for local development
    Dev(dev::Arguments),
    /// Check the connection to a server step by step and explain how to fix what fails
    Doctor(doctor::Arguments),
    /// Create an access token for a room
    Token(token::Arguments),
    /// Join as a client whose tools are programs on this machine
    Client(client::Arguments),
    /// Join as an assistant and call one tool
    Call(call::Arguments),
    /// Join as an assistant controlled by another program through JSON lines
    Assistant(assistant::Arguments),
    /// Join as an assistant and serve the tools of the room to an MCP host
    Mcp(mcp::Arguments),
    /// Talk to an agent (ACP) at the terminal, in a room whose tools it can call
    Acp(acp::Arguments),
    /// Join as an assistant and serve the tools of the room as the agent of an editor (ACP)
    AcpAgent(acp_agent::Arguments),
    /// Join as an assistant and serve the tools of the room to a RAP runtime
    Rap(rap::Arguments),
    /// List the tools that participants of a room offer
    Tools(tools::Arguments),
    /// Print the protocol frames sent in a room
    Watch(watch::Arguments),
    /// Join as an observer and record the tool calls of a room
    Record(record::Arguments),
    /// Measure the round-trip time of calls to a client
    Ping(ping::Arguments),
    /// Convert a protocol frame to JSON or back
    Frame(frame::Arguments),
    /// Summarize a recording
    Info(info::Arguments),
    /// Print the entries of a recording
    Cat(cat::Arguments),
    /// List the calls of a recording
    Calls(calls::Arguments),
    /// Check a recording for protocol violations
    Check(check::Arguments),
    /// Convert a recording for other programs
    Export(export::Arguments),
    /// Recover a recording that is damaged or whose recorder crashed
    Repair(repair::Arguments),
    /// Write a recorded session as an HTML page
    Report(report::Arguments),
    /// Replay a recorded session offline, or in a room as its client or its assistant
    Replay(replay::Arguments),
    /// Remove tool parameters and results from a recording
    Redact(redact::Arguments),
    /// Print a shell completion script
    Completions(completions::Arguments),
}

/// The time that remaining tasks have to stop when the process exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a subcommand did not succeed.
#[derive(Debug)]
enum Failure {
    /// The command line is wrong: status 2.
    Usage(String),
    /// The command failed: status 1.
    Failed(String),
    /// A call failed, and the tool certainly did not run: status 4.
    NothingRan(String),
    /// The command failed and has already printed why: this status.
    Reported(u8),
    /// The command succeeded and found problems in the recording: status 3.
    ProblemsFound,
    /// Ctrl-C interrupted the command before its work was done: status 130, as in shells.
    Interrupted,
    /// The reader of standard output closed it: status 0.
    ClosedPipe,
}

impl Failure {
    const FAILED: u8 = 1;
    const NOTHING_RAN: u8 = 4;

    fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(text::with_options(&error.to_string()))
    }

    fn usage(error: impl fmt::Display) -> Self {
        Self::Usage(text::with_options(&error.to_string()))
    }

    fn report(self) -> ExitCode {
        match self {
            Self::Usage(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(2)
            }
            Self::Failed(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(Self::FAILED)
            }
            Self::NothingRan(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(Self::NOTHING_RAN)
            }
            Self::Reported(status) => ExitCode::from(status),
            Self::ProblemsFound => ExitCode::from(3),
            Self::Interrupted => ExitCode::from(130),
            Self::ClosedPipe => ExitCode::SUCCESS,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ClosedPipe } else { Self::failed(error) }
    }
}

/// Runs the command line that this process was started with.
pub(crate) fn main() -> ExitCode {
    // This program also supervises the programs that implement tools: see `ProgramTools::supervisor`.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == SUPERVISE) {
        return supervise();
    }
    let arguments = Arguments::parse();
    start_logs();
    let runtime = match arguments.verb.runtime().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::failed(format!("cannot start the async runtime: {error}")).report(),
    };
    let result = runtime.block_on(interrupt::until_second_signal(arguments.verb.run()));
    // Dropping the tasks kills tool programs that still run. A DNS lookup cannot be cancelled, so the
    // shutdown does not wait for it.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

impl Verb {
    /// Returns the builder of the runtime. One participant is faster on one thread, since nothing is handed over between threads;
    /// a server of several is not.
    fn runtime(&self) -> Builder {
        match self {
            Self::Dev(_) => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(2);
                builder
            }
            _ => Builder::new_current_thread(),
        }
    }

    /// Returns what the verb does, on the heap: the futures of all verbs would need more than a mebibyte of stack.
    fn run(self) -> Running {
        match self {
            Self::Demo(arguments) => boxed(|| demo::run(arguments)),
            Self::Dev(arguments) => boxed(|| dev::run(arguments)),
            Self::Doctor(arguments) => boxed(|| doctor::run(arguments)),
            Self::Token(arguments) => boxed(|| async move { token::run(&arguments) }),
            Self::Client(arguments) => boxed(|| client::run(arguments)),
            Self::Call(arguments) => boxed(|| call::run(arguments)),
            Self::Assistant(arguments) => boxed(|| assistant::run(arguments)),
            Self::Mcp(arguments) => boxed(|| mcp::run(arguments)),
            Self::Acp(arguments) => boxed(|| acp::run(arguments)),
            Self::AcpAgent(arguments) => boxed(|| acp_agent::run(arguments)),
            Self::Rap(arguments) => boxed(|| rap::run(arguments)),
            Self::Tools(arguments) => boxed(|| tools::run(arguments)),
            Self::Watch(arguments) => boxed(|| watch::run(arguments)),
            Self::Record(arguments) => boxed(|| record::run(arguments)),
            Self::Ping(arguments) => boxed(|| ping::run(arguments)),
            Self::Frame(arguments) => boxed(|| async move { frame::run(&arguments) }),
            Self::Info(arguments) => boxed(|| async move { info::run(&arguments) }),
            Self::Cat(arguments) => boxed(|| async move { cat::run(&arguments) }),
            Self::Calls(arguments) => boxed(|| async move { calls::run(&arguments) }),
            Self::Check(arguments) => boxed(|| async move { check::run(&arguments) }),
            Self::Export(arguments) => boxed(|| async move { export::run(&arguments) }),
            Self::Repair(arguments) => boxed(|| async move { repair::run(&arguments) }),
            Self::Report(arguments) => boxed(|| async move { report::run(&arguments) }),
            Self::Replay(arguments) => boxed(|| replay::run(arguments)),
            Self::Redact(arguments) => boxed(|| async move { redact::run(&arguments) }),
            Self::Completions(arguments) => boxed(|| async move { completions::run(&arguments) }),
        }
    }
}

/// A verb at work.
type Running = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

/// Builds a future in a stack frame of its own: a build without optimizations reserves a place in the caller's frame for each.
fn boxed<F: Future<Output = Result<(), Failure>> + 'static>(verb: impl FnOnce() -> F) -> Running {
    Box::pin(verb())
}

/// Prints a line of the program on stderr.
fn hint(line: &str) {
    screen::print(&[text::plain(line).into_owned()]);
}

/// Returns why a command failed as lines: the text may have several.
fn complaint(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    let lines =
        lines.map(|(n, line)| format!("{}{}", if n == 0 { "toolbridge: " } else { "  " }, text::plain(line)));
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { vec!["toolbridge: it failed without a reason".to_owned()] } else { lines }
}

/// The maximum length of a line about a failed tool, in characters.
const LONGEST_FAILURE: usize = 200;

/// Prints why a local tool failed, on stderr only: the text may contain the tool's arguments.
fn tool_failed(tool: &ToolName, reason: &LocalText) {
    screen::print_foreign(&text::ends(&format!("{tool} failed: {reason}"), LONGEST_FAILURE));
}

/// Starts logging to stderr if `RUST_LOG` is set, as in `RUST_LOG=toolbridge=debug`.
fn start_logs() {
    let requested = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    let filter = tracing_subscriber::EnvFilter::try_new(&requested).unwrap_or_else(|error| {
        hint(&format!("RUST_LOG is invalid, so logging is off: {error}"));
        "off".into()
    });
    // Below this level the crate prints the arguments and results of calls.
    let filter = match "rmcp=warn".parse() {
        Ok(directive) if requested != "off" => filter.add_directive(directive),
        _ => filter,
    };
    let colors = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colors).init();
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn error_of_several_lines_is_lines() {
        assert_eq!(
            complaint("bad file:\n\n  line 1\u{1b}[2J\n"),
            ["toolbridge: bad file:", "    line 1\\u{1b}[2J"]
        );
        assert_eq!(complaint(""), ["toolbridge: it failed without a reason"]);
    }
}
