//! Finds the calls that a call of a reserved tool is about: an earlier call, or those that a person decides
//! about.

use crate::value::{Value, ValueKind};

/// How many further calls a question may decide (`wire.md`, section 4.10).
const MAX_OTHERS: usize = 32;

/// A call that another one is about. Either part may be missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) tool: Option<String>,
    pub(super) id: Option<String>,
}

/// Returns the calls that the parameters of a reserved tool name; none if they have a form that the protocol does not define.
pub(super) fn references(parameters: &Value) -> Option<Vec<Reference>> {
    let text = |path: &str| parameters.get(path).and_then(|it| it.as_str().map(str::to_owned));
    let mut found = Vec::new();
    if parameters.get("tool").is_some() || parameters.get("call").is_some() {
        found.push(Reference { tool: text("tool"), id: text("call") });
    }
    let mut call = |path: &str| match parameters.get(path).map(|it| it.kind()) {
        None => Some(false),
        Some(ValueKind::Map) => {
            let [tool, id] = ["name", "toolCallId"].map(|key| text(&format!("{path}/{key}")));
            found.push(Reference { tool, id });
            Some(true)
        }
        Some(_) => None,
    };
    call("toolCall")?;
    match parameters.get("others").map(|it| it.kind()) {
        None | Some(ValueKind::Nil) => {}
        Some(ValueKind::Array) => {
            let mut others = 0..=MAX_OTHERS;
            while call(&format!("others/{}", others.next()?))? {}
        }
        Some(_) => return None,
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Option<Vec<(Option<String>, Option<String>)>> {
        let found = references(&Value::from_json(json).unwrap())?;
        Some(found.into_iter().map(|it| (it.tool, it.id)).collect())
    }

    #[test]
    fn calls_are_found_by_name_and_by_id() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of(r#"{"text": "x"}"#), Some(vec![]));
        assert_eq!(of(r#"{"call": "a", "tool": "t"}"#), Some(vec![(text("t"), text("a"))]));
        let permission = r#"{"toolCall": {"title": "x"}, "others": [{"toolCallId": "b"}, {"name": "t"}]}"#;
        assert_eq!(of(permission), Some(vec![(None, None), (None, text("b")), (text("t"), None)]));
    }

    #[test]
    fn undefined_forms_are_not_read() {
        let calls = |count: usize| format!(r#"{{"others": [{}]}}"#, vec!["{}"; count].join(","));
        assert_eq!(of(&calls(32)).map(|it| it.len()), Some(32));
        assert_eq!(of(&calls(33)), None);
        for odd in [r#"{"others": {"0": {"name": "t"}}}"#, r#"{"others": ["t"]}"#, r#"{"toolCall": ["t"]}"#] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }
}
