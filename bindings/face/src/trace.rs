//! Traces: sessions as JSON lines, written by one program and replayed by others. `bindings/README.md` describes the lines.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use toolbridge::vocabulary::{
    Malformed,
    form::{Write, Writer},
};

use crate::json_session::JsonSession;

const INPUT: &str = "{\"input\":";
const SENT: &str = "{\"sent\":";
const START: &str = "{\"start\":";

/// Writes a trace.
#[derive(Debug, Default)]
pub struct Recorder {
    lines: String,
}

impl Recorder {
    /// Writes an input.
    pub fn input(&mut self, input: &str) {
        self.line(&format!("{INPUT}{input}}}"));
    }

    /// Writes what the input before returned.
    pub fn result(&mut self, result: &Result<Option<String>, Malformed>) {
        if let Some(line) = result_line(result) {
            self.line(&line);
        }
    }

    /// Writes that a packet was sent.
    pub fn sent(&mut self, at: f64, packet: u64) {
        self.line(&format!("{SENT}[{at},{packet}]}}"));
    }

    /// Writes that a function begins, and whether it may.
    pub fn start(&mut self, at: f64, job: u64, may_start: bool) {
        self.line(&format!("{START}[{at},{job}]}}"));
        self.line(&started_line(may_start));
    }

    /// Writes what `next_output` returned: an output with its bytes, or nothing and the deadline.
    pub fn output(&mut self, session: &mut JsonSession, output: Option<&str>) {
        let line = output_line(session, output);
        self.line(&line);
    }

    /// Returns the trace.
    pub fn finish(self) -> String {
        self.lines
    }

    fn line(&mut self, line: &str) {
        self.lines.push_str(line);
        self.lines.push('\n');
    }
}

/// A line of a trace that the session does not repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The number of the line, from 1.
    pub line: usize,
    /// What the trace has.
    pub expected: String,
    /// What the session did.
    pub found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: the trace has {}, and the session {}", self.line, self.expected, self.found)
    }
}

impl std::error::Error for Mismatch {}

/// Replays a trace. Returns how many lines the session wrote, which are all equal.
///
/// # Errors
/// The first line that is not equal.
pub fn replay(trace: &str) -> Result<usize, Mismatch> {
    let mut session: Option<JsonSession> = None;
    let mut result: Option<String> = None;
    let mut equal = 0;
    for (number, line) in trace.lines().enumerate() {
        let mismatch =
            |found: &str| Mismatch { line: number + 1, expected: line.to_owned(), found: found.to_owned() };
        if let Some(expected) = result.take() {
            if line != expected {
                return Err(mismatch(&expected));
            }
            equal += 1;
        } else if let Some(input) = line.strip_prefix(INPUT).and_then(|rest| rest.strip_suffix('}')) {
            result = match &mut session {
                Some(session) => result_line(&JsonSession::handle(session, input, None)),
                None => {
                    let created = JsonSession::create(input);
                    let line = created.as_ref().err().map(error_line);
                    session = created.ok();
                    line
                }
            };
        } else if let Some((session, (at, packet))) = session.as_mut().zip(numbers(line, SENT)) {
            session.sent(at, packet).map_err(|error| mismatch(&error_line(&error)))?;
        } else if let Some((session, (at, job))) = session.as_mut().zip(numbers(line, START)) {
            let may_start = session.start(at, job).map_err(|error| mismatch(&error_line(&error)))?;
            result = Some(started_line(may_start));
        } else {
            let session = session.as_mut().ok_or_else(|| mismatch("does not exist"))?;
            let output = session.next_output();
            let found = output_line(session, output.as_deref());
            if line != found {
                return Err(mismatch(&found));
            }
            equal += 1;
        }
    }
    Ok(equal)
}

/// Reads the time and the key of a line.
fn numbers(line: &str, what: &str) -> Option<(f64, u64)> {
    let (at, key) = line.strip_prefix(what)?.strip_prefix('[')?.strip_suffix("]}")?.split_once(',')?;
    Some((at.parse().ok()?, key.parse().ok()?))
}

fn started_line(may_start: bool) -> String {
    format!("{{\"started\":{may_start}}}")
}

fn result_line(result: &Result<Option<String>, Malformed>) -> Option<String> {
    match result {
        Ok(reply) => reply.as_ref().map(|reply| format!("{{\"reply\":{reply}}}")),
        Err(error) => Some(error_line(error)),
    }
}

fn error_line(error: &Malformed) -> String {
    let mut out = Writer::default();
    out.open();
    out.named("error", &error.to_string());
    out.close();
    out.finish()
}

fn output_line(session: &mut JsonSession, output: Option<&str>) -> String {
    let Some(output) = output else {
        let mut out = Writer::default();
        out.open();
        match session.next_deadline() {
            Some(deadline) => deadline.write_field("deadlineMs", &mut out),
            None => {
                out.begin_field("deadlineMs");
                out.raw("null");
            }
        }
        out.close();
        return out.finish();
    };
    match session.take_bytes() {
        // As wrappers do that get the bytes beside the text.
        Some(bytes) => {
            let open = output.strip_suffix('}').unwrap_or(output);
            format!("{{\"output\":{open},\"bytes\":\"{}\"}}}}", BASE64.encode(bytes))
        }
        None => format!("{{\"output\":{output}}}"),
    }
}
