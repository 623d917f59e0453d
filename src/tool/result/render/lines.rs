//! Collects sections of lines within limits.

use crate::escape::plain;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most lines of a section.
    pub lines: usize,
    /// The most bytes of a line.
    pub line: usize,
    /// The most bytes of all lines together.
    pub text: usize,
}

/// The most sections of a page. Media share one, and so do links.
const MAX_SECTIONS: usize = 32;

/// The longest title or note, in bytes.
const MAX_TITLE: usize = 200;

/// A part of a result, such as a text, a change of a file or a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The heading. May be empty.
    pub title: String,
    /// What the section is, such as a language or the size of a change. May be empty.
    pub note: String,
    /// Whether it is shown collapsed at first.
    pub is_collapsed: bool,
    /// The lines.
    pub lines: Vec<Line>,
    /// How many lines are left out after these.
    pub omitted: usize,
}

/// A line of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// What the line is.
    pub style: LineStyle,
    /// Its text, in pieces.
    pub spans: Vec<Span>,
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// What the piece is.
    pub style: SpanStyle,
    /// Its text, without line breaks.
    pub text: String,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineStyle {
    /// Text.
    Plain,
    /// A heading.
    Heading,
    /// A quotation.
    Quote,
    /// Code, JSON or the output of a terminal, in which columns matter.
    Mono,
    /// A line that a change adds, with its sign.
    Added,
    /// A line that a change removes, with its sign.
    Removed,
    /// The line numbers of a change, such as `@@ -1,2 +1,3 @@`.
    Hunk,
    /// A remark about the content.
    Note,
}

/// What a piece of a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanStyle {
    /// Text.
    Plain,
    /// Strong text.
    Strong,
    /// Emphasized text.
    Emphasis,
    /// Code.
    Code,
    /// An address that may be opened: ASCII text that begins with `http://` or `https://`.
    Link,
}

impl Line {
    pub(super) fn of(style: LineStyle, text: impl Into<String>) -> Self {
        Self { style, spans: vec![Span { style: SpanStyle::Plain, text: text.into() }] }
    }
}

/// The sections that are being collected.
pub(super) struct Page {
    pub(super) sections: Vec<Section>,
    limits: Limits,
    /// Bytes left.
    left: usize,
    /// Whether the last section takes loose lines.
    is_loose: bool,
}

impl Page {
    pub(super) fn new(limits: Limits) -> Self {
        Self { sections: Vec::new(), limits, left: limits.text, is_loose: false }
    }

    /// Begins a section. Beyond the limit of sections, the last one goes on.
    pub(super) fn section(&mut self, title: &str, note: &str) -> Writer<'_> {
        self.begin(Section { title: word(title), note: word(note), ..Section::default() });
        self.is_loose = false;
        self.writer()
    }

    /// Continues the section of lines that belong to nothing else.
    pub(super) fn loose(&mut self) -> Writer<'_> {
        if !self.is_loose {
            self.begin(Section::default());
        }
        self.is_loose = true;
        self.writer()
    }

    /// Shows the last section collapsed at first.
    pub(super) fn collapse(&mut self) {
        if let Some(section) = self.sections.last_mut() {
            section.is_collapsed = true;
        }
    }

    fn begin(&mut self, section: Section) {
        if self.sections.len() < MAX_SECTIONS {
            self.sections.push(section);
        }
    }

    fn writer(&mut self) -> Writer<'_> {
        let Self { sections, limits, left, .. } = self;
        let end = sections.len().saturating_sub(1);
        Writer { section: &mut sections[end], limits: *limits, left }
    }
}

fn word(text: &str) -> String {
    clean(text, MAX_TITLE)
}

/// Adds lines to a section.
pub(super) struct Writer<'a> {
    section: &'a mut Section,
    limits: Limits,
    left: &'a mut usize,
}

impl Writer<'_> {
    /// Adds a text line by line.
    pub(super) fn text(&mut self, style: LineStyle, text: &str) {
        self.extend(text.lines(), |line| Line::of(style, line));
    }

    /// Adds the output of a terminal: without its colors, and each line as it was last written.
    pub(super) fn terminal(&mut self, text: &str) {
        let limit = self.limits.line.saturating_mul(8);
        self.extend(text.lines(), |line| {
            let line = line.trim_end_matches('\r');
            let last = line.rfind('\r').map_or(line, |at| &line[at + 1..]);
            Line::of(LineStyle::Mono, without_sequences(cut(last, limit)))
        });
    }

    pub(super) fn line(&mut self, style: LineStyle, text: &str) {
        self.push(Line::of(style, text));
    }

    pub(super) fn push(&mut self, line: Line) {
        self.extend(std::iter::once(line), |line| line);
    }

    /// Adds lines until a limit is reached, and counts the others.
    pub(super) fn extend<T>(&mut self, mut from: impl Iterator<Item = T>, line: impl Fn(T) -> Line) {
        while self.section.lines.len() < self.limits.lines && *self.left > 0 {
            let Some(next) = from.next() else { return };
            let line = self.fitted(line(next));
            self.section.lines.push(line);
        }
        self.section.omitted += from.count();
    }

    /// Returns the line with safe texts, cut to the limits.
    fn fitted(&mut self, line: Line) -> Line {
        let mut left = self.limits.line.min(*self.left);
        let mut spans = Vec::new();
        for Span { style, text } in line.spans {
            let shown = clean(&text, left);
            // An address that was changed leads elsewhere.
            let style = if style == SpanStyle::Link && shown != text { SpanStyle::Plain } else { style };
            let used = text.len().min(left);
            left -= used;
            *self.left -= used;
            spans.push(Span { style, text: shown });
            if used < text.len() {
                break;
            }
        }
        // A line costs something even if it is empty.
        *self.left = self.left.saturating_sub(1);
        Line { style: line.style, spans }
    }
}

/// Returns at most `limit` bytes of a line that can be shown anywhere. One that was cut says how much is missing.
pub(super) fn clean(text: &str, limit: usize) -> String {
    let kept = cut(text, limit);
    let mut shown = plain(&kept.replace('\t', "    ")).into_owned();
    if kept.len() < text.len() {
        shown.push_str(&format!("… ({} more)", size(text.len() - kept.len())));
    }
    shown
}

/// Returns at most `limit` bytes of a text.
fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns a number of bytes for people, such as `12.3 KB`.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Removes the escape sequences that a terminal would act upon (ECMA-48: CSI, OSC and the like).
fn without_sequences(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        out.push_str(&rest[..at]);
        let sequence = &rest[at + 1..];
        let end = match sequence.chars().next() {
            Some('[') => sequence[1..].find(|it| matches!(it, '@'..='~')).map(|end| end + 2),
            // A string, which ends in BEL, or in ESC and a backslash.
            Some(']' | 'P' | 'X' | '^' | '_') => {
                sequence.find(['\u{7}', '\u{1b}']).map(|end| match sequence.as_bytes()[end] {
                    7 => end + 1,
                    _ => end,
                })
            }
            other => other.map(char::len_utf8),
        };
        match end {
            Some(end) => rest = &sequence[end..],
            // It does not end: what follows is shown, after an escape that is visible.
            None => {
                out.push('\u{1b}');
                rest = sequence;
            }
        }
    }
    out.push_str(rest);
    out
}
