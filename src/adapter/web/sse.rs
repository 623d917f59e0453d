//! Reads and writes server-sent events: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::{Buf as _, Bytes};
use reqwest::Response;

/// The byte order mark that may stand before the first line.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::adapter) struct Event {
    /// Its type, if it has one.
    pub(in crate::adapter) kind: Option<String>,
    /// What a stream is resumed after. Empty: nothing.
    pub(in crate::adapter) id: Option<String>,
    /// The time, in milliseconds, after which the stream is to be opened again.
    pub(in crate::adapter) retry: Option<u64>,
    pub(in crate::adapter) data: Vec<u8>,
}

/// Why a stream has no further event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::adapter) enum EventError {
    /// The connection broke.
    Broken,
    /// An event has more bytes than this limit.
    TooLarge(usize),
}

/// The events of an answer. Fields that are not known have no effect.
pub(in crate::adapter) struct Events {
    response: Response,
    parser: Parser,
    /// Whether the last event has no end yet, for whoever asks.
    is_within: Arc<AtomicBool>,
}

impl Events {
    /// Creates the stream. An event has at most `limit` bytes, with the names of its fields.
    pub(in crate::adapter) fn new(response: Response, limit: usize) -> Self {
        Self { response, parser: Parser::new(limit), is_within: Arc::default() }
    }

    /// Sets what is told whether the last event has no end yet.
    pub(in crate::adapter) fn telling(mut self, is_within: Arc<AtomicBool>) -> Self {
        self.is_within = is_within;
        self
    }

    /// Returns the next event. The last one needs no blank line at its end, which some servers leave out.
    ///
    /// # Errors
    /// [`EventError`].
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::adapter) async fn next(&mut self) -> Result<Option<Event>, EventError> {
        loop {
            if let Some(event) = self.parser.next()? {
                return Ok(Some(event));
            }
            self.is_within.store(self.parser.size > 0, Ordering::Relaxed);
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.parser.rest = chunk,
                Ok(None) => return Ok(self.parser.last()),
                Err(_) => return Err(EventError::Broken),
            }
        }
    }
}

/// Reads events of bytes.
struct Parser {
    /// What was not read yet.
    rest: Bytes,
    /// The line so far.
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    /// The bytes since the last event.
    size: usize,
    limit: usize,
    /// The last line has ended with a carriage return, which a line feed may follow.
    is_after_return: bool,
    is_first_line: bool,
}

impl Parser {
    fn new(limit: usize) -> Self {
        Self {
            rest: Bytes::new(),
            line: Vec::new(),
            event: Event::default(),
            has_data: false,
            size: 0,
            limit,
            is_after_return: false,
            is_first_line: true,
        }
    }

    /// Returns the next event of the bytes; `None` if they have no other.
    fn next(&mut self) -> Result<Option<Event>, EventError> {
        loop {
            if self.is_after_return && !self.rest.is_empty() {
                self.is_after_return = false;
                self.rest.advance(usize::from(self.rest.starts_with(b"\n")));
            }
            let end = self.rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = self.rest.split_to(end.unwrap_or(self.rest.len()));
            self.line.extend_from_slice(&part);
            self.size += part.len() + usize::from(end.is_some());
            if self.size > self.limit {
                return Err(EventError::TooLarge(self.limit));
            }
            if end.is_none() {
                return Ok(None);
            }
            self.is_after_return = self.rest.get_u8() == b'\r';
            if let Some(event) = self.take_line() {
                return Ok(Some(event));
            }
        }
    }

    /// Returns the event that the end of the stream ends.
    fn last(&mut self) -> Option<Event> {
        (!self.line.is_empty()).then(|| self.take_line());
        self.take_line()
    }

    /// Reads the line, and returns the event that it ends.
    fn take_line(&mut self) -> Option<Event> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_first_line) && line.starts_with(MARK) {
            line.drain(..MARK.len());
        }
        if line.is_empty() {
            self.size = 0;
            let (event, has_data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.has_data));
            let says_something = has_data || event.id.is_some() || event.retry.is_some();
            return says_something.then_some(event);
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let mut value = (colon + 1).min(line.len());
        value += usize::from(line[value..].starts_with(b" "));
        let text = || str::from_utf8(&line[value..]).ok();
        match &line[..colon] {
            b"data" if self.has_data => {
                self.event.data.push(b'\n');
                self.event.data.extend_from_slice(&line[value..]);
            }
            b"data" => {
                self.has_data = true;
                line.drain(..value);
                self.event.data = line; // a long one is not copied
            }
            b"event" => self.event.kind = text().map(str::to_owned),
            b"id" => self.event.id = text().filter(|id| !id.contains('\0')).map(str::to_owned),
            b"retry" => self.event.retry = text().and_then(|it| it.trim().parse().ok()).or(self.event.retry),
            _ => {} // a comment, or a field that is not known
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads events of bytes that arrive in parts of this size.
    fn events(text: &str, size: usize) -> Vec<Event> {
        let mut parser = Parser::new(100);
        let mut found = Vec::new();
        for part in text.as_bytes().chunks(size) {
            parser.rest = Bytes::copy_from_slice(part);
            while let Some(event) = parser.next().unwrap() {
                found.push(event);
            }
        }
        found.extend(parser.last());
        found
    }

    fn data(data: &str) -> Event {
        Event { data: data.as_bytes().to_vec(), ..Event::default() }
    }

    #[test]
    fn events_are_read_however_their_lines_end_and_wherever_they_are_cut() {
        let text = "\u{feff}: hello\n\ndata: a\ndata:b\ndata\n\nevent: message\nid: 7\nretry: 250\ndata: c\nodd: x\n\n";
        let full = Event {
            kind: Some("message".to_owned()),
            id: Some("7".to_owned()),
            retry: Some(250),
            ..data("c")
        };
        for end in ["\n", "\r\n", "\r"] {
            for size in 1..=text.len() {
                let found = events(&text.replace('\n', end), size);
                assert_eq!(found, [data("a\nb\n"), full.clone()], "{end:?} {size}");
            }
        }
    }

    #[test]
    fn last_event_needs_no_blank_line_and_one_without_data_may_have_an_id() {
        assert_eq!(events("data: a\n", 100), [data("a")]);
        assert_eq!(events("data: a", 100), [data("a")]);
        assert_eq!(events("", 100), []);
        assert_eq!(events(": ping\n\n:\n\n", 100), []);
        assert_eq!(events("id: 1\n\n", 100), [Event { id: Some("1".to_owned()), ..Event::default() }]);
        assert_eq!(events("id: a\0b\nretry: x\ndata:\n\n", 100), [data("")]);
    }

    #[test]
    fn event_over_the_limit_is_refused() {
        let mut parser = Parser::new(10);
        parser.rest = Bytes::from_static(b"data: 1\n\ndata: 2\n\ndata: 34567890\n\n");
        assert_eq!(parser.next(), Ok(Some(data("1"))));
        assert_eq!(parser.next(), Ok(Some(data("2"))));
        assert_eq!(parser.next(), Err(EventError::TooLarge(10)));
    }
}
