//! The page around the data: markup, style and script, and the policy that allows nothing else.

use std::{
    io::{self, Write},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use sha2::{Digest, Sha256};

use super::data::Data;

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script, in the order in which its parts need each other; in a function, so that its names are its own.
const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("session.js"),
    include_str!("filter.js"),
    include_str!("waterfall.js"),
    include_str!("details.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
    "})();\n",
);

/// The policy: one script and one style, by their hash, and nothing from anywhere. That script may not make markup
/// from text either (`trusted-types`), so a slip in it shows in the console and not in the page.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Writes the page with this data block in it.
pub(super) fn write(data: &Data, out: &mut impl Write) -> io::Result<()> {
    let parts = [
        ("%POLICY%", Some(POLICY.as_str())),
        ("%STYLE%", Some(STYLE)),
        ("%DATA%", None),
        ("%SCRIPT%", Some(SCRIPT)),
    ];
    let mut rest = MARKUP;
    // Once through the markup: what is put in is never searched, whatever it holds.
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
    fn the_markup_has_a_place_for_each_part_in_this_order() {
        let places = ["%POLICY%", "%STYLE%", "%DATA%", "%SCRIPT%"].map(|mark| {
            assert_eq!(MARKUP.matches(mark).count(), 1, "{mark}");
            MARKUP.find(mark).unwrap()
        });
        assert!(places.is_sorted());
        let handler = |word: &str| word.starts_with("on") && word.contains('=');
        assert!(!MARKUP.contains("style=") && !MARKUP.split_whitespace().any(handler));
    }

    #[test]
    fn what_is_hashed_is_what_the_browser_reads() {
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
