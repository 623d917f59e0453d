//! Reads the options `--record FILE` and `--force` of each subcommand that joins a room.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use clap::Args;

use crate::cli::terminal::{
    failure::{Failure, hint},
    file,
};
use toolbridge::recording::{RecorderOptions, RecorderStats};

/// Refuses a file that exists, unless it is to be overwritten, and says on stderr that the recording of an encrypted room is not
/// encrypted, unless it has metadata only.
pub(in crate::cli) fn check(
    path: &Path,
    (force, metadata_only): (bool, bool),
    is_room_encrypted: bool,
) -> Result<(), Failure> {
    if !force {
        file::is_free(path)?;
    }
    if is_room_encrypted && !metadata_only {
        hint(&format!(
            "toolbridge: the room is encrypted, but `{}` is not: it holds arguments and results in clear text; \
             --record-metadata-only leaves them out",
            path.display()
        ));
    }
    Ok(())
}

/// Returns the options of a recorder.
pub(in crate::cli) fn recorder_options((force, metadata_only): (bool, bool)) -> RecorderOptions {
    let options = RecorderOptions::default().force(force);
    if metadata_only { options.metadata_only() } else { options }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RecordOption {
    /// Record what this participant sends and receives, as an MCAP file (see `toolbridge info`)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Overwrite an existing --record file
    #[arg(long, requires = "record")]
    force: bool,

    /// Record names, ids, sizes, times and outcomes only: no arguments, results or other texts
    #[arg(long = "record-metadata-only", requires = "record")]
    metadata_only: bool,

    /// Whether it was said that the recording stopped.
    #[arg(skip)]
    is_stop_said: AtomicBool,
}

impl RecordOption {
    /// Returns the file, if one was given.
    pub(in crate::cli) fn path(&self) -> Option<&Path> {
        self.record.as_deref()
    }

    /// Refuses a file that exists, unless `--force` was given, and says on stderr that the recording of an encrypted room is not
    /// encrypted, unless it has metadata only. Call it before joining a room.
    pub(in crate::cli) fn check(&self, is_room_encrypted: bool) -> Result<(), Failure> {
        match self.path() {
            Some(path) => check(path, (self.force, self.metadata_only), is_room_encrypted),
            None => Ok(()),
        }
    }

    /// Refuses to overwrite the recording that the subcommand reads.
    pub(in crate::cli) fn check_differs_from(&self, input: &Path) -> Result<(), Failure> {
        let Some(path) = &self.record else { return Ok(()) };
        if file::is_same(path, input) {
            return Err(Failure::Usage(format!(
                "`{}` is the recording being replayed; choose another name for --record",
                path.display()
            )));
        }
        Ok(())
    }

    /// Returns the arguments of the builder's `record` and `record_options`, if a file was given.
    pub(in crate::cli) fn target(&self) -> Option<(&Path, RecorderOptions)> {
        Some((self.path()?, recorder_options((self.force, self.metadata_only))))
    }

    /// Says once, on stderr, that the recording stopped early.
    pub(in crate::cli) fn stopped(&self, reason: &str) {
        if let Some(path) = &self.record
            && !self.is_stop_said.swap(true, Ordering::Relaxed)
        {
            hint(&format!(
                "toolbridge: the recording `{}` stopped early: {reason}{}",
                path.display(),
                file::left_of(path)
            ));
        }
    }

    /// Fails if the recording stopped early, and says so unless it was said. Call it after leaving the room.
    pub(in crate::cli) fn outcome(&self, stats: Option<RecorderStats>) -> Result<(), Failure> {
        match stats.and_then(|stats| stats.failed) {
            Some(reason) => {
                self.stopped(&reason);
                Err(Failure::Reported(Failure::FAILED))
            }
            None => Ok(()),
        }
    }
}
