//! Writes the names and classes of Python, where keys are in snake_case and times in seconds.

use std::fmt::Write as _;

use toolbridge::vocabulary::{
    describe::{Field, Shape, Type},
    to_core::{CAPS, TIMES},
};

use crate::{Words, classes, lines, passed_on, snake};

pub(crate) fn write(words: &Words) -> String {
    let mut out = String::from(
        "\"\"\"The vocabulary of the core, with Python's names. Written by bindings/vocabulary; do not edit.\"\"\"\n\nfrom __future__ import annotations\n\nfrom collections.abc import Mapping\nfrom typing import Any, Literal\n\n",
    );
    for (name, own) in [
        ("Consent", "Consent"),
        ("Visibility", "Disclose"),
        ("BargeIn", "BargeIn"),
        ("ProgressStatus", "ProgressStatus"),
        ("StopReason", "StopReason"),
    ] {
        let names: Vec<_> = words.names(name).iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let _ = writeln!(out, "{own} = Literal[{}]", names.join(", "));
    }
    out += "\n#: The events of the core that are passed on.\nCoreEvent = Literal[\n";
    for it in passed_on(words) {
        let _ = writeln!(out, "    \"{}\",", it.tag);
    }
    out += "]\n\n#: What becomes of the keys of an object: the name of each that has another one in Python, the record that it holds, and whether\n#: it is a time, which is in seconds in Python.\nFields = Mapping[str, tuple[str, str | None, bool]]\n";
    out += "\n#: Of records that reach an application.\nRECORDS: dict[str, Fields] = {\n";
    for name in ["Participant", "Tool", "CloseReason"] {
        entry(&mut out, words, name, words.fields(name));
    }
    out += "}\n\n#: Of events.\nEVENTS: dict[str, Fields] = {\n";
    for it in passed_on(words) {
        entry(&mut out, words, it.tag, &it.fields);
    }
    out += "}\n";
    map(&mut out, "TIMES", "The times of a participant: the names of the core, by those in Python.", TIMES);
    map(&mut out, "CAPS", "The limits of a participant: the names of the core, by those in Python.", CAPS);
    errors(&mut out, words);
    out
}

/// The name in Python of a key.
fn own_name(key: &str) -> String {
    snake(key.strip_suffix("Ms").unwrap_or(key))
}

fn entry(out: &mut String, words: &Words, name: &str, fields: &[Field]) {
    let mut changed = fields.iter().filter_map(|field| {
        let record = match &field.of {
            Type::Named(name) if matches!(words.named(name).shape, Shape::Record(_)) => Some(*name),
            _ => None,
        };
        let record = record.filter(|name| ["Participant", "Tool", "CloseReason"].contains(name));
        let own = own_name(field.key);
        let is_time = matches!(field.of, Type::Time);
        let is_changed = own != field.key || record.is_some();
        is_changed.then(|| {
            let record = record.map_or_else(|| "None".to_owned(), |name| format!("\"{name}\""));
            format!("\"{}\": (\"{own}\", {record}, {}),", field.key, if is_time { "True" } else { "False" })
        })
    });
    if let Some(first) = changed.next() {
        let _ = writeln!(out, "    \"{name}\": {{\n        {first}");
        for next in changed {
            let _ = writeln!(out, "        {next}");
        }
        *out += "    },\n";
    }
}

fn map(out: &mut String, name: &str, doc: &str, keys: &[&str]) {
    let items = keys.iter().map(|key| format!("\"{}\": \"{key}\",", own_name(key)));
    let _ = write!(
        out,
        "\n#: {doc}\n{name}: dict[str, str] = {{\n{}}}  # fmt: skip\n",
        lines(items, "    ", 124)
    );
}

fn errors(out: &mut String, words: &Words) {
    let all = words.fields("CallError");
    let field_of =
        |key: &str| all.iter().find(|it| it.key == key).unwrap_or_else(|| panic!("there is no {key}"));
    *out += "\n\nclass CallError(Exception):\n    \"\"\"Why a call has no value. Each kind has a subclass.\"\"\"\n\n    def __init__(self, error: Mapping[str, Any]) -> None:\n        super().__init__(error[\"message\"])\n";
    for key in ["kind", "code", "forModel", "mayHaveRun"] {
        field(out, field_of(key));
    }
    *out += "\n    def __reduce__(self) -> tuple[Any, ...]:\n        return (_restore, (type(self), self.args, self.__dict__))\n";
    *out += "\n\ndef _restore(kind: type[CallError], args: tuple[object, ...], fields: dict[str, Any]) -> CallError:\n    error = kind.__new__(kind, *args)\n    error.args = args\n    error.__dict__.update(fields)\n    return error\n";
    for (_, class, own, doc) in classes(words) {
        let _ = write!(out, "\n\nclass {class}(CallError):\n    \"\"\"{doc}\"\"\"\n");
        if !own.is_empty() {
            *out += "\n    def __init__(self, error: Mapping[str, Any]) -> None:\n        super().__init__(error)\n";
            for key in own {
                field(out, field_of(key));
            }
        }
    }
    *out += "\n\n#: The classes by kind. A core that is newer than this shell may have further kinds.\nCALL_ERRORS: dict[str, type[CallError]] = {\n";
    for (kind, class, ..) in classes(words) {
        let _ = writeln!(out, "    \"{kind}\": {class},");
    }
    *out += "}\n";
}

fn field(out: &mut String, field: &Field) {
    let (own, key) = (own_name(field.key), field.key);
    let doc = field.doc.replace("in milliseconds", "in seconds");
    let (of, value) = match (&field.of, field.may_be_missing) {
        (Type::Time, _) => {
            ("float | None", format!("error[\"{key}\"] / 1000 if \"{key}\" in error else None"))
        }
        (Type::List(_), _) => ("list[str]", format!("list(error.get(\"{key}\", ()))")),
        (Type::Flag, _) => ("bool", format!("error[\"{key}\"]")),
        (Type::Count, _) => ("int | None", format!("error.get(\"{key}\")")),
        (Type::Json, _) => ("Any", format!("error.get(\"{key}\")")),
        (_, true) => ("str | None", format!("error.get(\"{key}\")")),
        (_, false) => ("str", format!("error[\"{key}\"]")),
    };
    let _ = writeln!(out, "        #: {doc}\n        self.{own}: {of} = {value}");
}
