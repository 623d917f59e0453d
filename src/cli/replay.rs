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
        let json = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
        writeln!(out, "{json}")?;
    } else {
        for line in report.to_string().lines() {
            writeln!(out, "{}", text::plain(line))?;
        }
    }
    let damage =
        entries.damage().map(|damage| format!("damaged at byte {}: {}", damage.at_byte, damage.text));
    file::end(&arguments.file, damage)?;
    if report.is_same() { Ok(()) } else { Err(Failure::Found) }
}
