//! Decides what stays of a frame whose data is hidden: ids, names, states and numbers. Everything else is
//! replaced or removed, in every type and whatever later versions add.

use std::ops::Range;

use super::{
    placeholder,
    redactor::{MARK, pairs, text},
    rpc,
};
use crate::{
    protocol::frame::Kind,
    value::{token::Token, write::Write},
};

/// The field for what was removed from a map.
const REMOVED: &str = "redacted";

/// A field that a reader knows, and what stays of it.
struct Field {
    /// The name; its snake_case form is known too.
    name: &'static str,
    /// The other name that some peers use.
    also: &'static str,
    keep: Keep,
}

/// What stays of a value. A value of another type or form is replaced by its placeholder.
#[derive(Clone, Copy)]
enum Keep {
    /// Any string: an id or a name.
    Id,
    Number,
    Flag,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// A list of these strings.
    Words(&'static [&'static str]),
    /// A string of hexadecimal digits and `-`, or of decimal digits.
    Digits,
    /// A number, or a list of such.
    Numbers,
    /// Nothing of it, and readers expect a map.
    Data,
    /// Nothing of it.
    Text,
    /// A map.
    Map(&'static [Field]),
    /// A list of tools.
    Tools,
}

const fn field(name: &'static str, keep: Keep) -> Field {
    Field { name, also: "", keep }
}

const fn two(name: &'static str, also: &'static str, keep: Keep) -> Field {
    Field { name, also, keep }
}

use Keep::{Data, Digits, Flag, Id, Map, Number, Numbers, Text, Tools, Word, Words};

/// The codes of section 3 of `wire.md`, and those of `CallError`. Other codes are a tool's own.
pub(super) const CODES: &[&str] = &[
    "unknown_tool",
    "timeout",
    "execution_error",
    "invalid_parameters",
    "cancelled",
    "permission_denied",
    "result_too_large",
    "busy",
    "lost",
    "detached",
    "too_many_equal",
    "ambiguous",
    "not_allowed",
    "not_bound",
    "not_delivered",
    "too_large",
    "closed",
    "not_recorded",
    // As some peers write the four standard codes.
    "UNKNOWN_TOOL",
    "TIMEOUT",
    "EXECUTION_ERROR",
    "INVALID_PARAMETERS",
];

const FEATURES: &[&str] = &[
    "tool_use",
    "tool_register",
    "tool_progress",
    "tool_cancel",
    "tool_ack",
    "frame_stream",
    "fast_lane",
    "stop_reason",
    "tool_claim",
    "tool_prompt",
    "view_update",
    "deflate",
];

const META: &[Field] = &[
    field(MARK, Flag),
    field("bridge.instance", Digits),
    field("bridge.proof", Digits),
    field("bridge.to", Digits),
    field("bridge.heard", Flag),
    field("bridge.bye", Flag),
    field("bridge.began", Flag),
    field("bridge.acks", Numbers),
    field("bridge.held", Number),
    field("bridge.reported", Flag),
    field("bridge.batch.id", Digits),
    field("bridge.batch.index", Digits),
    field("bridge.batch.size", Digits),
    field(rpc::VERSION, Number),
    field(rpc::CODE, Number),
    field(rpc::PAYLOAD, Word(rpc::PAYLOADS)),
    field(rpc::FAULT, Word(rpc::FAULTS)),
    field("traceparent", Digits),
    field("messaging.trace_id", Digits),
    field("messaging.span_id", Digits),
    field(
        "bridge.acp.kind",
        Word(&[
            "read",
            "edit",
            "delete",
            "move",
            "search",
            "execute",
            "think",
            "fetch",
            "switch_mode",
            "other",
        ]),
    ),
];

const ERROR: &[Field] = &[
    field("id", Id),
    field("conversationId", Id),
    field("code", Number),
    field("message", Text),
    field("severity", Number),
    field("recoverable", Flag),
    field("originatingId", Id),
];

const REQUEST: &[Field] = &[
    field("id", Id),
    field("toolName", Id),
    two("parameters", "arguments", Data),
    field("execution", Word(&["client", "server", "either"])),
    field("timeoutMs", Number),
    field("conversationId", Id),
    field("messageId", Id),
];

const RESULT: &[Field] = &[
    field("id", Id),
    field("success", Flag),
    two("result", "data", Data),
    field("errorCode", Word(CODES)),
    field("errorMessage", Text),
    field("error", Map(&[field("code", Word(CODES)), field("message", Text)])),
    field("requestId", Id),
    field("resultId", Id),
    field("previousId", Id),
    field("conversationId", Id),
];

const ACKNOWLEDGEMENT: &[Field] = &[
    field("conversationId", Id),
    field("acknowledgedStanzaId", Number),
    field("success", Flag),
    field("acknowledgedMessageId", Id),
    field("lastSeenStanzaId", Number),
    field("notes", Word(&["claim", "ping", "pong"])),
];

const STOP: &[Field] = &[
    field("conversationId", Id),
    field("targetId", Id),
    field("reason", Word(&["caller", "barge_in", "deadline", "caller_gone", "leaving", "lost"])),
    field("stopType", Word(&["generation", "speech", "all"])),
];

const CONFIGURATION: &[Field] = &[
    field("conversationId", Id),
    field("lastSequenceSeen", Number),
    field("clientVersion", Text),
    field("preferredLanguage", Text),
    field("device", Text),
    field("features", Words(FEATURES)),
];

const REGISTER: &[Field] = &[field("tools", Tools)];

const TOOL: &[Field] = &[
    field("name", Id),
    field("description", Text),
    field("inputSchema", Data),
    field(
        "annotations",
        Map(&[
            field("destructive", Flag),
            field("idempotent", Flag),
            field("readOnly", Flag),
            field("openWorld", Flag),
            field("onBargeIn", Word(&["cancel", "finish", "report"])),
            field("timeoutMs", Number),
            field("title", Text),
            field("source", Text),
            field("outputSchema", Data),
        ]),
    ),
];

const REGISTER_ACK: &[Field] = &[field("success", Flag), field("toolCount", Number), field("error", Text)];

const PROGRESS: &[Field] = &[
    field("id", Id),
    field("status", Word(&["pending", "in_progress", "completed", "failed"])),
    field("content", Data),
    field("message", Text),
];

const VIEW: &[Field] = &[field("view", Id), field("content", Data), field("text", Text)];

/// The fields of a type's body; `None` for types that the protocol does not define.
fn body_of(kind: Kind) -> Option<&'static [Field]> {
    Some(match kind {
        Kind::ERROR => ERROR,
        Kind::TOOL_USE_REQUEST => REQUEST,
        Kind::TOOL_USE_RESULT => RESULT,
        Kind::ACKNOWLEDGEMENT => ACKNOWLEDGEMENT,
        Kind::CONTROL_STOP => STOP,
        Kind::CONFIGURATION => CONFIGURATION,
        Kind::TOOLS_REGISTER => REGISTER,
        Kind::TOOLS_REGISTER_ACK => REGISTER_ACK,
        Kind::HEARTBEAT => &[],
        Kind::TOOL_PROGRESS => PROGRESS,
        Kind::VIEW_UPDATE => VIEW,
        _ => return None,
    })
}

/// Returns the frame with what may stay, unmarked, and whether anything was replaced or removed; `None` if that is impossible.
/// `is_kept` says of a tool whether its definition stays.
pub(super) fn reduced(bytes: &[u8], kind: Kind, is_kept: &dyn Fn(&str) -> bool) -> Option<(Vec<u8>, bool)> {
    let body = body_of(kind).map_or(Data, Map);
    // The envelope's fields are no constant, since the body depends on the type.
    let envelope = [
        field("stanzaId", Number),
        field("conversationId", Id),
        field("type", Number),
        field("meta", Map(META)),
        field("body", body),
    ];
    let mut out = Reduced { bytes, out: Vec::with_capacity(bytes.len()), has_changed: false, is_kept };
    out.map(0, &envelope)?;
    Some((out.out, out.has_changed))
}

struct Reduced<'a> {
    bytes: &'a [u8],
    out: Vec<u8>,
    has_changed: bool,
    is_kept: &'a dyn Fn(&str) -> bool,
}

impl Reduced<'_> {
    /// Writes the known fields of the map that starts here, and how many bytes of others were removed.
    fn map(&mut self, at: usize, fields: &[Field]) -> Option<()> {
        let pairs = pairs(self.bytes, at)?;
        let mut kept: Vec<(&Field, Range<usize>, Range<usize>)> = Vec::new();
        let (mut removed, mut was_removed) = (0, None);
        for (key, value) in pairs {
            let name = text(self.bytes, key.start).unwrap_or_default();
            let known = fields.iter().find(|field| field.is_called(name));
            // A second spelling of a field says the same; its placeholder would not.
            let is_second = known.is_some_and(|known| kept.iter().any(|(it, ..)| std::ptr::eq(*it, known)));
            match known.filter(|_| !is_second) {
                Some(known) => kept.push((known, key, value)),
                None if name == REMOVED.as_bytes()
                    && was_removed.is_none()
                    && self.is_removed(value.start) =>
                {
                    was_removed = Some((key, value));
                }
                None => removed += value.end - key.start,
            }
        }
        let has_error = kept.iter().any(|(field, ..)| matches!(field.name, "errorCode" | "errorMessage"));
        kept.retain(|(field, key, value)| {
            let is_again = field.name == "error" && has_error && matches!(field.keep, Map(_));
            removed += if is_again { value.end - key.start } else { 0 };
            !is_again
        });
        self.has_changed |= removed > 0;
        self.out.map(kept.len() + usize::from(removed > 0 || was_removed.is_some()));
        for (field, key, value) in kept {
            self.out.extend_from_slice(&self.bytes[key]);
            self.value(value.start, value.end, field.keep)?;
        }
        match was_removed {
            Some((key, value)) if removed == 0 => {
                self.out.extend_from_slice(&self.bytes[key.start..value.end])
            }
            _ if removed > 0 => {
                self.out.str(REMOVED);
                self.out.str(&placeholder::of(placeholder::FIELDS, removed));
            }
            _ => {}
        }
        Some(())
    }

    /// Whether the value that starts here stands for removed fields.
    fn is_removed(&self, at: usize) -> bool {
        let read = text(self.bytes, at).and_then(placeholder::read);
        read.is_some_and(|it| it.kind == placeholder::FIELDS)
    }

    fn value(&mut self, start: usize, end: usize, keep: Keep) -> Option<()> {
        let (token, inside) = Token::read(self.bytes, start).ok()?;
        let is_digit = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
        let word = |words: &[&str]| token.as_text().is_some_and(|text| words.contains(&text));
        let stays = match (keep, token) {
            (_, token) if token.is_absent() => true,
            (Id, Token::Str(_)) | (Flag, Token::Bool(_)) => true,
            (
                Number | Numbers | Digits,
                Token::Unsigned(_) | Token::Negative(_) | Token::F32(_) | Token::F64(_),
            ) => true,
            (Digits, Token::Str(text)) => text.len() <= 64 && text.iter().all(is_digit),
            (Word(words), _) => word(words),
            (Map(fields), Token::Map(_)) => return self.map(start, fields),
            (Words(words), Token::Array(count)) => {
                self.out.array(count as usize);
                return self.elements(inside, count, |it, start, end| it.value(start, end, Word(words)));
            }
            (Numbers, Token::Array(count)) => {
                self.out.array(count as usize);
                return self.elements(inside, count, |it, start, end| it.value(start, end, Numbers));
            }
            (Tools, Token::Array(count)) => {
                self.out.array(count as usize);
                return self.elements(inside, count, Self::tool);
            }
            _ => false,
        };
        if stays || self.is_placeholder(start, &token) {
            self.out.extend_from_slice(&self.bytes[start..end]);
            return Some(());
        }
        self.has_changed = true;
        if matches!(keep, Data) {
            self.out.map(1);
            self.out.str(REMOVED);
        }
        self.out.str(&placeholder::of(token.kind(), end - start));
        Some(())
    }

    fn elements(
        &mut self,
        mut at: usize,
        count: u32,
        mut each: impl FnMut(&mut Self, usize, usize) -> Option<()>,
    ) -> Option<()> {
        for _ in 0..count {
            let end = crate::value::token::skip(self.bytes, at).ok()?;
            each(self, at, end)?;
            at = end;
        }
        Some(())
    }

    fn tool(&mut self, start: usize, end: usize) -> Option<()> {
        let pairs = pairs(self.bytes, start);
        let name = pairs.iter().flatten().find(|(key, _)| text(self.bytes, key.start) == Some(b"name"));
        let name = name.and_then(|(_, value)| text(self.bytes, value.start));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        if name.is_some_and(|name| (self.is_kept)(name)) {
            self.out.extend_from_slice(&self.bytes[start..end]);
            return Some(());
        }
        self.value(start, end, Map(TOOL))
    }

    /// Whether a value is redacted already.
    fn is_placeholder(&self, start: usize, token: &Token<'_>) -> bool {
        is_placeholder(self.bytes, start, token)
    }
}

/// Whether the value with this first token is a placeholder, or a map that holds nothing else.
pub(super) fn is_placeholder(bytes: &[u8], start: usize, token: &Token<'_>) -> bool {
    fn is_text(token: &Token<'_>) -> bool {
        matches!(token, Token::Str(text) if placeholder::read(text).is_some())
    }
    match token {
        Token::Map(1) => pairs(bytes, start).is_some_and(|pairs| {
            let is_only = |(key, value): &(Range<usize>, Range<usize>)| {
                text(bytes, key.start) == Some(REMOVED.as_bytes())
                    && Token::read(bytes, value.start).is_ok_and(|(value, _)| is_text(&value))
            };
            pairs.first().is_some_and(is_only)
        }),
        token => is_text(token),
    }
}

impl Field {
    fn is_called(&self, key: &[u8]) -> bool {
        key == self.name.as_bytes()
            || (!self.also.is_empty() && key == self.also.as_bytes())
            || is_snake(key, self.name)
    }
}

/// Whether the key is the snake_case form of a camelCase name.
fn is_snake(key: &[u8], camel: &str) -> bool {
    let mut key = key.iter();
    let is_same = camel.bytes().all(|byte| {
        let is_upper = byte.is_ascii_uppercase();
        (!is_upper || key.next() == Some(&b'_')) && key.next() == Some(&byte.to_ascii_lowercase())
    });
    is_same && key.next().is_none()
}
