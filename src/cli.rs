//! Runs the command line. Each subcommand has its own file, and each exit status has one meaning.

use std::{io, pin::Pin, process::ExitCode, time::Duration};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::runtime::Builder;

use toolbridge::programs::{SUPERVISE, supervise};

use terminal::failure::{Failure, hint};

mod completions;
mod help;
mod recording;
mod room;
mod serve;
mod terminal;

/// The notes at the end of `toolbridge --help`.
const AFTERWORD: &str = "\
Every command that connects takes the server from --url or LIVEKIT_URL, and credentials from \
--api-key and --api-secret (LIVEKIT_API_KEY, LIVEKIT_API_SECRET) or --token (LIVEKIT_TOKEN).
TIME is a number with a unit: 500ms, 5s, 2m. RUST_LOG=toolbridge=debug prints a log to stderr.

Exit status: 0 success; 1 failure; 2 usage error; 3 the recording is damaged, violates the \
protocol, or differs from its replay; 4 (`call` only) the call failed and the tool did not run; \
130 interrupted by Ctrl-C before its work was done. Commands that run until they are stopped, such \
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
    Demo(room::demo::Arguments),
    /// Run an embedded LiveKit-compatible server for local development
    Dev(serve::dev::Arguments),
    /// Check the connection to a server step by step and explain how to fix what fails
    Doctor(room::doctor::Arguments),
    /// Create an access token for a room
    Token(room::token::Arguments),
    /// Join as a client that offers programs, MCP servers, RAP toolsets or agents as tools
    Client(room::client::Arguments),
    /// Join as an assistant and call one tool
    Call(room::call::Arguments),
    /// Join as an assistant controlled by another program through JSON lines
    Assistant(room::assistant::Arguments),
    /// Join as an assistant and serve the tools of the room to an MCP host
    Mcp(serve::mcp::Arguments),
    /// Talk to an agent (ACP) at the terminal, in a room whose tools it can call
    Acp(serve::acp::Arguments),
    /// Join as an assistant and serve the tools of the room as the agent of an editor (ACP)
    AcpAgent(serve::acp_agent::Arguments),
    /// Join as an assistant and serve the tools of the room to a RAP runtime
    Rap(serve::rap::Arguments),
    /// List the tools that participants of a room offer
    Tools(room::tools::Arguments),
    /// Print the protocol frames sent in a room
    Watch(room::watch::Arguments),
    /// Join as an observer and record the tool calls of a room
    Record(room::record::Arguments),
    /// Measure the round-trip time of calls to a client
    Ping(room::ping::Arguments),
    /// Convert a protocol frame to JSON or back
    Frame(recording::frame::Arguments),
    /// Summarize a recording
    Info(recording::info::Arguments),
    /// Print the entries of a recording
    Cat(recording::cat::Arguments),
    /// List the calls of a recording
    Calls(recording::calls::Arguments),
    /// Check a recording for protocol violations
    Check(recording::check::Arguments),
    /// Recover a recording that is damaged or whose recorder crashed
    Repair(recording::repair::Arguments),
    /// Write a recorded session as an HTML page
    Report(recording::report::Arguments),
    /// Replay a recorded session offline, or in a room as its client or its assistant
    Replay(recording::replay::Arguments),
    /// Remove tool parameters and results from a recording
    Redact(recording::redact::Arguments),
    /// Print a shell completion script
    Completions(completions::Arguments),
}

/// The time that remaining tasks have to stop when the process exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs the command line that this process was started with.
pub(crate) fn main() -> ExitCode {
    // This program also supervises the programs that implement tools: see `ProgramTools::supervisor`.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == SUPERVISE) {
        return supervise();
    }
    let matches = help::grouped(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_logs();
    let runtime = match arguments.verb.runtime().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let status = Failure::failed(format!("cannot start the async runtime: {error}")).report();
            terminal::output::finish();
            return status;
        }
    };
    let result = runtime.block_on(terminal::interrupt::until_second_signal(arguments.verb.run()));
    // Dropping the tasks kills tool programs that still run. A DNS lookup cannot be cancelled, so the
    // shutdown does not wait for it.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    let status = result.map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    terminal::output::finish();
    status
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
            Self::Demo(arguments) => boxed(|| room::demo::run(arguments)),
            Self::Dev(arguments) => boxed(|| serve::dev::run(arguments)),
            Self::Doctor(arguments) => boxed(|| room::doctor::run(arguments)),
            Self::Token(arguments) => boxed(|| async move { room::token::run(&arguments) }),
            Self::Client(arguments) => boxed(|| room::client::run(arguments)),
            Self::Call(arguments) => boxed(|| room::call::run(arguments)),
            Self::Assistant(arguments) => boxed(|| room::assistant::run(arguments)),
            Self::Mcp(arguments) => boxed(|| serve::mcp::run(arguments)),
            Self::Acp(arguments) => boxed(|| serve::acp::run(arguments)),
            Self::AcpAgent(arguments) => boxed(|| serve::acp_agent::run(arguments)),
            Self::Rap(arguments) => boxed(|| serve::rap::run(arguments)),
            Self::Tools(arguments) => boxed(|| room::tools::run(arguments)),
            Self::Watch(arguments) => boxed(|| room::watch::run(arguments)),
            Self::Record(arguments) => boxed(|| room::record::run(arguments)),
            Self::Ping(arguments) => boxed(|| room::ping::run(arguments)),
            Self::Frame(arguments) => boxed(|| async move { recording::frame::run(&arguments) }),
            Self::Info(arguments) => boxed(|| async move { recording::info::run(&arguments) }),
            Self::Cat(arguments) => boxed(|| async move { recording::cat::run(&arguments) }),
            Self::Calls(arguments) => boxed(|| async move { recording::calls::run(&arguments) }),
            Self::Check(arguments) => boxed(|| async move { recording::check::run(&arguments) }),
            Self::Repair(arguments) => boxed(|| async move { recording::repair::run(&arguments) }),
            Self::Report(arguments) => boxed(|| async move { recording::report::run(&arguments) }),
            Self::Replay(arguments) => boxed(|| recording::replay::run(arguments)),
            Self::Redact(arguments) => boxed(|| async move { recording::redact::run(&arguments) }),
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
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal::output::stderr)
        .with_ansi(colors)
        .init();
}
