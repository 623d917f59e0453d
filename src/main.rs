//! The command line tool `toolbridge`.

use std::process::ExitCode;

mod cli;

// The library compiles these files, too.
#[path = "recording/escape.rs"]
mod escape;
#[path = "transport/livekit/host.rs"]
mod host;

fn main() -> ExitCode {
    cli::main()
}
