//! Lays out a result or a view as a person sees it: as sections of styled lines.
//!
//! Whoever shows the lines decides on colors or markup. Their texts are safe to show: control, bidi and invisible
//! characters are escaped, and everything has a limit.
//!
//! ```
//! use toolbridge::{ToolResult, Value, result::render};
//!
//! let value = Value::from_json(r#"{"battery": 0.8}"#)?;
//! let limits = render::Limits { lines: 100, line: 1_000, text: 16 << 10 };
//! let sections = render::result(&ToolResult::of(&value), limits);
//! let texts: Vec<_> = sections[0].lines.iter().map(|line| line.spans[0].text.as_str()).collect();
//! assert_eq!(texts, ["{", "  \"battery\": 0.8", "}"]);
//! # Ok::<(), toolbridge::DecodeError>(())
//! ```

mod diff_lines;
mod form;
mod json;
mod lines;
mod markdown;
#[cfg(test)]
mod tests;
mod view;

use std::borrow::Cow;

use crate::{
    tool::{
        BlockKind, ContentBlock, Diff, Display, DisplayContent, DisplayKind, EmbeddedResource, Media,
        ToolResult,
    },
    value::Value,
};
use diff_lines::diff_lines;
pub use lines::{Limits, Line, LineStyle, Section, Span, SpanStyle};
use lines::{Page, size};
pub use view::view;

/// The forms of display that are understood.
const KINDS: [DisplayKind; 7] = [
    DisplayKind::Text,
    DisplayKind::Markdown,
    DisplayKind::Json,
    DisplayKind::Code,
    DisplayKind::Diff,
    DisplayKind::Image,
    DisplayKind::Terminal,
];

/// Returns what a person sees of a result: the text for the person alone, the best display, all changes and terminals,
/// media and links, and the widget. Of a plain value, returns its JSON. Nothing that is for the model alone is in it.
pub fn result(result: &ToolResult, limits: Limits) -> Vec<Section> {
    let mut page = Page::new(limits);
    if result.is_plain_value() {
        if let Some(data) = result.structured() {
            json_section(&mut page, "", &data.to_json().to_string());
        }
        return page.sections;
    }
    let result = &result.for_clients();
    let text = result.person_text();
    if let Some(text) = &text {
        page.section("", "").text(LineStyle::Plain, text);
    }
    let best = result.for_display(&KINDS);
    let shown = displays(result, best.as_deref());
    for display in shown.iter().filter(|it| !is_text(it, text.as_deref())) {
        show(&mut page, display);
    }
    if shown.is_empty()
        && let Some(display) = result.display().first()
    {
        unknown(&mut page, display.title(), display.raw());
    }
    for block in result.content() {
        media(&mut page, block, best.as_deref().map(Display::content));
    }
    if let Some(widget) = result.widget() {
        form::show(&mut page, widget);
    }
    page.sections
}

/// Returns the displays that are shown, in their order: the best one, and each change and each terminal, because none of
/// them stands for another.
fn displays<'a>(result: &'a ToolResult, best: Option<&'a Display>) -> Vec<&'a Display> {
    let is_best = |display: &Display| best.is_some_and(|best| std::ptr::eq(best, display));
    let is_shown = |display: &&Display| {
        is_best(display) || matches!(display.kind(), DisplayKind::Diff | DisplayKind::Terminal)
    };
    let shown: Vec<_> = result.display().iter().filter(is_shown).collect();
    if shown.is_empty() { best.into_iter().collect() } else { shown }
}

fn is_text(display: &Display, text: Option<&str>) -> bool {
    matches!(display.content(), DisplayContent::Text(shown) if Some(&**shown) == text)
}

fn show(page: &mut Page, display: &Display) {
    let title = display.title().unwrap_or_default();
    match display.content() {
        DisplayContent::Text(text) => page.section(title, "").text(LineStyle::Plain, text),
        DisplayContent::Markdown(text) => {
            page.section(title, "").extend(markdown::Source::new(text), Line::from);
        }
        DisplayContent::Json(text) => json_section(page, title, text),
        DisplayContent::Code { language, text } => {
            page.section(title, language.as_deref().unwrap_or("code")).text(LineStyle::Mono, text);
        }
        DisplayContent::Diff(diff) => diff_section(page, title, diff),
        DisplayContent::Image(image) => {
            page.section(title, "").line(LineStyle::Note, &described(image, "image"))
        }
        DisplayContent::Terminal { id, output, exit_code } => {
            let note = exit_code.map_or_else(|| "terminal".to_owned(), |code| format!("exit status {code}"));
            let mut section = page.section(title, &note);
            match output {
                Some(output) => section.terminal(output),
                None => {
                    section.line(LineStyle::Note, &format!("terminal {id}: the result has no output of it"))
                }
            }
        }
        _ => return unknown(page, display.title(), display.raw()),
    }
    if display.is_collapsed() {
        page.collapse();
    }
}

fn json_section(page: &mut Page, title: &str, text: &str) {
    let mut section = page.section(title, "");
    if text.trim_start().starts_with(['{', '[']) {
        section.extend(json::Pretty::new(text), |line| Line::of(LineStyle::Mono, line));
    } else {
        section.text(LineStyle::Mono, text);
    }
}

fn diff_section(page: &mut Page, title: &str, diff: &Diff) {
    let patch = match &diff.patch {
        Some(patch) => Cow::Borrowed(&**patch),
        None => diff.hunks_for_people().unwrap_or_default().into(),
    };
    let (added, removed) = diff_lines(&patch).fold((0_usize, 0_usize), |(added, removed), (style, _)| {
        (added + usize::from(style == LineStyle::Added), removed + usize::from(style == LineStyle::Removed))
    });
    let what = match (&diff.patch, &diff.old_text, &diff.new_text) {
        (None, None, Some(_)) => "new file, ",
        _ => "",
    };
    let note = format!("{what}+{added} −{removed}");
    let path = if title.is_empty() || *title == *diff.path {
        diff.path.to_string()
    } else {
        format!("{title}: {}", diff.path)
    };
    page.section(&path, &note).extend(diff_lines(&patch), |(style, line)| Line::of(style, line));
}

/// Shows a block that is not a text as a line, and the text of an embedded resource.
fn media(page: &mut Page, block: &ContentBlock, shown: Option<&DisplayContent>) {
    let line = match block.kind() {
        BlockKind::Text(_) => return,
        BlockKind::Image(image) if shown == Some(&DisplayContent::Image(image.clone())) => return,
        BlockKind::Image(image) => described(image, "image"),
        BlockKind::Audio(audio) => described(audio, "audio"),
        BlockKind::Link { uri, name } => {
            let line = markdown::link(name.as_deref().unwrap_or_default(), uri);
            return page.loose().push(line);
        }
        BlockKind::Resource(resource) => return embedded(page, resource),
        _ => return unknown(page, None, block.raw()),
    };
    page.loose().line(LineStyle::Note, &line);
}

/// Describes a medium in one line, such as `image/png, 12.3 KB`.
fn described(media: &Media, otherwise: &str) -> String {
    format!("{}, {}", media.mime_type().unwrap_or(otherwise), size(media.size()))
}

fn embedded(page: &mut Page, resource: &EmbeddedResource) {
    let kind = resource.mime_type.as_deref().unwrap_or_default();
    match &resource.text {
        Some(text) if kind == "text/markdown" => {
            page.section(&resource.uri, kind).extend(markdown::Source::new(text), Line::from);
        }
        Some(text) if kind == "application/json" => json_section(page, &resource.uri, text),
        Some(text) => page.section(&resource.uri, kind).text(LineStyle::Mono, text),
        None => {
            let blob = resource.blob.as_deref().unwrap_or_default();
            let blob = described(&Media::new(blob, kind), "data");
            page.loose().line(LineStyle::Note, &format!("{}: {blob}", resource.uri));
        }
    }
}

/// Shows something that is not understood by its text, otherwise by its type.
fn unknown(page: &mut Page, title: Option<&str>, raw: &Value) {
    let field = |name: &str| raw.get(name).and_then(|text| text.as_str().map(str::to_owned));
    match (field("text"), field("type")) {
        (Some(text), _) => page.section(title.unwrap_or_default(), "").text(LineStyle::Plain, &text),
        (None, Some(kind)) => {
            page.loose().line(LineStyle::Note, &format!("content of the unknown type {kind:?}"))
        }
        (None, None) => page.loose().line(LineStyle::Note, "content of an unknown type"),
    }
}
