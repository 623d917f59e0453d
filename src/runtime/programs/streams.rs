//! Writes and reads a program's three streams concurrently, so that neither side blocks the other.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{ChildStderr, ChildStdin, ChildStdout},
};

use crate::process::{Pipes, keep_tail};

/// The largest result of a program, in bytes.
pub(super) const MAX_STDOUT: usize = 1 << 20;

/// The read size, in bytes.
const CHUNK: usize = 16 << 10;

/// The input, and the output so far.
#[derive(Debug)]
pub(super) struct Streams {
    stdin: Option<ChildStdin>,
    input: Vec<u8>,
    written: usize,
    stdout: Option<ChildStdout>,
    output: Vec<u8>,
    overflown: bool,
    /// The start of an output that was too large.
    beginning: Vec<u8>,
    stderr: Option<ChildStderr>,
    complaint: Vec<u8>,
}

/// The program wrote more than [`MAX_STDOUT`].
#[derive(Debug)]
pub(super) struct Overflow {
    /// Its first [`CHUNK`] bytes.
    pub(super) beginning: Vec<u8>,
}

impl Streams {
    /// Creates the streams of a program that reads this input.
    pub(super) fn new(pipes: Pipes, input: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            stdin: Some(ChildStdin::from_std(pipes.stdin)?),
            input,
            written: 0,
            stdout: Some(ChildStdout::from_std(pipes.stdout)?),
            output: Vec::new(),
            overflown: false,
            beginning: Vec::new(),
            stderr: Some(ChildStderr::from_std(pipes.stderr)?),
            complaint: Vec::new(),
        })
    }

    /// Writes and reads until the program has written too much.
    ///
    /// # Cancel safety
    /// Safe: bytes that were read are kept.
    pub(super) async fn overflow(&mut self) {
        if self.flow(true).await {
            std::future::pending().await
        }
    }

    /// Writes and reads until the program and its children have closed stdout and stderr.
    ///
    /// # Cancel safety
    /// Safe: bytes that were read are kept.
    pub(super) async fn closed(&mut self) {
        self.flow(false).await;
    }

    /// Returns everything that was written to stdout.
    pub(super) fn output(&self) -> Result<&[u8], Overflow> {
        if self.overflown { Err(Overflow { beginning: self.beginning.clone() }) } else { Ok(&self.output) }
    }

    /// Returns the end of what was written to stderr.
    pub(super) fn complaint(&self) -> &[u8] {
        &self.complaint
    }

    /// Writes and reads to the end of all streams. Returns false if it stopped at an overflow.
    async fn flow(&mut self, stop_at_overflow: bool) -> bool {
        while self.stdin.is_some() || self.stdout.is_some() || self.stderr.is_some() {
            tokio::select! {
                written = write(&mut self.stdin, &self.input[self.written..]) => match written {
                    Ok(bytes) if bytes > 0 && self.written + bytes < self.input.len() => self.written += bytes,
                    // All input is written, or the program has closed its stdin.
                    _ => self.stdin = None,
                },
                more = read(&mut self.stdout, &mut self.output) => {
                    if !more {
                        self.stdout = None;
                    }
                    if self.output.len() > MAX_STDOUT {
                        // Further output is read only so that the program does not block.
                        if !self.overflown {
                            self.beginning = self.output[..CHUNK].to_vec();
                        }
                        self.output.clear();
                        self.overflown = true;
                    }
                    if self.overflown && stop_at_overflow {
                        return false;
                    }
                }
                more = read(&mut self.stderr, &mut self.complaint) => {
                    if !more {
                        self.stderr = None;
                    }
                    keep_tail(&mut self.complaint);
                }
            }
        }
        true
    }
}

async fn write(to: &mut Option<ChildStdin>, bytes: &[u8]) -> io::Result<usize> {
    match to {
        Some(stream) => stream.write(bytes).await,
        None => std::future::pending().await,
    }
}

/// Reads some bytes; returns `false` at the end.
async fn read(from: &mut Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> bool {
    match from {
        Some(stream) => {
            into.reserve(CHUNK);
            matches!(stream.read_buf(into).await, Ok(bytes) if bytes > 0)
        }
        None => std::future::pending().await,
    }
}
