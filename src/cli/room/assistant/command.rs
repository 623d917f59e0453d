//! Reads the commands of the controlling program, one per line.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::Value as Json;

use toolbridge::{DecodeError, Value, cli_support::id_and_type};

/// The maximum length of a call id, in bytes: the same as on the wire.
const MAX_ID: usize = 128;

/// A command.
#[derive(Debug)]
pub(super) enum Command {
    /// Calls a tool. If anything but the id is invalid, the refusal becomes the call's result.
    Call(Id, Result<Box<Call>, Refusal>),
    Cancel(Id),
    /// Interrupts a turn.
    BargeIn(Id),
    Tools(Option<Id>),
    /// Takes back what was allowed for always.
    ForgetPermissions,
    Close,
}

/// The names of the commands, as in the `hello` line.
pub(super) const COMMANDS: &[&str] = &["call", "cancel", "barge_in", "tools", "forget_permissions", "close"];

/// The error code of a command that is invalid, as opposed to a tool's `invalid_parameters`.
pub(super) const BAD_COMMAND: &str = "bad_command";

/// The error code of a request that is too large, and of a command that no request could hold.
const TOO_LARGE: &str = "too_large";

/// The error code of a line that is too long.
pub(super) const TOO_LONG: &str = "too_long";

/// Why a `call` is not made: the error of its result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The error code.
    pub(super) code: &'static str,
    /// The message for a person.
    pub(super) message: String,
}

impl Refusal {
    fn bad(message: String) -> Self {
        Self { code: BAD_COMMAND, message }
    }
}

/// The fields of a `call`.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) arguments: Value,
    pub(super) to: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) owner_wait: Option<Duration>,
    pub(super) meta: BTreeMap<String, Value>,
    /// The turn that the call belongs to.
    pub(super) turn: Option<Id>,
}

/// The controlling program's id for a call: a string or an integer, returned unchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(String);

impl Id {
    /// Returns the id as JSON.
    pub(super) fn to_json(&self) -> Json {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    fn read(body: &Value) -> Option<Self> {
        let json = body.to_json();
        let fits = match &json {
            Json::String(text) => !text.is_empty() && text.len() <= MAX_ID,
            Json::Number(number) => number.is_i64() || number.is_u64(),
            _ => false,
        };
        fits.then(|| Self(json.to_string()))
    }
}

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
    match Value::from_json(text) {
        Ok(body) => {
            read(&body).map_err(|wrong| CommandError { id: known_of(text.as_bytes(), &[]).0, ..wrong })
        }
        Err(error) => {
            let wrong = match error {
                DecodeError::TooLarge { size, limit } => CommandError::new(
                    TOO_LARGE,
                    format!("the command has {size} bytes; the limit is {limit}"),
                ),
                error => CommandError::new("not_json", format!("cannot be read as JSON: {error}")),
            };
            unreadable(text.as_bytes(), &[], wrong)
        }
    }
}

/// Returns what becomes of a line that cannot be read, of which the start and the end are known: a call whose id can be
/// read gets a result.
pub(super) fn unreadable(start: &[u8], end: &[u8], wrong: CommandError) -> Result<Command, CommandError> {
    let (id, kind) = known_of(start, end);
    match id {
        Some(id) if kind.as_deref() == Some("call") => {
            let code = if [TOO_LARGE, TOO_LONG].contains(&wrong.code) { TOO_LARGE } else { BAD_COMMAND };
            Ok(Command::Call(id, Err(Refusal { code, message: wrong.message })))
        }
        id => Err(CommandError { id, ..wrong }),
    }
}

/// Returns what is known of a command that cannot be read: its id and its type.
fn known_of(start: &[u8], end: &[u8]) -> (Option<Id>, Option<String>) {
    let (id, kind) = id_and_type(start, end);
    (id.and_then(|id| Id::read(&Value::from(id))), kind)
}

fn read(body: &Value) -> Result<Command, CommandError> {
    let bad = |message: String| CommandError::new(BAD_COMMAND, message);
    let fields = match body.decode() {
        Ok(fields) if body.is_map() => fields,
        _ => return Err(bad("a command must be a JSON object".to_owned())),
    };
    let mut fields = Fields(fields);
    let name = fields.text("type").map_err(bad)?;
    let name =
        name.ok_or_else(|| bad(format!("`type` is missing; it must be one of {}", COMMANDS.join(", "))))?;
    let id = fields.id("id").map_err(bad)?;
    let needed =
        |id: Option<Id>| id.ok_or_else(|| bad(format!("`{name}` needs an `id`: a string or an integer")));
    match name.as_str() {
        "call" => {
            let id = needed(id)?;
            let call = call(&mut fields).and_then(|call| fields.end("call").map(|()| call.into()));
            Ok(Command::Call(id, call.map_err(Refusal::bad)))
        }
        "cancel" => {
            let id = needed(id)?;
            fields.end("cancel").map_err(bad)?;
            Ok(Command::Cancel(id))
        }
        "barge_in" if id.is_none() => {
            let turn = fields.id("turn").map_err(bad)?;
            let turn = turn.ok_or_else(|| bad("`barge_in` needs a `turn`".to_owned()))?;
            fields.end("barge_in").map_err(bad)?;
            Ok(Command::BargeIn(turn))
        }
        "tools" => fields.end("tools").map_err(bad).map(|()| Command::Tools(id)),
        "forget_permissions" if id.is_none() => {
            fields.end("forget_permissions").map_err(bad).map(|()| Command::ForgetPermissions)
        }
        "close" if id.is_none() => fields.end("close").map_err(bad).map(|()| Command::Close),
        "barge_in" | "forget_permissions" | "close" => {
            Err(bad(format!("`{name}` does not take the key `id`")))
        }
        other => Err(bad(format!("unknown command {other:?}; it must be one of {}", COMMANDS.join(", ")))),
    }
}

fn call(fields: &mut Fields) -> Result<Call, String> {
    Ok(Call {
        tool: fields.text("tool")?.ok_or("`tool` is missing")?,
        arguments: fields.take("arguments").unwrap_or_else(Value::empty),
        to: fields.text("to")?,
        timeout: fields.millis("timeoutMs")?,
        owner_wait: fields.millis("ownerWaitMs")?,
        meta: match fields.take("meta") {
            Some(meta) if meta.is_map() => meta.decode().map_err(|_| "the keys of `meta` must be strings")?,
            Some(_) => return Err("`meta` must be an object".to_owned()),
            None => BTreeMap::new(),
        },
        turn: fields.id("turn")?,
    })
}

/// The keys of a line that have not been read yet. `null` counts as absent.
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_nil())
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.as_str().map(|text| Some(text.to_owned())).ok_or_else(|| format!("`{key}` must be a string"))
    }

    fn millis(&mut self, key: &str) -> Result<Option<Duration>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.decode::<u64>() {
            Ok(millis) => Ok(Some(Duration::from_millis(millis))),
            Err(_) => Err(format!("`{key}` must be a number of milliseconds: an integer, 0 or more")),
        }
    }

    fn id(&mut self, key: &str) -> Result<Option<Id>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let id = Id::read(&value);
        id.map(Some).ok_or_else(|| format!("`{key}` must be an integer, or a string of 1 to {MAX_ID} bytes"))
    }

    /// Rejects unknown keys: a misspelt limit would otherwise be ignored silently.
    fn end(&self, command: &str) -> Result<(), String> {
        match self.0.keys().next() {
            Some(key) => Err(format!("`{command}` does not take the key {key:?}{}", hint_for(command))),
            None => Ok(()),
        }
    }
}

/// Lists the valid keys of a command.
fn hint_for(command: &str) -> &'static str {
    match command {
        "call" => {
            "; its keys are `type`, `id`, `tool`, `arguments`, `to`, `timeoutMs`, `ownerWaitMs`, `meta`, `turn`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (&'static str, String) {
        let wrong = parse(text).unwrap_err();
        (wrong.code, wrong.message)
    }

    #[test]
    fn call_with_all_keys_is_parsed() {
        let text = r#"{"type":"call","id":18446744073709551615,"tool":"t","to":"phone","timeoutMs":5000,
            "ownerWaitMs":0,"arguments":{"n":[1.0,{"$bin":"AAEC"}]},"meta":{"a":{"$float":"NaN"}}}"#;
        let Ok(Command::Call(id, Ok(call))) = parse(text) else { panic!("{:?}", parse(text)) };
        assert_eq!(id.to_json().to_string(), "18446744073709551615");
        assert_eq!((call.tool.as_str(), call.to.as_deref()), ("t", Some("phone")));
        assert_eq!((call.timeout, call.owner_wait), (Some(Duration::from_secs(5)), Some(Duration::ZERO)));
        assert_eq!(call.arguments.to_json().to_string(), r#"{"n":[1.0,{"$bin":"AAEC"}]}"#);
        assert_eq!(call.arguments.get("n/1").unwrap().as_bytes(), b"\xc4\x03\x00\x01\x02");
        assert_eq!(call.meta["a"].to_json().to_string(), r#"{"$float":"NaN"}"#);
        let least = parse(r#"{"type":"call","id":"a","tool":"t","to":null}"#);
        let Ok(Command::Call(_, Ok(call))) = least else { panic!("{least:?}") };
        assert!(call.arguments.is_map() && call.arguments.is_empty() && call.to.is_none());
    }

    #[test]
    fn invalid_command_is_reported_with_its_reason() {
        for text in
            ["", "{", "nonsense", "{} {}", &"[".repeat(100_000), r#"{"type":"call","a":{"$bin":1}}"#, "[1e"]
        {
            assert_eq!(wrong(text).0, "not_json", "{text:.20}");
        }
        for (text, says) in [
            ("[]", "object"),
            ("7", "object"),
            ("null", "object"),
            (r#"{"$bin":"AA=="}"#, "object"),
            (r#"{"$map":[[1,2]]}"#, "object"),
            ("{}", "`type` is missing"),
            (r#"{"type":7}"#, "`type` must be a string"),
            (r#"{"type":"dance"}"#, "unknown command \"dance\""),
            (r#"{"type":"call","tool":"t"}"#, "`id`"),
            (r#"{"type":"cancel"}"#, "`id`"),
            (r#"{"type":"call","id":1.5,"tool":"t"}"#, "`id` must be"),
            (r#"{"type":"call","id":"","tool":"t"}"#, "`id` must be"),
            (r#"{"type":"cancel","id":1,"why":2}"#, "`cancel` does not take the key \"why\""),
            (r#"{"type":"close","id":1}"#, "`close` does not take the key"),
            (r#"{"type":"forget_permissions","id":1}"#, "`forget_permissions` does not take the key"),
            (r#"{"type":"barge_in"}"#, "needs a `turn`"),
            (r#"{"type":"barge_in","turn":[]}"#, "`turn` must be"),
            (r#"{"type":"tools","x":1}"#, "`tools` does not take the key"),
        ] {
            let (code, message) = wrong(text);
            assert!(code == "bad_command" && message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn call_that_cannot_be_read_gets_its_result_if_its_id_can() {
        let deep = format!(r#"{{"type":"call","id":7,"arguments":{}"#, "[".repeat(1_000));
        for (text, says) in [
            (r#"{"type":"call","id":7,"tool":"t","arguments":{"$bin":1}}"#, "$bin"),
            (r#"{"type":"call","id":7,"tool":"t","arguments":{"a":tru}}"#, "line 1 column"),
            (r#"{"id":7,"type":"call","tool":"t""#, "EOF"),
            (&deep, "nesting depth 1001 exceeds the limit"),
        ] {
            let Ok(Command::Call(id, Err(refusal))) = parse(text) else { panic!("{text:.80}") };
            assert!(id.to_json() == 7 && refusal.code == "bad_command", "{text:.80}: {refusal:?}");
            assert!(refusal.message.contains(says), "{text:.80}: {refusal:?}");
        }
        let error = parse(r#"{"type":"tools","id":"a","x""#).unwrap_err();
        assert_eq!((error.code, error.id.unwrap().to_json()), ("not_json", Json::from("a")));
        let error = parse(r#"{"type":"dance","id":7}"#).unwrap_err();
        assert_eq!((error.code, error.id.unwrap().to_json()), ("bad_command", Json::from(7)));
        let half = parse(r#"{"type":"call","id":7,"tool":"t","arguments":{"a":"\ud83d","b":1e999}}"#);
        let Ok(Command::Call(_, Ok(call))) = half else { panic!("{half:?}") };
        assert_eq!(call.arguments.to_json(), serde_json::json!({"a": "\u{fffd}", "b": "1e999"}));
    }

    #[test]
    fn command_that_no_request_could_hold_is_too_large_with_both_numbers() {
        let argument = "a".repeat(16 << 20);
        let text = format!(r#"{{"type":"call","tool":"t","arguments":{{"a":"{argument}"}},"id":7}}"#);
        let Ok(Command::Call(id, Err(refusal))) = parse(&text) else { panic!("{text:.80}") };
        let size = (16 << 20) + 40; // in MessagePack
        let message = format!("the command has {size} bytes; the limit is 16777216");
        assert_eq!((id.to_json(), refusal), (Json::from(7), Refusal { code: "too_large", message }));
        let error = parse(&text.replacen("call", "tools", 1)).unwrap_err();
        assert_eq!((error.code, error.id.unwrap().to_json()), ("too_large", Json::from(7)));
    }

    #[test]
    fn invalid_call_with_an_id_gets_an_error_result() {
        for (rest, says) in [
            ("", "`tool` is missing"),
            (r#","tool":5"#, "`tool` must be a string"),
            (r#","tool":"t","timeout":5"#, "`call` does not take the key \"timeout\""),
            (r#","tool":"t","timeoutMs":-5"#, "`timeoutMs` must be a number of milliseconds"),
            (r#","tool":"t","timeoutMs":"5s""#, "`timeoutMs` must be a number of milliseconds"),
            (r#","tool":"t","meta":[]"#, "`meta` must be an object"),
        ] {
            let text = format!(r#"{{"type":"call","id":7{rest}}}"#);
            let Ok(Command::Call(id, Err(refusal))) = parse(&text) else { panic!("{text}") };
            assert!(id.to_json() == 7 && refusal.code == "bad_command", "{text}: {refusal:?}");
            assert!(refusal.message.contains(says), "{text}: {refusal:?}");
        }
    }
}
