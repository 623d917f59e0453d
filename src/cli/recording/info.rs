//! `toolbridge info`: summarizes a recording.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;

use crate::cli::terminal::{failure::Failure, file, table::terminal_width, text};
use toolbridge::recording::InfoBuilder;

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to read
    file: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut builder = InfoBuilder::default();
    let (about, damage) = file::each(&arguments.file, |_, _, entry| {
        builder.push(entry);
        Ok(())
    })?;
    let mut info = builder.finish();
    info.metadata_only = about.metadata_only;
    info.version = about.version;
    info.room = about.room;
    info.identity = about.identity.map_or_else(String::new, |identity| identity.to_string());
    info.begun = about.begun;
    info.damage.clone_from(&damage);
    let mut out = io::stdout();
    if arguments.json {
        writeln!(out, "{}", text::json(&serde_json::to_value(&info).map_err(Failure::failed)?))?;
    } else {
        match terminal_width() {
            Some(width) => write!(out, "{info:width$}")?,
            None => write!(out, "{info}")?,
        }
    }
    out.flush()?;
    file::end(&arguments.file, damage)
}
