//! Reads the messages that a tool sends to the runtime that called it.
//!
//! They are read from their JSON, and what is not understood is ignored. A message that lacks a required field, or has one of
//! another type, is malformed as a whole. The fields are those of
//! [the specification's transport](https://infinity.hydro.run/docs/rap/spec/basic/transport#tool--runtime).

use serde_json::{Map, Value as Json};

use crate::adapter::json::{DocumentError, object};

/// The most choices of one question that are read.
const MAX_CHOICES: usize = 1_024;

/// Why a message cannot be accepted. It has nothing of the message's content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("`type` is not one of tool_result, subscription_event, oauth, user_choice and view_update")]
    Type,
    #[error("`{0}` is missing or has the wrong type")]
    Field(&'static str),
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    /// The thread that it belongs to.
    pub(super) group: String,
    /// The call that it belongs to: `id`, in an event `tool_call_id`. A view belongs to the thread alone.
    pub(super) id: Option<String>,
    /// The secondary id of the call, if the message has one.
    pub(super) call_id: Option<String>,
    pub(super) content: MessageContent,
}

/// What a message says. `Debug` shows only the kind, because the rest may be secret.
pub(super) enum MessageContent {
    /// The result of a call. Its document is read by [`RapResult`](super::RapResult).
    Result,
    Event(Event),
    /// The person has to visit this address.
    SignIn {
        url: String,
    },
    Choice(Choice),
    View {
        view: String,
        content: Json,
    },
}

/// An event of a subscription. Its text is read with its document, by [`RapResult`](super::RapResult).
pub(super) struct Event {
    /// Whether it belongs into the conversation that subscribed, not into one of its own.
    pub(super) is_associative: bool,
    /// Whether no other event follows.
    pub(super) is_final: bool,
}

/// A question to the person.
pub(super) struct Choice {
    pub(super) prompt: String,
    pub(super) choices: Vec<String>,
    /// The choice of a person who does not choose, counted from 0.
    pub(super) default: usize,
    pub(super) response_url: String,
}

impl Message {
    /// Reads a message.
    pub(super) fn read(json: &str) -> Result<Self, MessageError> {
        let fields = Fields(object(json)?);
        let (id, content) = match fields.0.get("type").and_then(Json::as_str) {
            Some("tool_result") => (Some("id"), MessageContent::Result),
            Some("subscription_event") => (Some("tool_call_id"), MessageContent::Event(fields.event()?)),
            Some("oauth") => (Some("id"), MessageContent::SignIn { url: fields.text("auth_url")? }),
            Some("user_choice") => (Some("id"), MessageContent::Choice(fields.choice()?)),
            Some("view_update") => (None, fields.view()?),
            _ => return Err(MessageError::Type),
        };
        Ok(Self {
            group: fields.text("group_id")?,
            id: id.map(|id| fields.text(id)).transpose()?,
            call_id: fields.optional("call_id", Json::as_str)?.map(str::to_owned),
            content,
        })
    }
}

/// The fields of a message.
struct Fields(Map<String, Json>);

impl Fields {
    fn text(&self, key: &'static str) -> Result<String, MessageError> {
        self.optional(key, Json::as_str)?.map(str::to_owned).ok_or(MessageError::Field(key))
    }

    /// Returns the field, or `None` if it is absent or null.
    fn optional<'a, T>(
        &'a self,
        key: &'static str,
        read: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, MessageError> {
        match self.0.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or(MessageError::Field(key)),
        }
    }

    fn flag(&self, key: &'static str) -> Result<bool, MessageError> {
        Ok(self.optional(key, Json::as_bool)?.unwrap_or(false))
    }

    fn event(&self) -> Result<Event, MessageError> {
        self.text("text")?;
        Ok(Event { is_associative: self.flag("associative")?, is_final: self.flag("final")? })
    }

    fn choice(&self) -> Result<Choice, MessageError> {
        let choices = self.optional("choices", |value| {
            let choices = value.as_array().filter(|it| (1..=MAX_CHOICES).contains(&it.len()))?;
            choices.iter().map(|it| it.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        let choices = choices?.ok_or(MessageError::Field("choices"))?;
        let default = self.optional("default", |value| {
            usize::try_from(value.as_u64()?).ok().filter(|at| *at < choices.len())
        })?;
        Ok(Choice {
            prompt: self.text("prompt")?,
            default: default.ok_or(MessageError::Field("default"))?,
            response_url: self.text("response_url")?,
            choices,
        })
    }

    fn view(&self) -> Result<MessageContent, MessageError> {
        let content = self.0.get("content").filter(|it| it.is_object());
        let content = content.cloned().ok_or(MessageError::Field("content"))?;
        Ok(MessageContent::View { view: self.text("view_type")?, content })
    }
}

impl std::fmt::Debug for MessageContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Result => "Result",
            Self::Event(_) => "Event",
            Self::SignIn { .. } => "SignIn",
            Self::Choice(_) => "Choice",
            Self::View { .. } => "View",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: &Json) -> Result<Message, MessageError> {
        Message::read(&json.to_string())
    }

    fn with(mut json: Json, key: &str, value: Json) -> Json {
        json[key] = value;
        json
    }

    #[test]
    fn rap_r1_message_of_another_type_is_malformed() {
        let result = json!({"type": "tool_result", "group_id": "g", "id": "c", "text": "done", "more": [1]});
        let message = read(&result).unwrap();
        assert_eq!((&*message.group, message.id.as_deref(), message.call_id), ("g", Some("c"), None));
        for kind in
            [json!("tool_results"), json!("Tool_Result"), json!(null), json!(5), json!(["tool_result"])]
        {
            assert_eq!(read(&with(result.clone(), "type", kind)).unwrap_err(), MessageError::Type);
        }
        assert_eq!(Message::read("[]").unwrap_err(), DocumentError::NotAnObject.into());
        assert!(matches!(Message::read("{"), Err(MessageError::Document(DocumentError::NotJson { .. }))));
    }

    #[test]
    fn missing_field_or_one_of_another_type_is_named() {
        let refused = |json: Json| match read(&json).unwrap_err() {
            MessageError::Field(field) => field,
            other => panic!("{other}"),
        };
        let base = |kind: &str| json!({"type": kind, "group_id": "g", "id": "c", "tool_call_id": "c"});
        assert_eq!(refused(with(base("tool_result"), "group_id", json!(5))), "group_id");
        assert_eq!(refused(with(base("tool_result"), "id", json!(null))), "id");
        assert_eq!(refused(with(base("tool_result"), "call_id", json!(5))), "call_id");
        assert_eq!(refused(base("subscription_event")), "text");
        let event = with(base("subscription_event"), "text", json!("t"));
        assert_eq!(refused(with(event.clone(), "final", json!("yes"))), "final");
        assert!(read(&with(event, "id", json!(null))).is_ok(), "an event has `tool_call_id`");
        assert_eq!(refused(base("oauth")), "auth_url");
        let view = with(base("view_update"), "view_type", json!("diff"));
        assert_eq!(refused(base("view_update")), "content");
        assert_eq!(refused(with(view, "content", json!([]))), "content");
    }

    #[test]
    fn rap_r22_index_of_a_default_that_does_not_exist_is_malformed() {
        let choice = json!({
            "type": "user_choice", "group_id": "g", "id": "c", "prompt": "Which?", "choices": ["a", "b"],
            "default": 1, "response_url": "http://127.0.0.1:1/answer",
        });
        assert!(read(&choice).is_ok());
        for (key, value) in [
            ("default", json!(2)),
            ("default", json!(-1)),
            ("default", json!(1.5)),
            ("default", json!(null)),
            ("choices", json!([])),
            ("choices", json!(["a", 5])),
            ("choices", json!(vec!["a"; MAX_CHOICES + 1])),
            ("prompt", json!(null)),
            ("response_url", json!(null)),
        ] {
            let error = read(&with(choice.clone(), key, value)).unwrap_err();
            assert!(matches!(error, MessageError::Field(_)), "{key}: {error}");
        }
    }

    #[test]
    fn debug_output_hides_the_content() {
        let json =
            json!({"type": "oauth", "group_id": "g", "id": "c", "auth_url": "https://x.example/?s=hunter2"});
        let shown = format!("{:?}", read(&json).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
