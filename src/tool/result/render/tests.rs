use serde_json::{Value as Json, json};

use super::*;
use crate::tool::Widget;

const LIMITS: Limits = Limits { lines: 20, line: 200, text: 4_000 };

/// Writes sections as text: the heading with its note, then each line with its style.
fn written(result: &ToolResult) -> Vec<String> {
    let mut lines = Vec::new();
    for section in super::result(result, LIMITS) {
        if !section.title.is_empty() || !section.note.is_empty() {
            lines.push(format!("[{}|{}]", section.title, section.note));
        }
        lines.extend(section.lines.iter().map(|line| {
            let text: String = line.spans.iter().map(|span| span.text.as_str()).collect();
            format!("{:?}: {text}", line.style)
        }));
        if section.omitted > 0 {
            lines.push(format!("+{}", section.omitted));
        }
    }
    lines
}

fn read(json: Json) -> ToolResult {
    ToolResult::of(&json.into())
}

/// A result with one display.
fn displayed(display: &Json) -> ToolResult {
    read(json!({"bridge.result": 1, "content": [], "display": [display]}))
}

#[test]
fn each_kind_of_display_has_its_lines() {
    let png = json!({"type": "image", "data": "A".repeat(16_400), "mimeType": "image/png"});
    for (display, expected) in [
        (
            json!({"type": "text", "text": "a\nb\tc", "title": "T"}),
            &["[T|]", "Plain: a", "Plain: b    c"][..],
        ),
        (
            json!({"type": "markdown", "text": "# A\nsee [it](https://a.b)"}),
            &["Heading: A", "Plain: see it <https://a.b>"],
        ),
        (
            json!({"type": "json", "text": "{\"a\":[1]}"}),
            &["Mono: {", "Mono:   \"a\": [", "Mono:     1", "Mono:   ]", "Mono: }"],
        ),
        (json!({"type": "json", "text": "no json"}), &["Mono: no json"]),
        (
            json!({"type": "code", "text": "fn main() {}", "language": "rust", "title": "main.rs"}),
            &["[main.rs|rust]", "Mono: fn main() {}"],
        ),
        (
            json!({"type": "diff", "path": "a", "patch": "@@ -1 +1 @@\n-x\n+y"}),
            &["[a|+1 −1]", "Hunk: @@ -1 +1 @@", "Removed: -x", "Added: +y"],
        ),
        (
            json!({"type": "diff", "path": "a", "newText": "x"}),
            &["[a|new file, +1 −0]", "Hunk: @@ -0,0 +1 @@", "Added: +x"],
        ),
        (png, &["Note: image/png, 12.3 KB"]),
        (
            json!({"type": "terminal", "terminalId": "t", "output": "\u{1b}[1;31mred\u{1b}[0m\u{1b}]0;title\u{7}!\n10%\r20%\r\n", "exitCode": 1}),
            &["[|exit status 1]", "Mono: red!", "Mono: 20%"],
        ),
        (
            json!({"type": "terminal", "terminalId": "t"}),
            &["[|terminal]", "Note: terminal t: the result has no output of it"],
        ),
        (json!({"type": "hologram", "text": "as text", "title": "T"}), &["[T|]", "Plain: as text"]),
        (json!({"type": "hologram"}), &["Note: content of the unknown type \"hologram\""]),
        (json!(5), &["Note: content of an unknown type"]),
    ] {
        assert_eq!(written(&displayed(&display)), expected, "{display}");
    }
}

#[test]
fn each_change_and_each_terminal_is_shown_in_order() {
    let diff =
        |path: &str| json!({"type": "diff", "path": path, "patch": format!("@@ -1 +1 @@\n-x\n+{path}")});
    let terminal = json!({"type": "terminal", "terminalId": "t", "output": "done", "exitCode": 0});
    let with = |display: Json| written(&read(json!({"bridge.result": 1, "content": [], "display": display})));
    let part = |path: &str| {
        [
            format!("[{path}|+1 −1]"),
            "Hunk: @@ -1 +1 @@".into(),
            "Removed: -x".into(),
            format!("Added: +{path}"),
        ]
    };
    let end = ["[|exit status 0]".to_owned(), "Mono: done".to_owned()];
    let all = [part("/a").as_slice(), &end, &part("/b")].concat();
    assert_eq!(with(json!([diff("/a"), terminal, diff("/b")])), all);
    // Of other displays the best one stands for all: they say the same in several forms.
    let text = json!({"type": "text", "text": "1 line"});
    let json = json!({"type": "json", "text": "{}"});
    assert_eq!(with(json!([diff("/a"), text, json])), part("/a"));
    let mixed = [&["Plain: 1 line".to_owned()], &part("/a")[..], &end].concat();
    assert_eq!(with(json!([text, json, diff("/a"), terminal])), mixed);
}

#[test]
fn collapsed_display_says_so() {
    let display = json!({"type": "text", "text": "a", "collapsed": true});
    assert!(result(&displayed(&display), LIMITS)[0].is_collapsed);
}

#[test]
fn content_is_shown_by_its_audience() {
    let block = |text: &str, audience: &str| json!({"type": "text", "text": text, "annotations": {"audience": [audience]}});
    let all = |content: Json| read(json!({"bridge.result": 1, "content": content, "structured": {"n": 1}}));
    let model = block("for the model", "assistant");
    let both = json!({"type": "text", "text": "for both"});
    assert_eq!(written(&all(json!([model, both, block("for you", "user")]))), ["Plain: for you"]);
    assert_eq!(written(&all(json!([model, both]))), ["Plain: for both"]);
    assert_eq!(written(&all(json!([model]))), [""; 0]);
    // A display stands next to the text for the person, not to the text for both.
    let display = json!([{"type": "text", "text": "shown"}, {"type": "json", "text": "{}"}]);
    let with = |content: Json| read(json!({"bridge.result": 1, "content": content, "display": display}));
    assert_eq!(written(&with(json!([both]))), ["Plain: shown"]);
    assert_eq!(written(&with(json!([block("for you", "user")]))), ["Plain: for you", "Plain: shown"]);
    assert_eq!(written(&with(json!([block("shown", "user")]))), ["Plain: shown"]);
}

#[test]
fn media_links_and_resources_are_lines() {
    let image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
    let content = json!([
        {"type": "text", "text": "look"},
        image,
        {"type": "audio", "data": "AAAA"},
        {"type": "resource_link", "uri": "https://a.b/c", "name": "Page"},
        {"type": "resource_link", "uri": "javascript:alert(1)"},
        {"type": "resource", "resource": {"uri": "file:///a.md", "mimeType": "text/markdown", "text": "**x**"}},
        {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "image/x", "blob": "AAAA"}},
        {"type": "hologram"},
        {"type": "image", "data": "hidden", "annotations": {"audience": ["assistant"]}},
    ]);
    assert_eq!(
        written(&read(json!({"content": content}))),
        [
            "Plain: look",
            "Note: image/png, 3 B",
            "Note: audio, 3 B",
            "Plain: Page <https://a.b/c>",
            "Plain: javascript:alert(1)",
            "[file:///a.md|text/markdown]",
            "Plain: x",
            "Note: file:///b: image/x, 3 B",
            "Note: content of the unknown type \"hologram\"",
        ]
    );
    // An image without a text is what is shown, once.
    assert_eq!(written(&read(json!({"content": [image]}))), ["Note: image/png, 3 B"]);
}

#[test]
fn forms_and_menus_have_numbers() {
    let schema = json!({
        "title": "Ticket", "type": "object", "required": ["prio"],
        "properties": {
            "note": {"type": "string", "title": "Note", "default": "none"},
            "prio": {"type": "string", "enum": ["1", "2"], "enumNames": ["High", "Low"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many?"},
            "days": {"type": "array", "items": {"oneOf": [{"const": "mo", "title": "Monday"}]}},
        },
    });
    let ui = json!({"ui:order": ["prio", "gone", "note", "note"], "ui:submitButtonOptions": {"submitText": "Send"}, "prio": {"ui:title": "Priority"}});
    let fields = [
        "Plain: 1. Priority (required)",
        "Plain:    • High",
        "Plain:    • Low",
        "Plain: 2. Note (default none)",
        "Plain: 3. count (integer from 1 to 9)",
        "Note:    How many?",
        "Plain: 4. days (array)",
        "Plain:    • Monday",
        "Note: [Send]",
    ];
    let widget = |widget: Json| ToolResult::default().with_widget(Widget::new(widget));
    let form = written(&widget(json!({"json_schema": schema, "ui_schema": ui})));
    assert_eq!((&*form[0], &form[1..]), ("[Ticket|form]", &fields.map(str::to_owned)[..]));
    assert_eq!(written(&widget(schema))[1], "Plain: 1. Note (default none)");
    let menu = json!({"type": "options", "title": "Which?", "options": [{"label": "One", "value": 1}, "Two", {"value": "three"}]});
    assert_eq!(
        written(&widget(menu)),
        ["[Which?|choice]", "Plain: 1. One", "Plain: 2. Two", "Plain: 3. three"]
    );
    let titled = ToolResult::default().with_widget(Widget::new(json!([])).with_title("Odd"));
    assert_eq!(written(&titled), ["[Odd|widget]", "Mono: []"]);
}

/// X4.
#[test]
fn common_x4_shown_text_cannot_control_the_screen() {
    let evil = "a\u{1b}[31mb\u{9b}2J\u{202e}c\u{200b}d\u{e0041}\u{7}\u{1b}]8;;https://x\u{7}link\u{1b}";
    let content = json!([
        {"type": "text", "text": evil, "annotations": {"audience": ["user"]}},
        {"type": "image", "data": "A", "mimeType": evil},
        {"type": "resource_link", "uri": format!("https://a.b/{evil}"), "name": evil},
        {"type": "resource", "resource": {"uri": evil, "mimeType": evil, "text": evil}},
        {"type": evil},
        {"type": evil, "text": evil},
    ]);
    let field = json!({"title": evil, "description": evil, "format": evil, "default": evil, "enum": [evil]});
    let widget = json!({"title": evil, "value": {"json_schema": {"properties": {evil: field}}}});
    for display in [
        json!({"type": "text", "text": evil, "title": evil}),
        json!({"type": "markdown", "text": format!("# {evil}\n> {evil}\n- **{evil}** [{evil}](https://{evil}) <https://{evil}>\n```\n{evil}")}),
        json!({"type": "json", "text": format!("{{\"{evil}\": {evil}}}")}),
        json!({"type": "code", "text": evil, "language": evil}),
        json!({"type": "diff", "path": evil, "oldText": evil, "newText": format!("{evil}\n2{evil}")}),
        json!({"type": "terminal", "terminalId": evil, "output": evil}),
        json!({"type": "terminal", "terminalId": evil}),
    ] {
        let result =
            read(json!({"bridge.result": 1, "content": content, "display": [display], "widget": widget}));
        for section in super::result(&result, LIMITS) {
            let lines =
                section.lines.iter().flat_map(|line| &line.spans).map(|span| (span.style, &*span.text));
            for (style, text) in
                lines.chain([(SpanStyle::Plain, &*section.title), (SpanStyle::Plain, &*section.note)])
            {
                assert!(!text.contains(crate::escape::is_dangerous), "{text:?} of {display}");
                assert!(style != SpanStyle::Link || text.bytes().all(|it| it.is_ascii_graphic()), "{text:?}");
            }
        }
    }
}

#[test]
fn everything_is_cut_to_the_limits() {
    let long = "x".repeat(1_000_000);
    let lines = "line\n".repeat(100_000);
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let many: Vec<Json> = (0..900)
        .map(|n| json!({"type": "resource", "resource": {"uri": format!("a:{n}"), "text": "x"}}))
        .collect();
    let properties: serde_json::Map<String, Json> =
        (0..5_000).map(|n| (format!("f{n}"), json!({"enum": vec!["o"; 10]}))).collect();
    for json in [
        json!({"display": [{"type": "text", "text": long}]}),
        json!({"display": [{"type": "markdown", "text": format!("{}\n{}", "**[".repeat(300_000), lines)}]}),
        json!({"display": [{"type": "json", "text": deep}]}),
        json!({"display": [{"type": "code", "text": lines}]}),
        json!({"display": [{"type": "diff", "path": long, "oldText": lines, "newText": format!("{lines}{lines}")}]}),
        json!({"display": [{"type": "diff", "path": "a", "patch": lines}]}),
        json!({"display": [{"type": "terminal", "terminalId": "t", "output": format!("{long}\r\n{}", "\u{1b}".repeat(100_000))}]}),
        json!({"content": many}),
        json!({"widget": {"value": {"properties": properties}}}),
        json!({"widget": {"value": {"deep": (0..50).fold(json!(1), |inner, _| json!([inner])), "long": long}}}),
    ] {
        let mut json = json;
        json["bridge.result"] = 1.into();
        let sections = result(&read(json), LIMITS);
        assert!((1..=32).contains(&sections.len()));
        assert!(
            sections.iter().all(|section| section.lines.len() <= LIMITS.lines && section.title.len() < 250)
        );
        let spans = || sections.iter().flat_map(|section| &section.lines).flat_map(|line| &line.spans);
        let size: usize = spans().map(|span| span.text.len()).sum();
        // What says how much is missing comes on top.
        assert!(size <= LIMITS.text + 40 * spans().count(), "{size}");
    }
    let shown = written(&displayed(&json!({"type": "text", "text": format!("{lines}{long}")})));
    assert_eq!((shown.len(), shown.last().map(String::as_str)), (LIMITS.lines + 1, Some("+99981")));
    let cut = written(&displayed(&json!({"type": "text", "text": long})));
    assert!(cut[0].ends_with("x… (999.8 KB more)") && cut[0].len() < 300, "{cut:?}");
}
