//! The `toolbridge` command-line tool.

use std::process::ExitCode;

mod cli;

// The library compiles these files as well.
#[path = "recording/escape.rs"]
mod escape;
#[path = "transport/livekit/host.rs"]
mod host;

fn main() -> ExitCode {
    cli::main()
}
