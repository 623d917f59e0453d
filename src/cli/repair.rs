//! `toolbridge repair`: a finished file of any recording.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, file};
use toolbridge::recording::repair;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording: one whose recorder died, or that is damaged
    input: PathBuf,

    /// Where what is whole goes, indexed and compressed
    output: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let repaired = repair(&arguments.input, &arguments.output, arguments.force)
        .map_err(|error| file::refused(&arguments.input, &error))?;
    file::written(&repaired)
}
