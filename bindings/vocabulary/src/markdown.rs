//! Writes the page of the vocabulary.

use std::fmt::Write as _;

use toolbridge::vocabulary::{
    describe::{Field, Shape, Type},
    to_core::{CAPS, TIMES},
};

use crate::{Words, lines};

const HEAD: &str = "\
# The vocabulary

What goes into a session and comes out of it. `bindings/vocabulary` writes this page and `vocabulary.schema.json` from
`src/vocabulary`; do not edit them. `bindings/README.md` says how a session is driven.

- Keys are in camelCase, and names among values in snake_case. A key that ends in `Ms` is a time in milliseconds;
  `atMs`, `endsAtMs`, `untilMs` and those of records are times since the driver's zero point. All inputs have `atMs`.
- *Optional* is a field that may be missing. In an input, null is a missing value except where any JSON may stand, and
  an unknown or repeated field is an error. A reader of outputs ignores unknown fields, events and types.
- An *id* is the caller's name of a call or a turn: a text of 1 to 128 bytes, or a whole number.
";

pub(crate) fn write(words: &Words) -> String {
    let mut out = HEAD.to_owned();
    for (name, title, tag) in [
        ("Input", "Inputs", "type"),
        ("Query", "Queries", "type"),
        ("Reply", "Replies", "type"),
        ("Output", "Outputs", "type"),
        ("Event", "Events", "event"),
        ("LineCommand", "Commands of the line protocol", "type"),
        ("Line", "Lines of the line protocol", "type"),
        ("LineEvent", "Events of the line protocol", "event"),
    ] {
        let _ = write!(out, "\n## {title}\n");
        if name == "Input" {
            let _ = write!(out, "\n`create`: {}\n\n", words.named("Create").doc);
            fields(&mut out, words.fields("Create"));
        }
        for it in words.variants(name) {
            let _ =
                write!(out, "\n`{}`{}: {}\n", it.tag, if tag == "event" { " (event)" } else { "" }, it.doc);
            if it.tag != "event" && !it.fields.is_empty() {
                out.push('\n');
                fields(&mut out, &it.fields);
            }
        }
    }
    out += "\n## Objects\n";
    for it in &words.types {
        if let Shape::Record(all) = &it.shape
            && it.name != "Create"
        {
            let _ = write!(out, "\n**{}**: {}\n\n", it.name, it.doc);
            fields(&mut out, all);
        }
    }
    out += "\n## Names\n";
    for it in &words.types {
        if let Shape::Names(names) = &it.shape {
            let _ = write!(out, "\n**{}**: {}\n\n", it.name, it.doc);
            for (name, doc) in names {
                let _ = writeln!(out, "- `{name}`: {doc}");
            }
        }
    }
    for (title, doc, names) in [
        ("Times", "in `times` of the configuration, as of `toolbridge::Times`.", TIMES),
        ("Limits", "in `caps` of the configuration, as of `toolbridge::Caps`.", CAPS),
    ] {
        let _ = write!(out, "\n**{title}** {doc}\n\n");
        out += &lines(names.iter().map(|name| format!("`{name}`")), "", 118);
    }
    out.lines().map(|line| if line.len() > MOST { wrapped(line) } else { format!("{line}\n") }).collect()
}

/// The longest line of a page.
const MOST: usize = 120;

/// Breaks a line, whose rest is indented if it is an item of a list.
fn wrapped(line: &str) -> String {
    let indent = if line.starts_with("- ") { "  " } else { "" };
    let text = lines(line.split(' ').map(str::to_owned), indent, MOST);
    text.strip_prefix(indent).unwrap_or(&text).to_owned()
}

fn fields(out: &mut String, fields: &[Field]) {
    for field in fields {
        let default = field.default.as_ref().filter(|it| !["{}", "[]", "\"\""].contains(&it.as_str()));
        let may = match default {
            Some(default) => format!(", default `{}`", default.trim_matches('"')),
            None if field.may_be_missing || field.may_be_left_out => ", optional".to_owned(),
            None => String::new(),
        };
        let _ = writeln!(out, "- `{}` ({}{may}): {}", field.key, type_of(&field.of), field.doc);
    }
}

fn type_of(of: &Type) -> String {
    match of {
        Type::Text => "text".into(),
        Type::Flag => "true or false".into(),
        Type::Count => "whole number".into(),
        Type::Signed => "whole number of 32 bits".into(),
        Type::Time => "ms".into(),
        Type::Json => "JSON".into(),
        Type::Id => "id".into(),
        Type::Bytes => "bytes".into(),
        Type::List(item) => format!("list of {}", type_of(item)),
        Type::Map(item) => format!("object of {}", type_of(item)),
        Type::Named(name) => (*name).into(),
    }
}
