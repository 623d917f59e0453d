//! Renames the keys of arguments that no model API allows, and back: the rule K of [`model`](super).

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};

use super::schema::inner;
use crate::tool::{NameMap, NameRules};

/// Renames the keys in a fitted schema, and returns the names. A key has one name in the whole schema.
pub(super) fn rename(schema: &mut Json) -> NameMap {
    let mut keys = BTreeSet::new();
    collect(schema, &mut keys);
    let names = NameMap::new(NameRules::Key, keys);
    if names.iter().any(|(own, fitted)| own != fitted) {
        write(schema, &names);
        return names;
    }
    NameMap::default()
}

fn collect(schema: &mut Json, keys: &mut BTreeSet<String>) {
    keys.extend(schema.get("properties").and_then(Json::as_object).into_iter().flat_map(Map::keys).cloned());
    inner(schema).for_each(|it| collect(it, keys));
}

fn write(schema: &mut Json, names: &NameMap) {
    inner(schema).for_each(|it| write(it, names));
    let fitted = |own: &str| names.converted(own).unwrap_or(own).to_owned();
    if let Some(Json::Object(properties)) = schema.get_mut("properties") {
        let own = std::mem::take(properties);
        properties.extend(own.into_iter().map(|(own, mut property)| {
            let name = fitted(&own);
            if name != own {
                let before = property["description"].as_str().map(|text| format!("{text} "));
                property["description"] =
                    format!("{}The tool calls it {own:?}.", before.unwrap_or_default()).into();
            }
            (name, property)
        }));
    }
    if let Some(Json::Array(required)) = schema.get_mut("required") {
        for name in required {
            if let Json::String(own) = name {
                *own = fitted(own);
            }
        }
    }
}

/// Gives each key of arguments its own name again, where one of these schemas describes it.
pub(super) fn restore(arguments: Json, schemas: &[&Json], names: &NameMap) -> Json {
    if schemas.is_empty() {
        return arguments;
    }
    let mut places = Vec::new();
    schemas.iter().for_each(|schema| alternatives(schema, &mut places));
    let at = |key: &str| -> Vec<&Json> { places.iter().filter_map(|place| place.get(key)).collect() };
    match arguments {
        Json::Object(fields) => {
            let more = at("additionalProperties");
            let restored = fields.into_iter().map(|(key, value)| {
                let described: Vec<&Json> =
                    at("properties").into_iter().filter_map(|properties| properties.get(&key)).collect();
                match (described.is_empty(), names.original(&key)) {
                    (true, _) => (key, restore(value, &more, names)),
                    (false, own) => (own.unwrap_or(&key).to_owned(), restore(value, &described, names)),
                }
            });
            Json::Object(restored.collect())
        }
        Json::Array(items) => {
            let places = at("items");
            items.into_iter().map(|it| restore(it, &places, names)).collect()
        }
        other => other,
    }
}

/// Adds a schema and the alternatives in it.
fn alternatives<'a>(schema: &'a Json, found: &mut Vec<&'a Json>) {
    found.push(schema);
    for part in schema.get("anyOf").and_then(Json::as_array).into_iter().flatten() {
        alternatives(part, found);
    }
}
