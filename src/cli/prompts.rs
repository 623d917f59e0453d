//! Questions of tools at the terminal of a client: permissions, choices, forms, and addresses to open.

use serde_json::json;

use super::{
    forms, hint,
    questions::{Open, Terminal, Word},
    render, text,
};
use toolbridge::{
    ErrorCode, PermissionPrompt, Prompt, PromptAnswer, PromptRequest, PromptedCall, ToolError, Value,
    adapter::acp::ToolCall,
};

/// The kinds of calls whose option must be named: a `yes` is not enough.
const NAMED: [&str; 4] = ["edit", "delete", "move", "execute"];

/// The maximum length of the input that a permission shows, in characters.
const SHOWN_INPUT: usize = 1_000;

/// The maximum number of lines of the texts and diffs that a permission shows, without their headings.
const SHOWN_LINES: usize = 100;

/// Asks at the terminal. Dropping the future withdraws the question.
pub(super) async fn ask(request: PromptRequest) -> Result<PromptAnswer, ToolError> {
    let prompt = request.prompt();
    if let Some(text) = prompt.text() {
        hint(text);
    }
    let mut question = Terminal::shared().ask();
    match prompt {
        Prompt::Permission(ask) => Ok(permission(ask, &mut question).await),
        Prompt::Choose(ask) => {
            let names: Vec<&str> = ask.choices.iter().map(String::as_str).collect();
            show(&names, &question);
            Ok(option(names.len(), &mut question)
                .await
                .map_or_else(PromptAnswer::cancelled, PromptAnswer::choice))
        }
        Prompt::Authorize(ask) => {
            let service = ask.service.as_deref().unwrap_or("a tool");
            let number = question.number();
            hint(&format!("{service} asks to open {}", ask.url));
            hint(&format!("type `yes {number}` when that is done, or `no {number}`"));
            Ok(match question.answer().await {
                Some(Word::Yes) => PromptAnswer::done(),
                Some(_) => PromptAnswer::declined(),
                None => PromptAnswer::cancelled(),
            })
        }
        Prompt::Form(ask) => Ok(forms::fill_in(ask, &mut question).await),
        _ => Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "this terminal does not know the question")),
    }
}

async fn permission(ask: &PermissionPrompt, question: &mut Open) -> PromptAnswer {
    let call = &ask.tool_call;
    if let Some(input) = &call.raw_input {
        hint(&text::line(&format!("with {}", text::json(&input.to_json())), SHOWN_INPUT));
    }
    if let Some(files) = call.locations.as_ref().and_then(|it| render::files(&it.to_json())) {
        hint(&text::line(&format!("in {files}"), SHOWN_INPUT));
    }
    for line in changes(call) {
        hint(&line);
    }
    let names: Vec<&str> = ask.options.iter().map(|it| it.name.as_str()).collect();
    show(&names, question);
    let must_name = call.kind.as_deref().is_some_and(|kind| NAMED.contains(&kind));
    loop {
        let chosen = match question.answer().await {
            Some(Word::Option(at)) => at.checked_sub(1).and_then(|at| ask.options.get(at)),
            Some(Word::Yes) if !must_name => ask.options.iter().find(|it| it.kind == "allow_once"),
            Some(Word::Yes | Word::Text(_)) => None,
            Some(Word::No) => match ask.options.iter().find(|it| it.kind == "reject_once") {
                Some(refusal) => Some(refusal),
                None => return PromptAnswer::cancelled(),
            },
            None => return PromptAnswer::cancelled(),
        };
        match chosen {
            Some(option) => return PromptAnswer::selected(&option.option_id),
            None => {
                question.again();
                show(&names, question);
            }
        }
    }
}

/// Returns the texts and diffs that a call shows.
fn changes(call: &PromptedCall) -> Vec<String> {
    let content = call.content.as_ref().map(Value::to_json);
    let Some(content) = content.filter(|it| it.as_array().is_some_and(|it| !it.is_empty())) else {
        return Vec::new();
    };
    let Ok(call) = ToolCall::read(&json!({ "content": content }).to_string()) else { return Vec::new() };
    render::excerpt(&call.result().to_value(), SHOWN_LINES)
}

/// Returns the choice, counted from 0.
async fn option(count: usize, question: &mut Open) -> Option<usize> {
    loop {
        match question.answer().await {
            Some(Word::Option(at)) if (1..=count).contains(&at) => return Some(at - 1),
            Some(Word::No) | None => return None,
            Some(_) => question.again(),
        }
    }
}

fn show(names: &[&str], question: &Open) {
    let number = question.number();
    for (at, name) in names.iter().enumerate() {
        hint(&format!("  {}: {}", at + 1, text::line(name, 100)));
    }
    hint(&format!(
        "type `option 1 {number}` for the first, and so on, or `no {number}`; `forget` takes back what was allowed for always"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(content: serde_json::Value) -> Vec<String> {
        let mut call = PromptedCall::new("edit");
        call.content = Some(Value::from(content));
        changes(&call)
    }

    #[test]
    fn permission_shows_what_a_call_changes() {
        let diff =
            |old, new: &str| json!([{"type": "diff", "path": "/srv/a.txt", "oldText": old, "newText": new}]);
        let shown = changed(diff("one\ntwo\n", "one\n\u{1b}[2Jthree\n")).join("\n");
        assert!(shown.contains("/srv/a.txt") && shown.contains("-two") && shown.contains("three"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        let text: String = (0..300).map(|n| format!("line {n}\n")).collect();
        let long = changed(diff("", &text));
        assert_eq!(long.len(), 1 + SHOWN_LINES + 1);
        assert!(long[1 + SHOWN_LINES].ends_with("more lines"), "{long:?}");
        assert!(changed(json!([])).is_empty());
        assert!(changes(&PromptedCall::new("edit")).is_empty());
    }

    #[test]
    fn permission_shows_each_diff_and_terminal_of_a_call() {
        let long: String = (0..300).map(|n| format!("line {n}\n")).collect();
        let shown = changed(json!([
            {"type": "diff", "path": "/a", "oldText": null, "newText": long},
            {"type": "terminal", "terminalId": "t1"},
            {"type": "diff", "path": "/home/me/.bashrc", "oldText": "one\n", "newText": "one\ntwo\n"},
        ]));
        for text in ["── /a · new file, +300 −0", "terminal t1", "── /home/me/.bashrc · +1 −0", "+two"]
        {
            assert!(shown.iter().any(|line| line.contains(text)), "{text}: {shown:#?}");
        }
        assert!(shown.len() < SHOWN_LINES + 10, "{}", shown.len());
    }
}
