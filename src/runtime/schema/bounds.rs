//! Limits the cost of a schema: its size with all references expanded, and its recursion.

use serde_json::Value;

/// The most values that a schema may have, with each `$ref` expanded. Without this limit, 1 KB of references that
/// double at each level takes seconds to compile.
const MAX_NODES: usize = 10_000;

/// The deepest nesting of a schema, with references followed. This module and the compiler walk it recursively.
const MAX_DEPTH: usize = 200;

/// The most places at which a schema may refer back to a part that contains them.
const MAX_RECURSIVE: usize = 256;

/// The reason why a schema is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SchemaBound {
    #[error("it has more than {MAX_NODES} values when its references are expanded")]
    Nodes,
    #[error("it nests deeper than {MAX_DEPTH}")]
    Depth,
    #[error("`{keyword}` is not supported")]
    Keyword { keyword: String },
    #[error("a `$ref` may only name a part of the same schema, as in \"#/$defs/x\"")]
    Outside,
    #[error("a `$ref` names a part that is not there")]
    Dangling,
    #[error("a `$ref` leads back to itself without going deeper into the arguments")]
    Endless,
    #[error("it refers back to itself twice for one place in the arguments")]
    Doubled,
}

/// Checks that compiling and evaluating the schema takes bounded time.
pub(super) fn check(schema: &Value) -> Result<(), SchemaBound> {
    raw_size(schema)?;
    let mut walk =
        Walk { root: schema, nodes: 0, place: Vec::new(), open: vec![("", 0)], recursive: Vec::new() };
    walk.schema(schema, 0)
}

/// Counts all values, including unreferenced ones. It does not recurse, because the depth is not checked yet.
fn raw_size(schema: &Value) -> Result<(), SchemaBound> {
    let (mut nodes, mut rest) = (0, vec![(schema, 0)]);
    while let Some((value, depth)) = rest.pop() {
        nodes += 1;
        if nodes > MAX_NODES {
            return Err(SchemaBound::Nodes);
        }
        if depth > MAX_DEPTH {
            return Err(SchemaBound::Depth);
        }
        match value {
            Value::Object(map) => rest.extend(map.values().map(|it| (it, depth + 1))),
            Value::Array(list) => rest.extend(list.iter().map(|it| (it, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// Walks the schema in the order in which arguments are checked.
struct Walk<'a> {
    root: &'a Value,
    nodes: usize,
    /// The current path in the arguments.
    place: Vec<Step<'a>>,
    /// The references that are being followed, each with the depth in the arguments at which it occurred.
    open: Vec<(&'a str, usize)>,
    /// The paths at which a reference led back to one that is being followed.
    recursive: Vec<Vec<Step<'a>>>,
}

/// One step deeper into the arguments.
#[derive(Clone, Copy, PartialEq)]
enum Step<'a> {
    Property(&'a str),
    Item(usize),
    Any,
}

impl Step<'_> {
    fn meets(self, other: Self) -> bool {
        self == Step::Any || other == Step::Any || self == other
    }
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value, depth: usize) -> Result<(), SchemaBound> {
        if depth > MAX_DEPTH {
            return Err(SchemaBound::Depth);
        }
        self.count()?;
        let keywords = schema.as_object().into_iter().flatten();
        keywords.into_iter().try_for_each(|(keyword, value)| self.keyword(keyword, value, depth + 1))
    }

    fn keyword(&mut self, keyword: &str, value: &'a Value, depth: usize) -> Result<(), SchemaBound> {
        match (keyword, value) {
            ("$ref", _) => self.reference(value, depth),
            (
                "$id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef" | "$recursiveAnchor",
                _,
            ) => Err(SchemaBound::Keyword { keyword: keyword.to_owned() }),
            ("properties", Value::Object(map)) => {
                map.iter().try_for_each(|(name, it)| self.deeper(Step::Property(name), it, depth))
            }
            ("patternProperties", Value::Object(map)) => {
                map.values().try_for_each(|it| self.deeper(Step::Any, it, depth))
            }
            ("prefixItems" | "items", Value::Array(list)) => {
                list.iter().enumerate().try_for_each(|(at, it)| self.deeper(Step::Item(at), it, depth))
            }
            (
                "items"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames",
                _,
            ) => self.deeper(Step::Any, value, depth),
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                list.iter().try_for_each(|it| self.schema(it, depth))
            }
            ("dependentSchemas" | "dependencies", Value::Object(map)) => {
                map.values().try_for_each(|it| self.schema(it, depth))
            }
            ("not" | "if" | "then" | "else", _) => self.schema(value, depth),
            _ => self.count(),
        }
    }

    fn deeper(&mut self, step: Step<'a>, schema: &'a Value, depth: usize) -> Result<(), SchemaBound> {
        self.place.push(step);
        let walked = self.schema(schema, depth);
        self.place.pop();
        walked
    }

    fn reference(&mut self, value: &'a Value, depth: usize) -> Result<(), SchemaBound> {
        let pointer = value.as_str().and_then(|it| it.strip_prefix('#')).ok_or(SchemaBound::Outside)?;
        if pointer.contains('%') || !(pointer.is_empty() || pointer.starts_with('/')) {
            return Err(SchemaBound::Outside);
        }
        let target = self.root.pointer(pointer).ok_or(SchemaBound::Dangling)?;
        if let Some((_, entered)) = self.open.iter().rev().find(|(open, _)| *open == pointer) {
            return if *entered < self.place.len() { self.back() } else { Err(SchemaBound::Endless) };
        }
        self.open.push((pointer, self.place.len()));
        let walked = self.schema(target, depth);
        self.open.pop();
        walked
    }

    /// Records a reference back. Two of them at one path double the work with each level of the arguments.
    fn back(&mut self) -> Result<(), SchemaBound> {
        self.count()?;
        let here = &self.place;
        let meets = |other: &Vec<Step<'_>>| {
            other.len() == here.len() && other.iter().zip(here).all(|(a, b)| a.meets(*b))
        };
        if self.recursive.len() >= MAX_RECURSIVE || self.recursive.iter().any(meets) {
            return Err(SchemaBound::Doubled);
        }
        self.recursive.push(self.place.clone());
        Ok(())
    }

    fn count(&mut self) -> Result<(), SchemaBound> {
        self.nodes += 1;
        if self.nodes > MAX_NODES { Err(SchemaBound::Nodes) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sec_c5_doubled_references_are_counted_as_expanded() {
        let mut defs = serde_json::Map::new();
        for n in 0..30 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"properties": {"a": next, "b": next}}));
        }
        defs.insert("d30".to_owned(), json!({}));
        assert_eq!(check(&json!({"$ref": "#/$defs/d0", "$defs": defs})), Err(SchemaBound::Nodes));
        let many: Vec<_> = (0..MAX_NODES).map(|_| json!({})).collect();
        assert_eq!(check(&json!({"enum": many})), Err(SchemaBound::Nodes));
    }

    #[test]
    fn sec_c5_recursion_is_allowed_once_per_location() {
        let tree = json!({"properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}, "pair": {"prefixItems": [{"$ref": "#"}, {"$ref": "#"}]},
        }});
        assert_eq!(check(&tree), Ok(()));
        let doubled = json!({"anyOf": [
            {"properties": {"a": {"$ref": "#"}}}, {"patternProperties": {"^a": {"$ref": "#"}}},
        ]});
        assert_eq!(check(&doubled), Err(SchemaBound::Doubled));
        assert_eq!(check(&json!({"allOf": [{"$ref": "#"}]})), Err(SchemaBound::Endless));
    }

    #[test]
    fn sec_c5_reference_to_another_document_is_refused() {
        assert_eq!(check(&json!({"$ref": "https://example.com/a"})), Err(SchemaBound::Outside));
        assert_eq!(check(&json!({"$ref": "#name"})), Err(SchemaBound::Outside));
        assert_eq!(check(&json!({"$ref": "#/$defs/none"})), Err(SchemaBound::Dangling));
        assert!(matches!(check(&json!({"$id": "https://example.com"})), Err(SchemaBound::Keyword { .. })));
        let named_like_one = json!({"properties": {"$ref": {"type": "string"}, "$id": {}}});
        assert_eq!(check(&named_like_one), Ok(()));
        let data = json!({"default": {"$ref": "https://example.com"}, "enum": [{"$id": 1}]});
        assert_eq!(check(&data), Ok(()));
    }

    #[test]
    fn deep_schema_is_refused_without_recursion() {
        let mut deep = json!({});
        for _ in 0..MAX_DEPTH {
            deep = json!({"items": deep});
        }
        assert_eq!(check(&json!({"items": deep})), Err(SchemaBound::Depth));
    }
}
