//! Reads the messages of hosts, some of which write them in forms that `rmcp` does not read.

use std::{borrow::Cow, collections::BTreeMap};

use rmcp::model::{ClientJsonRpcMessage, RequestId};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Value,
    adapter::jsonrpc::{
        self,
        error::{INTERNAL, INVALID_REQUEST, SHAPE, code_of, refusal, unreadable},
        head::Head,
        id::Id,
        message::{Parts, changed},
    },
};

/// The most requests of one host that are open at once. Calls have a lower limit.
const MAX_OPEN: usize = 256;

/// What the ids begin with that `rmcp` gets in place of others.
const ODD: &str = "\"toolbridge-";

/// The open requests of a host: their ids, by the JSON of those that `rmcp` gets. These are the same, unless another open
/// request has the id, or `rmcp` cannot read it.
#[derive(Default)]
pub(super) struct Ids {
    open: BTreeMap<String, Id>,
    last: u64,
}

/// The id in an answer for the host.
pub(super) enum Answered {
    /// That of `rmcp`.
    Same,
    Other(Id),
}

impl Ids {
    /// Notes a request. Returns the JSON of its id for `rmcp`, or `None` if too many are open.
    fn begin(&mut self, id: Id) -> Option<String> {
        if self.open.len() >= MAX_OPEN {
            return None;
        }
        let key = plain(&id).filter(|key| !key.starts_with(ODD) && !self.open.contains_key(key));
        let key = key.unwrap_or_else(|| {
            self.last += 1;
            format!("{ODD}{}\"", self.last)
        });
        self.open.insert(key.clone(), id);
        Some(key)
    }

    /// Ends a request that the host cancels: of several with its id, one. Returns the JSON of its id for `rmcp`.
    fn cancel(&mut self, id: &Id) -> Option<String> {
        let odd = self.open.range(ODD.to_owned()..).take_while(|(key, _)| key.starts_with(ODD));
        let odd = odd.filter(|(_, open)| *open == id).map(|(key, _)| key.clone()).last();
        let key = odd.or_else(|| plain(id))?;
        self.open.remove(&key).map(|_| key)
    }

    /// Ends a request that is answered, and returns which id the host gets. `None` if the host has cancelled it.
    pub(super) fn end(&mut self, id: &RequestId) -> Option<Answered> {
        let key = serde_json::to_string(id).ok()?;
        let id = self.open.remove(&key)?;
        Some(if id.as_json() == key { Answered::Same } else { Answered::Other(id) })
    }
}

/// Returns the JSON of an id for `rmcp`: of a text, or of a whole number in any form.
fn plain(id: &Id) -> Option<String> {
    match id.number() {
        Some(number) => Some(number.to_string()),
        None => serde_json::to_string(id.text()?).ok(),
    }
}

/// The parameters of a cancellation and of a call, which `rmcp` reads in one form alone.
#[derive(Default, Deserialize)]
struct Params<'a> {
    #[serde(default, borrow, rename = "requestId")]
    request_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reason: Option<&'a RawValue>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

impl<'a> Params<'a> {
    /// Returns the object that the arguments of a call mean, if they are [another form](Value::into_arguments) of one.
    fn object(&self) -> Option<(&'a str, String)> {
        let written = self.arguments?.get();
        if written.starts_with('{') {
            return None;
        }
        let map = Value::from_plain_json(written).ok()?.into_arguments().ok()?;
        let mut text = written.to_owned();
        while let Ok(inner) = serde_json::from_str(&text) {
            text = inner;
        }
        Some((written, if map.is_empty() { "{}".to_owned() } else { text }))
    }
}

/// Parses a message. Returns its text, too, if that had to be changed. With `ids`, its id may be any.
///
/// # Errors
/// The JSON-RPC error to send, or `None` for what gets no response: a notification, or an answer.
pub(super) fn parsed(
    bytes: &[u8],
    mut ids: Option<&mut Ids>,
) -> Result<(ClientJsonRpcMessage, Option<String>), Option<String>> {
    let text = jsonrpc::text(bytes).map_err(|error| {
        let reason = format!("the message cannot be read: {error}");
        Some(unreadable(Head::of(bytes), code_of(&error), &reason))
    })?;
    let changes = changes(&text, ids.as_deref_mut())?;
    let text = if changes.is_empty() { text } else { Cow::Owned(changed(&text, changes)) };
    let message = serde_json::from_str(&text).map_err(|_| {
        let id = Head::of(text.as_bytes()).id();
        if let (Some(ids), Some(key)) = (ids, id.as_ref().and_then(plain)) {
            ids.open.remove(&key);
        }
        let needs_none = serde_json::from_str::<Parts<'_>>(&text).is_ok_and(|it| match it.method {
            Some(_) => it.id.is_none(),
            None => it.result.is_some() || it.error.is_some(),
        });
        (!needs_none).then(|| refusal(Head::of(bytes).id().as_ref(), INVALID_REQUEST, SHAPE))
    })?;
    Ok((message, matches!(text, Cow::Owned(_)).then(|| text.into_owned())))
}

/// Returns the parts of a message that `rmcp` needs in another form, with that form.
fn changes<'a>(text: &'a str, ids: Option<&mut Ids>) -> Result<Vec<(&'a str, String)>, Option<String>> {
    let Ok(parts) = serde_json::from_str::<Parts<'a>>(text) else { return Ok(Vec::new()) };
    let Some(method) = &parts.method else { return Ok(Vec::new()) };
    let params =
        parts.params.and_then(|it| serde_json::from_str::<Params<'a>>(it.get()).ok()).unwrap_or_default();
    let read = |raw: &RawValue| Id::read(raw.get().as_bytes());
    let mut changes = Vec::new();
    if let Some(raw) = parts.id {
        let id = read(raw).ok_or_else(|| Some(refusal(None, INVALID_REQUEST, SHAPE)))?;
        let refused = |code, text: &str| Some(refusal(Some(&id), code, text));
        let key = match ids {
            Some(ids) => ids.begin(id.clone()).ok_or_else(|| {
                refused(INTERNAL, &format!("busy: {MAX_OPEN} requests are open already; wait for one to end"))
            })?,
            None => plain(&id).ok_or_else(|| {
                refused(INVALID_REQUEST, "its id must be a text, or a whole number of at most 64 bits")
            })?,
        };
        changes.push((raw.get(), key));
    } else if method == "notifications/cancelled" {
        if let Some(raw) = params.request_id {
            let id = read(raw);
            let key = match ids {
                Some(ids) => id.and_then(|id| ids.cancel(&id)),
                None => id.as_ref().and_then(plain),
            };
            changes.push((raw.get(), key.ok_or(None)?)); // no such request is open
        }
        let reason = params.reason.map(RawValue::get).filter(|reason| !reason.starts_with('"'));
        changes.extend(reason.map(|reason| (reason, "null".to_owned())));
    }
    if method == "tools/call" {
        changes.extend(params.object());
    }
    changes.retain(|(part, other)| part != other);
    Ok(changes)
}

/// Returns an answer with this id in place of its own.
pub(super) fn with_id(text: &str, id: &Id) -> String {
    let own = serde_json::from_str::<Parts<'_>>(text).ok().and_then(|parts| parts.id);
    own.map_or_else(|| text.to_owned(), |own| changed(text, vec![(own.get(), id.as_json().to_owned())]))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ClientRequest, JsonObject};

    use super::*;

    fn id(text: &str) -> Id {
        Id::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn equal_and_odd_ids_are_told_apart_and_come_back_as_they_were_written() {
        let mut ids = Ids::default();
        let keys =
            ["1", "1", "2.0", "1180591620717411303424", r#""a""#].map(|text| ids.begin(id(text)).unwrap());
        assert_eq!(keys, ["1", r#""toolbridge-1""#, "2", r#""toolbridge-2""#, r#""a""#]);
        assert_eq!(ids.cancel(&id("1")).as_deref(), Some(r#""toolbridge-1""#), "the last one");
        assert_eq!(ids.cancel(&id("1.0")).as_deref(), Some("1"));
        assert_eq!((ids.cancel(&id("1")), ids.cancel(&id("7"))), (None, None));
        let end = |ids: &mut Ids, key: &str| ids.end(&serde_json::from_str(key).unwrap());
        let Some(Answered::Other(huge)) = end(&mut ids, &keys[3]) else { panic!("it has another one") };
        let answer = r#"{"jsonrpc":"2.0","id":"toolbridge-2","result":{"id":7}}"#;
        assert_eq!(
            with_id(answer, &huge),
            r#"{"jsonrpc":"2.0","id":1180591620717411303424,"result":{"id":7}}"#
        );
        assert!(end(&mut ids, &keys[3]).is_none());
        assert!(matches!(end(&mut ids, "2"), Some(Answered::Other(id)) if id.as_json() == "2.0"));
        assert!(matches!(end(&mut ids, "\"a\""), Some(Answered::Same)));
    }

    #[test]
    fn requests_beyond_the_limit_are_refused() {
        let mut ids = Ids::default();
        for n in 0..=MAX_OPEN {
            assert_eq!(ids.begin(id(&n.to_string())).is_some(), n < MAX_OPEN);
        }
    }

    #[test]
    fn arguments_in_other_forms_are_an_object_for_rmcp() {
        let call = |arguments: &str| {
            let message =
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":ARG}}"#;
            let (message, _) = parsed(message.replace("ARG", arguments).as_bytes(), None).unwrap();
            let ClientJsonRpcMessage::Request(request) = message else { panic!("it is a request") };
            match request.request {
                ClientRequest::CallToolRequest(call) => Some(call.params.arguments.unwrap_or_default()),
                _ => None,
            }
        };
        for nothing in ["null", "[]", "\"\"", r#""{}""#, r#""null""#, r#""\"{}\"""#] {
            assert_eq!(call(nothing), Some(JsonObject::new()), "{nothing}");
        }
        let on = call(r#"{"$bin":1}"#);
        assert!(on.is_some());
        for written in [r#""{\"$bin\":1}""#, r#"" {\"$bin\": 1}""#] {
            assert_eq!(call(written), on, "{written}");
        }
        for other in ["5", "[1]", r#""[1]""#, r#""on""#] {
            assert_eq!(call(other), None, "{other}");
        }
    }

    #[test]
    fn parts_that_rmcp_does_not_read_are_changed() {
        let mut ids = Ids::default();
        let request = br#"{"jsonrpc":"2.0","id":7.0,"method":"tools/call","params":{"name":"t"}}"#;
        let (message, text) = parsed(request, Some(&mut ids)).unwrap();
        assert!(matches!(message, ClientJsonRpcMessage::Request(_)));
        let expected = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#;
        assert_eq!(text.as_deref(), Some(expected));
        let cancel =
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":5}}"#;
        let expected = String::from_utf8(cancel.to_vec()).unwrap().replace("5}}", "null}}");
        assert_eq!(parsed(cancel, Some(&mut ids)).unwrap().1, Some(expected));
        assert_eq!(parsed(cancel, Some(&mut ids)).unwrap_err(), None, "it is not open any more");
        let odd = br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#;
        assert!(parsed(odd, None).unwrap_err().unwrap().contains(r#""id":1.5"#));
        assert!(parsed(odd, Some(&mut ids)).is_ok());
    }
}
