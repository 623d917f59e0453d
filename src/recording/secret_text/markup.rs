//! Finds elements of XML and HTML, and the parts of a form: `<password>…`, `<key>password</key><string>…`,
//! `name="password"` and a blank line.

use std::ops::Range;

use crate::value::prefix;

/// How far the end of an element, the next element and the lines of a part's head are looked for, in bytes.
const NEAR: usize = 1_024;

/// How often the end of an element is looked for in all of the text without success: a text full of tags is searched in linear time.
const FAR_SEARCHES: usize = 16;

/// Finds the contents of elements.
pub(super) struct Elements {
    far_searches: usize,
}

impl Elements {
    pub(super) fn new() -> Self {
        Self { far_searches: FAR_SEARCHES }
    }

    /// Returns the content of the element whose tag is this text without its brackets. The content starts at `start`.
    pub(super) fn content(&mut self, text: &str, tag: &str, start: usize) -> Option<Range<usize>> {
        if tag.ends_with('/') {
            return None;
        }
        let end = match self.end(text, name_of(tag)?, start) {
            Some(end) => end,
            None => start + text[start..].find('<')?,
        };
        let inside = &text[start..end];
        let from = start + (inside.len() - inside.trim_start().len());
        Some(from..from + inside.trim().len())
    }

    /// Returns the content of the element that follows here, perhaps after blanks.
    pub(super) fn next_content(&mut self, text: &str, at: usize) -> Option<Range<usize>> {
        let near = near(&text[at..]);
        let open = near.len() - near.trim_start().len();
        let tag = near[open..].strip_prefix('<').filter(|tag| !tag.starts_with('/'))?;
        let end = tag.find('>')?;
        self.content(text, &tag[..end], at + open + 1 + end + 1)
    }

    /// Returns where the end tag of an element begins whose content starts here.
    fn end(&mut self, text: &str, name: &str, start: usize) -> Option<usize> {
        let rest = &text[start..];
        if let Some(end) = end_tag(near(rest), name) {
            return Some(start + end);
        }
        self.far_searches = self.far_searches.checked_sub(1)?;
        let end = end_tag(rest, name)?;
        self.far_searches += 1;
        Some(start + end)
    }
}

/// Returns the name in a tag that opens an element.
pub(super) fn name_of(tag: &str) -> Option<&str> {
    let name = tag.split_whitespace().next()?.trim_end_matches('/');
    (!name.is_empty() && !name.starts_with('/')).then_some(name)
}

/// Returns where the end tag of this element begins, after the elements of the same name inside it.
fn end_tag(text: &str, name: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        at += text[at..].find('<')? + 1;
        let (rest, is_end) = match text[at..].strip_prefix('/') {
            Some(rest) => (rest, true),
            None => (&text[at..], false),
        };
        let after = rest.strip_prefix(name).and_then(|rest| rest.chars().next());
        let is_same = after.is_some_and(|after| after == '>' || after == '/' || after.is_whitespace());
        match (is_same, is_end) {
            (true, true) if depth == 0 => return Some(at - 1),
            (true, true) => depth -= 1,
            (true, false) => depth += 1,
            (false, _) => {}
        }
    }
}

/// Returns the content of the part of a form whose head names it up to this offset: what follows a blank line, up to the next boundary.
pub(super) fn part_of_form(text: &str, at: usize) -> Option<Range<usize>> {
    let head = near(&text[at..]);
    let breaks = ["\r\n\r\n", "\n\n"].into_iter().filter_map(|it| Some(at + head.find(it)? + it.len()));
    let start = breaks.min()?;
    let end = text[start..].find("\n--").map_or(text.len(), |end| start + end);
    Some(start..start + text[start..end].trim_end_matches('\r').len())
}

fn near(text: &str) -> &str {
    prefix(text, NEAR)
}
