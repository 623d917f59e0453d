//! Tools that model APIs refuse, as `chat` and the MCP and RAP servers list them, and the arguments that come back.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, Client, Outcome, Tool, ToolContext, ToolName, ToolSource, Value,
    adapter::{mcp, rap},
    chat,
    memory::MemoryRoom,
};

use crate::{
    mcp_server::Host,
    rap_server::{Runtime, invocation, send},
};

/// Tools of which each makes some API refuse the whole request, and one that no model can call. They return their
/// arguments.
struct Refused;

impl ToolSource for Refused {
    fn list(&self) -> Vec<Tool> {
        let ids = json!({"id": {"type": "integer"}, "name": {"type": "string"}});
        let inner = json!({"type": "object", "properties": {"$filter": {"type": "string"}}});
        let tools = [
            ("no_arguments", None),
            ("3d_print", Some(json!({"type": "object", "properties": {"file": {"type": "string"}}}))),
            (
                "find",
                Some(json!({"type": "object", "properties": ids,
                    "anyOf": [{"required": ["id"]}, {"required": ["name"]}]})),
            ),
            (
                "measure",
                Some(json!({"type": "object", "properties": {"größe": {"type": "number"},
                    "$filter": {"type": "string"}, "list": {"type": "array", "items": inner}}})),
            ),
            ("only_texts", Some(json!({"type": "string"}))),
        ];
        let tool = |(name, schema): (&str, Option<Json>)| {
            let tool = Tool::new(name.parse().unwrap(), "Does it");
            schema.into_iter().fold(tool, Tool::schema)
        };
        tools.into_iter().map(tool).collect()
    }

    async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
        Ok(arguments)
    }

    fn validates_arguments(&self) -> bool {
        true
    }
}

/// Returns the definitions that each door has to show: name, description and schema.
fn expected() -> Json {
    let filter = json!({"type": "string", "description": "The tool calls it \"$filter\"."});
    json!([
        ["_3d_print", "Does it", {"type": "object", "properties": {"file": {"type": "string"}}}],
        ["find", "Does it\n\nThe arguments must also match this JSON Schema: \
            {\"anyOf\":[{\"required\":[\"id\"]},{\"required\":[\"name\"]}]}",
            {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}],
        ["measure", "Does it", {"type": "object", "properties": {
            "gr__e": {"type": "number", "description": "The tool calls it \"größe\"."}, "_filter": filter,
            "list": {"type": "array", "items": {"type": "object", "properties": {"_filter": filter}}}}}],
        ["no_arguments", "Does it", {"type": "object", "properties": {}}],
    ])
}

/// Arguments of `measure` with the keys that a model knows, and with its own.
fn arguments() -> (Json, Json) {
    (
        json!({"gr__e": 1.5, "_filter": "a", "list": [{"_filter": "b"}]}),
        json!({"größe": 1.5, "$filter": "a", "list": [{"$filter": "b"}]}),
    )
}

async fn room() -> (Assistant, Client) {
    let room = MemoryRoom::new();
    let phone = Client::builder().tools(Arc::new(Refused)).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    (assistant, phone)
}

/// Returns what a list of definitions has under these keys, sorted by name.
fn shown(tools: &Json, keys: [&str; 3]) -> Json {
    let mut shown: Vec<Json> = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| keys.map(|key| tool[key].clone()).to_vec().into())
        .collect();
    shown.sort_by_key(|it| it[0].to_string());
    shown.into()
}

#[tokio::test(start_paused = true)]
async fn sec_r8_tool_that_an_api_refuses_silences_no_other() {
    let (assistant, _phone) = room().await;
    let tools: Json = chat::definitions(&assistant.tools()).iter().map(|it| it["function"].clone()).collect();
    assert_eq!(shown(&tools, ["name", "description", "parameters"]), expected());
    let (given, own) = arguments();
    for (name, given, tool, own) in [
        ("measure", given, "measure", own),
        ("_3d_print", json!({"file": "x"}), "3d_print", json!({"file": "x"})),
    ] {
        let call = json!({"id": "1", "function": {"name": name, "arguments": given.to_string()}});
        let answer = chat::answer(&assistant, &call).await.message;
        let content: Json = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
        assert_eq!(content, json!({"tool": tool, "from": "phone", "result": own}));
    }
}

#[tokio::test(start_paused = true)]
async fn host_lists_each_refused_tool_in_a_form_that_fits() {
    let (assistant, _phone) = room().await;
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    let listed = host.ask("tools/list", json!({})).await;
    assert_eq!(shown(&listed["result"]["tools"], ["name", "description", "inputSchema"]), expected());
    let (given, own) = arguments();
    assert_eq!(host.call("measure", given).await["structuredContent"], own);
    assert_eq!(host.call("_3d_print", json!({"file": "x"})).await["structuredContent"], json!({"file": "x"}));
}

#[tokio::test]
async fn runtime_lists_each_refused_tool_in_a_form_that_fits() {
    let (assistant, _phone) = room().await;
    let mut runtime = Runtime::new().await;
    let served = rap::serve(assistant)
        .allow_callback("127.0.0.1".parse().unwrap())
        .listen("127.0.0.1:0".parse().unwrap());
    let served = served.await.unwrap();
    let answer = send(&format!("{}/.well-known/rap-toolset", served.url()), "GET", &[], "").await;
    let body = &answer.body[answer.body.find('{').unwrap()..=answer.body.rfind('}').unwrap()];
    let manifest: Json = serde_json::from_str(body).unwrap();
    assert_eq!(shown(&manifest["tools"], ["name", "description", "inputSchema"]), expected());
    let (given, own) = arguments();
    let call = invocation(&runtime, "1", "measure", given);
    let headers = [("Content-Type", "application/json")];
    let accepted = send(&format!("{}/invoke", served.url()), "POST", &headers, &call.to_string()).await;
    assert_eq!(accepted.status, 200, "{accepted:?}");
    let result: Json = serde_json::from_str(runtime.next().await["text"].as_str().unwrap()).unwrap();
    assert_eq!(result, own);
    served.close().await;
}

#[tokio::test(start_paused = true)]
async fn chat_shows_both_tools_of_one_name_with_two_schemas() {
    struct Lamp(&'static str);

    impl ToolSource for Lamp {
        fn list(&self) -> Vec<Tool> {
            let schema = json!({"type": "object", "properties": {"level": {"type": self.0}}});
            vec![Tool::new("lamp".parse().unwrap(), "Switches the lamp").schema(schema)]
        }

        async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
            Ok(arguments)
        }
    }

    let room = MemoryRoom::new();
    let mut clients = Vec::new();
    for (identity, kind) in [("phone", "integer"), ("tv", "string")] {
        let client = Client::builder().tools(Arc::new(Lamp(kind))).join_over(room.client(identity));
        clients.push(client.await.unwrap());
    }
    let assistant =
        Assistant::builder().client("phone").client("tv").join_over(room.assistant("a")).await.unwrap();
    for client in ["phone", "tv"] {
        assistant.ready(client).await.unwrap();
    }
    let tools = chat::definitions(&assistant.tools());
    let kinds: Vec<_> = tools
        .iter()
        .map(|it| (&it["function"]["name"], &it["function"]["parameters"]["properties"]["level"]["type"]))
        .collect();
    assert_eq!(kinds, [(&json!("phone__lamp"), &json!("integer")), (&json!("tv__lamp"), &json!("string"))]);
    let call = json!({"id": "1", "function": {"name": "tv__lamp", "arguments": {"level": "low"}}});
    let answer = chat::answer(&assistant, &call).await.message;
    let content: Json = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
    assert_eq!(content, json!({"tool": "lamp", "from": "tv", "result": {"level": "low"}}));
}
