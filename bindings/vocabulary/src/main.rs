//! Writes what is made of the vocabulary: `vocabulary.schema.json`, `vocabulary.md`, `js/ts/vocabulary.ts` and `python/toolbridge/_vocabulary.py`.
//!
//! `cargo run --manifest-path bindings/Cargo.toml -p toolbridge-vocabulary` writes them again, and the tests compare them.

use std::{fs, path::PathBuf};

use toolbridge::vocabulary::{
    Create, Event, Input, Line, LineCommand, Output, Query, Reply,
    describe::{Describe, Field, Named, Shape, Table, Variant},
};

mod markdown;
mod python;
mod schema;
mod typescript;

/// The files and their texts.
fn files() -> [(PathBuf, String); 4] {
    let words = Words::new();
    let bindings = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    [
        (bindings.join("vocabulary.schema.json"), schema::write(&words)),
        (bindings.join("vocabulary.md"), markdown::write(&words)),
        (bindings.join("js/ts/vocabulary.ts"), typescript::write(&words)),
        (bindings.join("python/toolbridge/_vocabulary.py"), python::write(&words)),
    ]
}

fn main() -> anyhow::Result<()> {
    for (file, text) in files() {
        fs::write(file, text)?;
    }
    Ok(())
}

/// The types of the vocabulary.
struct Words {
    types: Vec<Named>,
}

impl Words {
    fn new() -> Self {
        let mut table = Table::default();
        Create::describe(&mut table);
        Input::describe(&mut table);
        Query::describe(&mut table);
        Reply::describe(&mut table);
        Event::describe(&mut table);
        Output::describe(&mut table);
        LineCommand::describe(&mut table);
        Line::describe(&mut table);
        Self { types: table.types }
    }

    fn named(&self, name: &str) -> &Named {
        self.types.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    fn variants(&self, name: &str) -> &[Variant] {
        match &self.named(name).shape {
            Shape::Messages(_, variants) => variants,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn fields(&self, name: &str) -> &[Field] {
        match &self.named(name).shape {
            Shape::Record(fields) => fields,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn names(&self, name: &str) -> &[(&'static str, String)] {
        match &self.named(name).shape {
            Shape::Names(names) => names,
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// The class of a call's error in both languages, and the fields that it has beside those of all.
fn class_of(kind: &str) -> (&'static str, &'static [&'static str]) {
    match kind {
        "tool" => ("ToolFailed", &["partial", "rpcCode"]),
        "unknown_tool" => ("UnknownTool", &[]),
        "ambiguous" => ("Ambiguous", &["owners"]),
        "not_bound" => ("NotBound", &["owners"]),
        "not_delivered" => ("NotDelivered", &[]),
        "not_allowed" => ("NotAllowed", &[]),
        "timeout" => ("CallTimeout", &["limitMs"]),
        "lost" => ("Lost", &["owner"]),
        "cancelled" => ("Cancelled", &[]),
        "detached" => ("Detached", &[]),
        "turn_over" => ("TurnOver", &[]),
        "too_many_equal" => ("TooManyEqual", &[]),
        "too_large" => ("TooLarge", &["size", "max"]),
        "too_many_open" => ("TooManyOpen", &[]),
        "busy" => ("Busy", &["owner"]),
        "limit" => ("InvalidLimit", &["limitMs"]),
        "arguments" => ("InvalidArguments", &[]),
        "closed" => ("Closed", &[]),
        other => panic!("the error {other} has no class"),
    }
}

/// The kinds of errors that have a class: those of a core that is newer than a shell have none.
fn classes(
    words: &Words,
) -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str], &str)> {
    let known =
        words.names("CallErrorKind").iter().filter(|(kind, _)| !["other", "bad_command"].contains(kind));
    known.map(|(kind, doc)| {
        let (class, fields) = class_of(kind);
        (*kind, class, fields, doc.as_str())
    })
}

/// The events of a core that shells pass on.
fn passed_on(words: &Words) -> impl Iterator<Item = &Variant> {
    words.variants("Event").iter().filter(|it| !["frame", "closed"].contains(&it.tag))
}

/// `ownerWaitMs` to `owner_wait_ms`.
fn snake(key: &str) -> String {
    let mut snake = String::new();
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// `tools_changed` to `toolsChanged`.
fn camel(name: &str) -> String {
    let mut camel = String::new();
    let mut is_next = false;
    for letter in name.chars() {
        match letter {
            '_' => is_next = true,
            letter if is_next => {
                (is_next, camel) = (false, format!("{camel}{}", letter.to_ascii_uppercase()))
            }
            letter => camel.push(letter),
        }
    }
    camel
}

/// Breaks words into lines of at most so many letters.
fn lines(items: impl Iterator<Item = String>, indent: &str, most: usize) -> String {
    let (mut text, mut line) = (String::new(), String::new());
    for item in items {
        if !line.is_empty() && indent.len() + line.len() + 1 + item.len() > most {
            text += &format!("{indent}{line}\n");
            line.clear();
        }
        line += &format!("{}{item}", if line.is_empty() { "" } else { " " });
    }
    format!("{text}{indent}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbridge::vocabulary::describe::Type;

    #[test]
    fn files_are_those_of_the_vocabulary() {
        for (file, text) in files() {
            let found = fs::read_to_string(&file).unwrap_or_default();
            assert!(
                found == text,
                "{} is out of date: cargo run --manifest-path bindings/Cargo.toml -p toolbridge-vocabulary",
                file.display()
            );
        }
    }

    #[test]
    fn keys_are_in_camel_case_and_times_say_their_unit() {
        let words = Words::new();
        let all = words.types.iter().flat_map(|it| match &it.shape {
            Shape::Record(fields) => fields.iter().collect::<Vec<_>>(),
            Shape::Messages(_, variants) => variants.iter().flat_map(|it| &it.fields).collect(),
            Shape::Names(names) => {
                assert!(names.iter().all(|(name, _)| *name == snake(name)), "{names:?}");
                Vec::new()
            }
        });
        for field in all {
            assert!(field.key.chars().all(|it| it.is_ascii_alphanumeric()), "{}", field.key);
            assert_eq!(field.of == Type::Time, field.key.ends_with("Ms"), "{}", field.key);
            assert!(field.doc.ends_with('.'), "{}: {}", field.key, field.doc);
        }
    }
}
