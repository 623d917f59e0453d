//! Opens and reads recordings for the subcommands, and reports their errors.

use std::{
    fs,
    io::{self, BufWriter, IntoInnerError, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::cli::terminal::{
    failure::{Failure, hint},
    text,
};
use toolbridge::{
    JoinError,
    recording::{About, AtomicFile, Entries, Entry, RecordError, Recording, Repaired},
};

/// What the verbs say of a recording with metadata only.
pub(in crate::cli) const METADATA_ONLY: &str = "The recording holds metadata only: ids, names, sizes and times, but no arguments, results or other texts.";

/// Says once, on stderr, that a recording holds metadata only, if it does.
pub(in crate::cli) fn say_content(about: &About) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if about.metadata_only && !IS_SAID.swap(true, Ordering::Relaxed) {
        hint(METADATA_ONLY);
    }
}

/// Opens a recording. A missing file is a usage error; a file that is not a recording is a failure.
pub(in crate::cli) fn open(path: &Path) -> Result<Recording, Failure> {
    Recording::open(path).map_err(|error| refused(path, &error))
}

pub(in crate::cli) fn refused(path: &Path, error: &RecordError) -> Failure {
    match error {
        RecordError::Exists { path } => exists(path),
        // These errors name the file.
        RecordError::Open { .. } => Failure::usage(error),
        RecordError::Create { .. } | RecordError::Write(_) => Failure::failed(error),
        RecordError::Unsupported(_) | RecordError::NothingLeft { .. } => {
            hint(&format!("toolbridge: {}: {error}", path.display()));
            Failure::ProblemsFound
        }
        _ => Failure::Failed(format!("{}: {error}", path.display())),
    }
}

/// Starts an output file. It appears under its name only when it is [finished](finish), and an existing file stays
/// until then.
pub(in crate::cli) fn create(path: &Path, force: bool) -> Result<BufWriter<AtomicFile>, Failure> {
    Ok(BufWriter::new(AtomicFile::create(path, force).map_err(|error| refused(path, &error))?))
}

/// Gives a complete output file its name.
pub(in crate::cli) fn finish(path: &Path, file: BufWriter<AtomicFile>) -> Result<(), Failure> {
    let file = file.into_inner().map_err(IntoInnerError::into_error)?;
    file.finish().map_err(|error| refused(path, &error))
}

/// Rejects an existing output file before a room is joined.
pub(in crate::cli) fn is_free(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()), // creating the file reports the error
    }
}

/// Refuses to write a file over the recording that is read.
pub(in crate::cli) fn differs(input: &Path, output: &Path) -> Result<(), Failure> {
    if is_same(input, output) {
        return Err(Failure::usage(
            "the file would overwrite the recording; choose another one with --output",
        ));
    }
    Ok(())
}

/// Whether two paths lead to one file.
pub(in crate::cli) fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// Says what is left of a recording that stopped early, after the reason. Another program may have replaced or removed its
/// file.
pub(in crate::cli) fn left_of(path: &Path) -> &'static str {
    match Recording::open(path) {
        Ok(recording) if !recording.about().finished => {
            "; the entries written so far can be read, and `toolbridge repair` finishes the file"
        }
        Err(_) if path.symlink_metadata().is_err() => "; its file was removed",
        _ => "",
    }
}

/// Checks that a server can listen at an address, before a room is joined.
pub(in crate::cli) fn can_listen(address: SocketAddr) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot listen at {address}: {error}"));
    TcpListener::bind(address).map(drop).map_err(failed)
}

fn exists(path: &Path) -> Failure {
    Failure::Usage(format!(
        "`{}` already exists; choose another name, or overwrite it with --force",
        path.display()
    ))
}

/// Converts a join error. An existing recording file and a tool that cannot be offered are usage errors.
pub(in crate::cli) fn not_joined(error: JoinError) -> Failure {
    match error {
        JoinError::Register(error) => Failure::usage(error),
        JoinError::Record(error) => refused(Path::new("the recording"), &error),
        other => Failure::failed(other),
    }
}

/// Reads a recording to its end. Returns a description of damage, if any, after the entries before it.
pub(in crate::cli) fn each(
    path: &Path,
    mut take: impl FnMut(&About, usize, &Entry) -> Result<(), Failure>,
) -> Result<(About, Option<String>), Failure> {
    let recording = open(path)?;
    let about = recording.about().clone();
    say_content(&about);
    let damage = walk(recording.entries(), |index, entry| take(&about, index, entry))?;
    Ok((about, damage))
}

/// Visits all entries. Returns a description of damage, if any.
pub(in crate::cli) fn walk(
    mut entries: Entries,
    mut take: impl FnMut(usize, &Entry) -> Result<(), Failure>,
) -> Result<Option<String>, Failure> {
    for (index, entry) in (&mut entries).enumerate() {
        take(index, &entry)?;
    }
    Ok(damage(&entries))
}

/// Describes the damage at which the entries end.
pub(in crate::cli) fn damage(entries: &Entries) -> Option<String> {
    entries.damage().map(ToString::to_string)
}

/// Prints the summary of a subcommand that wrote a new recording.
pub(in crate::cli) fn written(file: &Repaired) -> Result<(), Failure> {
    if let Some(damage) = &file.damage {
        hint(&format!("the data after byte {} is lost: {}", damage.at_byte, damage.text));
    }
    if file.skipped > 0 {
        let lost = text::counted(file.skipped, "message");
        hint(&format!("{lost} lost: the file does not define their channels"));
    }
    if file.left_out > 0 {
        let left_out = text::counted(file.left_out, "message");
        hint(&format!("{left_out} of other programs or of a later version left out"));
    }
    writeln!(io::stdout(), "{} entries", file.entries)?;
    Ok(())
}

/// Reports damage at the end of a subcommand that reads a recording.
pub(in crate::cli) fn end(path: &Path, damage: Option<String>) -> Result<(), Failure> {
    let Some(damage) = damage else { return Ok(()) };
    hint(&format!("toolbridge: {}: {damage}", path.display()));
    Err(Failure::ProblemsFound)
}
