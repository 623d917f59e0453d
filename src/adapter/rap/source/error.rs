//! Defines why a toolset cannot be used.

use std::io;

use crate::{programs::ProgramsError, tools_file::ToolsFileError};

/// Why a toolset cannot be used. No error has a token, or more of a URL than its host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RapError {
    /// A `tools.toml` cannot be read.
    #[error(transparent)]
    File(#[from] ProgramsError),
    /// An entry of a `tools.toml` is invalid.
    #[error("toolset {toolset:?}, line {line}: {reason}")]
    Entry {
        /// The toolset's name.
        toolset: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The toolset's URL, or a host that is allowed, cannot be used.
    #[error("toolset {toolset:?}: {reason}")]
    Address {
        /// The toolset's name.
        toolset: String,
        /// Why not.
        reason: String,
    },
    /// The callback address cannot be used.
    #[error("the callback address of toolset {toolset:?} cannot be used: {reason}")]
    Callback {
        /// The toolset's name.
        toolset: String,
        /// Why not.
        reason: String,
    },
    /// The variable of the bearer token is not set.
    #[error("toolset {toolset:?}: the variable {variable} of its bearer token is not set")]
    Variable {
        /// The toolset's name.
        toolset: String,
        /// The variable.
        variable: String,
    },
    /// The manifest cannot be read, or is refused.
    #[error("toolset {toolset:?}: {reason}")]
    Toolset {
        /// The toolset's name.
        toolset: String,
        /// What went wrong.
        reason: String,
    },
    /// The callback address cannot be bound, or the system has no random numbers.
    #[error("toolset {toolset:?} cannot listen for callbacks: {source}")]
    Io {
        /// The toolset's name.
        toolset: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl From<ToolsFileError> for RapError {
    fn from(error: ToolsFileError) -> Self {
        ProgramsError::from(error).into()
    }
}
