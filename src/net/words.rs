//! Quotes the words of other programs.

/// Returns a text on one line of at most `limit` bytes, at least 3, without what a terminal would obey. One that is cut ends in
/// `…`.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    const CUT: char = '…';
    let mut line = String::new();
    let (mut is_between, mut fits) = (false, 0);
    for it in text.chars().filter(|it| !is_invisible(*it)) {
        if it.is_whitespace() || it.is_control() {
            is_between = !line.is_empty();
            continue;
        }
        if std::mem::take(&mut is_between) {
            line.push(' ');
        }
        line.push(it);
        if line.len() > limit {
            line.truncate(fits);
            line.push(CUT);
            break;
        }
        if line.len() + CUT.len_utf8() <= limit {
            fits = line.len();
        }
    }
    line
}

/// Returns whether a character is not seen, but changes what is seen.
fn is_invisible(it: char) -> bool {
    matches!(it, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_line_that_a_terminal_can_show() {
        for (text, limit, line) in [
            ("", 3, ""),
            (" a\n\u{1b}[31mb\u{202e} ", 99, "a [31mb"),
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abc…"),
            ("abcé", 4, "a…"),
            ("éé", 3, "…"),
        ] {
            assert_eq!(one_line(text, limit), line, "{text:?}");
        }
    }
}
