//! `toolbridge frame`: converts frames between MessagePack and canonical JSON.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use crate::cli::terminal::{failure::Failure, text};
use toolbridge::frame::Frame;

/// The maximum input: one byte more than the largest frame, so that decoding reports a larger frame.
const READ_LIMIT: u64 = 16 * 1024 * 1024 + 1;

/// The maximum JSON input: JSON may need several bytes for one byte of the frame.
const READ_JSON_LIMIT: u64 = 8 * READ_LIMIT;

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// Convert a MessagePack frame to canonical JSON
    Decode {
        /// Input file, or - for standard input
        file: PathBuf,
    },
    /// Convert canonical JSON to a MessagePack frame
    Encode {
        /// Input file, or - for standard input
        file: PathBuf,
    },
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.direction {
        Direction::Decode { file } => {
            let frame = Frame::decode(read(file, READ_LIMIT)?).map_err(invalid)?;
            let json = frame.to_json().map_err(invalid)?;
            writeln!(io::stdout(), "{}", text::json(&json))?;
        }
        Direction::Encode { file } => {
            let bytes = read(file, READ_JSON_LIMIT)?;
            let json = std::str::from_utf8(&bytes).map_err(invalid)?;
            let frame = Frame::from_json(json).map_err(invalid)?;
            let mut out = io::stdout();
            out.write_all(frame.as_bytes())?;
            // Flush here to report a write error.
            out.flush()?;
        }
    }
    Ok(())
}

fn invalid(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("invalid frame: {error}"))
}

fn read(file: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    let opened = File::open(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    opened
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Ok(bytes)
}
