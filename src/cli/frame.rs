//! `toolbridge frame`: MessagePack to canonical JSON and back.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use super::{Failure, text};
use toolbridge::protocol::frame::Frame;

/// The most that is read: one byte more than the largest frame, so that a larger one is told as such.
const READ_LIMIT: u64 = 16 * 1024 * 1024 + 1;

/// JSON may spell a byte in more than one.
const READ_JSON_LIMIT: u64 = 8 * READ_LIMIT;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// One MessagePack frame in, its canonical JSON out
    Decode {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Canonical JSON in, the frame's bytes out
    Encode {
        /// The file, or - for standard input
        file: PathBuf,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.direction {
        Direction::Decode { file } => {
            let frame = Frame::decode(read(file, READ_LIMIT)?).map_err(refused)?;
            let json = frame.to_json().map_err(refused)?;
            writeln!(io::stdout(), "{}", text::json(&json))?;
        }
        Direction::Encode { file } => {
            let bytes = read(file, READ_JSON_LIMIT)?;
            let json = std::str::from_utf8(&bytes).map_err(refused)?;
            let frame = Frame::from_json(json).map_err(refused)?;
            let mut out = io::stdout();
            out.write_all(frame.as_bytes())?;
            // What is still buffered at the end is written too, but nobody would hear that it could not be.
            out.flush()?;
        }
    }
    Ok(())
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("refused: {error}"))
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
