//! Reads what a runtime sends: calls, and notices about them.

use serde_json::{Map, Value as Json};

use crate::adapter::{
    json::{DocumentError, object},
    rap::address::{AddressError, Outgoing, Target},
};

/// The longest id of a call or of a thread, in bytes. Providers' ids have up to 200.
const MAX_ID: usize = 512;

/// Why a request is refused. The runtime shows it to its operator, so it names no part of a URL but the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("`{0}` is missing or has the wrong type")]
    Field(&'static str),
    #[error("`{field}` has {length} bytes; the limit is {limit}")]
    TooLong { field: &'static str, length: usize, limit: usize },
    #[error("`{0}` has control characters")]
    Control(&'static str),
    #[error("`callback_url` is refused: {0}")]
    Callback(#[from] AddressError),
}

/// A call is named by its thread and its own id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) group: String,
    pub(super) id: String,
}

/// A call of a runtime. Its user, and the threads above its own, are not read.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) key: Key,
    pub(super) callback: Callback,
    /// The tool's name, if it is a text.
    pub(super) operation: Option<String>,
    /// The arguments as they came.
    pub(super) arguments: Json,
}

/// Where the result goes, and what is echoed there.
#[derive(Clone, Debug)]
pub(super) struct Callback {
    pub(super) target: Target,
    /// The secondary id as it came: a text, null, or absent.
    pub(super) call_id: Option<Json>,
}

impl Invocation {
    /// Reads a call. A tool that does not exist, and arguments of another form, are faults that the callback reports. What
    /// prevents the callback itself is refused.
    ///
    /// # Errors
    /// Any [`Malformed`].
    pub(super) fn read(text: &str, outgoing: &Outgoing) -> Result<Self, Malformed> {
        let mut fields = object(text)?;
        let key = Key { group: id(&fields, "group_id")?, id: id(&fields, "id")? };
        let call_id = match fields.get("call_id") {
            Some(Json::String(_)) => Some(id(&fields, "call_id")?.into()),
            Some(Json::Null) => Some(Json::Null),
            None => None,
            Some(_) => return Err(Malformed::Field("call_id")),
        };
        let url =
            fields.get("callback_url").and_then(Json::as_str).ok_or(Malformed::Field("callback_url"))?;
        let callback = Callback { target: outgoing.check(url)?, call_id };
        let operation = fields.get("operation").and_then(Json::as_str).map(str::to_owned);
        let arguments = fields.shift_remove("arguments").unwrap_or_default();
        Ok(Self { key, callback, operation, arguments })
    }
}

/// What a runtime no longer wants: a thread, or one call of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) group: String,
    pub(super) id: Option<String>,
}

impl Notice {
    /// Reads the notice that a call is cancelled.
    ///
    /// # Errors
    /// Any [`Malformed`] but `Callback`.
    pub(super) fn of_call(text: &str) -> Result<Self, Malformed> {
        let fields = object(text)?;
        Ok(Self { group: id(&fields, "thread_id")?, id: Some(id(&fields, "tool_call_id")?) })
    }

    /// Reads the notice that a thread is closed.
    ///
    /// # Errors
    /// Any [`Malformed`] but `Callback`.
    pub(super) fn of_thread(text: &str) -> Result<Self, Malformed> {
        Ok(Self { group: id(&object(text)?, "thread_id")?, id: None })
    }

    pub(super) fn names(&self, key: &Key) -> bool {
        self.group == key.group && self.id.as_ref().is_none_or(|id| *id == key.id)
    }
}

fn id(fields: &Map<String, Json>, field: &'static str) -> Result<String, Malformed> {
    let id = fields.get(field).and_then(Json::as_str).ok_or(Malformed::Field(field))?;
    match id.len() {
        0 => Err(Malformed::Field(field)),
        length if length > MAX_ID => Err(Malformed::TooLong { field, length, limit: MAX_ID }),
        _ if id.chars().any(char::is_control) => Err(Malformed::Control(field)),
        _ => Ok(id.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outgoing() -> Outgoing {
        Outgoing::new(["127.0.0.1".parse().unwrap()]).unwrap()
    }

    fn invocation() -> Json {
        json!({
            "operation": "ring", "arguments": {"volume": 1}, "id": "call_1", "call_id": null, "group_id": "thread",
            "callback_url": "http://127.0.0.1:9/cb?token=hunter2", "user_id": "u", "thread_ancestors": ["root"],
        })
    }

    fn with(key: &str, value: Json) -> Json {
        let mut invocation = invocation();
        invocation[key] = value;
        invocation
    }

    fn read(json: &Json) -> Result<Invocation, Malformed> {
        Invocation::read(&json.to_string(), &outgoing())
    }

    #[test]
    fn rap_r15_only_what_prevents_the_callback_is_refused() {
        for (key, value) in [
            ("id", json!(null)),
            ("id", json!("")),
            ("id", json!(5)),
            ("group_id", json!(["thread"])),
            ("call_id", json!(5)),
            ("callback_url", json!(null)),
        ] {
            assert!(matches!(read(&with(key, value)), Err(Malformed::Field(field)) if field == key), "{key}");
        }
        for operation in [json!(5), json!(null)] {
            assert_eq!(read(&with("operation", operation)).unwrap().operation, None);
        }
        for arguments in [json!(null), json!([1])] {
            assert_eq!(read(&with("arguments", arguments.clone())).unwrap().arguments, arguments);
        }
        assert!(matches!(Invocation::read("[", &outgoing()), Err(Malformed::Document(_))));
    }

    #[test]
    fn rap_r3_call_id_is_kept_as_text_null_or_absent() {
        let call_id = |json: &Json| read(json).unwrap().callback.call_id;
        assert_eq!(call_id(&invocation()), Some(Json::Null));
        assert_eq!(call_id(&with("call_id", json!("fc_1"))), Some(json!("fc_1")));
        let mut absent = invocation();
        absent.as_object_mut().unwrap().remove("call_id");
        assert_eq!(call_id(&absent), None);
    }

    #[test]
    fn id_beyond_its_limit_or_with_control_characters_is_refused() {
        let long = "a".repeat(MAX_ID + 1);
        let expected = Malformed::TooLong { field: "id", length: MAX_ID + 1, limit: MAX_ID };
        assert_eq!(read(&with("id", json!(long))).unwrap_err(), expected);
        assert!(read(&with("id", json!(&long[1..]))).is_ok());
        assert_eq!(read(&with("group_id", json!("a\nb"))).unwrap_err(), Malformed::Control("group_id"));
    }

    #[test]
    fn sec_a2_callback_of_a_private_address_is_refused_without_its_path() {
        for url in [
            "http://169.254.169.254/hunter2",
            "https://[::ffff:169.254.169.254]/hunter2",
            "https://10.0.0.7/hunter2?hunter2",
            "http://agent.example/hunter2",
            "file:///hunter2",
        ] {
            let refused = read(&with("callback_url", json!(url))).unwrap_err();
            assert!(matches!(refused, Malformed::Callback(_)), "{url}");
            assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
        }
        assert!(!format!("{:?}", read(&invocation()).unwrap()).contains("hunter2"));
    }

    #[test]
    fn notice_names_one_call_or_all_calls_of_a_thread() {
        let key = |group: &str, id: &str| Key { group: group.into(), id: id.into() };
        let call = Notice::of_call(r#"{"thread_id": "t", "tool_call_id": "c"}"#).unwrap();
        assert!(call.names(&key("t", "c")) && !call.names(&key("t", "d")) && !call.names(&key("u", "c")));
        let thread = Notice::of_thread(r#"{"thread_id": "t"}"#).unwrap();
        assert!(
            thread.names(&key("t", "c")) && thread.names(&key("t", "d")) && !thread.names(&key("u", "c"))
        );
        assert_eq!(Notice::of_call(r#"{"thread_id": "t"}"#), Err(Malformed::Field("tool_call_id")));
    }
}
