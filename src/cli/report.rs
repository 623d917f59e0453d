//! `toolbridge report`: a recording as one HTML page.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{Failure, hint};
use crate::recording::{Entries, RecordError, Recording, calls, report_with_notes};

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
    let mut entries = open(&arguments.file)?;
    let folded = calls(&mut entries);
    let mut notes = Vec::new();
    if let Some(damage) = entries.damage() {
        notes.push(format!(
            "The file is damaged at byte {}: {}. What stood before it is here.",
            damage.at_byte, damage.text
        ));
    }
    if folded.dropped > 0 {
        notes.push(format!("{} more calls are neither here nor in the numbers.", folded.dropped));
    }
    let name = arguments.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let title = arguments.title.clone().or(name).unwrap_or_default();
    let page = report_with_notes(open(&arguments.file)?, &folded.calls, &title, &notes);
    if to_stdout {
        let mut out = io::stdout();
        out.write_all(page.as_bytes())?;
        out.flush()?;
    } else {
        write(&output, &page, arguments.force)
            .map_err(|error| Failure::Failed(format!("{}: {error}", output.display())))?;
        hint(&format!("{}: {} calls", output.display(), folded.calls.len()));
    }
    for note in &notes {
        hint(note);
    }
    Ok(())
}

fn open(path: &Path) -> Result<Entries, Failure> {
    match Recording::open(path) {
        Ok(recording) => Ok(recording.entries()),
        Err(error @ RecordError::Open { .. }) => Err(Failure::usage(error)),
        Err(error) => Err(Failure::Failed(format!("{}: {error}", path.display()))),
    }
}

/// Writes a file for this user's eyes alone: it has what the calls carried. One that is there is replaced by a whole
/// one or not at all.
fn write(path: &Path, page: &str, force: bool) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = if force { PathBuf::from(part) } else { path.to_owned() };
    let mut file = private(&part)?;
    let written = file.write_all(page.as_bytes());
    let done = written.and_then(|()| if force { fs::rename(&part, path) } else { Ok(()) });
    if done.is_err() {
        // It is ours, and nobody can read half of it.
        let _ = fs::remove_file(&part);
    }
    done
}

/// A new file; it is an error if there is one of that name, or a link.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
