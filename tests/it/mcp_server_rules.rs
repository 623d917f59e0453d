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
        let denied = json!({"toolbridge/code": "permission_denied", "toolbridge/mayHaveRun": false});
        assert_eq!(result["isError"] == true, album == "Paris", "{result}");
        assert_eq!(result["_meta"] == denied, album == "Paris", "{result}");
    }
    assert_eq!(*seen.asked.lock().unwrap(), ["a erases Rome", "a erases Paris", "a erases Rome"]);
    assert_eq!(*seen.erased.lock().unwrap(), ["Rome", "Rome"]);
}
