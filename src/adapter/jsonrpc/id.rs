//! The ids of requests.

#[cfg(all(feature = "mcp", unix))]
pub(in crate::adapter) use carry::{carried, restored};

use super::head::{Head, MAX_ID};
use crate::adapter::json::DocumentError;

impl<'a> Head<'a> {
    /// Creates the head of a message of which all is known.
    pub(in crate::adapter) fn of(message: &'a [u8]) -> Self {
        Self::of_ends(message, &[])
    }

    /// Returns whether the message is a request or a notification.
    pub(in crate::adapter) fn has_method(self) -> bool {
        self.text("method").is_some()
    }
}

/// Checks the size of a message's id before anything is built of the message.
///
/// # Errors
/// [`DocumentError::LongId`].
pub(super) fn check(message: &str) -> Result<(), DocumentError> {
    match Head::of(message.as_bytes()).member("id").map(<[u8]>::len) {
        Some(size) if size > MAX_ID => Err(DocumentError::LongId { size, limit: MAX_ID }),
        _ => Ok(()),
    }
}

#[cfg(all(feature = "mcp", unix))]
mod carry {
    use std::borrow::Cow;

    use serde_json::{Map, Value as Json};

    /// Stands before an id that the crates of the protocols cannot hold, such as 1.5.
    const CARRIED: &str = "dev.toolbridge/id:";

    /// Returns an id in a form that the crates of the protocols can hold: a text or a 64-bit integer.
    pub(in crate::adapter) fn carried(id: Json) -> Json {
        if id.is_string() || id.is_i64() { id } else { format!("{CARRIED}{id}").into() }
    }

    /// Returns a message whose id was [`carried`] with the id that its sender gave.
    pub(in crate::adapter) fn restored(message: &str) -> Cow<'_, str> {
        if !message.contains(CARRIED) {
            return message.into();
        }
        let mut fields: Map<String, Json> = serde_json::from_str(message).unwrap_or_default();
        let carried = fields.get("id").and_then(Json::as_str).and_then(|id| id.strip_prefix(CARRIED));
        let Some(id) = carried.and_then(|id| serde_json::from_str(id).ok()) else { return message.into() };
        fields.insert("id".to_owned(), id);
        Json::Object(fields).to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_id_is_refused_with_both_numbers() {
        let message = |size: usize| format!(r#"{{"method":"a","id":"{}"}}"#, "x".repeat(size - 2));
        assert_eq!(check(&message(MAX_ID)), Ok(()));
        let (size, limit) = (MAX_ID + 1, MAX_ID);
        assert_eq!(check(&message(size)), Err(DocumentError::LongId { size, limit }));
    }

    #[cfg(all(feature = "mcp", unix))]
    #[test]
    fn id_that_no_crate_holds_is_restored() {
        use serde_json::{Value as Json, json};

        for id in [json!(1.5), json!(u64::MAX), json!(7), json!("a"), json!("dev.toolbridge/id:")] {
            let carried = carried(id.clone());
            assert!(carried.is_string() || carried.is_i64());
            let answer = json!({"id": carried, "result": {"id": "dev.toolbridge/id:2.5"}}).to_string();
            let answer = restored(&answer);
            let expected = json!({"id": id, "result": {"id": "dev.toolbridge/id:2.5"}});
            assert_eq!(serde_json::from_str::<Json>(&answer).unwrap(), expected);
        }
    }
}
