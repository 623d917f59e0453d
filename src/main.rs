//! Runs the `toolbridge` command-line tool.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::main()
}
