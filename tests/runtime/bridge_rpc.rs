//! LiveKit's RPC through `Client`, in a room in memory.

use serde_json::json;
use toolbridge::{
    Assistant, Client, JoinError, Tool, ToolError,
    memory::{MemoryRoom, MemoryTransport},
    tools::RegisterError,
    transport::{
        Packet, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcMessage, RpcRequest, StreamPart, TextStream,
        Transport as _, TransportEvent,
    },
};

async fn get_battery() -> Result<f32, ToolError> {
    Ok(0.5)
}

/// Returns the next message or part of a stream.
async fn next(agent: &mut MemoryTransport) -> TransportEvent {
    loop {
        let event = agent.recv().await.unwrap();
        if matches!(event, TransportEvent::Rpc { .. } | TransportEvent::Stream { .. }) {
            return event;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn client_answers_both_versions() {
    let room = MemoryRoom::new();
    let builder = Client::builder().tool("get_battery", "", get_battery).answer_rpc();
    let phone = builder.join_over(room.client("phone")).await.unwrap();
    let mut agent = room.assistant("agent");
    let request = RpcRequest::new("r1", "get_battery", "{}", 5_000);
    agent.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await.unwrap();
    let ack = |id: &str| RpcMessage::Ack { id: id.to_owned() };
    assert!(matches!(next(&mut agent).await, TransportEvent::Rpc { message, .. } if message == ack("r1")));
    let TransportEvent::Rpc { message: RpcMessage::Response(response), .. } = next(&mut agent).await else {
        panic!("no response")
    };
    assert_eq!((&*response.id, response.outcome), ("r1", Ok("0.5".into())));
    let mut stream = TextStream::new(0);
    stream.inline = true;
    for (key, value) in
        [("id", "r2"), ("method", "get_battery"), ("response_timeout_ms", "5000"), ("version", "2")]
    {
        stream.attributes.insert(format!("lk.rpc_request_{key}"), value.to_owned());
    }
    agent.send(Packet::text("phone".into(), RPC_REQUEST_TOPIC, "", stream)).await.unwrap();
    assert!(matches!(next(&mut agent).await, TransportEvent::Rpc { message, .. } if message == ack("r2")));
    let mut payload = Vec::new();
    // Not in the header: this caller announces no client protocol.
    loop {
        let TransportEvent::Stream { from, part } = next(&mut agent).await else { panic!("no stream") };
        assert_eq!(*from.identity(), "phone");
        match part {
            StreamPart::Header(header) => {
                assert_eq!(header.topic, RPC_RESPONSE_TOPIC);
                assert_eq!(header.attributes["lk.rpc_request_id"], "r2");
            }
            StreamPart::Chunk { bytes, .. } => payload.extend_from_slice(&bytes),
            StreamPart::Trailer { .. } => break,
        }
    }
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&payload).unwrap(), json!(0.5));
    assert_eq!(phone.assistant().unwrap(), "agent");
}

async fn crash() -> Result<f32, ToolError> {
    panic!("a secret of the tool")
}

#[tokio::test(start_paused = true)]
async fn tool_that_panics_is_an_error_without_its_text() {
    let room = MemoryRoom::new();
    let builder =
        Client::builder().tool("crash", "", crash).tool("get_battery", "", get_battery).answer_rpc();
    let _phone = builder.join_over(room.client("phone")).await.unwrap();
    let mut agent = room.assistant("agent");
    for (id, method) in [("r1", "crash"), ("r2", "get_battery")] {
        let request = RpcRequest::new(id, method, "{}", 5_000);
        agent.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await.unwrap();
        let answer = loop {
            match next(&mut agent).await {
                TransportEvent::Rpc { message: RpcMessage::Response(it), .. } => break it,
                other => assert!(matches!(other, TransportEvent::Rpc { .. })),
            }
        };
        match answer.outcome {
            Ok(payload) => assert_eq!((method, &payload[..]), ("get_battery", &b"0.5"[..])),
            Err(error) => {
                let data: serde_json::Value = serde_json::from_str(&error.data).unwrap();
                assert_eq!((method, error.code, &data["code"]), ("crash", 1500, &json!("execution_error")));
                assert!(!error.message.contains("secret") && !error.data.contains("secret"));
            }
        }
    }
}

#[derive(schemars::JsonSchema, serde::Deserialize)]
struct Lamp {
    #[expect(dead_code, reason = "it is never read")]
    level: f32,
}

async fn set_lamp(_: Lamp) -> Result<(), ToolError> {
    panic!("it must not run")
}

#[tokio::test(start_paused = true)]
async fn arguments_that_do_not_fit_are_refused_with_their_place() {
    let room = MemoryRoom::new();
    let builder = Client::builder().tool("set_lamp", "", set_lamp).answer_rpc();
    let _phone = builder.join_over(room.client("phone")).await.unwrap();
    let mut agent = room.assistant("agent");
    for (id, payload, place) in [
        ("r1", r#"{"level": "bright"}"#, " at /level: "),
        ("r2", r#"{"level": [1]}"#, " at /level: "),
        ("r3", "", " at /level: "),
    ] {
        let request = RpcRequest::new(id, "set_lamp", payload, 5_000);
        agent.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await.unwrap();
        let answer = loop {
            match next(&mut agent).await {
                TransportEvent::Rpc { message: RpcMessage::Response(it), .. } => break it,
                other => assert!(matches!(other, TransportEvent::Rpc { .. })),
            }
        };
        let error = answer.outcome.unwrap_err();
        let data: serde_json::Value = serde_json::from_str(&error.data).unwrap();
        assert_eq!((error.code, &data["code"]), (1500, &json!("invalid_parameters")));
        assert!(
            error.message.starts_with("invalid_parameters: ") && error.message.contains(place),
            "{error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn tool_of_an_app_with_a_reserved_or_taken_name_is_an_error_at_the_join() {
    let tool = |name: &str| Tool::new(name.parse().unwrap(), "");
    let taken = Assistant::builder().rpc_tool("web", tool("locate")).rpc_tool("web", tool("locate"));
    let own = Assistant::builder().tool("get_battery", "", get_battery).rpc_tool("web", tool("get_battery"));
    let reserved = Assistant::builder().rpc_tool("web", tool("lk.chat"));
    for (builder, name) in [(taken, "locate"), (own, "get_battery"), (reserved, "lk.chat")] {
        let error = builder.join_over(MemoryRoom::new().assistant("agent")).await.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(
            matches!(
                error,
                JoinError::Register(RegisterError::Duplicate { .. } | RegisterError::Reserved { .. })
            ),
            "{error:?}"
        );
    }
}
