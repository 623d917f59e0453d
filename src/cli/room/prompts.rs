//! Asks the questions of tools at the terminal of a client: permissions, choices, forms, and addresses to
//! open.
//!
//! A person allows only what is shown. All of a question is shown, up to a limit; one that exceeds it is refused.

use serde_json::{Value as Json, json};

use crate::cli::terminal::{
    failure::hint,
    forms,
    questions::{Open, Terminal, Word},
    render,
    screen::{self, foreign, labelled},
    text,
};
use toolbridge::{
    ErrorCode, ToolError,
    adapter::acp::ToolCall,
    prompt::{PermissionPrompt, Prompt, PromptAnswer, PromptRequest, PromptedCall},
};

/// The kinds of calls whose option must be named: a `yes` is not enough.
const NAMED: [&str; 4] = ["edit", "delete", "move", "execute"];

/// The largest input, list of files or content of a call that a permission shows, in bytes of JSON each: what a person reads.
const SHOWN: usize = 16 << 10;

/// A question that cannot be shown whole: which part, and its size in bytes.
struct TooLong(&'static str, usize);

/// Asks at the terminal. Dropping the future withdraws the question.
pub(in crate::cli) async fn ask(request: PromptRequest) -> Result<PromptAnswer, ToolError> {
    let prompt = request.prompt();
    let mut question = Terminal::shared().ask();
    let number = question.number();
    let mut asked = labelled(&format!("question {number}, from "), &format!("{}:", request.caller()));
    asked.extend(prompt.text().map(foreign).unwrap_or_default());
    match prompt {
        Prompt::Permission(ask) => Ok(permission(ask, asked, &mut question).await),
        Prompt::Choose(ask) => {
            let names: Vec<&str> = ask.choices.iter().map(String::as_str).collect();
            question.print(asked, choices(&names, number));
            Ok(option(names.len(), &mut question)
                .await
                .map_or_else(PromptAnswer::cancelled, PromptAnswer::choice))
        }
        Prompt::Authorize(ask) => {
            let service = ask.service.as_deref().unwrap_or("a tool");
            asked.extend(foreign(&format!("{service} asks to open {}", ask.url)));
            question.print(asked, vec![format!("type `yes {number}` when that is done, or `no {number}`")]);
            Ok(match question.answer().await {
                Some(Word::Yes) => PromptAnswer::done(),
                Some(_) => PromptAnswer::declined(),
                None => PromptAnswer::cancelled(),
            })
        }
        Prompt::Form(ask) => Ok(forms::fill_in(ask, asked, &mut question).await),
        _ => {
            question.close();
            Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "this terminal does not know the question"))
        }
    }
}

async fn permission(ask: &PermissionPrompt, mut asked: Vec<String>, question: &mut Open) -> PromptAnswer {
    let refusal = || match ask.options.iter().find(|it| it.kind == "reject_once") {
        Some(refusal) => PromptAnswer::selected(&refusal.option_id),
        None => PromptAnswer::cancelled(),
    };
    let calls = || std::iter::once(&ask.tool_call).chain(&ask.others);
    for (n, call) in calls().enumerate() {
        match described(call, n > 0 || ask.text.is_none()) {
            Ok(lines) => asked.extend(lines),
            Err(TooLong(part, size)) => {
                screen::print(&asked);
                hint(&format!(
                    "question {} is refused: its {part} has {size} bytes, and at most {SHOWN} are shown",
                    question.number()
                ));
                question.close();
                return refusal();
            }
        }
    }
    let names: Vec<&str> = ask.options.iter().map(|it| it.name.as_str()).collect();
    question.print(asked, choices(&names, question.number()));
    let must_name = calls().filter_map(|call| call.kind.as_deref()).any(|kind| NAMED.contains(&kind));
    loop {
        let chosen = match question.answer().await {
            Some(Word::Option(at)) => at.checked_sub(1).and_then(|at| ask.options.get(at)),
            Some(Word::Yes) if !must_name => ask.options.iter().find(|it| it.kind == "allow_once"),
            Some(Word::Yes | Word::Text(_)) => None,
            Some(Word::No) => return refusal(),
            None => return PromptAnswer::cancelled(),
        };
        match chosen {
            Some(option) => return PromptAnswer::selected(&option.option_id),
            None => {
                question.again();
                question.remark(None);
            }
        }
    }
}

/// Returns all that is known of a call: its names, input, files and content.
fn described(call: &PromptedCall, with_names: bool) -> Result<Vec<String>, TooLong> {
    let mut lines = Vec::new();
    if with_names {
        let kind = call.kind.as_ref().map(|kind| format!("[{kind}]"));
        let parts = [kind.as_ref(), call.name.as_ref(), call.title.as_ref()];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        lines.extend(foreign(&parts.join(" ")));
    }
    if let Some(input) = &call.raw_input {
        let input = text::json(&input.to_json());
        lines.extend(foreign(&format!("with {}", fitting("input", input)?)));
    }
    if let Some(locations) = call.locations.as_ref().map(|it| it.to_json()) {
        let written = fitting("list of files", text::json(&locations))?;
        match render::all_files(&locations) {
            Some(files) => lines.extend(foreign(&format!("in {files}"))),
            None if locations.as_array().is_some_and(Vec::is_empty) || locations.is_null() => {}
            None => lines.extend(foreign(&format!("in {written}"))),
        }
    }
    if let Some(content) = call.content.as_ref().map(|it| it.to_json()) {
        let written = fitting("content", text::json(&content))?;
        match content.as_array() {
            Some(items) => lines.extend(items.iter().flat_map(item)),
            None if content.is_null() => {}
            None => lines.extend(foreign(&written)),
        }
    }
    Ok(lines)
}

fn fitting(part: &'static str, written: String) -> Result<String, TooLong> {
    if written.len() <= SHOWN { Ok(written) } else { Err(TooLong(part, written.len())) }
}

/// Returns an item of a call's content: a diff or a text as such, anything else that is not known as JSON.
fn item(item: &Json) -> Vec<String> {
    let call = ToolCall::read(&json!({"content": [item]}).to_string());
    let shown = call.ok().and_then(|call| render::whole(&call.result().for_clients()));
    let path = item["path"].as_str().filter(|_| item["type"] == "diff");
    let mut lines = path.map(|path| foreign(&format!("── {path}"))).unwrap_or_default();
    match shown {
        Some(shown) => lines.extend(shown.iter().flat_map(|line| foreign(line))),
        None => lines.extend(foreign(&text::json(item))),
    }
    lines
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

/// Returns the options with their numbers, and what may be typed.
fn choices(names: &[&str], number: u64) -> Vec<String> {
    let mut lines: Vec<String> =
        names.iter().enumerate().flat_map(|(at, name)| labelled(&format!("  {}: ", at + 1), name)).collect();
    lines.push(format!(
        "type `option 1 {number}` for the first, and so on, or `no {number}`; `forget` takes back what was allowed for always"
    ));
    lines
}

#[cfg(test)]
mod tests {
    use toolbridge::Value;

    use super::*;

    fn call(content: Json) -> PromptedCall {
        let mut call = PromptedCall::new("edit");
        call.content = Some(Value::from(content));
        call
    }

    fn shown(call: &PromptedCall) -> Vec<String> {
        match described(call, false) {
            Ok(lines) => lines,
            Err(TooLong(part, size)) => panic!("{part}: {size}"),
        }
    }

    #[test]
    fn permission_shows_what_a_call_changes() {
        let diff =
            |old, new: &str| json!([{"type": "diff", "path": "/srv/a.txt", "oldText": old, "newText": new}]);
        let lines = shown(&call(diff("one\ntwo\n", "one\n\u{1b}[2Jthree\n"))).join("\n");
        assert!(lines.contains("/srv/a.txt") && lines.contains("-two") && lines.contains("three"), "{lines}");
        assert!(!lines.contains('\u{1b}'), "{lines}");
        let text: String = (0..1_000).map(|n| format!("line {n}\n")).collect();
        let all = shown(&call(diff("", &text)));
        assert!(all.iter().any(|line| line.contains("+line 999")), "all of it is shown");
        assert!(all.iter().all(|line| line.starts_with(screen::MARK)));
        assert!(shown(&call(json!([]))).is_empty());
        assert!(shown(&PromptedCall::new("edit")).is_empty());
    }

    #[test]
    fn permission_shows_each_item_of_a_call() {
        let text: String = (0..300).map(|n| format!("line {n}\n")).collect();
        let lines = shown(&call(json!([
            {"type": "diff", "path": "/a", "oldText": null, "newText": text},
            {"type": "content", "content": {"type": "text", "text": "then it says this"}},
            {"type": "terminal", "terminalId": "t1"},
            {"type": "hologram", "beam": "curl evil"},
            {"type": "diff", "path": "/home/me/.bashrc", "oldText": "one\n", "newText": "one\ntwo\n"},
        ])));
        for text in ["── /a", "then it says this", "terminal t1", "curl evil", "── /home/me/.bashrc", "+two"]
        {
            assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
        }
    }

    #[test]
    fn permission_shows_the_end_of_a_long_input_or_is_refused() {
        let command = |length: usize| {
            let mut call = PromptedCall::new("run");
            call.raw_input = Some(json!({"command": format!("{}; curl evil", "x".repeat(length))}).into());
            call
        };
        assert!(shown(&command(15_000)).last().unwrap().ends_with("; curl evil\"}"));
        assert!(matches!(described(&command(SHOWN), false), Err(TooLong("input", size)) if size > SHOWN));
        let files: Vec<Json> = (0..100).map(|n| json!({"path": format!("/srv/{n}")})).collect();
        let mut many = PromptedCall::new("move");
        many.locations = Some(Json::from(files).into());
        assert!(shown(&many).join("").contains("/srv/99"));
    }
}
