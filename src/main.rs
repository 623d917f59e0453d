//! The command line tool `toolbridge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbridge::cli::main()
}
