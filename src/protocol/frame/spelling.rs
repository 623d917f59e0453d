//! Finds the spellings in a frame that are read but never written (`wire.md`, section 7).

use super::{
    Frame, Kind,
    dialect::{self, Field, Fields, TOOL},
    read::older_code,
};
use crate::value::{scan::Span, token::Token};

impl Frame {
    /// Returns the keys of envelope, body and tool entries that differ from the written spelling, and error codes in
    /// upper case; each once.
    pub(crate) fn foreign_spellings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let bytes = self.bytes();
        self.each(dialect::whole(bytes), |key, _| {
            if dialect::envelope_field(key.as_bytes()).is_some_and(|name| name != key) {
                note(&mut found, key);
            }
        });
        let (Some(table), Some(body)) = (dialect::fields(self.kind()), self.body_span()) else {
            return found;
        };
        self.keys(body, table, &mut found);
        if self.kind() == Kind::TOOL_USE_RESULT {
            self.each(body, |key, value| match key {
                "error" | "previousId" => note(&mut found, key),
                "errorCode" | "error_code" => {
                    let code = dialect::text_at(bytes, value).unwrap_or_default();
                    if older_code(code).is_some() {
                        note(&mut found, code);
                    }
                }
                _ => {}
            });
        }
        if self.kind() == Kind::TOOLS_REGISTER
            && let Ok(fields) = Fields::find(bytes, body, table)
        {
            for tool in fields.list("tools").ok().flatten().unwrap_or_default() {
                self.keys(tool, TOOL, &mut found);
            }
        }
        found
    }

    fn keys(&self, map: Span, table: &[Field], found: &mut Vec<String>) {
        self.each(map, |key, value| {
            let is_absent =
                Token::read(value.of(self.as_bytes()), 0).is_ok_and(|(token, _)| token.is_absent());
            let is_foreign = |field: &Field| field.name != key && field.is_called(key.as_bytes());
            if !is_absent && table.iter().any(is_foreign) {
                note(found, key);
            }
        });
    }

    fn each(&self, map: Span, mut take: impl FnMut(&str, Span)) {
        let Ok(entries) = dialect::entries(self.as_bytes(), map) else { return };
        for entry in entries.map_while(Result::ok) {
            if let Ok(key) = std::str::from_utf8(entry.key) {
                take(key, entry.value);
            }
        }
    }
}

fn note(found: &mut Vec<String>, spelling: &str) {
    if !found.iter().any(|known| known == spelling) {
        found.push(spelling.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Vec<String> {
        Frame::from_json(json).unwrap().foreign_spellings()
    }

    #[test]
    fn written_frame_has_no_foreign_spelling() {
        let ours = r#"{"stanzaId": 1, "conversationId": "r", "type": 7, "body":
            {"id": "a", "success": false, "errorCode": "timeout", "errorMessage": "m", "requestId": "a"}}"#;
        assert!(of(ours).is_empty());
        assert!(of(r#"{"type": 9, "body": {"tool_name": 1}}"#).is_empty());
    }

    #[test]
    fn foreign_spelling_is_named_once() {
        let request = r#"{"type": 6, "body":
            {"id": "a", "tool_name": "t", "arguments": {"tool_name": 1}, "execution": "client", "timeout_ms": 5}}"#;
        assert_eq!(of(request), ["tool_name", "arguments", "timeout_ms"]);
        let result = r#"{"type": 7, "body":
            {"previousId": "a", "success": false, "error_code": "TIMEOUT", "data": {"x": 1}}}"#;
        assert_eq!(of(result), ["error_code", "data", "previousId", "TIMEOUT"]);
        let register = r#"{"type": 70, "body": {"tools": [
            {"name": "a", "description": "", "input_schema": {}}, {"name": "b", "description": "", "input_schema": {}}]}}"#;
        assert_eq!(of(register), ["input_schema"]);
    }
}
