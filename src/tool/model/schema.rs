//! Loosens JSON Schemas to what each model API accepts: the rules S1 to S9 of [`model`](super).
//!
//! A schema that fits stays as it is, in the order of its keys. Nothing is lost by loosening, because the participant that
//! runs a tool checks the arguments by its own schema.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

/// The largest fitted schema, in schemas within it; texts of [`TEXT`] bytes count as one more. What exceeds it accepts
/// anything. References could otherwise double a schema at each level.
const MAX_SCHEMAS: usize = 2_000;

/// How much text counts as one schema, in bytes.
const TEXT: usize = 512;

/// The greatest depth of schemas within each other. Deeper ones accept anything.
const MAX_DEPTH: usize = 24;

/// The most alternatives among which equal ones are removed: each is compared with all.
const MAX_COMPARED: usize = 64;

/// The longest rule that the description repeats, in bytes.
const MAX_RULE: usize = 512;

/// Keywords that APIs refuse in the schema of all arguments.
const RULES: [&str; 9] =
    ["anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"];

/// The keywords that a reference is replaced with.
const KNOWN: [&str; 28] = [
    "$ref",
    "type",
    "title",
    "description",
    "default",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "format",
    "pattern",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords of one type that a description tells, because some API refuses them.
const NOTED: [&str; 6] =
    ["format", "pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems"];

type Fields = Map<String, Json>;

/// Returns the schema of all arguments in a form that fits, and the rules that it lost; `None` if it accepts no object.
pub(super) fn fitted(schema: Option<&Json>) -> Option<(Json, Option<String>)> {
    let anything = Json::Object(Fields::new());
    let schema = match schema {
        None | Some(Json::Null | Json::Bool(true)) => &anything,
        Some(schema @ Json::Object(_)) => schema,
        Some(_) => return None,
    };
    let mut loose = Reader { root: schema, left: MAX_SCHEMAS }.loosen(schema, Some("object"), &[], 0);
    if let Some(Json::Array(parts)) = loose.remove("anyOf") {
        let objects: Vec<Fields> = parts.into_iter().filter_map(object).filter(is_of_objects).collect();
        if objects.is_empty() {
            return None;
        }
        loose.extend(merged(&objects));
    }
    if loose.is_empty() {
        loose.insert("type".to_owned(), "object".into()); // its own texts exceed the limit
    }
    if !is_of_objects(&loose) {
        return None;
    }
    loose.entry("properties").or_insert_with(|| json!({}));
    Some((loose.into(), lost_rules(schema)))
}

/// Returns the schemas of the values inside of this one: of properties, items, additional properties and alternatives.
pub(super) fn inner(schema: &mut Json) -> impl Iterator<Item = &mut Json> {
    schema.as_object_mut().into_iter().flatten().flat_map(|(key, value)| -> Vec<&mut Json> {
        match (key.as_str(), value) {
            ("properties", Json::Object(properties)) => properties.values_mut().collect(),
            ("anyOf", Json::Array(parts)) => parts.iter_mut().collect(),
            ("items" | "additionalProperties", value) => vec![value],
            _ => Vec::new(),
        }
    })
}

fn object(value: Json) -> Option<Fields> {
    match value {
        Json::Object(fields) => Some(fields),
        _ => None,
    }
}

fn is_of_objects(schema: &Fields) -> bool {
    schema.get("type").is_some_and(|it| it == "object")
}

/// Returns the rules of a schema of all arguments that its fitted form has not.
fn lost_rules(schema: &Json) -> Option<String> {
    let reference = schema.get("$ref").and_then(Json::as_str);
    let fields = reference.and_then(|it| resolved(schema, it)).or_else(|| schema.as_object())?;
    let lost: Fields = RULES
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone())))
        .chain(fields.get("allOf").filter(|it| has_rules(it)).map(|it| ("allOf".to_owned(), it.clone())))
        .collect();
    let text = (!lost.is_empty()).then(|| Json::Object(lost).to_string())?;
    Some(match text.len() {
        ..=MAX_RULE => format!("The arguments must also match this JSON Schema: {text}"),
        _ => "The tool checks further rules of its arguments.".to_owned(),
    })
}

fn has_rules(parts: &Json) -> bool {
    list(Some(parts)).iter().any(|part| RULES.iter().any(|key| part.get(key).is_some()))
}

/// Returns a schema that accepts each object which one of these schemas of objects accepts.
fn merged(schemas: &[Fields]) -> Fields {
    let mut properties = Map::<String, Json>::new();
    for schema in schemas {
        for (name, part) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            if let Json::Array(parts) = properties.entry(name).or_insert_with(|| json!([])) {
                parts.push(part.clone());
            }
        }
    }
    let names = |schema| list(Fields::get(schema, "required")).iter().filter_map(Json::as_str).collect();
    let required: Vec<BTreeSet<&str>> = schemas.iter().map(names).collect();
    let is_required = |name: &&String| required.iter().all(|names| names.contains(name.as_str()));
    let required: Vec<Json> = properties.keys().filter(is_required).map(|it| it.as_str().into()).collect();
    let any = |parts: Json| any_of(list(Some(&parts)).iter().filter_map(Json::as_object).cloned());
    let properties: Fields = properties.into_iter().map(|(name, parts)| (name, any(parts).into())).collect();
    let mut merged = Fields::from_iter([
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), properties.into()),
    ]);
    if !required.is_empty() {
        merged.insert("required".to_owned(), required.into());
    }
    if schemas.iter().all(|schema| schema.get("additionalProperties") == Some(&Json::Bool(false))) {
        merged.insert("additionalProperties".to_owned(), false.into());
    }
    merged
}

/// Returns a schema that accepts what one of these accepts.
fn any_of(schemas: impl Iterator<Item = Fields>) -> Fields {
    let mut flat = Vec::<Json>::new();
    for mut schema in schemas {
        let is_union = schema.len() == 1;
        let parts = match schema.get_mut("anyOf").filter(|_| is_union) {
            Some(Json::Array(parts)) => std::mem::take(parts),
            _ => vec![schema.into()],
        };
        for part in parts {
            if flat.len() > MAX_COMPARED || !flat.contains(&part) {
                flat.push(part);
            }
        }
    }
    match flat.len() {
        1 => flat.pop().and_then(object).unwrap_or_default(),
        _ => Fields::from_iter([("anyOf".to_owned(), flat.into())]),
    }
}

/// Returns a schema that accepts any value, in types that each API knows. Within an array there is no further array.
fn anything(is_item: bool) -> Fields {
    let mut parts = vec![
        json!({"type": "string"}),
        json!({"type": "number"}),
        json!({"type": "boolean"}),
        json!({"type": "object"}),
    ];
    if !is_item {
        parts.push(json!({"type": "array", "items": {"type": "string"}}));
    }
    Fields::from_iter([("anyOf".to_owned(), parts.into())])
}

/// Adds to a schema what a part of its `allOf` says.
fn add_part(schema: &mut Fields, part: Fields) {
    for (key, value) in part {
        match (schema.get_mut(&key), value) {
            (Some(Json::Object(own)), Json::Object(more)) if key == "properties" => {
                for (name, property) in more {
                    own.entry(name).or_insert(property);
                }
            }
            (Some(Json::Array(own)), Json::Array(more)) if key == "required" => own.extend(more),
            (Some(_), _) => {}
            (None, value) => _ = schema.insert(key, value),
        }
    }
}

/// Returns what a reference within a schema leads to.
fn resolved<'a>(root: &'a Json, reference: &str) -> Option<&'a Fields> {
    root.pointer(reference.strip_prefix('#')?)?.as_object()
}

fn list(value: Option<&Json>) -> &[Json] {
    value.and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn type_named(name: &str) -> Option<&'static str> {
    ["string", "integer", "number", "boolean", "null", "array", "object"].into_iter().find(|it| *it == name)
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// Returns whether each API reads this regular expression: lookaround, other groups and classes of Unicode are refused by
/// some.
fn is_plain_pattern(pattern: &str) -> bool {
    !["(?", "\\p", "\\P"].iter().any(|refused| pattern.contains(refused))
}

/// Returns how much a value counts as part of a schema.
fn weight(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len() / TEXT,
        Json::Array(items) => items.len() / 16 + items.iter().map(weight).sum::<usize>(),
        Json::Object(fields) => fields.len() / 16 + fields.values().map(weight).sum::<usize>(),
        _ => 0,
    }
}

struct Reader<'a> {
    root: &'a Json,
    /// How many more schemas may follow.
    left: usize,
}

impl Reader<'_> {
    /// Returns the fitted schema of a value. `reached` has the references that lead here.
    fn value(&mut self, schema: &Json, reached: &[&str], depth: usize) -> Fields {
        self.typed(schema, None, false, reached, depth)
    }

    fn typed(
        &mut self,
        schema: &Json,
        assumed: Option<&'static str>,
        is_item: bool,
        reached: &[&str],
        depth: usize,
    ) -> Fields {
        let mut loose = self.loosen(schema, assumed, reached, depth);
        if !loose.contains_key("type") && !loose.contains_key("anyOf") {
            loose.extend(anything(is_item));
        }
        loose
    }

    /// Returns the fitted schema, without a type if it has none and none is assumed.
    fn loosen(
        &mut self,
        schema: &Json,
        assumed: Option<&'static str>,
        reached: &[&str],
        depth: usize,
    ) -> Fields {
        let texts = ["title", "description", "default", "enum", "const", "pattern", "required"];
        let costs = 1 + texts.iter().filter_map(|key| schema.get(key)).map(weight).sum::<usize>();
        let Json::Object(given) = schema else { return Fields::new() };
        if self.left < costs || depth > MAX_DEPTH {
            return Fields::new();
        }
        self.left -= costs;
        if let Some(Json::String(reference)) = given.get("$ref") {
            let target = resolved(self.root, reference);
            let is_recursive = reached.contains(&reference.as_str());
            let mut whole: Fields = target
                .into_iter()
                .flatten()
                .filter(|(key, _)| if is_recursive { *key == "type" } else { KNOWN.contains(&key.as_str()) })
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            whole.extend(
                given
                    .iter()
                    .filter(|(key, _)| *key != "$ref")
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
            let reached = [reached, &[reference.as_str()]].concat();
            return self.loosen(&whole.into(), assumed, &reached, depth + 1);
        }
        let mut merged_schema = None;
        for part in list(given.get("allOf")) {
            let part = self.loosen(part, None, reached, depth + 1);
            add_part(merged_schema.get_or_insert_with(|| given.clone()), part);
        }
        let given = merged_schema.as_ref().unwrap_or(given);
        self.of_fields(given, assumed, reached, depth)
    }

    fn of_fields(
        &mut self,
        given: &Fields,
        assumed: Option<&'static str>,
        reached: &[&str],
        depth: usize,
    ) -> Fields {
        let values: Vec<&Json> = match given.get("const") {
            Some(value) => vec![value],
            None => list(given.get("enum")).iter().collect(),
        };
        let types = types_of(given, &values, assumed);
        let parts = [given.get("anyOf"), given.get("oneOf")].into_iter().map(list).find(|it| !it.is_empty());
        let mut with_parts = None;
        let union = match parts {
            Some(parts) if types == ["object"] && given.contains_key("properties") => {
                let parts: Vec<Fields> =
                    parts.iter().map(|it| self.loosen(it, Some("object"), reached, depth + 1)).collect();
                let mut whole = given.clone();
                add_part(&mut whole, merged(&parts));
                with_parts = Some(whole);
                None
            }
            Some(parts) => {
                let of_all = (types.len() == 1).then(|| types[0]);
                let parts: Vec<Fields> =
                    parts.iter().map(|it| self.typed(it, of_all, false, reached, depth + 1)).collect();
                Some(any_of(parts.into_iter()))
            }
            None if types.len() > 1 => {
                let each: Vec<Fields> =
                    types.iter().map(|kind| self.of_type(kind, given, &values, reached, depth)).collect();
                Some(any_of(each.into_iter()))
            }
            None => None,
        };
        let given = with_parts.as_ref().unwrap_or(given);
        let mut loose = match (union, types.first()) {
            (Some(union), _) => {
                let mut loose = Fields::new();
                for (key, value) in given {
                    match key.as_str() {
                        "anyOf" | "oneOf" | "type" | "enum" => {
                            for (key, value) in &union {
                                loose.entry(key).or_insert_with(|| value.clone());
                            }
                        }
                        _ if is_annotation(key, value) => _ = loose.insert(key.clone(), value.clone()),
                        _ => {}
                    }
                }
                loose
            }
            (None, Some(kind)) => self.of_type(kind, given, &values, reached, depth),
            (None, None) => {
                let kept = given.iter().filter(|(key, value)| is_annotation(key, value));
                kept.map(|(key, value)| (key.clone(), value.clone())).collect()
            }
        };
        let notes = notes(given, &types, &values);
        if !notes.is_empty() {
            let before = loose.get("description").and_then(Json::as_str).map(|text| format!("{text} "));
            let text = format!("{}{}", before.unwrap_or_default(), notes.join(" "));
            loose.insert("description".to_owned(), text.into());
        }
        loose
    }

    /// Returns the schema of values of one type, with its keywords in the order in which they are given.
    fn of_type(
        &mut self,
        kind: &'static str,
        given: &Fields,
        values: &[&Json],
        reached: &[&str],
        depth: usize,
    ) -> Fields {
        let is_union =
            given.get("type").is_some_and(Json::is_array) || values.iter().any(|it| type_of(it) != kind);
        let mut loose = Fields::new();
        for (key, value) in given {
            let (key, value) = match (kind, key.as_str()) {
                (_, "type") => ("type", kind.into()),
                ("string", "enum" | "const") if !values.is_empty() => {
                    let texts: Vec<Json> =
                        values.iter().filter(|it| it.is_string()).map(|it| (*it).clone()).collect();
                    ("enum", texts.into())
                }
                ("string", "minLength" | "maxLength")
                | ("integer" | "number", "minimum" | "maximum")
                | ("array", "minItems" | "maxItems")
                | ("object", "minProperties" | "maxProperties")
                    if value.is_number() =>
                {
                    (key.as_str(), value.clone())
                }
                ("integer", "exclusiveMinimum" | "exclusiveMaximum") => match exclusive(key, value) {
                    Some((key, bound)) if !given.contains_key(key) => (key, bound.into()),
                    _ => continue,
                },
                ("string", "pattern") if value.as_str().is_some_and(is_plain_pattern) => {
                    ("pattern", value.clone())
                }
                ("string", "format") if value == "date-time" => ("format", value.clone()),
                ("array", "items") if value.is_object() && !given.contains_key("prefixItems") => {
                    ("items", self.typed(value, None, true, reached, depth + 1).into())
                }
                ("object", "properties") if value.is_object() => {
                    let each = value.as_object().into_iter().flatten();
                    let properties: Fields = each
                        .map(|(name, it)| (name.clone(), self.value(it, reached, depth + 1).into()))
                        .collect();
                    ("properties", properties.into())
                }
                ("object", "additionalProperties") if value.is_boolean() => (key.as_str(), value.clone()),
                ("object", "additionalProperties") => {
                    (key.as_str(), self.value(value, reached, depth + 1).into())
                }
                ("object", "required") => match required(value, given) {
                    Some(required) => ("required", required),
                    None => continue,
                },
                _ if !is_union && is_annotation(key, value) => (key.as_str(), value.clone()),
                _ => continue,
            };
            loose.insert(key.to_owned(), value);
        }
        if !loose.contains_key("type") {
            loose.shift_insert(0, "type".to_owned(), kind.into());
        }
        if kind == "array" && !loose.contains_key("items") {
            let firsts = [given.get("prefixItems"), given.get("items")].map(list).concat();
            let items: Vec<Fields> =
                firsts.iter().map(|it| self.typed(it, None, true, reached, depth + 1)).collect();
            let items = if items.is_empty() { anything(true) } else { any_of(items.into_iter()) };
            loose.insert("items".to_owned(), items.into());
        }
        loose
    }
}

/// Returns the types of the values, as far as they are known.
fn types_of(given: &Fields, values: &[&Json], assumed: Option<&'static str>) -> Vec<&'static str> {
    let mut types = Vec::new();
    let mut add = |kind| {
        if !types.contains(&kind) {
            types.push(kind);
        }
    };
    if !values.is_empty() {
        values.iter().for_each(|it| add(type_of(it)));
        return types;
    }
    match given.get("type") {
        Some(Json::String(name)) => type_named(name).into_iter().for_each(add),
        named => list(named).iter().filter_map(Json::as_str).filter_map(type_named).for_each(add),
    }
    if types.is_empty() {
        let is_array = given.contains_key("items") || given.contains_key("prefixItems");
        types.extend(match given.contains_key("properties") {
            true => Some("object"),
            false if is_array => Some("array"),
            false => assumed,
        });
    }
    types
}

/// Returns whether this says something to the reader of a schema, and nothing of the values.
fn is_annotation(key: &str, value: &Json) -> bool {
    match key {
        "title" | "description" | "$schema" => value.is_string(),
        key => key == "default",
    }
}

/// Returns the bound of integers that an exclusive one means.
fn exclusive(key: &str, value: &Json) -> Option<(&'static str, i64)> {
    match key {
        "exclusiveMinimum" => Some(("minimum", value.as_i64()?.checked_add(1)?)),
        _ => Some(("maximum", value.as_i64()?.checked_sub(1)?)),
    }
}

/// Returns the names that are required and known.
fn required(value: &Json, given: &Fields) -> Option<Json> {
    let names = list(Some(value));
    let properties = given.get("properties").and_then(Json::as_object);
    let is_known = |name: &&str| properties.is_some_and(|it| it.contains_key(*name));
    let mut seen = BTreeSet::new();
    let kept: Vec<&str> =
        names.iter().filter_map(Json::as_str).filter(is_known).filter(|it| seen.insert(*it)).collect();
    (value.is_array() && (!kept.is_empty() || names.is_empty())).then(|| kept.into())
}

/// Returns what a description has to say, because the schema cannot.
fn notes(given: &Fields, types: &[&'static str], values: &[&Json]) -> Vec<String> {
    let mut notes = Vec::new();
    if values.iter().any(|it| !it.is_string() && !it.is_null()) {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        notes.push(format!("One of {}.", values.join(", ")));
    }
    for key in NOTED {
        let Some(value) = given.get(key) else { continue };
        let is_lost = match key {
            "format" => types.contains(&"string") && value.is_string() && value != "date-time",
            "pattern" => types.contains(&"string") && value.as_str().is_some_and(|it| !is_plain_pattern(it)),
            "uniqueItems" => types.contains(&"array") && *value == Json::Bool(true),
            "multipleOf" => value.is_number() && types.iter().any(|it| matches!(*it, "integer" | "number")),
            _ => {
                value.is_number()
                    && (types.contains(&"number")
                        || exclusive(key, value).is_none() && types.contains(&"integer"))
            }
        };
        if is_lost {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            notes.push(format!("{key}: {shown}."));
        }
    }
    notes
}
