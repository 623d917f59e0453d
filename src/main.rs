//! The `toolbridge` command-line tool.

use std::process::ExitCode;

// The names under which the files below know the library.
use toolbridge as tool;
use toolbridge as value;

mod cli;

// The library compiles these files as well.
#[path = "adapter/web/connections.rs"]
#[allow(dead_code, reason = "a connection of the development server carries one request")]
mod connections;
#[path = "transport/livekit/path/crypto.rs"]
mod crypto;
#[path = "recording/escape.rs"]
mod escape;
#[path = "adapter/jsonrpc/head.rs"]
mod head;
#[path = "transport/livekit/signaling/host.rs"]
mod host;
#[path = "recording/shown.rs"]
mod shown;

fn main() -> ExitCode {
    cli::main()
}
