//! The ids of requests.

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
}
