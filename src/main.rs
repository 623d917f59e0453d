//! The `toolbridge` command-line tool.

use std::process::ExitCode;

mod cli;

// The library compiles these files as well.
#[path = "adapter/web/connections.rs"]
#[allow(dead_code, reason = "a connection of the development server carries one request")]
mod connections;
#[path = "transport/livekit/path/crypto.rs"]
mod crypto;
#[path = "adapter/jsonrpc/head.rs"]
mod head;
#[path = "transport/livekit/signaling/host.rs"]
mod host;

fn main() -> ExitCode {
    cli::main()
}
