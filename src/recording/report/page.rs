//! Writes the page around the data: markup, style, script and content security policy.

use std::{
    io::{self, Write},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use sha2::{Digest, Sha256};

use super::data::Data;

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The script's parts in dependency order, wrapped in a function to keep its names private.
const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("session.js"),
    include_str!("filter.js"),
    include_str!("waterfall.js"),
    include_str!("details.js"),
    include_str!("result.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
    "})();\n",
);

/// The content security policy: one script and one style by hash, and no other source. `trusted-types` stops the
/// script from creating markup from text, so a mistake there fails in the console instead of the page.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Writes the page with this data.
pub(super) fn write(data: &Data, out: &mut impl Write) -> io::Result<()> {
    let parts = [
        ("%POLICY%", Some(POLICY.as_str())),
        ("%STYLE%", Some(STYLE)),
        ("%DATA%", None),
        ("%SCRIPT%", Some(SCRIPT)),
    ];
    let mut rest = MARKUP;
    // One pass over the markup: inserted parts are never searched.
    for (mark, part) in parts {
        if let Some((before, after)) = rest.split_once(mark) {
            out.write_all(before.as_bytes())?;
            match part {
                Some(part) => out.write_all(part.as_bytes())?,
                None => data.write(out)?,
            }
            rest = after;
        }
    }
    out.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_contains_each_placeholder_once_in_order() {
        let places = ["%POLICY%", "%STYLE%", "%DATA%", "%SCRIPT%"].map(|mark| {
            assert_eq!(MARKUP.matches(mark).count(), 1, "{mark}");
            MARKUP.find(mark).unwrap()
        });
        assert!(places.is_sorted());
        let handler = |word: &str| word.starts_with("on") && word.contains('=');
        assert!(!MARKUP.contains("style=") && !MARKUP.split_whitespace().any(handler));
    }

    #[test]
    fn hashed_text_equals_the_text_the_browser_reads() {
        for text in [STYLE, SCRIPT] {
            assert!(!text.contains(['\r', '\0']) && !text.contains("</") && !text.contains("<!--"));
        }
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "Function(",
            "document.write",
            "fetch(",
            "://",
        ] {
            let allowed = SCRIPT.matches("http://www.w3.org/2000/svg").count();
            let found = SCRIPT.matches(word).count();
            assert_eq!(found, if word == "://" { allowed } else { 0 }, "{word}");
        }
    }
}
