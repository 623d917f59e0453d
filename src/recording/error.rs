//! Defines the errors of reading and writing recordings.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Damage;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file exists and was not to be replaced.
    #[error("`{}` already exists, and replacing it was not allowed", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be created.
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
    /// The file is not an MCAP file.
    #[error("the file is not an MCAP file")]
    NotMcap,
    /// The file is an MCAP file, but not a toolbridge recording.
    #[error("the MCAP file is not a toolbridge recording: it has no metadata record `toolbridge`")]
    Foreign,
    /// The recording has a later format version.
    #[error("the recording has format version {found}; versions up to {known} are supported")]
    Version {
        /// The format version in the file.
        found: String,
        /// The latest supported format version.
        known: u32,
    },
    /// The file is damaged or ends before its metadata record.
    #[error("the file has no readable recording metadata: at byte {at_byte}, {text}")]
    NoBeginning {
        /// The offset in the file.
        at_byte: u64,
        /// What is wrong there.
        text: String,
    },
    /// The file may be intact, but cannot be read to its end. A copy would lose the rest, so none is written.
    #[error("nothing is written: the file is {0}")]
    Unsupported(Damage),
    /// The file has entries, and none of them can be read. No copy is written.
    #[error("nothing can be recovered: {}", why_nothing(damage.as_ref()))]
    NothingLeft {
        /// The damage, if any. Without it, the file does not define the channels of its messages.
        damage: Option<Damage>,
    },
    /// Another program has put its own file in place of the recording, which is kept under another name.
    #[error("another file has replaced `{}` meanwhile; the recording is in `{}`", path.display(), kept.display())]
    Replaced {
        /// The name of the recording.
        path: PathBuf,
        /// Where it is.
        kept: PathBuf,
    },
    /// The live file does not hold what was written to it. It stays as it is.
    #[error("it has {found} of {written} messages: {text}")]
    Incomplete {
        /// The messages that can be read.
        found: u64,
        /// The messages that were written.
        written: u64,
        /// What is wrong with the file.
        text: String,
    },
    /// Reading failed.
    #[error("reading failed: {0}")]
    Read(#[source] io::Error),
    /// Writing failed, for example because the disk is full. The error names the file.
    #[error(transparent)]
    Write(io::Error),
    /// The recording stopped early.
    #[error("the recording stopped early: {0}")]
    Stopped(#[source] Arc<dyn Error + Send + Sync>),
    /// The file could not be rewritten with an index, and stays as it was written. The source of
    /// [`Stopped`](Self::Stopped).
    #[error("it could not be indexed: {0}")]
    Index(#[source] Box<RecordError>),
    /// The writer thread could not be started.
    #[error("cannot start the writer thread: {0}")]
    Thread(#[source] io::Error),
}

fn why_nothing(damage: Option<&Damage>) -> String {
    damage.map_or_else(
        || "the file does not define the channels of its messages".to_owned(),
        |damage| format!("the file is {damage}"),
    )
}

impl RecordError {
    /// Converts an error of creating a file.
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
