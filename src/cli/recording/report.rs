//! `toolbridge report`: writes a recording as an HTML page.

use std::{
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use clap::Args;

use crate::cli::terminal::{
    failure::{Failure, hint},
    file,
};
use toolbridge::recording::{calls, write_report};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to read
    file: PathBuf,

    /// Output file, or - for standard output [default: the recording's name with the extension .html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Title of the page [default: the recording's name]
    #[arg(long)]
    title: Option<String>,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let output = arguments.output.clone().unwrap_or_else(|| arguments.file.with_extension("html"));
    let to_stdout = output == Path::new("-");
    file::differs(&arguments.file, &output)?;
    // Read the recording twice, first the calls and then their frames, to avoid holding it in memory.
    let mut entries = file::open(&arguments.file)?.entries();
    let folded = calls(&mut entries);
    let mut notes = Vec::new();
    let damage = file::damage(&entries);
    if let Some(damage) = &damage {
        notes.push(format!("The recording is {damage}. This page shows the entries before that."));
    }
    if folded.dropped > 0 {
        notes.push(format!("{} more calls are omitted from this page and its statistics.", folded.dropped));
    }
    let name = arguments.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let recording = file::open(&arguments.file)?;
    if recording.about().metadata_only {
        notes.push(file::METADATA_ONLY.to_owned());
    }
    let title = arguments.title.clone().or(name).unwrap_or_default();
    let entries = recording.entries();
    if to_stdout {
        let mut out = BufWriter::new(io::stdout().lock());
        write_report(entries, &folded.calls, &title, &notes, &mut out)?;
        out.flush()?;
    } else {
        let mut out = file::create(&output, arguments.force)?;
        write_report(entries, &folded.calls, &title, &notes, &mut out)?;
        file::finish(&output, out)?;
        hint(&format!("{}: {} calls", output.display(), folded.calls.len()));
    }
    file::end(&arguments.file, damage)
}
