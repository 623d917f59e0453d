//! `toolbridge report`: a recording as one HTML page.

use std::{
    fs,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{Failure, file, hint};
use toolbridge::recording::{calls, create_file, write_report};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording
    file: PathBuf,

    /// Where the page goes, or - for standard output [default: the recording's name, ending in .html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What stands above the page [default: the recording's name]
    #[arg(long)]
    title: Option<String>,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let output = arguments.output.clone().unwrap_or_else(|| arguments.file.with_extension("html"));
    let to_stdout = output == Path::new("-");
    if let (Ok(from), Ok(to)) = (fs::canonicalize(&arguments.file), fs::canonicalize(&output))
        && from == to
    {
        return Err(Failure::usage("the page cannot take the recording's place: name it with --output"));
    }
    // Read twice, so that a long recording need not be kept: once for the calls, once for their frames.
    let mut entries = file::open(&arguments.file)?.entries();
    let folded = calls(&mut entries);
    let mut notes = Vec::new();
    let damage = file::damage(&entries);
    if let Some(damage) = &damage {
        notes.push(format!("The file is {damage}. What stood before it is here."));
    }
    if folded.dropped > 0 {
        notes.push(format!("{} more calls are neither here nor in the numbers.", folded.dropped));
    }
    let name = arguments.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let title = arguments.title.clone().or(name).unwrap_or_default();
    let entries = file::open(&arguments.file)?.entries();
    if to_stdout {
        let mut out = BufWriter::new(io::stdout().lock());
        write_report(entries, &folded.calls, &title, &notes, &mut out)?;
        out.flush()?;
    } else {
        let file = create_file(&output, arguments.force).map_err(|error| file::refused(&output, &error))?;
        let mut out = BufWriter::new(file);
        write_report(entries, &folded.calls, &title, &notes, &mut out)?;
        out.flush()?;
        hint(&format!("{}: {} calls", output.display(), folded.calls.len()));
    }
    file::end(&arguments.file, damage)
}
