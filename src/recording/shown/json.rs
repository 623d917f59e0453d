//! JSON texts with line breaks. It works on the text alone, so that numbers keep their digits, and a text that is broken,
//! cut or nested deep is shown as well.

/// The deepest indentation, in levels.
const MAX_INDENT: usize = 32;

/// The lines of a JSON text, indented by two spaces a level.
pub(super) struct Pretty<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Pretty<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text.trim_start(), depth: 0 }
    }
}

impl Iterator for Pretty<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.rest.is_empty() {
            return None;
        }
        if self.rest.starts_with(['}', ']']) {
            self.depth = self.depth.saturating_sub(1);
        }
        let mut line = "  ".repeat(self.depth.min(MAX_INDENT));
        loop {
            let (piece, rest) = self.rest.split_at(length(self.rest));
            let rest = rest.trim_start();
            self.rest = rest;
            line.push_str(piece);
            match piece {
                "{" | "[" if rest.starts_with(['}', ']']) => {
                    line.push_str(&rest[..1]);
                    self.rest = rest[1..].trim_start();
                }
                "{" | "[" => {
                    self.depth += 1;
                    return Some(line);
                }
                ":" => line.push(' '),
                "," => return Some(line),
                _ => {}
            }
            if self.rest.is_empty() || self.rest.starts_with(['}', ']']) {
                return Some(line);
            }
        }
    }
}

/// Returns the length of the first piece: a sign, a string, or anything up to the next of them.
fn length(text: &str) -> usize {
    let is_end = |it: char| it.is_whitespace() || matches!(it, '{' | '}' | '[' | ']' | ',' | ':' | '"');
    let Some(rest) = text.strip_prefix('"') else {
        return match text.find(is_end) {
            Some(0) => 1,
            Some(end) => end,
            None => text.len(),
        };
    };
    let mut is_escaped = false;
    let end = rest.find(|it| {
        let ends = it == '"' && !is_escaped;
        is_escaped = it == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pretty(text: &str) -> Vec<String> {
        Pretty::new(text).collect()
    }

    #[test]
    fn json_is_indented_as_usual() {
        let json = r#"{"a":[1,-2.50,{}],"b\"{":"x, y: [z]","c":{"d":[],"e":null}}"#;
        let usual = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(json).unwrap());
        assert_eq!(pretty(json).join("\n"), usual.unwrap().replace("-2.5", "-2.50"));
        assert_eq!(pretty(" [ 1 , { \"a\" : 2 } ] "), ["[", "  1,", "  {", "    \"a\": 2", "  }", "]"]);
        assert_eq!(pretty("5"), ["5"]);
        assert_eq!(pretty("[]"), ["[]"]);
        assert_eq!(pretty(""), [""; 0]);
    }

    #[test]
    fn broken_or_deep_json_is_shown_as_far_as_it_goes() {
        assert_eq!(pretty(r#"{"a":"cut"#), ["{", "  \"a\": \"cut"]);
        assert_eq!(pretty("]}, tru"), ["]", "},", "tru"]);
        let deep = pretty(&"[".repeat(100_000));
        assert_eq!((deep.len(), deep[99_999].len()), (100_000, 2 * MAX_INDENT + 1));
    }
}
