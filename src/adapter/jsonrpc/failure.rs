//! Defines the errors that the other side answers with.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::METHOD_NOT_FOUND;
#[cfg(all(feature = "mcp", unix))]
use super::error::{INTERNAL, RpcError};
use crate::{
    adapter::{json, words},
    value::prefix,
};

/// The largest data of an error that are kept, in bytes.
const MAX_DATA: usize = 64 << 10;

/// The longest code of an error that is a text, in bytes.
const MAX_CODE: usize = 64;

/// An error of the other side. Programs write codes that are texts, and errors that are texts as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::adapter) struct Failure {
    /// The code, if it is a number.
    pub(in crate::adapter) code: Option<i64>,
    /// The code as it was written.
    pub(in crate::adapter) shown_code: String,
    pub(in crate::adapter) message: String,
    /// The text of its data, up to [`MAX_DATA`].
    pub(in crate::adapter) data: Option<String>,
}

#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(default, borrow)]
    code: Option<&'a RawValue>,
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

impl Failure {
    /// Reads an error of any form.
    pub(in crate::adapter) fn read(error: &RawValue) -> Self {
        let parts = Some(error.get()).filter(|it| it.starts_with('{'));
        let parts = parts.and_then(|it| serde_json::from_str::<Parts<'_>>(it).ok()).unwrap_or_default();
        let shown_code = parts.code.map(|code| text_of(code).unwrap_or_else(|| code.get().to_owned()));
        Self {
            code: parts.code.and_then(|code| serde_json::from_str(code.get()).ok()),
            shown_code: words::line(prefix(&shown_code.unwrap_or_default(), MAX_CODE)),
            message: parts.message.and_then(text_of).or_else(|| said(error)).unwrap_or_default(),
            data: parts.data.map(RawValue::get).filter(|it| it.len() <= MAX_DATA).map(str::to_owned),
        }
    }

    /// Returns an error that this side notes in place of an answer.
    pub(in crate::adapter) fn of(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Returns the words of the other side on one line, without the code: `None` if there are none.
    pub(in crate::adapter) fn said(&self) -> Option<String> {
        let data = self.data.as_deref().and_then(|data| json::value(data).ok());
        // Some programs say nothing but the method that they do not know.
        let is_method = self.code == Some(METHOD_NOT_FOUND)
            && self.message.contains('/')
            && !self.message.contains(char::is_whitespace);
        let method = is_method.then(|| format!("unknown method: {}", self.message));
        words::of_rpc(method.as_ref().unwrap_or(&self.message), data.as_ref())
    }

    /// Returns the words of the other side, or else `silent`, and then the code behind `label`.
    pub(in crate::adapter) fn words(&self, silent: &str, label: &str) -> String {
        let said = self.said().unwrap_or_else(|| silent.to_owned());
        match &*self.shown_code {
            "" => said,
            code => format!("{said} ({label}{code})"),
        }
    }
}

/// The error that passes it on.
#[cfg(all(feature = "mcp", unix))]
impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        let said = || failure.said().unwrap_or_default();
        let message = if failure.message.is_empty() { said() } else { failure.message.clone() };
        let data = failure.data.and_then(|data| RawValue::from_string(data.replace(['\n', '\r'], " ")).ok());
        Self { code: failure.code.unwrap_or(INTERNAL), message, data }
    }
}

/// Returns the text of a value that is one, up to [`MAX_DATA`]. A blank one says nothing.
fn text_of(value: &RawValue) -> Option<String> {
    let text = Some(value.get()).filter(|it| it.starts_with('"'))?;
    let read = |text: &str| json::value(text).ok()?.as_str().map(|it| prefix(it, MAX_DATA).to_owned());
    read(text).filter(|it| !it.trim().is_empty())
}

/// Returns what an error says that has no message.
fn said(error: &RawValue) -> Option<String> {
    let text = Some(error.get()).filter(|it| it.len() <= MAX_DATA)?;
    words::reason_of(&json::value(text).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_any_form_keeps_its_words_and_its_code() {
        for (error, said, code, shown) in [
            ("null", None, None, ""),
            ("{}", None, None, ""),
            (r#""no""#, Some("no"), None, ""),
            (r#"{"code":-7,"message":"no \ud83d","data":1e400}"#, Some("no \u{fffd}: 1e400"), Some(-7), "-7"),
            (r#"{"code":"ENOENT\u001b[2J","message":"no"}"#, Some("no"), None, "ENOENT [2J"),
            (r#"{"code":1.5,"message":"no","data":{"details":"why"}}"#, Some("no: why"), None, "1.5"),
            (r#"["no","quota"]"#, Some(r#"["no","quota"]"#), None, ""),
            (r#"{"code":-32603,"message":"","cause":"no quota"}"#, Some("no quota"), Some(-32_603), "-32603"),
        ] {
            let raw: &RawValue = serde_json::from_str(error).unwrap();
            let failure = Failure::read(raw);
            assert_eq!(failure.said().as_deref(), said, "{error}");
            assert_eq!((failure.code, &*failure.shown_code), (code, shown), "{error}");
        }
    }
}
