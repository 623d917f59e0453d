//! Reads the controlling program's lines in a thread, one line ahead, each up to a size limit.

use std::{
    io::{self, BufRead, BufReader, Read},
    thread,
};

use tokio::sync::mpsc;

/// The maximum length of a line, in bytes: the largest frame of 16 MiB as base64, plus the rest of the command.
pub(super) const MAX_LINE: usize = 24 * 1024 * 1024;

/// The bytes that are kept of the start and of the end of a line that is too long.
const ENDS: usize = 256;

/// One input line.
#[derive(Debug)]
pub(super) struct Line {
    /// The line number, counted from 1.
    pub(super) number: u64,
    pub(super) text: Text,
}

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// The text without its line end.
    Plain(String),
    /// The line is longer than [`MAX_LINE`] and was skipped. The id of its command is in its start or its end.
    TooLong {
        /// Its length, in bytes.
        size: usize,
        start: Vec<u8>,
        end: Vec<u8>,
    },
    /// The line is not valid UTF-8.
    NotUtf8(Vec<u8>),
}

/// Starts reading. The thread ends when the input ends, when nobody receives the lines, or with the process: a blocking
/// read cannot be cancelled.
pub(super) fn start<R: Read>(open: impl FnOnce() -> R + Send + 'static) -> mpsc::Receiver<Line> {
    let (read, lines) = mpsc::channel(1);
    let started = thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut from = BufReader::new(open());
        for number in 1.. {
            let text = match next(&mut from, MAX_LINE) {
                Ok(Some(text)) => text,
                Ok(None) => return,
                Err(error) => {
                    return crate::cli::terminal::failure::hint(&format!(
                        "cannot read standard input: {error}"
                    ));
                }
            };
            if read.blocking_send(Line { number, text }).is_err() {
                return; // the receiver is gone
            }
        }
    });
    if let Err(error) = started {
        crate::cli::terminal::failure::hint(&format!("cannot read standard input: {error}"));
    }
    lines
}

/// Reads the next line; `None` at the end. The last line needs no line end.
fn next(from: &mut impl BufRead, limit: usize) -> io::Result<Option<Text>> {
    let (mut line, mut start, mut any, mut size) = (Vec::new(), None::<Vec<u8>>, false, 0_usize);
    loop {
        let chunk = match from.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        let over = part.is_empty() && end.is_none();
        any |= !over;
        size = size.saturating_add(part.len());
        if start.is_none() && line.len() + part.len() > limit {
            start = Some(line.iter().chain(part).copied().take(ENDS).collect());
            line = line.split_off(line.len().saturating_sub(ENDS));
        }
        line.extend_from_slice(part);
        if start.is_some() {
            line.drain(..line.len().saturating_sub(ENDS));
        }
        let taken = part.len() + usize::from(end.is_some());
        from.consume(taken);
        if over || end.is_some() {
            break;
        }
    }
    if let Some(start) = start {
        return Ok(Some(Text::TooLong { size, start, end: line }));
    }
    Ok(any.then(|| match String::from_utf8(line) {
        Ok(text) => Text::Plain(text),
        Err(error) => Text::NotUtf8(error.into_bytes()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], limit: usize) -> Vec<Text> {
        // A small buffer tests every chunk boundary.
        let mut from = BufReader::with_capacity(3, bytes);
        std::iter::from_fn(|| next(&mut from, limit).unwrap()).collect()
    }

    #[test]
    fn lines_are_split_and_the_last_needs_no_line_end() {
        let plain = |text: &str| Text::Plain(text.to_owned());
        assert_eq!(all(b"one\n\ntwo\r\nthree", 100), ["one", "", "two\r", "three"].map(plain));
        assert_eq!(all(b"", 100), []);
        assert_eq!(all(b"\n", 100), [plain("")]);
    }

    #[test]
    fn line_above_the_limit_is_skipped_and_the_next_is_read() {
        let lines = all(b"123456\n1234567\nx\n\xff\xfe\n", 6);
        let too_long = || Text::TooLong { size: 7, start: b"1234567".to_vec(), end: b"1234567".to_vec() };
        let not_utf8 = Text::NotUtf8(b"\xff\xfe".to_vec());
        assert_eq!(lines, [Text::Plain("123456".into()), too_long(), Text::Plain("x".into()), not_utf8]);
        assert_eq!(all(b"1234567", 6), [too_long()]);
        let [Text::TooLong { size: 1_200, start, end }] =
            &all(&[&[b'a'; 600][..], &[b'b'; 600]].concat(), 6)[..]
        else {
            panic!()
        };
        assert_eq!((&start[..], &end[..]), (&[b'a'; ENDS][..start.len()], &[b'b'; ENDS][..]));
    }
}
