//! Reads the commands of the controlling program: inputs of the vocabulary, a line each.

use std::fmt;

use serde::de::IgnoredAny;

use toolbridge::{
    cli_support::id_and_type,
    vocabulary::{
        CallError, CallErrorKind, Id, Input, LineCommand, Malformed, Query,
        form::{Fields, Read as _, repaired},
    },
};

/// A command.
#[derive(Debug)]
pub(super) enum Command {
    /// An input. A call that is malformed is not among them.
    Input(Input),
    /// A call that is not made, and the error of its result.
    Refused(Id, CallError),
    /// Asks for the tools.
    Tools,
    /// Asks for the tools in the form for models.
    ModelTools,
    /// Takes back what was allowed for always.
    ForgetPermissions,
}

/// The names of the commands, as in the `hello` line.
pub(super) const COMMANDS: &[&str] = &[
    "call",
    "cancel",
    "barge_in",
    "turn_end",
    "tools",
    "model_tools",
    "listen",
    "forget_permissions",
    "close",
];

/// The error code of a command that is malformed, as opposed to a tool's `invalid_parameters`.
pub(super) const BAD_COMMAND: &str = "bad_command";

/// The error code of a line that is too long.
pub(super) const TOO_LONG: &str = "too_long";

/// Why a line is not a valid command.
#[derive(Debug)]
pub(super) struct CommandError {
    /// The error code.
    pub(super) code: &'static str,
    /// The message for a person.
    pub(super) message: String,
    /// The id in the line, if it can be read.
    pub(super) id: Option<Id>,
}

impl CommandError {
    pub(super) fn new(code: &'static str, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), id: None }
    }
}

/// Reads a line. The error has the id of its command, if that can be read.
pub(super) fn parse(text: &str) -> Result<Command, CommandError> {
    let text = repaired(text);
    read(&text).or_else(|wrong| {
        let is_json = serde_json::from_str::<IgnoredAny>(&text).is_ok();
        let wrong = match is_json {
            true => CommandError::new(BAD_COMMAND, wrong),
            false => CommandError::new("not_json", format!("cannot be read as JSON: {}", wrong.message)),
        };
        unreadable(text.as_bytes(), &[], wrong)
    })
}

/// Returns what becomes of a line that cannot be read, of which the start and the end are known: a call whose id can be
/// read gets a result.
pub(super) fn unreadable(start: &[u8], end: &[u8], wrong: CommandError) -> Result<Command, CommandError> {
    let (id, kind) = id_and_type(start, end);
    match id.and_then(|id| Id::read(&id).ok()) {
        Some(id) if kind.as_deref() == Some("call") => {
            let (kind, code) = match wrong.code {
                TOO_LONG => (CallErrorKind::TooLarge, "too_large"),
                _ => (CallErrorKind::BadCommand, BAD_COMMAND),
            };
            Ok(Command::Refused(id, CallError::nothing_ran(kind, code, wrong.message)))
        }
        id => Err(CommandError { id, ..wrong }),
    }
}

fn read(text: &str) -> Result<Command, Malformed> {
    let mut fields = Fields::of_input(text, None)?;
    let name: String = fields.take("type", None);
    fields.check()?;
    let unknown = || {
        let message = format!("{name:?} is none of the commands: {}", COMMANDS.join(", "));
        Malformed { field: "type".to_owned(), message }
    };
    if !COMMANDS.contains(&&*name) {
        return Err(unknown());
    }
    let query = Query::read_fields(&name, &mut fields);
    let command = if let Some(Query::Tools {}) = query {
        Command::Tools
    } else if let Some(Query::ModelTools {}) = query {
        Command::ModelTools
    } else if LineCommand::read_fields(&name, &mut fields).is_some() {
        Command::ForgetPermissions
    } else {
        Command::Input(Input::read_fields(&name, &mut fields).ok_or_else(unknown)?)
    };
    fields.finish()?;
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (&'static str, String) {
        let wrong = parse(text).unwrap_err();
        (wrong.code, wrong.message)
    }

    fn refused(text: &str) -> (String, CallError) {
        match parse(text) {
            Ok(Command::Refused(id, error)) => (id.as_json().to_owned(), error),
            other => panic!("{text:.80}: {other:?}"),
        }
    }

    #[test]
    fn call_with_all_keys_is_parsed() {
        let text = r#"{"type":"call","id":18446744073709551615,"tool":"t","to":"phone","timeoutMs":5000,
            "ownerWaitMs":0,"arguments":{"n":[1.0,{"$bin":"AAEC"}]},"meta":{"a":{"$float":"NaN"}},"turn":"x"}"#;
        let Ok(Command::Input(Input::Call {
            id,
            tool,
            to,
            timeout,
            owner_wait,
            arguments,
            meta,
            turn,
            model: false,
        })) = parse(text)
        else {
            panic!("{:?}", parse(text))
        };
        assert_eq!((id.as_json(), &*tool, to.as_deref()), ("18446744073709551615", "t", Some("phone")));
        assert_eq!((timeout, owner_wait), (Some(5_000.0), Some(0.0)));
        assert_eq!(arguments.text, r#"{"n":[1.0,{"$bin":"AAEC"}]}"#);
        assert_eq!((&*meta[0].name, &*meta[0].value.text), ("a", r#"{"$float":"NaN"}"#));
        assert_eq!(turn.unwrap().as_json(), "\"x\"");
        let least = parse(r#"{"type":"call","id":"a","tool":"t","to":null}"#);
        assert!(
            matches!(&least, Ok(Command::Input(Input::Call { arguments, to: None, .. })) if arguments.text == "{}")
        );
    }

    #[test]
    fn invalid_command_is_reported_with_its_reason() {
        for text in ["", "{", "nonsense", "{} {}", &"[".repeat(100_000), "[1e"] {
            assert_eq!(wrong(text).0, "not_json", "{text:.20}");
        }
        for (text, says) in [
            ("[]", "object"),
            ("7", "object"),
            ("null", "object"),
            ("{}", "type: is missing"),
            (r#"{"type":7}"#, "type: is not a text"),
            (r#"{"type":"dance"}"#, "type: \"dance\" is none of the commands: call, "),
            (r#"{"type":"timeout"}"#, "type: \"timeout\" is none of the commands"),
            (r#"{"type":"call","tool":"t"}"#, "id: is missing"),
            (r#"{"type":"cancel"}"#, "id: is missing"),
            (r#"{"type":"call","id":1.5,"tool":"t"}"#, "id: is neither"),
            (r#"{"type":"cancel","id":""}"#, "id: is neither"),
            (r#"{"type":"cancel","id":1,"why":2}"#, "why: is unknown here"),
            (r#"{"type":"close","id":1}"#, "id: is unknown here"),
            (r#"{"type":"forget_permissions","id":1}"#, "id: is unknown here"),
            (r#"{"type":"barge_in"}"#, "turn: is missing"),
            (r#"{"type":"turn_end","turn":[]}"#, "turn: is neither"),
            (r#"{"type":"tools","x":1}"#, "x: is unknown here"),
            (r#"{"type":"tools","type":"tools"}"#, "type: is unknown here, or repeated"),
        ] {
            let (code, message) = wrong(text);
            assert!(code == "bad_command" && message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn call_that_cannot_be_read_gets_its_result_if_its_id_can() {
        for (text, says) in [
            (r#"{"type":"call","id":7,"tool":"t","arguments":{"a":tru}}"#, "line 1 column"),
            (r#"{"id":7,"type":"call","tool":"t""#, "EOF"),
            (r#"{"type":"call","id":7}"#, "tool: is missing"),
            (r#"{"type":"call","id":7,"tool":5}"#, "tool: is not a text"),
            (r#"{"type":"call","id":7,"tool":"t","timeout":5}"#, "timeout: is unknown here"),
            (r#"{"type":"call","id":7,"tool":"t","timeoutMs":-5}"#, "timeoutMs: is not a time"),
            (r#"{"type":"call","id":7,"tool":"t","timeoutMs":"5s"}"#, "timeoutMs: is not a number"),
            (r#"{"type":"call","id":7,"tool":"t","meta":[]}"#, "meta: is not an object"),
        ] {
            let (id, error) = refused(text);
            assert!(id == "7" && error.code == "bad_command" && !error.may_have_run, "{text:.80}: {error:?}");
            assert!(error.message.contains(says), "{text:.80}: {error:?}");
        }
        let error = parse(r#"{"type":"tools","id":"a","x""#).unwrap_err();
        assert_eq!((error.code, error.id.unwrap().as_json()), ("not_json", "\"a\""));
        let error = parse(r#"{"type":"dance","id":7}"#).unwrap_err();
        assert_eq!((error.code, error.id.unwrap().as_json()), ("bad_command", "7"));
        let half = parse(r#"{"type":"call","id":7,"tool":"t","arguments":{"a":"\ud83d"}}"#);
        assert!(
            matches!(&half, Ok(Command::Input(Input::Call { arguments, .. })) if arguments.text == r#"{"a":"\ufffd"}"#)
        );
    }
}
