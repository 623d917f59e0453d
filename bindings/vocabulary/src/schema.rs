//! Writes the JSON Schema.

use serde_json::{Map, Value, json};
use toolbridge::vocabulary::{
    describe::{Field, Shape, Type, Variant},
    to_core::{CAPS, TIMES},
};

use crate::Words;

pub(crate) fn write(words: &Words) -> String {
    let mut all = Map::new();
    for it in &words.types {
        let mut schema = match &it.shape {
            Shape::Names(names) => json!({
                "oneOf": names.iter().map(|(name, doc)| json!({"const": name, "description": doc})).collect::<Vec<_>>(),
            }),
            Shape::Record(fields) => object(fields, None),
            Shape::Messages(tag, variants) => json!({
                "oneOf": variants.iter().map(|variant| message(words, it.name, tag, variant)).collect::<Vec<_>>(),
            }),
        };
        if it.name == "Config" {
            for (key, names, item) in
                [("times", TIMES, json!({"type": "number", "minimum": 0})), ("caps", CAPS, count())]
            {
                let fields: Map<_, _> = names.iter().map(|name| ((*name).to_owned(), item.clone())).collect();
                schema["properties"][key]["properties"] = fields.into();
                schema["properties"][key]["additionalProperties"] = false.into();
            }
        }
        schema["description"] = it.doc.as_str().into();
        all.insert(it.name.to_owned(), schema);
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolbridge's vocabulary",
        "description": "What goes into a session and comes out of it, as JSON. The bindings carry it, and `toolbridge assistant` as lines. \
            A reader of outputs ignores unknown keys, events and types; in inputs they are errors, and null is a missing value.",
        "oneOf": (["Create", "Input", "Query", "Reply", "Output", "LineCommand", "Line"].map(|name| json!({"$ref": format!("#/$defs/{name}")}))),
        "$defs": all,
    });
    format!("{schema:#}\n")
}

/// An object whose first field has the name of its type.
fn message(words: &Words, of: &str, tag: &str, variant: &Variant) -> Value {
    if variant.tag == "event" {
        // The fields of an event are those of its output.
        let events = if of == "Line" { "LineEvent" } else { "Event" };
        let events = words.variants(events).iter().map(|event| {
            let mut schema = object(&event.fields, Some(("event", event.tag)));
            schema["properties"]["type"] = json!({"const": "event"});
            schema["description"] = event.doc.as_str().into();
            schema
        });
        return json!({"oneOf": events.collect::<Vec<_>>(), "description": variant.doc});
    }
    let mut schema = object(&variant.fields, Some((tag, variant.tag)));
    if of == "Input" {
        schema["properties"]["atMs"] = json!({"type": "number", "minimum": 0, "description": "The time since the driver's zero point, in milliseconds. Not in lines."});
    }
    schema["description"] = variant.doc.as_str().into();
    schema
}

fn object(fields: &[Field], tag: Option<(&str, &str)>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    if let Some((key, value)) = tag {
        properties.insert(key.to_owned(), json!({"const": value}));
        required.push(key.to_owned());
    }
    for field in fields {
        let mut schema = type_of(&field.of);
        schema["description"] = field.doc.as_str().into();
        if let Some(default) =
            field.default.as_ref().and_then(|text| serde_json::from_str::<Value>(text).ok())
        {
            schema["default"] = default;
        }
        properties.insert(field.key.to_owned(), schema);
        if !field.may_be_left_out {
            required.push(field.key.to_owned());
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn type_of(of: &Type) -> Value {
    match of {
        Type::Text => json!({"type": "string"}),
        Type::Flag => json!({"type": "boolean"}),
        Type::Count => count(),
        Type::Signed => json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
        Type::Time => json!({"type": "number", "minimum": 0}),
        Type::Json => json!({}),
        Type::Id => json!({"type": ["string", "integer"], "minLength": 1}),
        Type::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
        Type::List(item) => json!({"type": "array", "items": type_of(item)}),
        Type::Map(item) => json!({"type": "object", "additionalProperties": type_of(item)}),
        Type::Named(name) => json!({"$ref": format!("#/$defs/{name}")}),
    }
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": (1_u64 << 53) - 1})
}
