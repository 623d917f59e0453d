//! What a host that calls the room's tools over MCP cannot evade.

use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{
    Assistant, Client, ConsentRequest, State, ToolError, ToolOptions, Tools, adapter::mcp, memory::MemoryRoom,
};

use crate::mcp_server::Host;

#[derive(Deserialize, JsonSchema)]
struct Album {
    album: String,
}

/// What a client's person was asked, and what ran.
#[derive(Clone, Default)]
struct Seen {
    asked: Arc<Mutex<Vec<String>>>,
    erased: Arc<Mutex<Vec<String>>>,
}

async fn erase(State(seen): State<Seen>, album: Album) -> Result<(), ToolError> {
    seen.erased.lock().unwrap().push(album.album);
    Ok(())
}

/// A client that lets its person decide about `erase`. The person keeps the album of Paris.
fn phone(seen: &Seen) -> toolbridge::ClientBuilder {
    let asked = Arc::clone(&seen.asked);
    let tools = Tools::with_state(seen.clone());
    Client::builder().tools(tools.tool("erase", "Erases", ToolOptions::destructive().on(erase))).consent(
        move |ask: ConsentRequest| {
            let album = ask.arguments().get("album").unwrap().decode::<String>().unwrap();
            asked.lock().unwrap().push(format!("{} erases {album}", ask.caller()));
            async move { album != "Paris" }
        },
    )
}

#[tokio::test(start_paused = true)]
async fn sec_i10_call_of_a_host_runs_only_with_the_owners_consent() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let _phone = phone(&seen).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    assert_eq!(host.tools().await, ["erase"]);
    for album in ["Rome", "Paris", "Rome"] {
        // What the host says about consent has no effect.
        let arguments = json!({"album": album, "consent": true, "bridge.consent": true});
        let meta = json!({"bridge.consent": true, "bridge.permission": "allow_always"});
        let params = json!({"name": "erase", "arguments": arguments, "_meta": meta});
        let result = host.ask("tools/call", params).await["result"].take();
        let denied =
            json!({"dev.toolbridge/errorCode": "permission_denied", "dev.toolbridge/mayHaveRun": false});
        assert_eq!(result["isError"] == true, album == "Paris", "{result}");
        assert_eq!(result["_meta"] == denied, album == "Paris", "{result}");
    }
    assert_eq!(*seen.asked.lock().unwrap(), ["a erases Rome", "a erases Paris", "a erases Rome"]);
    assert_eq!(*seen.erased.lock().unwrap(), ["Rome", "Rome"]);
}

#[tokio::test(start_paused = true)]
async fn wxo_w18_server_validates_inputs_and_limits_access() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let phone = phone(&seen).tool("wipe", "Wipes all", ToolOptions::destructive().on(wipe));
    let _phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant).deny("wipe")).await;
    assert_eq!(host.tools().await, ["erase"]);
    for arguments in
        [json!({}), json!({"album": 5}), json!({"album": null}), json!({"albums": ["Rome"]}), json!([])]
    {
        let result = host.call("erase", arguments).await;
        let invalid =
            json!({"dev.toolbridge/errorCode": "invalid_parameters", "dev.toolbridge/mayHaveRun": false});
        assert_eq!((&result["isError"], &result["_meta"]), (&json!(true), &invalid), "{result}");
    }
    for arguments in [json!(["Rome"]), json!("Rome"), json!(5)] {
        let answer = host.ask("tools/call", json!({"name": "erase", "arguments": arguments})).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    for tool in ["wipe", "phone.wipe", "phone__wipe"] {
        let answer = host.ask("tools/call", json!({"name": tool, "arguments": {}})).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    assert!(seen.asked.lock().unwrap().is_empty() && seen.erased.lock().unwrap().is_empty());
    assert_eq!(host.call("erase", json!({"album": "Rome"})).await["isError"], json!(null));
    assert_eq!(*seen.erased.lock().unwrap(), ["Rome"]);
}

async fn wipe() -> Result<(), ToolError> {
    panic!("it is denied")
}

async fn crash() -> Result<(), ToolError> {
    panic!("at /srv/secret/index.js:10")
}

#[tokio::test(start_paused = true)]
async fn common_x8_failure_of_a_tool_reaches_a_host_without_path_and_stack_trace() {
    let room = MemoryRoom::new();
    let _phone =
        Client::builder().tool("crash", "Crashes", crash).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    let result = host.call("crash", json!({})).await;
    assert_eq!(result["_meta"]["dev.toolbridge/errorCode"], "execution_error");
    let text = result.to_string();
    assert!(!text.contains("/srv") && !text.contains(".rs") && !text.contains("secret"), "{text}");
}

/// A client accepts 50 calls in a second.
#[tokio::test(start_paused = true)]
async fn common_x7_calls_of_a_host_beyond_the_rate_are_busy_and_do_not_run() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let tools = Tools::with_state(seen.clone()).tool("erase", "Erases", erase);
    let _phone = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    assert_eq!(host.tools().await, ["erase"]);
    for id in 100..160 {
        host.request(id, "tools/call", json!({"name": "erase", "arguments": {"album": "Rome"}})).await;
    }
    let mut busy = 0;
    for _ in 0..60 {
        let result = host.next().await["result"].take();
        if result["isError"] == true {
            let refused = json!({"dev.toolbridge/errorCode": "busy", "dev.toolbridge/mayHaveRun": false});
            assert_eq!(result["_meta"], refused, "{result}");
            busy += 1;
        }
    }
    let ran = seen.erased.lock().unwrap().len();
    assert!((50..60).contains(&ran) && ran + busy == 60, "{ran} ran, {busy} were refused");
}
