//! Writes the types, names and classes of TypeScript.

use std::fmt::Write as _;

use toolbridge::vocabulary::{
    describe::{Field, Shape, Type},
    to_core::{CAPS, TIMES},
};

use crate::{Words, camel, class_of, classes, lines, passed_on};

/// The types that TypeScript names, and the names that it has for them.
const TYPES: &[(&str, &str)] = &[
    ("ParticipantKind", "ParticipantKind"),
    ("ConnectionState", "ConnectionState"),
    ("Lane", "Lane"),
    ("TokenRole", "TokenRole"),
    ("Role", "Role"),
    ("Consent", "Consent"),
    ("Visibility", "Disclose"),
    ("BargeIn", "BargeIn"),
    ("ProgressStatus", "ProgressStatus"),
    ("Execution", "Execution"),
    ("StopReason", "StopReason"),
    ("Readiness", "Readiness"),
    ("UnacceptedReason", "UnacceptedReason"),
    ("CallErrorKind", "CallErrorKind"),
    ("CloseKind", "CloseKind"),
    ("Peer", "Peer"),
    ("Participant", "CoreParticipant"),
    ("Tool", "CoreTool"),
    ("CallError", "CoreCallError"),
    ("CloseReason", "CloseReason"),
    ("StreamInfo", "StreamInfo"),
    ("Candidate", "Candidate"),
    ("LeftOut", "LeftOut"),
    ("ModelTool", "ModelTool"),
    ("OfferedTool", "Offer"),
    ("LateResult", "LateResult"),
];

/// Those that a shell makes, too, and leaves fields out.
const MADE: &[&str] = &["Peer", "Tool"];

pub(crate) fn write(words: &Words) -> String {
    let mut out = String::from(
        "/** The vocabulary of the core. Written by bindings/vocabulary; do not edit. */\nimport type { Json, JsonObject } from './json.js';\n",
    );
    for (name, own) in TYPES {
        let it = words.named(name);
        let _ = write!(out, "\n/** {} */\n", it.doc);
        match &it.shape {
            Shape::Names(names) => {
                let names: Vec<_> = names.iter().map(|(name, _)| format!("'{name}'")).collect();
                let _ = writeln!(out, "export type {own} = {};", names.join(" | "));
            }
            Shape::Record(all) => {
                let all = all.iter().cloned().map(|mut field| {
                    field.may_be_missing |= MADE.contains(name) && field.may_be_left_out;
                    field
                });
                let all: Vec<_> = all.collect();
                let _ = writeln!(out, "export interface {own} {{\n{}}}", fields(&all, "  "));
            }
            Shape::Messages(..) => panic!("{name} has no one form"),
        }
    }
    for (name, doc) in
        [("Output", "An instruction of the core."), ("Reply", "What an input or a query returns.")]
    {
        let _ = write!(out, "\n/** {doc} */\nexport type {name} =");
        for it in words.variants(name) {
            let rest = match it.tag {
                "event" => "    readonly event: string;\n    readonly [field: string]: Json;\n".to_owned(),
                _ => fields(&without_bytes(&it.fields), "    "),
            };
            let _ =
                write!(out, "\n  /** {} */\n  | {{\n    readonly type: '{}';\n{rest}  }}", it.doc, it.tag);
        }
        out += ";\n";
    }
    out += "\n/** The events of the core that are passed on, by the names for `on`. Times are in milliseconds. */\nexport interface CoreEvents {\n";
    for it in passed_on(words) {
        let _ = writeln!(out, "  /** {} */", it.doc);
        match &it.fields[..] {
            [] => drop(writeln!(out, "  {}: Record<never, never>;", camel(it.tag))),
            all => drop(writeln!(out, "  {}: {{\n{}  }};", camel(it.tag), fields(all, "    "))),
        }
    }
    out += "}\n\n/** Their names. */\n";
    list(&mut out, "CORE_EVENTS", passed_on(words).map(|it| camel(it.tag)));
    out += "\n/** The times of a participant, in milliseconds. */\n";
    list(&mut out, "TIME_NAMES", TIMES.iter().map(ToString::to_string));
    out += "\n/** The limits of a participant: numbers of things, or of bytes. */\n";
    list(&mut out, "CAP_NAMES", CAPS.iter().map(ToString::to_string));
    errors(&mut out, words);
    out
}

fn list(out: &mut String, name: &str, items: impl Iterator<Item = String>) {
    let items = lines(items.map(|it| format!("'{it}',")), "  ", 130);
    let _ = write!(out, "export const {name} = [\n{items}] as const;\n");
}

/// The bytes are beside the text.
fn without_bytes(fields: &[Field]) -> Vec<Field> {
    fields.iter().filter(|it| it.of != Type::Bytes).cloned().collect()
}

fn fields(fields: &[Field], indent: &str) -> String {
    let mut out = String::new();
    for field in fields {
        let may = if field.may_be_missing { "?" } else { "" };
        let of = match (field.key, &field.of) {
            ("arguments" | "inputSchema" | "meta", Type::Json) => "JsonObject".to_owned(),
            (_, of) => type_of(of),
        };
        let _ = writeln!(out, "{indent}/** {} */\n{indent}readonly {}{may}: {of};", field.doc, field.key);
    }
    out
}

fn type_of(of: &Type) -> String {
    match of {
        Type::Text | Type::Bytes => "string".into(),
        Type::Flag => "boolean".into(),
        Type::Count | Type::Signed | Type::Time | Type::Id => "number".into(),
        Type::Json => "Json".into(),
        Type::List(item) => format!("readonly {}[]", type_of(item)),
        Type::Map(item) => format!("Readonly<Record<string, {}>>", type_of(item)),
        Type::Named(name) => {
            let known = TYPES.iter().find(|(it, _)| it == name);
            known.map_or_else(|| "JsonObject".into(), |(_, own)| (*own).to_owned())
        }
    }
}

fn errors(out: &mut String, words: &Words) {
    let all = words.fields("CallError");
    let field_of =
        |key: &str| all.iter().find(|it| it.key == key).unwrap_or_else(|| panic!("there is no {key}"));
    *out += "\n/** Why a call has no value. Each kind has a subclass. */\nexport class CallError extends Error {\n";
    let base = ["kind", "code", "forModel", "mayHaveRun"].map(field_of);
    for field in base {
        let may = if field.may_be_missing { "?" } else { "" };
        let _ =
            writeln!(out, "  /** {} */\n  readonly {}{may}: {};", field.doc, field.key, type_of(&field.of));
    }
    *out += "\n  constructor(error: CoreCallError) {\n    super(error.message);\n    this.name = new.target.name;\n";
    for field in base {
        let set = format!("this.{0} = error.{0};", field.key);
        let _ = match field.may_be_missing {
            true => writeln!(out, "    if (error.{} !== undefined) {set}", field.key),
            false => writeln!(out, "    {set}"),
        };
    }
    *out += "  }\n}\n";
    for (_, class, own, doc) in classes(words) {
        let _ = write!(out, "\n/** {doc} */\nexport class {class} extends CallError {{");
        if own.is_empty() {
            *out += "}\n";
            continue;
        }
        let _ = writeln!(out);
        for key in own {
            let field = field_of(key);
            let _ = writeln!(out, "  /** {} */\n  readonly {key}?: {};", field.doc, type_of(&field.of));
        }
        *out += "\n  constructor(error: CoreCallError) {\n    super(error);\n";
        for key in own {
            let _ = writeln!(out, "    if (error.{key} !== undefined) this.{key} = error.{key};");
        }
        *out += "  }\n}\n";
    }
    *out += "\n/** The classes by kind. A core that is newer than this shell may have further kinds. */\n";
    *out +=
        "export const CALL_ERRORS: Readonly<Record<string, new (error: CoreCallError) => CallError>> = {\n";
    for (kind, ..) in classes(words) {
        let _ = writeln!(out, "  {kind}: {},", class_of(kind).0);
    }
    *out += "};\n";
}
