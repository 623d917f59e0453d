//! Prepares texts for people.

use crate::net::words::one_line;

/// The longest title, in characters: a line of an editor.
const MAX_TITLE: usize = 200;

/// Returns a text as one line without control and direction characters, or `otherwise` if nothing of it is left.
pub(super) fn title(text: &str, otherwise: &str) -> String {
    let line = |text: &str| one_line(text, usize::MAX);
    let found = [line(text), line(otherwise)].into_iter().find(|it| !it.is_empty());
    let found = found.unwrap_or_else(|| "call".to_owned());
    match found.char_indices().nth(MAX_TITLE) {
        Some((at, _)) => format!("{}…", &found[..at]),
        None => found,
    }
}

/// Returns a text as a code block of Markdown that it cannot end.
pub(super) fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|it| it != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let language: String =
        language.chars().filter(|it| it.is_alphanumeric() || "+-#.".contains(*it)).collect();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acp_c1_title_is_one_line_and_never_empty() {
        assert_eq!(title("Ring\n the\u{202e} bell\u{1b}[31m", "ring"), "Ring the bell [31m");
        assert_eq!(title("\u{200b} \n", "ring"), "ring");
        assert_eq!(title("", ""), "call");
        assert_eq!(title(&"é".repeat(300), "").chars().count(), MAX_TITLE + 1);
    }

    #[test]
    fn code_block_cannot_be_ended_by_its_text() {
        assert_eq!(fenced("rust`x", "a ```` b"), "`````rustx\na ```` b\n`````");
        assert_eq!(fenced("", "a\n"), "```\na\n```");
    }
}
