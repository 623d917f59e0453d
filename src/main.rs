//! The `toolbridge` command-line tool.

use std::process::ExitCode;

mod cli;

// The library compiles these files as well.
#[path = "transport/livekit/crypto.rs"]
mod crypto;
#[path = "recording/escape.rs"]
mod escape;
#[path = "transport/livekit/host.rs"]
mod host;

fn main() -> ExitCode {
    cli::main()
}
