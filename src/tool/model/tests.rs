//! Checks the rules of the table on each output.

use proptest::{prelude::*, test_runner::RngSeed};
use serde_json::{Map, json};

use super::*;
use crate::tool::{CallError, Offer};

fn tool(name: &str, schema: Json) -> Tool {
    Tool::new(name.parse().unwrap(), "Does it.").schema(schema)
}

fn fitted(schema: Json) -> ModelTool {
    ModelTool::new(&tool("t", schema)).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the schema in place")]
fn property(schema: Json) -> Json {
    let whole = json!({"type": "object", "properties": {"given": schema, "other": {"type": "string"}}, "$defs": {
        "Tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
        "Color": {"type": "string", "enum": ["red"]},
    }});
    fitted(whole).schema()["properties"]["given"].clone()
}

/// Panics if a schema breaks a rule: S1 and S2.
fn check_top(schema: &Json) {
    assert_eq!(schema["type"], "object", "S1: {schema}");
    assert!(schema["properties"].is_object(), "S1: {schema}");
    for refused in ["anyOf", "oneOf", "allOf", "not", "enum", "const", "if"] {
        assert!(schema.get(refused).is_none(), "S2: {refused} in {schema}");
    }
    check(schema);
}

/// Panics if a schema breaks a rule: K and S3 to S9.
fn check(schema: &Json) {
    const ALLOWED: [&str; 21] = [
        "type",
        "title",
        "description",
        "default",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "$schema",
    ];
    let fields = schema.as_object().unwrap_or_else(|| panic!("S3: {schema}"));
    for (key, value) in fields {
        assert!(ALLOWED.contains(&key.as_str()), "S6: {key} in {schema}");
        let is_valid = match key.as_str() {
            "type" | "title" | "description" | "$schema" | "pattern" => value.is_string(),
            "format" => value == "date-time" && fields["type"] == "string",
            "enum" => value.as_array().is_some_and(|it| !it.is_empty() && it.iter().all(Json::is_string)),
            "properties" => value.is_object(),
            "anyOf" => value.as_array().is_some_and(|it| it.len() > 1),
            "items" => value.is_object(),
            "additionalProperties" => value.is_object() || value.is_boolean(),
            "required" => value.as_array().is_some_and(|names| {
                names.iter().all(|name| fields["properties"].get(name.as_str().unwrap()).is_some())
            }),
            "default" => true,
            _ => value.is_number(),
        };
        assert!(is_valid, "S9: {key} in {schema}");
    }
    match fields.get("type").and_then(Json::as_str) {
        Some("array") => assert!(fields.contains_key("items"), "S4: {schema}"),
        Some(kind) => {
            let types = ["string", "integer", "number", "boolean", "null", "object"];
            assert!(types.contains(&kind), "S3: {schema}");
            assert!(!fields.contains_key("enum") || kind == "string", "S5: {schema}");
        }
        None => assert!(fields.contains_key("anyOf"), "S3: {schema}"),
    }
    if let Some(pattern) = fields.get("pattern") {
        assert!(!pattern.as_str().unwrap().contains("(?"), "S8: {schema}");
    }
    for key in fields.get("properties").and_then(Json::as_object).into_iter().flat_map(Map::keys) {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        assert!((1..=64).contains(&key.len()) && key.bytes().all(allowed), "K: {key:?}");
    }
    schema::inner(&mut schema.clone()).filter(|it| !it.is_boolean()).for_each(|it| check(it));
}

fn check_name(name: &str) {
    let mut bytes = name.bytes();
    let first = bytes.next().unwrap();
    assert!(first.is_ascii_alphabetic() || first == b'_', "N: {name}");
    assert!(
        name.len() <= 64 && bytes.all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it)),
        "N: {name}"
    );
}

#[test]
fn tool_without_a_schema_has_properties() {
    let bare = ModelTool::new(&Tool::new("t".parse().unwrap(), "")).unwrap();
    assert_eq!(bare.schema().to_string(), r#"{"type":"object","properties":{}}"#);
    assert_eq!(bare.description(), "t");
    assert_eq!(fitted(json!(true)).schema(), bare.schema());
    assert_eq!(fitted(json!({"minProperties": 1})).schema()["properties"], json!({}));
}

#[test]
fn plain_schema_stays_the_same_byte_for_byte() {
    for text in [
        r#"{"properties":{"file":{"type":"string","description":"A path","minLength":1}},"type":"object","required":["file"]}"#,
        r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"A","type":"object","properties":{},"required":[],"additionalProperties":false}"#,
        r#"{"type":"object","properties":{"at":{"format":"date-time","type":"string"},"n":{"default":1.0,"type":"number","minimum":0.5},
            "list":{"type":"array","items":{"type":"object","properties":{"x-y.z":{"type":"boolean"}},"required":["x-y.z"]},"maxItems":3},
            "map":{"type":"object","additionalProperties":{"type":"integer"}},"kind":{"enum":["a","b"],"type":"string"},
            "either":{"description":"One","anyOf":[{"type":"string"},{"type":"null"}],"default":null}}}"#,
    ] {
        let schema: Json = serde_json::from_str(text).unwrap();
        let tool = fitted(schema.clone());
        assert_eq!(tool.schema().to_string(), schema.to_string());
        assert_eq!(tool.description(), "Does it.");
    }
}

#[test]
fn top_union_of_requirements_is_told_in_the_description() {
    let schema = json!({"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}]});
    let tool = fitted(schema.clone());
    assert_eq!(tool.schema(), &json!({"type": "object", "properties": schema["properties"]}));
    let says = r#"{"anyOf":[{"required":["id"]},{"required":["name"]}]}"#;
    assert_eq!(
        tool.description(),
        format!("Does it.\n\nThe arguments must also match this JSON Schema: {says}")
    );
}

#[test]
fn top_union_of_objects_has_the_properties_of_all() {
    let schema = json!({"properties": {"kind": {"type": "string"}}, "required": ["kind"], "oneOf": [
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    ]});
    let expected = json!({"type": "object", "properties": {
        "kind": {"type": "string"},
        "a": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "b": {"type": "string"},
    }, "required": ["kind", "a"]});
    assert_eq!(fitted(schema).schema(), &expected);
    let referred =
        json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "anyOf": [{"required": ["a"]}]}}});
    assert!(fitted(referred).description().ends_with(r#"{"anyOf":[{"required":["a"]}]}"#));
    let union =
        json!({"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, {"type": "string"}]});
    assert_eq!(fitted(union).schema()["properties"], json!({"a": {"type": "null"}}));
}

#[test]
fn keys_are_renamed_and_come_back_also_within_values() {
    let inner = json!({"type": "object", "properties": {"$filter": {"type": "string"}, "_filter": {"type": "string"}}});
    let tool = fitted(json!({"type": "object", "required": ["größe"], "properties": {
        "größe": {"type": "number", "description": "Its size."},
        "list": {"type": "array", "items": {"anyOf": [inner, {"type": "null"}]}},
        "map": {"type": "object", "additionalProperties": inner},
        "free": {"type": "object"},
    }}));
    check_top(tool.schema());
    let schema = tool.schema();
    assert_eq!(schema["required"], json!(["gr__e"]));
    assert_eq!(schema["properties"]["gr__e"]["description"], "Its size. The tool calls it \"größe\".");
    let item = &schema["properties"]["list"]["items"]["anyOf"][0]["properties"];
    let fitted_key = item.as_object().unwrap().keys().next().unwrap().clone();
    assert!(fitted_key.starts_with("_filter_") && item.get("_filter").is_some(), "{item}");
    let given = json!({
        "gr__e": 2, "list": [{(fitted_key.clone()): "a", "_filter": "b"}, null], "free": {"gr__e": 1},
        "map": {"gr__e": {(fitted_key.clone()): "c"}}, "unknown": {(fitted_key): 1.0},
    });
    let fitted_key = item.as_object().unwrap().keys().next().unwrap();
    let expected = json!({
        "größe": 2, "list": [{"$filter": "a", "_filter": "b"}, null], "free": {"gr__e": 1},
        "map": {"gr__e": {"$filter": "c"}}, "unknown": {(fitted_key): 1.0},
    });
    assert_eq!(tool.arguments(Value::from(given)).to_json(), expected);
}

#[test]
fn what_no_schema_can_say_is_in_its_description() {
    let nullable = json!({"type": ["string", "null"], "description": "A text"});
    assert_eq!(
        property(nullable),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A text"})
    );
    assert_eq!(
        property(json!({"type": "integer", "enum": [1, 2]})),
        json!({"type": "integer", "description": "One of 1, 2."})
    );
    assert_eq!(property(json!({"const": "a"})), json!({"type": "string", "enum": ["a"]}));
    assert_eq!(
        property(json!({"allOf": [{"$ref": "#/$defs/Color"}, {"description": "Of the lamp"}]})),
        json!({"type": "string", "enum": ["red"], "description": "Of the lamp"})
    );
    assert_eq!(
        property(json!({"type": "string", "format": "uri", "pattern": "^(?i)a", "readOnly": true})),
        json!({"type": "string", "description": "format: uri. pattern: ^(?i)a."})
    );
    assert_eq!(
        property(json!({"type": "integer", "exclusiveMinimum": 0, "format": "uint32", "multipleOf": 5})),
        json!({"type": "integer", "minimum": 1, "description": "multipleOf: 5."})
    );
    assert_eq!(
        property(json!({"type": "number", "exclusiveMinimum": 0})),
        json!({"type": "number", "description": "exclusiveMinimum: 0."})
    );
    assert_eq!(
        property(json!({"$ref": "#/$defs/Tree"})),
        json!({"type": "object", "properties": {"children": {"type": "array", "items": {"type": "object"}}}})
    );
}

#[test]
fn difficult_schema_keeps_all_rules() {
    for given in [
        json!(true),
        json!(false),
        json!({}),
        json!({"type": "date"}),
        json!({"type": "array"}),
        json!({"type": "array", "prefixItems": [{"type": "string"}, {}], "minItems": 2}),
        json!({"type": "array", "items": [{"type": "string"}]}),
        json!({"$ref": "#/$defs/Missing"}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"$ref": "#/properties/given"}),
        json!({"enum": [null, "a"]}),
        json!({"enum": [true, "auto", {"a": 1}]}),
        json!({"enum": []}),
        json!({"type": "string", "minLength": "one", "pattern": 1, "description": 5, "title": null}),
        json!({"type": "object", "properties": [], "required": "a"}),
        json!({"type": "object", "properties": {}, "required": ["a"]}),
        json!({"type": "number", "minimum": 0, "exclusiveMinimum": true}),
        json!({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}),
    ] {
        let tool = fitted(json!({"type": "object", "properties": {"given": given}, "required": ["given"]}));
        check_top(tool.schema());
        assert_eq!(fitted(tool.schema().clone()).schema(), tool.schema());
    }
}

#[test]
fn schema_without_objects_is_left_out_with_its_reason() {
    for schema in [json!({"type": "array"}), json!(false), json!("object"), json!({"enum": ["a"]})] {
        let why = ModelTool::new(&tool("odd", schema)).unwrap_err();
        assert!(
            why.to_string().starts_with("odd is not shown to models: its schema accepts no object"),
            "{why}"
        );
    }
}

#[test]
fn sec_c5_schema_that_doubles_at_each_level_ends() {
    let level = |at: usize| {
        let next = json!({"$ref": format!("#/$defs/D{}", at + 1)});
        (
            format!("D{at}"),
            json!({"type": "object", "properties": {"a": next, "b": next}, "title": "t".repeat(400)}),
        )
    };
    let levels: Map<String, Json> = (0..60).map(level).collect();
    let tool =
        fitted(json!({"type": "object", "properties": {"it": {"$ref": "#/$defs/D0"}}, "$defs": levels}));
    check_top(tool.schema());
    assert!(tool.schema().to_string().len() < 2_000_000);
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    check_top(fitted(deep).schema());
}

fn offer(owner: &str, tool: Tool) -> Offer {
    Offer::new(tool, owner.into())
}

fn names(offers: &[Offer]) -> Vec<(String, String)> {
    let listed = by_owner(offers.to_vec(), true);
    let names = model_names(&listed);
    let shown = |(name, offer): (&ToolName, &Offer)| {
        (names.converted(name.as_str()).unwrap().to_owned(), offer.owner.to_string())
    };
    listed.iter().map(shown).collect()
}

#[test]
fn tools_of_one_name_with_two_schemas_are_shown_under_their_owners() {
    let of = |kind: &str| json!({"type": "object", "properties": {"level": {"type": kind}}});
    let (phone, tv) = (offer("phone", tool("lamp", of("integer"))), offer("tv", tool("lamp", of("string"))));
    let pair = |name: &str, owner: &str| (name.to_owned(), owner.to_owned());
    let both = [phone.clone(), tv.clone()];
    assert_eq!(names(&both), [pair("phone__lamp", "phone"), pair("tv__lamp", "tv")]);
    let call = ModelCall::read(both.to_vec(), "tv__lamp", Value::empty()).unwrap();
    assert_eq!((&*call.tool, call.to), ("lamp", Some("tv".into())));
    let equal = [phone.clone(), offer("tv", phone.tool.clone())];
    assert_eq!(names(&equal), [pair("lamp", "phone")]);
    assert_eq!(ModelCall::read(equal.to_vec(), "lamp", Value::empty()).unwrap().to, None);
    let own = Offer { is_local: true, ..offer("agent", tool("lamp", of("boolean"))) };
    assert_eq!(names(&[own, phone, tv]), [pair("lamp", "agent")]);
}

#[test]
fn model_invents_no_prompt_and_learns_why_a_tool_is_unknown() {
    let error = ModelCall::read(Vec::new(), "bridge.choose", Value::empty()).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
    assert_eq!(ModelCall::read(Vec::new(), "gone", Value::empty()).unwrap().tool, "gone");
}

/// Keys of all kinds, some of which clash.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c_$ß.]{0,3}", "[a-z]{1,6}", "x{60,70}"]
}

fn any_json() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i8>().prop_map(Json::from),
        "[a-c]{0,3}".prop_map(Json::from),
    ]
}

/// Schemas of all kinds, also invalid ones.
fn any_schema() -> impl Strategy<Value = Json> {
    let type_name = prop::sample::select(vec![
        "string", "integer", "number", "boolean", "null", "array", "object", "odd",
    ]);
    let leaf = prop_oneof![
        any_json(),
        type_name.clone().prop_map(|kind| json!({"type": kind})),
        prop::collection::vec(type_name.clone(), 0..3).prop_map(|kinds| json!({"type": kinds})),
        prop::collection::vec(any_json(), 0..3).prop_map(|values| json!({"enum": values})),
        any_json().prop_map(|value| json!({"const": value, "description": "d"})),
        prop::sample::select(vec!["#", "#/properties/a", "#/$defs/A", "x"])
            .prop_map(|to| json!({"$ref": to})),
        (type_name, any_json())
            .prop_map(|(kind, value)| json!({"type": kind, "format": value, "pattern": value,
            "minimum": value, "exclusiveMaximum": value, "minItems": value, "title": value})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let parts = prop::collection::vec(inner.clone(), 0..3);
        let properties = prop::collection::vec((any_key(), inner.clone()), 0..4);
        let required = prop::collection::vec(any_key(), 0..3);
        prop_oneof![
            (properties, required, any::<bool>()).prop_map(|(properties, required, is_typed)| {
                let required: Vec<_> =
                    properties.iter().map(|it| it.0.clone()).take(1).chain(required).collect();
                let properties: Map<_, _> = properties.into_iter().collect();
                let schema = json!({"properties": properties, "required": required});
                if is_typed { with(schema, "type", json!("object")) } else { schema }
            }),
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            inner.clone().prop_map(|more| json!({"type": "object", "additionalProperties": more})),
            (prop::sample::select(vec!["anyOf", "oneOf", "allOf", "prefixItems"]), parts, inner)
                .prop_map(|(key, parts, base)| with(base, key, parts.into())),
        ]
    })
}

fn with(mut schema: Json, key: &str, value: Json) -> Json {
    if let Json::Object(fields) = &mut schema {
        fields.insert(key.to_owned(), value);
    }
    schema
}

/// Plain schemas: those that all APIs accept, in any order of keywords.
fn plain_schema() -> impl Strategy<Value = Json> {
    let leaf = prop::sample::select(vec![
        json!({"type": "string", "description": "d", "maxLength": 3}),
        json!({"enum": ["a"], "type": "string"}),
        json!({"minimum": 1, "type": "integer", "default": 2}),
        json!({"type": "boolean"}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"type": "object"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"title": "T", "type": "number", "maximum": 1.5}),
    ]);
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (prop::collection::btree_map("[a-zA-Z0-9_.-]{1,64}", inner.clone(), 0..4), any::<bool>())
                .prop_map(|(properties, is_strict)| {
                    let required: Vec<_> = properties.keys().take(2).cloned().collect();
                    let properties: Map<_, _> = properties.into_iter().collect();
                    json!({"properties": properties, "required": required, "type": "object",
                        "additionalProperties": is_strict})
                }),
            inner.prop_map(|items| json!({"type": "array", "items": items, "minItems": 1})),
        ]
    })
}

/// Arguments that have each key of a schema, and what they are with the tool's own keys.
fn arguments(schema: &Json, names: &NameMap) -> (Json, Json) {
    if let Some(parts) = schema["anyOf"].as_array() {
        let object = parts.iter().find(|it| it["type"] == "object").unwrap_or(&parts[0]);
        return arguments(object, names);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let each = schema["properties"].as_object().into_iter().flatten().map(|(key, it)| {
                let (fitted, own) = arguments(it, names);
                ((key.clone(), fitted), (names.original(key).unwrap_or(key).to_owned(), own))
            });
            let (fitted, own): (Vec<_>, Vec<_>) = each.unzip();
            (Map::from_iter(fitted).into(), Map::from_iter(own).into())
        }
        Some("array") => {
            let (fitted, own) = arguments(&schema["items"], names);
            (json!([fitted]), json!([own]))
        }
        _ => (json!("x"), json!("x")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_fitted_tool_keeps_all_rules_and_gets_its_arguments_back(top in any_schema(), defs in any_schema()) {
        let schema = with(top, "$defs", json!({"A": defs}));
        if let Ok(fitted) = ModelTool::new(&tool("t", schema)) {
            check_top(fitted.schema());
            let again = ModelTool::new(&tool("t", fitted.schema().clone())).unwrap();
            prop_assert_eq!(again.schema().to_string(), fitted.schema().to_string());
            let (given, own) = arguments(fitted.schema(), &fitted.keys);
            prop_assert_eq!(fitted.arguments(Value::from(given)).to_json(), own);
        }
    }

    #[test]
    fn plain_schemas_stay_the_same(properties in prop::collection::btree_map("[a-z]{1,8}", plain_schema(), 0..4)) {
        let properties: Map<_, _> = properties.into_iter().collect();
        let schema = json!({"type": "object", "properties": properties});
        prop_assert_eq!(fitted(schema.clone()).schema().to_string(), schema.to_string());
    }

    #[test]
    fn every_name_is_allowed_and_leads_back(given in prop::collection::btree_set("[a-c0-2._-]{1,6}|3{63,64}", 1..8)) {
        let offers: Vec<Offer> = given.iter().map(|name| offer("p", tool(name, json!({})))).collect();
        for (name, _) in names(&offers) {
            check_name(&name);
            let call = ModelCall::read(offers.clone(), &name, Value::empty()).unwrap();
            prop_assert!(given.contains(&call.tool) && call.to.is_none());
        }
    }
}
