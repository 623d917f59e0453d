//! `toolbridge repair`: a finished file of any recording.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;

use super::{Failure, file, hint};
use crate::recording::repair;

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
    if let Some(damage) = repaired.damage {
        hint(&format!("what stood behind byte {} is lost: {}", damage.at_byte, damage.text));
    }
    writeln!(io::stdout(), "{} entries", repaired.entries)?;
    Ok(())
}
