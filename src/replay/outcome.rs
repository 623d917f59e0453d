//! Compares a recorded outcome with a live one.

use super::{
    compare,
    recorded_calls::{ClientCall, Ending, RecordedAnswer},
    value::canonical,
};
use crate::{
    tool::{CallError, ErrorCode},
    value::Value,
};

/// How much of two outcomes was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// Everything.
    Whole,
    /// Success and error code: the recorded result is redacted.
    Word,
    /// Nothing: the recording has no outcome.
    Nothing,
}

/// Returns the fields that differ: path, recorded value, live value.
///
/// Error texts are excluded, since they are for people.
pub(super) fn fields(
    client_call: &ClientCall,
    live: &Result<Value, CallError>,
) -> (Compared, Vec<(String, String, String)>) {
    let expected = match client_call.ending() {
        Ending::Open => return (Compared::Nothing, Vec::new()),
        Ending::Answered(answer) => Word::of_answer(answer),
        Ending::TimedOut => Word::of_code(ErrorCode::TIMEOUT),
        Ending::Stopped => Word::of_code(ErrorCode::CANCELLED),
    };
    let got = Word::of_live(live);
    let redacted = matches!(client_call.ending(), Ending::Answered(answer) if answer.redacted);
    let compared = if redacted { Compared::Word } else { Compared::Whole };
    if expected.code != got.code {
        return (compared, vec![("outcome".to_owned(), expected.text(), got.text())]);
    }
    if redacted {
        return (compared, Vec::new());
    }
    let empty = Value::empty();
    let (file, now) = match (expected.value, got.value) {
        (None, None) => return (compared, Vec::new()),
        // A success without a result is one of nothing.
        (file, now) => (canonical(file.unwrap_or(&empty)), canonical(now.unwrap_or(&empty))),
    };
    (compared, compare::values("result", &file, &now))
}

/// The outcome as a code.
struct Word<'a> {
    /// None for success.
    code: Option<ErrorCode>,
    message: String,
    value: Option<&'a Value>,
}

impl<'a> Word<'a> {
    fn of_code(code: ErrorCode) -> Self {
        Self { code: Some(code), message: String::new(), value: None }
    }

    fn of_answer(answer: &'a RecordedAnswer) -> Self {
        let (code, message) = match answer.success {
            true => (None, String::new()),
            false if answer.redacted => (Some(answer.code.clone()), String::new()),
            false => (Some(answer.code.clone()), answer.message.clone()),
        };
        Self { code, message, value: answer.value.as_ref() }
    }

    fn of_live(live: &'a Result<Value, CallError>) -> Self {
        match live {
            Ok(value) => Self { code: None, message: String::new(), value: Some(value) },
            Err(error) => {
                let value = match error {
                    CallError::Tool(error) => error.partial(),
                    _ => None,
                };
                Self { code: Some(error.code()), message: error.to_string(), value }
            }
        }
    }

    fn text(&self) -> String {
        match &self.code {
            None => "ok".to_owned(),
            Some(code) if self.message.is_empty() => compare::cut(code.as_str()),
            Some(code) => compare::cut(&format!("{code}: {}", self.message)),
        }
    }
}
