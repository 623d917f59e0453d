//! Recordings, as the verbs that read them open and end them.

use std::{
    io::{self, Write as _},
    path::Path,
};

use super::{Failure, hint};
use toolbridge::{
    JoinError,
    recording::{About, Entries, Entry, RecordError, Recording, Repaired},
};

/// Opens a recording: a file that is not there was asked for wrongly, one that is no recording is a failure.
pub(super) fn open(path: &Path) -> Result<Recording, Failure> {
    Recording::open(path).map_err(|error| refused(path, &error))
}

pub(super) fn refused(path: &Path, error: &RecordError) -> Failure {
    match error {
        // These name the file themselves.
        RecordError::Open { .. } | RecordError::Exists { .. } => Failure::usage(error),
        RecordError::Create { .. } => Failure::failed(error),
        _ => Failure::Failed(format!("{}: {error}", path.display())),
    }
}

/// Refuses a file that is there already, before anybody joins anything for it.
pub(super) fn is_free(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::Usage(format!(
            "`{}` is there already: give another name, or replace it with --force",
            path.display()
        ))),
        Err(_) => Ok(()), // whoever makes it says what is wrong
    }
}

/// Why a participant did not join; a file that is there already was asked for wrongly.
pub(super) fn not_joined(error: JoinError) -> Failure {
    match error {
        JoinError::Record(error) => refused(Path::new("the recording"), &error),
        other => Failure::failed(other),
    }
}

/// Reads a recording to its end. Damage is told, and returned: what stood before it was given.
pub(super) fn each(
    path: &Path,
    mut take: impl FnMut(&About, usize, &Entry) -> Result<(), Failure>,
) -> Result<(About, Option<String>), Failure> {
    let recording = open(path)?;
    let about = recording.about().clone();
    let damage = walk(recording.entries(), |index, entry| take(&about, index, entry))?;
    Ok((about, damage))
}

/// All entries, then the damage in words.
pub(super) fn walk(
    mut entries: Entries,
    mut take: impl FnMut(usize, &Entry) -> Result<(), Failure>,
) -> Result<Option<String>, Failure> {
    for (index, entry) in (&mut entries).enumerate() {
        take(index, &entry)?;
    }
    Ok(damage(&entries))
}

/// The damage that entries ended at, in words.
pub(super) fn damage(entries: &Entries) -> Option<String> {
    entries.damage().map(|damage| format!("damaged at byte {}: {}", damage.at_byte, damage.text))
}

/// The end of a verb that has written another file of one.
pub(super) fn written(file: &Repaired) -> Result<(), Failure> {
    if let Some(damage) = &file.damage {
        hint(&format!("what stood behind byte {} is lost: {}", damage.at_byte, damage.text));
    }
    writeln!(io::stdout(), "{} entries", file.entries)?;
    Ok(())
}

/// The end of a verb that has shown what there is.
pub(super) fn end(path: &Path, damage: Option<String>) -> Result<(), Failure> {
    let Some(damage) = damage else { return Ok(()) };
    hint(&format!("toolbridge: {}: {damage}", path.display()));
    Err(Failure::ProblemsFound)
}
