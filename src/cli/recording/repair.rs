//! `toolbridge repair`: recovers a damaged or unfinished recording.

use std::path::PathBuf;

use clap::Args;

use crate::cli::terminal::{failure::Failure, file};
use toolbridge::recording::repair;

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Damaged or unfinished recording
    input: PathBuf,

    /// Output file for the recovered entries, indexed and compressed
    output: PathBuf,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let repaired = repair(&arguments.input, &arguments.output, arguments.force)
        .map_err(|error| file::refused(&arguments.input, &error))?;
    file::written(&repaired)
}
