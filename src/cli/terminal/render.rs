//! Shows results to a person: on a terminal, in a line of a list, or as the text to speak.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
};

use clap::{
    ValueEnum,
    builder::styling::{AnsiColor, Style as Paint},
};

use serde_json::Value as Json;

use crate::cli::terminal::text;
use toolbridge::{
    ToolResult, Value,
    frame::ViewUpdate,
    result::{
        BlockKind, Display, DisplayContent,
        render::{self, Limits, Line, LineStyle, Section, SpanStyle},
    },
};

/// How much of a result fills a screen.
const SCREEN: Limits = Limits { lines: 400, line: 4_000, text: 128 * 1024 };

/// What a person must see whole. It was measured before.
const ALL: Limits = Limits { lines: usize::MAX, line: usize::MAX >> 4, text: usize::MAX };

/// How much of a result stands below its line in a list.
const LIST: Limits = Limits { lines: 3, line: 120, text: 1_000 };

/// How much of a view stands below its line in a list.
const VIEW: Limits = Limits { lines: 10, line: 120, text: 2_000 };

/// The most parts of a result that stand below its line in a list.
const LIST_SECTIONS: usize = 4;

/// How many lines are shown of a part that is collapsed at first.
const COLLAPSED_LINES: usize = 5;

/// The longest text that is spoken in place of the title of something on a screen, in bytes: a person hears about 15 of
/// them in a second.
const MAX_SPOKEN: usize = 200;

/// How a result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum View {
    /// What a person sees: text, diffs, code, tables and forms
    Screen,
    /// What a person without a screen hears
    Voice,
    /// The result as JSON on one line
    Json,
}

impl View {
    /// The view for standard output: programs read JSON, and people a screen.
    pub(in crate::cli) fn of_stdout() -> Self {
        if io::stdout().is_terminal() { Self::Screen } else { Self::Json }
    }
}

/// Returns whether standard output shows colors.
pub(in crate::cli) fn has_colors() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Returns what a person sees of a result, with a line break after each line.
pub(in crate::cli) fn screen(value: &Value, colors: bool) -> String {
    let result = ToolResult::of(value);
    let sections = render::result(&result, SCREEN);
    let mut out = String::new();
    for (n, section) in sections.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        write_section(&mut out, section, Pen { colors });
    }
    if sections.is_empty() {
        out.push_str("(nothing to show: this result is for the model, or empty)\n");
    }
    out
}

/// Returns a few lines about a result that stand below its line in a list. Of a plain value, returns none.
pub(in crate::cli) fn summary(value: &Value, colors: bool) -> Vec<String> {
    let result = ToolResult::of(value);
    if result.is_plain_value() {
        return Vec::new();
    }
    let pen = Pen { colors };
    let all = render::result(&result, LIST);
    let mut lines: Vec<String> = Vec::new();
    for section in all.iter().take(LIST_SECTIONS) {
        lines.extend(heading(section).map(|it| pen.title(&it)));
        let shown = section.lines.iter().filter(|line| line.spans.iter().any(|span| !span.text.is_empty()));
        lines.extend(shown.map(|line| pen.line(line)));
        lines.extend(rest(section.omitted).map(|it| pen.note(&it)));
    }
    if all.len() > LIST_SECTIONS {
        lines
            .push(pen.note(&format!("… {}", text::counted((all.len() - LIST_SECTIONS) as u64, "more part"))));
    }
    lines
}

/// Returns all that a result shows, without colors, or `None` if something of it is left out. A diff has no heading.
pub(in crate::cli) fn whole(result: &ToolResult) -> Option<Vec<String>> {
    let pen = Pen { colors: false };
    let mut lines = Vec::new();
    for section in render::result(result, ALL) {
        if section.omitted > 0 {
            return None;
        }
        // The title of a diff is its path, and may be cut.
        let is_diff = section.lines.iter().any(|line| line.style == LineStyle::Hunk);
        lines.extend(heading(&section).filter(|_| !is_diff));
        lines.extend(section.lines.iter().map(|line| pen.line(line)));
    }
    let is_known = result.content().iter().all(|block| !matches!(block.kind(), BlockKind::Other));
    (is_known && !lines.is_empty()).then_some(lines)
}

/// The most files that a line about a call names.
const FILES: usize = 5;

/// Returns a few lines about the state of a view: its name, and the steps of a plan, its text or its content.
pub(in crate::cli) fn view(view: &ViewUpdate, colors: bool) -> Vec<String> {
    let pen = Pen { colors };
    let section = render::view(&view.view, &view.content, view.text.as_deref(), VIEW);
    let mut lines: Vec<String> = heading(&section).map(|it| pen.title(&it)).into_iter().collect();
    lines.extend(section.lines.iter().map(|line| pen.line(line)));
    lines.extend(rest(section.omitted).map(|it| pen.note(&it)));
    lines
}

/// Returns what an agent says of its call in a request, or of its files in the progress: kind, title and files as one line.
/// The frame is canonical JSON.
pub(in crate::cli) fn about(frame: &Json) -> Option<String> {
    let meta = |name: &str| &frame["meta"][format!("bridge.acp.{name}")];
    let files = files(meta("locations")).or_else(|| files(&frame["body"]["content"]["locations"]));
    let parts = [
        meta("kind").as_str().map(|kind| format!("[{kind}]")),
        meta("title").as_str().map(str::to_owned),
        files.map(|files| format!("({files})")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| text::line(&parts.join(" "), LIST.line))
}

/// Returns all files of a list, or `None` if one of them has no path.
pub(in crate::cli) fn all_files(locations: &Json) -> Option<String> {
    let names: Option<Vec<String>> = locations.as_array()?.iter().map(file).collect();
    names.filter(|names| !names.is_empty()).map(|names| names.join(", "))
}

/// Returns the files of a list of locations, which may be JSON in a text.
pub(in crate::cli) fn files(locations: &Json) -> Option<String> {
    let read: Option<Json> = locations.as_str().and_then(|text| serde_json::from_str(text).ok());
    let list = read.as_ref().unwrap_or(locations).as_array()?;
    let mut names: Vec<String> = list.iter().take(FILES).filter_map(file).collect();
    if list.len() > FILES {
        names.push(format!("… {} more", list.len() - FILES));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

fn file(location: &Json) -> Option<String> {
    let path = location["path"].as_str()?;
    Some(match location["line"].as_u64() {
        Some(line) => format!("{path}:{line}"),
        None => path.to_owned(),
    })
}

/// What is said about a result.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Speech {
    /// The text, if anything of the result can be spoken as it is.
    pub(in crate::cli) text: Option<String>,
    /// Whether a model has to speak about the result, first or instead.
    pub(in crate::cli) needs_model: bool,
}

/// Returns what a client without a screen says: the text to speak exactly. If there is none, returns a text that everybody
/// may read, or the title of what a screen shows, and of a result without either, its data. Nothing of it is for the model
/// alone, and none of it is code or a table.
pub(in crate::cli) fn speech(value: &Value) -> Speech {
    let result = ToolResult::of(value);
    let said = result.spoken().map(|text| text.into_owned()).or_else(|| shown_text(&result));
    let said = said.filter(|text| !text.trim().is_empty());
    let text = said.map(|said| said.lines().map(text::plain).collect::<Vec<_>>().join("\n"));
    Speech { text, needs_model: result.needs_model() }
}

fn shown_text(result: &ToolResult) -> Option<String> {
    let text = result.for_display(&[]).and_then(|display| text_of(&display).map(str::to_owned));
    let Some(display) = result.display().first() else {
        let is_open = result.for_clients().content().len() == result.content().len();
        let data = || result.for_model(ToolResult::MAX_TEXT).text.into_owned();
        return text.or_else(|| is_open.then(data));
    };
    // The text of a result with code or a table often repeats it.
    let is_short = |text: &String| {
        text.len() <= MAX_SPOKEN && !text.contains(['\n', '\r']) && Some(text.as_str()) != text_of(display)
    };
    let title = || display.title().filter(|title| !title.trim().is_empty()).map(str::to_owned);
    let plain = || match display.content() {
        DisplayContent::Text(text) => Some(text.to_string()),
        _ => None,
    };
    text.filter(is_short).or_else(title).or_else(plain)
}

/// Returns the text of a display, unless it is a change, an image or a terminal.
fn text_of(display: &Display) -> Option<&str> {
    match display.content() {
        DisplayContent::Text(text)
        | DisplayContent::Markdown(text)
        | DisplayContent::Json(text)
        | DisplayContent::Code { text, .. } => Some(text),
        _ => None,
    }
}

fn write_section(out: &mut String, section: &Section, pen: Pen) {
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{line}");
    };
    if let Some(heading) = heading(section) {
        line(pen.title(&heading));
    }
    let kept = if section.is_collapsed { COLLAPSED_LINES } else { usize::MAX };
    for shown in section.lines.iter().take(kept) {
        line(pen.line(shown));
    }
    if let Some(rest) = rest(section.omitted + section.lines.len().saturating_sub(kept)) {
        line(pen.note(&format!("{rest} (--view json prints all)")));
    }
}

/// Returns the line above a part.
fn heading(section: &Section) -> Option<String> {
    match (&*section.title, &*section.note) {
        ("", "") => None,
        ("", word) | (word, "") => Some(format!("── {word}")),
        (title, note) => Some(format!("── {title} · {note}")),
    }
}

/// Returns the line below a part that was cut.
fn rest(omitted: usize) -> Option<String> {
    (omitted > 0).then(|| format!("… {}", text::counted(omitted as u64, "more line")))
}

/// Writes lines with or without colors.
#[derive(Clone, Copy)]
struct Pen {
    colors: bool,
}

impl Pen {
    fn title(self, text: &str) -> String {
        self.painted(Paint::new().bold(), text)
    }

    fn note(self, text: &str) -> String {
        self.painted(Paint::new().dimmed(), text)
    }

    fn line(self, line: &Line) -> String {
        let (before, paint) = match line.style {
            LineStyle::Heading => ("", Paint::new().bold()),
            LineStyle::Quote => ("│ ", Paint::new()),
            LineStyle::Added => ("", AnsiColor::Green.on_default()),
            LineStyle::Removed => ("", AnsiColor::Red.on_default()),
            LineStyle::Hunk => ("", AnsiColor::Cyan.on_default()),
            LineStyle::Note => ("", Paint::new().dimmed()),
            _ => ("", Paint::new()),
        };
        let mut out = before.to_owned();
        for span in &line.spans {
            let paint = match span.style {
                SpanStyle::Strong => paint.bold(),
                SpanStyle::Emphasis => paint.italic(),
                SpanStyle::Code => paint.fg_color(Some(AnsiColor::Cyan.into())),
                SpanStyle::Link => paint.underline(),
                _ => paint,
            };
            out.push_str(&self.painted(paint, &span.text));
        }
        out
    }

    fn painted(self, paint: Paint, text: &str) -> String {
        if self.colors && paint != Paint::new() && !text.is_empty() {
            format!("{}{text}{}", paint.render(), paint.render_reset())
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbridge::{
        adapter::{
            mcp::CallToolResult,
            orchestrate::{Form, InputKind},
        },
        result::Widget,
    };

    use super::*;

    fn diff() -> Value {
        let diff = json!({"type": "diff", "path": "a.txt", "oldText": "one\ntwo\n", "newText": "one\n2\n"});
        json!({"bridge.result": 1, "content": [], "display": [diff]}).into()
    }

    #[test]
    fn screen_has_colors_only_if_asked() {
        let plain = "── a.txt · +1 −1\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
        assert_eq!(screen(&diff(), false), plain);
        let colored = screen(&diff(), true);
        assert!(colored.contains("\u{1b}[32m+2\u{1b}[0m\n") && colored.contains("\n one\n"), "{colored:?}");
        assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain);
    }

    #[test]
    fn long_and_collapsed_parts_say_how_much_is_missing() {
        let text = "line\n".repeat(1_000);
        let long = ToolResult::default().with_person_text(&*text);
        let shown = screen(&long.to_value(), false);
        assert_eq!(shown.lines().count(), SCREEN.lines + 1);
        assert!(shown.ends_with("line\n… 600 more lines (--view json prints all)\n"), "{shown}");
        let display = Display::new(DisplayContent::Text(text.into())).with_title("log").with_collapsed(true);
        let shown = screen(&ToolResult::default().with_display(display).to_value(), false);
        assert!(shown.starts_with("── log\nline\n"), "{shown}");
        assert!(shown.ends_with("line\n… 995 more lines (--view json prints all)\n"), "{shown}");
    }

    #[test]
    fn plain_value_and_result_for_the_model_have_a_screen() {
        let plain = Value::from(json!({"words": 2}));
        assert_eq!(screen(&plain, false), "{\n  \"words\": 2\n}\n");
        assert_eq!(summary(&plain, false), [""; 0]);
        let hidden = ToolResult::default().with_model_text("hidden").to_value();
        let shown = screen(&hidden, false);
        assert!(!shown.contains("hidden") && shown.contains("for the model"), "{shown}");
    }

    #[test]
    fn summary_is_short() {
        let mut result = ToolResult::default().with_person_text("word ".repeat(1_000));
        for n in 0..20 {
            result =
                result.with_block(toolbridge::result::ContentBlock::link(format!("https://a.b/{n}"), "page"));
        }
        let lines = summary(&result.to_value(), false);
        assert!(lines.len() <= 8 && lines.iter().all(|line| line.len() < 200), "{lines:#?}");
        assert!(lines[0].ends_with("more)") && lines.contains(&"… 17 more lines".to_owned()), "{lines:#?}");
        assert_eq!(summary(&diff(), false)[0], "── a.txt · +1 −1");
    }

    /// The library reads forms twice: to show them, and to ask for their inputs.
    #[test]
    fn screen_shows_the_labels_that_a_dialog_asks_for() {
        let city = |more: Json| {
            let mut field = json!({"title": "B"});
            field.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"json_schema": {"type": "object", "properties": {"city": field}}, "ui_schema": {"city": {
                "ui:title": "A", "ui:description": "C", "ui:enumNames": ["Rome", "Oslo"],
            }}})
        };
        let cities = json!([{"const": "r", "title": "Roma"}, {"const": "o"}]);
        let own = [
            city(json!({"enum": ["r", "o"], "description": "D"})),
            city(json!({"enum": ["r", "o"], "enumNames": ["Roma", ""]})),
            city(json!({"oneOf": cities})),
            city(json!({"anyOf": cities, "type": "string"})),
            city(json!({"type": "array", "items": {"enum": ["r", "o"]}})),
            city(json!({"type": "array", "items": {"oneOf": cities}})),
        ];
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/orchestrate");
        let fixtures = std::fs::read_dir(folder).unwrap().filter_map(|file| {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            Some(CallToolResult::read(&text).unwrap().result.widget()?.clone())
        });
        let mut choices = 0;
        for widget in own.map(Widget::new).into_iter().chain(fixtures) {
            let Some(form) = Form::of(&widget) else { continue };
            let shown = screen(&ToolResult::default().with_widget(widget).to_value(), false);
            for input in form.inputs() {
                assert!(shown.contains(&input.title), "{input:?}: {shown}");
                assert!(input.description.as_ref().is_none_or(|it| shown.contains(it)), "{input:?}: {shown}");
                let listed =
                    if matches!(input.kind, InputKind::Table { .. }) { &[] } else { input.choices() };
                for choice in listed {
                    let lines = shown
                        .lines()
                        .any(|line| line.trim_start_matches(|it: char| !it.is_alphabetic()) == choice.label);
                    assert!(lines, "{choice:?}: {shown}");
                }
                choices += listed.len();
            }
        }
        assert_eq!(choices, 6 * 2 + 12);
    }

    #[test]
    fn voice_has_the_exact_text_before_anything_else() {
        let speech = |result: ToolResult| {
            let speech = speech(&result.to_value());
            (speech.text, speech.needs_model)
        };
        let said = |text: &str, needs_model| (Some(text.to_owned()), needs_model);
        let widget = || Widget::new(json!({"type": "options"})).with_title("Which one?");
        let both = ToolResult::text("It is sunny.");
        assert_eq!(speech(both.clone()), said("It is sunny.", true));
        assert_eq!(speech(both.clone().with_widget(widget())), said("Which one?", true));
        assert_eq!(
            speech(both.with_person_text("Sunny!\u{1b}[2J\nBye.")),
            said("Sunny!\\u{1b}[2J\nBye.", true)
        );
        assert_eq!(speech(ToolResult::default().with_person_text("Done.")), said("Done.", false));
        assert_eq!(speech(ToolResult::default().with_widget(widget())), said("Which one?", false));
        assert_eq!(speech(ToolResult::default().with_structured(json!({"n": 1}))), said("{\"n\":1}", true));
    }

    #[test]
    fn voice_says_nothing_that_is_for_the_model_alone() {
        let hidden = json!({"type": "text", "text": "hidden", "annotations": {"audience": ["assistant"]}});
        let link = json!({"type": "resource_link", "uri": "https://a.b", "name": "page"});
        for content in [json!([hidden]), json!([hidden, link])] {
            let speech = speech(&json!({ "content": content }).into());
            assert_eq!(speech, Speech { text: None, needs_model: true }, "{content}");
        }
        let both = json!({"content": [hidden, {"type": "text", "text": "It is sunny."}]});
        assert_eq!(speech(&both.into()).text.as_deref(), Some("It is sunny."));
    }

    #[test]
    fn acp_c21_kind_title_and_files_of_a_call_are_one_line() {
        let list = json!([{"path": "/a.rs", "line": 3}, {"path": "/b.rs"}]);
        for locations in [list.clone(), list.to_string().into()] {
            let meta = json!({"bridge.acp.kind": "edit", "bridge.acp.title": "Edit a\u{1b}[31m", "bridge.acp.locations": locations});
            let line = about(&json!({"meta": meta, "body": {}})).unwrap();
            assert_eq!(line, "[edit] Edit a\\u{1b}[31m (/a.rs:3, /b.rs)");
        }
        let many: Vec<_> = (0..9).map(|n| json!({"path": format!("/{n}")})).collect();
        let progress = json!({"body": {"content": {"locations": many}}});
        assert_eq!(about(&progress).unwrap(), "(/0, /1, /2, /3, /4, … 4 more)");
        for other in [json!({}), json!({"meta": {"bridge.acp.kind": 7}, "body": {"content": "text"}})] {
            assert_eq!(about(&other), None, "{other}");
        }
    }

    fn viewed(name: &str, content: Json, text: Option<&str>) -> Vec<String> {
        let mut state = ViewUpdate::new(name, content.into());
        state.text = text.map(str::to_owned);
        view(&state, false)
    }

    #[test]
    fn acp_c21_plan_is_shown_by_its_steps() {
        let step =
            |content: &str, status: &str| json!({"content": content, "status": status, "priority": "high"});
        let steps = [step("Look", "completed"), step("Fix", "in_progress"), step("Test", "pending")];
        let plan = viewed("coder/plan", json!({ "entries": steps }), Some("✓ Look\n→ Fix\n· Test"));
        assert_eq!(plan, ["── coder/plan · plan, 1 of 3 done", "✓ Look", "→ Fix", "· Test"]);
        let long: Vec<_> = (0..32).map(|n| step(&format!("Step {n}"), "pending")).collect();
        let long = viewed("coder/plan", json!({ "entries": long }), None);
        assert_eq!((long.len(), &*long[11]), (12, "… 22 more lines"));
    }

    #[test]
    fn view_is_shown_by_its_text_or_its_content() {
        assert_eq!(viewed("oven", json!({"c": 180}), Some("180 °C")), ["── oven · view", "180 °C"]);
        assert_eq!(viewed("oven", json!({"c": 180}), None), ["── oven · view", "{", "  \"c\": 180", "}"]);
        assert_eq!(viewed("oven", json!(180), None), ["── oven · view", "180"]);
        assert_eq!(viewed("oven", Json::Null, None), ["── oven · ended"]);
        let not_a_plan = viewed("oven", json!({"entries": [1]}), Some("one"));
        assert_eq!(not_a_plan, ["── oven · view", "one"]);
    }

    #[test]
    fn rap_r23_view_that_is_shown_cannot_control_the_terminal() {
        let evil = "a\u{1b}[2J\u{202e}b\u{9b}1m\u{7}\u{1b}]0;title\u{7}\r<script>";
        let plan = json!({"entries": [{"content": evil, "status": "completed"}]});
        for (content, text) in [
            (plan, None),
            (json!({"n": 1}), Some(evil)),
            (json!({ evil: evil }), None),
            (json!(evil), None),
            (Json::Null, None),
        ] {
            let shown = viewed(evil, content, text);
            assert!(shown[0].contains("a\\u{1b}[2J\\u{202e}b"), "{shown:?}");
            assert!(!shown.join("").contains(|it: char| it.is_control() || it == '\u{202e}'), "{shown:?}");
        }
    }

    #[test]
    fn voice_says_the_title_of_code_and_never_the_code() {
        let code = "fn main() {}\n".repeat(100);
        let result = |title: &str| {
            let display = DisplayContent::Code { language: Some("rust".into()), text: code.as_str().into() };
            let result = ToolResult::text(&*code).with_display(Display::new(display).with_title(title));
            speech(&result.to_value()).text
        };
        assert_eq!(result("main.rs").as_deref(), Some("main.rs"));
        assert_eq!(result(" "), None);
        let diff = ToolResult::of(&diff()).with_block(ToolResult::text("It is mended.").content()[0].clone());
        assert_eq!(speech(&diff.to_value()).text.as_deref(), Some("It is mended."));
    }
}
