//! Lays out Markdown: headings, lists, quotes, code, emphasis and links. Everything else stays as it is written.

use super::{Line, LineStyle, Span, SpanStyle};

/// The longest line of which the marks are read, in bytes.
const MAX_LINE: usize = 16 * 1024;

/// The lines of a text in Markdown, without the marks around code.
pub(super) struct Source<'a> {
    lines: std::str::Lines<'a>,
    /// The mark that ends the block of code.
    fence: Option<&'a str>,
}

/// A line as it is written.
pub(super) enum Written<'a> {
    Text(&'a str),
    Code(&'a str),
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { lines: text.lines(), fence: None }
    }
}

impl<'a> Iterator for Source<'a> {
    type Item = Written<'a>;

    fn next(&mut self) -> Option<Written<'a>> {
        loop {
            let line = self.lines.next()?;
            let mark = fence(line.trim_start());
            match (self.fence, mark) {
                (None, Some(mark)) => self.fence = Some(mark),
                (Some(open), Some(mark)) if mark.starts_with(open) && line.trim().len() == mark.len() => {
                    self.fence = None;
                }
                (Some(_), _) => return Some(Written::Code(line)),
                (None, None) => return Some(Written::Text(line)),
            }
        }
    }
}

impl From<Written<'_>> for Line {
    fn from(written: Written<'_>) -> Self {
        match written {
            Written::Code(line) => Self::of(LineStyle::Mono, line),
            Written::Text(line) => block(line),
        }
    }
}

/// Returns the mark of a line that begins or ends a block of code.
fn fence(line: &str) -> Option<&str> {
    let mark = line.chars().next().filter(|it| matches!(it, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(mark).len();
    (length >= 3 && !line[length..].contains('`')).then(|| &line[..length])
}

fn block(line: &str) -> Line {
    let text = line.trim_start();
    let indent = &line[..line.len() - text.len()];
    let level = text.len() - text.trim_start_matches('#').len();
    if (1..=6).contains(&level) && (text.len() == level || text[level..].starts_with([' ', '\t'])) {
        return Line { style: LineStyle::Heading, spans: spans(text[level..].trim().trim_end_matches(" #")) };
    }
    if let Some(quoted) = text.strip_prefix('>') {
        return Line { style: LineStyle::Quote, spans: spans(quoted.trim_start()) };
    }
    // The columns of a table are aligned in its source, if anywhere.
    if text.starts_with('|') {
        return Line::of(LineStyle::Mono, line);
    }
    let is_rule = |mark| text.len() >= 3 && text.chars().all(|it| it == mark || it == ' ');
    if ['-', '*', '_'].into_iter().any(is_rule) {
        return Line::of(LineStyle::Note, "―――");
    }
    let item = ["- ", "* ", "+ "].iter().find_map(|mark| text.strip_prefix(mark));
    let (before, text) = match item {
        Some(item) => (format!("{indent}• "), item),
        None => (indent.to_owned(), text),
    };
    let mut spans = spans(text);
    if !before.is_empty() {
        spans.insert(0, Span { style: SpanStyle::Plain, text: before });
    }
    Line { style: LineStyle::Plain, spans }
}

/// Returns a link as its text and its address, which can be opened if it is of the web.
pub(super) fn link(text: &str, url: &str) -> Line {
    let mut spans = Spans::default();
    spans.link(text, url);
    Line { style: LineStyle::Plain, spans: spans.all }
}

/// Reads the marks inside a line.
fn spans(line: &str) -> Vec<Span> {
    if line.len() > MAX_LINE {
        return vec![Span { style: SpanStyle::Plain, text: line.to_owned() }];
    }
    spans_of(&mut Marks::new(line))
}

fn spans_of(marks: &mut Marks<'_>) -> Vec<Span> {
    let mut spans = Spans::default();
    let mut rest = marks.line;
    while let Some(at) = rest.find(['\\', '`', '*', '_', '[', '!', '<', 'h']) {
        let is_inside_word = rest[..at].ends_with(char::is_alphanumeric) || (at == 0 && spans.ends_in_word());
        spans.plain(&rest[..at]);
        rest = &rest[at..];
        let read = match rest.as_bytes()[0] {
            b'\\' => escaped(rest),
            b'h' if is_inside_word => None,
            b'h' => marks.address(rest).map(|url| (Piece::Link("", url), url.len())),
            b'<' => enclosed(rest, marks),
            b'!' | b'[' => bracketed(rest, marks),
            _ => marked(rest, is_inside_word, marks),
        };
        let (piece, length) = read.unwrap_or_else(|| {
            let length = rest.chars().next().map_or(rest.len(), char::len_utf8);
            (Piece::Text(SpanStyle::Plain, &rest[..length]), length)
        });
        match piece {
            Piece::Text(style, text) => spans.push(style, text),
            Piece::Link(text, url) => spans.link(text, url),
            Piece::Image(text, url) => {
                spans.plain("[image] ");
                spans.link(text, url);
            }
        }
        rest = &rest[length..];
    }
    spans.plain(rest);
    spans.all
}

/// What a mark encloses.
enum Piece<'a> {
    Text(SpanStyle, &'a str),
    Link(&'a str, &'a str),
    Image(&'a str, &'a str),
}

fn escaped(rest: &str) -> Option<(Piece<'_>, usize)> {
    let next = rest[1..].chars().next().filter(char::is_ascii_punctuation)?;
    Some((Piece::Text(SpanStyle::Plain, &rest[1..=next.len_utf8()]), 1 + next.len_utf8()))
}

/// Reads an address in angle brackets.
fn enclosed<'a>(rest: &'a str, marks: &mut Marks<'a>) -> Option<(Piece<'a>, usize)> {
    let end = marks.find(rest, ">")?;
    let url = &rest[1..end];
    is_web(url).then_some((Piece::Link("", url), end + 1))
}

/// Reads code, strong or emphasized text.
fn marked<'a>(rest: &'a str, is_inside_word: bool, marks: &mut Marks<'a>) -> Option<(Piece<'a>, usize)> {
    let first = rest.chars().next()?;
    let length = rest.len() - rest.trim_start_matches(first).len();
    let (mark, after) = rest.split_at(length);
    let style = match (first, length) {
        ('`', _) => SpanStyle::Code,
        ('_', _) if is_inside_word => return Some((Piece::Text(SpanStyle::Plain, mark), length)),
        (_, 1) => SpanStyle::Emphasis,
        (_, 2 | 3) => SpanStyle::Strong,
        _ => return Some((Piece::Text(SpanStyle::Plain, mark), length)),
    };
    let may_open = style == SpanStyle::Code || !after.starts_with(char::is_whitespace);
    match may_open.then(|| marks.find(after, mark)).flatten() {
        Some(end) if end > 0 => Some((Piece::Text(style, &after[..end]), length + end + length)),
        _ => Some((Piece::Text(SpanStyle::Plain, mark), length)),
    }
}

/// Reads a link or an image.
fn bracketed<'a>(rest: &'a str, marks: &mut Marks<'a>) -> Option<(Piece<'a>, usize)> {
    let is_image = rest.starts_with('!');
    let text = rest.strip_prefix('!').unwrap_or(rest).strip_prefix('[')?;
    let middle = marks.find(text, "](")?;
    let target = &text[middle + 2..];
    let end = marks.find(target, ")")?;
    let length = rest.len() - target.len() + end + 1;
    let text = &text[..middle];
    if text.contains('[') {
        return None;
    }
    // A title may follow the address.
    let url = target[..end].split(' ').next().unwrap_or_default().trim_matches(['<', '>']);
    Some((if is_image { Piece::Image(text, url) } else { Piece::Link(text, url) }, length))
}

/// The places of marks in a line. Each is searched for once, so that a line costs as much as it is long.
struct Marks<'a> {
    line: &'a str,
    /// Marks and the place of the next of each, if there is one: from there on, it has not been searched for. The longest
    /// line has room for 180 different ones.
    next: Vec<(&'a str, Option<usize>)>,
    /// Up to this place, addresses do not end: a character after them does not belong in an address.
    endless: usize,
    /// How many bytes were looked at.
    #[cfg(test)]
    looked_at: usize,
}

impl<'a> Marks<'a> {
    fn new(line: &'a str) -> Self {
        Self {
            line,
            next: Vec::new(),
            endless: 0,
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Returns the place of a mark in a text that ends with the line.
    fn find(&mut self, text: &str, mark: &'a str) -> Option<usize> {
        let from = self.line.len() - text.len();
        let known = self.next.iter().position(|(known, _)| *known == mark);
        let place = match known.map(|at| self.next[at].1) {
            Some(None) => None,
            Some(Some(place)) if place >= from => Some(place),
            _ => self.search(text, mark).map(|place| from + place),
        };
        match known {
            Some(at) => self.next[at].1 = place,
            None => self.next.push((mark, place)),
        }
        place.map(|place| place - from)
    }

    fn search(&mut self, text: &str, mark: &str) -> Option<usize> {
        #[cfg(test)]
        {
            self.looked_at += text.find(mark).unwrap_or(text.len());
        }
        text.find(mark)
    }

    /// Returns the address at the beginning of a text that ends with the line, without the punctuation after it.
    fn address(&mut self, text: &'a str) -> Option<&'a str> {
        let from = self.line.len() - text.len();
        if from < self.endless || !has_host(text) {
            return None;
        }
        let end = text.find(|it: char| !is_of_address(it)).unwrap_or(text.len());
        #[cfg(test)]
        {
            self.looked_at += end;
        }
        let is_end = |it: char| it.is_whitespace() || matches!(it, '<' | '>' | '"' | '`' | '|');
        if !text[end..].chars().next().is_none_or(is_end) {
            self.endless = from + end;
            return None;
        }
        Some(text[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', '*', '_', ')', ']', '\'']))
    }
}

/// Returns whether an address may be opened: one of the web, without a character that does not belong in an address.
fn is_web(url: &str) -> bool {
    has_host(url) && url.chars().all(is_of_address)
}

fn has_host(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    rest.starts_with(|it: char| it.is_ascii_alphanumeric() || it == '[')
}

fn is_of_address(it: char) -> bool {
    it.is_ascii_graphic() && !r#"<>"\^`{|}"#.contains(it)
}

/// Spans, of which neighbors with the same style are joined.
#[derive(Default)]
struct Spans {
    all: Vec<Span>,
}

impl Spans {
    fn plain(&mut self, text: &str) {
        self.push(SpanStyle::Plain, text);
    }

    fn push(&mut self, style: SpanStyle, text: &str) {
        match self.all.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.style == style && style != SpanStyle::Link => last.text.push_str(text),
            _ => self.all.push(Span { style, text: text.to_owned() }),
        }
    }

    fn link(&mut self, text: &str, url: &str) {
        let style = if is_web(url) { SpanStyle::Link } else { SpanStyle::Plain };
        let text = text.trim();
        if text.is_empty() || text == url {
            return self.push(style, url);
        }
        self.plain(text);
        self.plain(" <");
        self.push(style, url);
        self.plain(">");
    }

    fn ends_in_word(&self) -> bool {
        self.all.last().is_some_and(|last| last.text.ends_with(char::is_alphanumeric))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a line with marks of its own: `#` heading, `>` quote, `|` mono, `-` note; `{s …}` and so on for styles.
    fn written(text: &str) -> Vec<String> {
        let span = |span: &Span| match span.style {
            SpanStyle::Plain => span.text.clone(),
            SpanStyle::Strong => format!("{{s {}}}", span.text),
            SpanStyle::Emphasis => format!("{{e {}}}", span.text),
            SpanStyle::Code => format!("{{c {}}}", span.text),
            SpanStyle::Link => format!("{{l {}}}", span.text),
        };
        let line = |line: Line| {
            let style = match line.style {
                LineStyle::Plain => "",
                LineStyle::Heading => "# ",
                LineStyle::Quote => "> ",
                LineStyle::Mono => "| ",
                _ => "- ",
            };
            format!("{style}{}", line.spans.iter().map(span).collect::<String>())
        };
        Source::new(text).map(|it| line(it.into())).collect()
    }

    #[test]
    fn blocks_are_lines_of_their_style() {
        let text = "# Title #\n\nText\n  - one\n* two\n3. three\n> said\n```rust\n# *no* heading\n~~~\n```\n---\n| a | b |\n#no\n**x**";
        assert_eq!(
            written(text),
            [
                "# Title",
                "",
                "Text",
                "  • one",
                "• two",
                "3. three",
                "> said",
                "| # *no* heading",
                "| ~~~",
                "- ―――",
                "| | a | b |",
                "#no",
                "{s x}",
            ]
        );
        assert_eq!(written("```\nopen"), ["| open"]);
        assert_eq!(written("``` a ` b\nc"), ["``` a ` b", "c"]);
    }

    #[test]
    fn marks_inside_a_line_are_read() {
        for (text, expected) in [
            (
                "a **b** __c__ ***d*** *e* _f_ `g*h*` ``i`j``",
                "a {s b} {s c} {s d} {e e} {e f} {c g*h*} {c i`j}",
            ),
            ("snake_case_name 2 * 3 * 4 **open *half", "snake_case_name 2 * 3 * 4 **open *half"),
            (r"\*no\* \a", r"*no* \a"),
            ("[text](https://a.b/c \"title\").", "text <{l https://a.b/c}>."),
            ("[https://a.b](https://a.b) <http://c.d>", "{l https://a.b} {l http://c.d}"),
            ("see https://a.b/c?d=e, (http://f).", "see {l https://a.b/c?d=e}, ({l http://f})."),
            ("![cat](https://a.b/cat.png)", "[image] cat <{l https://a.b/cat.png}>"),
            ("xhttps://a.b ![no] [no] (no)", "xhttps://a.b ![no] [no] (no)"),
            ("<b>html</b> &amp;", "<b>html</b> &amp;"),
        ] {
            assert_eq!(written(text), [expected], "{text}");
        }
    }

    #[test]
    fn only_addresses_of_the_web_can_be_opened() {
        for url in [
            "javascript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
            "http://",
            "https://a\u{202e}b",
            "https://<b>",
            "https://a\"b",
            "https:///a",
            "//a.b",
        ] {
            let lines = written(&format!("[text]({url})"));
            assert!(lines[0].starts_with("text <") && !lines[0].contains("{l "), "{lines:?}");
        }
    }

    #[test]
    fn line_of_marks_costs_as_much_as_it_is_long() {
        let marks =
            ["*", "**a ", "[", "![", "`", "``a", "<", "_a ", "http", "[a](", "[a]", "\\", "h.", "http://a."];
        let more = ["http://a.b,http://.", "<http://a", "*a **b `c ", "[[a", "(h", "a* ", "http://^."];
        for (mark, end) in
            marks.into_iter().chain(more).flat_map(|mark| ["", "^", "](b) > ^"].map(|end| (mark, end)))
        {
            // Code of many lengths, none of which ends.
            let mut line: String = (1..20).rev().map(|ticks| "`".repeat(ticks) + " ").collect();
            line.push_str(&mark.repeat((MAX_LINE - end.len() - line.len()) / mark.len()));
            line.push_str(end);
            assert!(written(&line).len() <= 1, "{mark}");
            let mut marks = Marks::new(&line);
            spans_of(&mut marks);
            assert!(marks.looked_at <= 32 * line.len(), "{mark} {end}: {}", marks.looked_at);
        }
    }
}
