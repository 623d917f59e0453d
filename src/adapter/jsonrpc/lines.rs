//! Reads the lines of a byte stream, with a limit on their length.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// The bytes that are kept of the start and of the end of a line that is too long. The id and the method are there.
const ENDS: usize = 1 << 10;

/// The most bytes over the limit that one line may have, and be skipped.
const MAX_SKIPPED: usize = 64 << 20;

/// The capacity that the buffer keeps, in bytes.
const KEPT: usize = 64 << 10;

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::adapter) enum ReadLine {
    /// Without its newline.
    Text(Vec<u8>),
    /// Over the limit: its size in bytes, its start and its end.
    TooLong { size: usize, start: Vec<u8>, end: Vec<u8> },
}

/// Reads lines.
pub(in crate::adapter) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// The size of the line so far.
    size: usize,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(in crate::adapter) fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::with_capacity(KEPT, reader), line: Vec::new(), size: 0, limit }
    }

    /// Returns the next line, or `None` at the end. A line without a newline at the end is incomplete, and dropped.
    ///
    /// # Errors
    /// The output cannot be read, or [`MAX_SKIPPED`] bytes beyond the limit a line still has no end.
    ///
    /// # Cancel safety
    /// Safe: what was read of a line is kept.
    pub(in crate::adapter) async fn next(&mut self) -> io::Result<Option<ReadLine>> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(None);
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..newline.unwrap_or(available.len())];
            self.size += part.len();
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(newline.is_some());
            self.reader.consume(used);
            if self.size > self.limit {
                let surplus = self.line.len().saturating_sub(2 * ENDS);
                self.line.drain(ENDS..ENDS + surplus);
            }
            if newline.is_some() {
                return Ok(Some(self.take()));
            }
            if self.size > self.limit + MAX_SKIPPED {
                return Err(io::Error::other(format!("a line has no end after {} bytes", self.size)));
            }
        }
    }

    fn take(&mut self) -> ReadLine {
        let size = std::mem::take(&mut self.size);
        let mut line = std::mem::take(&mut self.line);
        if size > self.limit {
            let end = line.split_off(line.len().min(ENDS));
            return ReadLine::TooLong { size, start: line, end };
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        ReadLine::Text(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8], limit: usize) -> Vec<ReadLine> {
        let mut lines = Lines::new(text, limit);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(line);
        }
        found
    }

    fn text(text: &str) -> ReadLine {
        ReadLine::Text(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_are_split_and_an_incomplete_one_is_dropped() {
        assert_eq!(all(b"a\r\n\nbc\nrest", 10).await, [text("a"), text(""), text("bc")]);
    }

    #[tokio::test]
    async fn long_line_keeps_its_ends_only() {
        let long = format!("{{\"id\":7,{}\"id\":8}}\nnext\n", "x".repeat(1 << 20));
        let lines = all(long.as_bytes(), 10_000).await;
        let ReadLine::TooLong { size, start, end } = &lines[0] else { panic!("{:?}", lines[0]) };
        assert_eq!(*size, long.len() - "\nnext\n".len());
        assert!(start.starts_with(b"{\"id\":7,x") && end.ends_with(b"x\"id\":8}"));
        assert!(start.len() <= ENDS && end.len() <= ENDS);
        assert_eq!(lines[1], text("next"));
    }

    #[tokio::test]
    async fn line_that_does_not_end_is_given_up() {
        use tokio::io::{AsyncReadExt as _, repeat};

        let endless = repeat(b'x').take((MAX_SKIPPED + (2 << 20)) as u64);
        assert!(Lines::new(endless, 1_000).next().await.is_err());
    }
}
