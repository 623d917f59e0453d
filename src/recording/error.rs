//! What can go wrong with a recording.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is a file of this name already, and it was not asked to be replaced.
    #[error("`{}` is there already, and is replaced only if that is asked for", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be made.
    #[error("cannot write `{}`: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file could not be opened for reading.
    #[error("cannot read `{}`: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no MCAP file.
    #[error("this is no MCAP file")]
    NotMcap,
    /// It is an MCAP file that somebody else made.
    #[error("this is an MCAP file, but no recording: it has no metadata record `toolbridge`")]
    Foreign,
    /// It is a recording of a later form.
    #[error("this is a recording of form {found}; form {known} and earlier ones can be read")]
    Version {
        /// The form that the file says it has.
        found: String,
        /// The latest form that is known here.
        known: u32,
    },
    /// It is damaged or ends before it says what it is.
    #[error("the file says nothing of whose recording it is: at byte {at_byte}, {text}")]
    NoBeginning {
        /// Where in the file.
        at_byte: u64,
        /// What is wrong there.
        text: String,
    },
    /// Reading failed.
    #[error("reading failed: {0}")]
    Read(#[source] io::Error),
    /// Writing failed, as when the disk is full.
    #[error("writing failed: {0}")]
    Write(#[source] io::Error),
    /// The recording had stopped before its end; the text says why.
    #[error("the recording stopped early: {0}")]
    Stopped(String),
    /// The thread that writes could not be started.
    #[error("cannot start the thread that writes: {0}")]
    Thread(#[source] io::Error),
}

impl RecordError {
    /// What it means that a file could not be made.
    pub(super) fn creating(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            _ => Self::Create { path, source },
        }
    }

    pub(super) fn opening(path: &Path, source: io::Error) -> Self {
        Self::Open { path: path.to_owned(), source }
    }
}
