//! The command line: one file a verb, one meaning a status.

use std::{fmt, io, io::Write as _, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

use toolbridge::{
    LocalText, ToolName,
    tool::programs::{SUPERVISE, supervise},
};

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
mod frame;
mod info;
mod interrupt;
mod ping;
mod record;
mod record_option;
mod recording_file;
mod redact;
mod repair;
mod replay;
mod report;
mod text;
mod token;
mod token_role;
mod tools;
mod watch;

/// What every verb has in common.
const AFTERWORD: &str = "\
Server and key come from flags or from LIVEKIT_URL, LIVEKIT_API_KEY and
LIVEKIT_API_SECRET, or LIVEKIT_TOKEN. TIME is a number with its unit: 500ms, 5s, 2m.
RUST_LOG=toolbridge=debug shows what happens.
Status: 0 success, 1 failure, 2 wrong usage, 3 something is wrong in the file
or differs from it, 4 (of `call`) failure and nothing ran, 130 stopped by Ctrl-C.";

/// Tool calls between a voice assistant and the apps in its LiveKit room.
#[derive(Debug, Parser)]
#[command(name = "toolbridge", version, about, max_term_width = 100, after_help = AFTERWORD)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show a client with four tools and an assistant that calls them
    Demo(demo::Arguments),
    /// Run a LiveKit-compatible server for development, on this machine only
    Dev(dev::Arguments),
    /// Check step by step whether a server can be used from here, and say what to do
    Doctor(doctor::Arguments),
    /// Make a token for a room
    Token(token::Arguments),
    /// Join as a client whose tools are programs on this machine
    Client(client::Arguments),
    /// Join as an assistant and call one tool
    Call(call::Arguments),
    /// Join as an assistant that another program drives by JSON lines
    Assistant(assistant::Arguments),
    /// Show who offers what in a room
    Tools(tools::Arguments),
    /// Show frames as they pass
    Watch(watch::Arguments),
    /// Join as an observer and record what is said in a room
    Record(record::Arguments),
    /// Measure the round trip of calls to a client
    Ping(ping::Arguments),
    /// Turn a frame into JSON and back
    Frame(frame::Arguments),
    /// Show what is in a recording, in figures
    Info(info::Arguments),
    /// Show the entries of a recording
    Cat(cat::Arguments),
    /// Show the calls of a recording
    Calls(calls::Arguments),
    /// Judge a recording by the contract
    Check(check::Arguments),
    /// Write a recording for other programs
    Export(export::Arguments),
    /// Make a finished file of a recording that is damaged, or whose recorder died
    Repair(repair::Arguments),
    /// Show a recorded session as one HTML page
    Report(report::Arguments),
    /// Run a recorded session again: on virtual time, or in a room in the place of its client or its assistant
    Replay(replay::Arguments),
    /// Take out of a recording what tools were asked and answered
    Redact(redact::Arguments),
    /// Print a script that lets a shell complete verbs and options
    Completions(completions::Arguments),
}

/// How long what is left at the end has to be dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a verb did not do what it was asked to.
#[derive(Debug)]
enum Failure {
    /// It was asked wrongly: status 2.
    Usage(String),
    /// It was asked rightly and failed: status 1.
    Failed(String),
    /// A call failed and it is proven that nothing ran: status 4.
    NothingRan(String),
    /// It failed, and what it printed says so already: this status.
    Reported(u8),
    /// It was done, and something is wrong in the file that it was asked about: status 3.
    ProblemsFound,
    /// It was stopped by Ctrl-C: status 130, as shells have it.
    Interrupted,
    /// Whoever read our output stopped reading: nothing to complain about.
    ClosedPipe,
}

impl Failure {
    const FAILED: u8 = 1;
    const NOTHING_RAN: u8 = 4;

    fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    fn usage(error: impl fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    fn report(self) -> ExitCode {
        match self {
            Self::Usage(text) => {
                hint(&format!("toolbridge: {text}"));
                ExitCode::from(2)
            }
            Self::Failed(text) => {
                hint(&format!("toolbridge: {text}"));
                ExitCode::from(Self::FAILED)
            }
            Self::NothingRan(text) => {
                hint(&format!("toolbridge: {text}"));
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
    // Programs that are tools are started by this program itself: see `ProgramTools::supervisor`.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == SUPERVISE) {
        return supervise();
    }
    let arguments = Arguments::parse();
    start_logs();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::failed(format!("no runtime: {error}")).report(),
    };
    let result = runtime.block_on(interrupt::obeyed(arguments.verb.run()));
    // Programs that still run are killed as their tasks are dropped. A question about a server's name
    // cannot be stopped, and is not waited for.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

impl Verb {
    async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Demo(arguments) => demo::run(arguments).await,
            Self::Dev(arguments) => dev::run(arguments).await,
            Self::Doctor(arguments) => doctor::run(arguments).await,
            Self::Token(arguments) => token::run(&arguments),
            Self::Client(arguments) => client::run(arguments).await,
            Self::Call(arguments) => call::run(arguments).await,
            Self::Assistant(arguments) => assistant::run(arguments).await,
            Self::Tools(arguments) => tools::run(arguments).await,
            Self::Watch(arguments) => watch::run(arguments).await,
            Self::Record(arguments) => record::run(arguments).await,
            Self::Ping(arguments) => ping::run(arguments).await,
            Self::Frame(arguments) => frame::run(&arguments),
            Self::Info(arguments) => info::run(&arguments),
            Self::Cat(arguments) => cat::run(&arguments),
            Self::Calls(arguments) => calls::run(&arguments),
            Self::Check(arguments) => check::run(&arguments),
            Self::Export(arguments) => export::run(&arguments),
            Self::Repair(arguments) => repair::run(&arguments),
            Self::Report(arguments) => report::run(&arguments),
            Self::Replay(arguments) => replay::run(arguments).await,
            Self::Redact(arguments) => redact::run(&arguments),
            Self::Completions(arguments) => completions::run(&arguments),
        }
    }
}

/// A line for people, on stderr; whether they read it is their business.
fn hint(line: &str) {
    let _ = writeln!(io::stderr(), "{}", text::plain(line));
}

/// The longest line about a tool's failure, in characters.
const LONGEST_FAILURE: usize = 200;

/// Shows the owner of a tool why it failed, on stderr. Nobody else gets this text: it may hold what the tool was given.
fn tool_failed(tool: &ToolName, reason: &LocalText) {
    hint(&text::line(&format!("{tool} failed: {reason}"), LONGEST_FAILURE));
}

/// Logs go to stderr, and only if asked for: `RUST_LOG=toolbridge=debug`.
fn start_logs() {
    let asked = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    let filter = tracing_subscriber::EnvFilter::try_new(&asked).unwrap_or_else(|error| {
        hint(&format!("RUST_LOG is not understood, so nothing is logged: {error}"));
        "off".into()
    });
    let colours = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
}
