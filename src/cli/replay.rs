//! `toolbridge replay`: runs a recorded session again on virtual time, and shows what would be said otherwise.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;

use super::{Failure, file, text};
use crate::replay::Replay;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording. Nothing of it is sent anywhere
    file: PathBuf,

    /// Print what was compared, skipped and different as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut entries = file::open(&arguments.file)?.entries();
    let report = Replay::dry(&mut entries)
        .map_err(|error| Failure::Failed(format!("{}: {error}", arguments.file.display())))?;
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", text::json(&serde_json::to_value(&report).map_err(Failure::failed)?))?;
    } else {
        for line in report.to_string().lines() {
            writeln!(out, "{}", text::plain(line))?;
        }
    }
    out.flush()?;
    file::end(&arguments.file, file::damage(&entries))?;
    if report.is_same() { Ok(()) } else { Err(Failure::Found) }
}
