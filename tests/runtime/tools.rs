//! Functions as tools, as a user writes them.

#![expect(clippy::unwrap_used, reason = "a failed lock fails the test")]

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Event, JoinError, Outcome, State, Tool, ToolContext, ToolError,
    ToolName, ToolOptions, ToolResult, ToolSource, Tools, Value,
    memory::MemoryRoom,
    result::{Native, ToolSystem},
    tools::{RegisterError, check_tool},
};

#[derive(Serialize)]
struct Battery {
    level: f32,
    charging: bool,
}

async fn get_battery() -> Result<Battery, ToolError> {
    Ok(Battery { level: 0.8, charging: true })
}

#[derive(Deserialize, JsonSchema)]
struct Find {
    /// Part of a name
    name: String,
}

async fn find_contact(State(db): State<Arc<Db>>, find: Find) -> Result<String, ToolError> {
    let number = db.number(&find.name).await?;
    Ok(number.ok_or("nobody of that name")?)
}

#[derive(Deserialize, JsonSchema)]
struct Export {
    album: String,
}

async fn export_album(
    cx: ToolContext,
    State(db): State<Arc<Db>>,
    export: Export,
) -> Result<usize, ToolError> {
    let photos = db.photos(&export.album).await?;
    for (n, photo) in photos.iter().enumerate() {
        if cx.is_cancelled() {
            db.remove(&photos[..n]).await?;
            return Err(ToolError::cancelled());
        }
        cx.progress(format!("{n} of {}", photos.len()));
        db.copy(photo).await?;
    }
    Ok(photos.len())
}

#[derive(Default)]
struct Db {
    copied: Mutex<Vec<String>>,
}

impl Db {
    async fn number(&self, name: &str) -> Result<Option<String>, std::io::Error> {
        match name {
            "Broken" => Err(std::io::Error::other("the password is hunter2")),
            "Ada" => Ok(Some("1815".to_owned())),
            _ => Ok(None),
        }
    }

    async fn photos(&self, album: &str) -> Result<Vec<String>, std::io::Error> {
        Ok((0..3).map(|n| format!("{album}/{n}")).collect())
    }

    async fn copy(&self, photo: &str) -> Result<(), std::io::Error> {
        self.copied.lock().unwrap().push(photo.to_owned());
        Ok(())
    }

    async fn remove(&self, photos: &[String]) -> Result<(), std::io::Error> {
        self.copied.lock().unwrap().retain(|photo| !photos.contains(photo));
        Ok(())
    }
}

fn tools() -> Tools<Arc<Db>> {
    Tools::with_state(Arc::new(Db::default()))
        .tool("get_battery", "Battery level (0 to 1) and charging state", get_battery)
        .tool("find_contact", "Phone number of a contact", find_contact)
        .tool("export_album", "Copy an album to the cloud", export_album)
}

#[tokio::test]
async fn arguments_are_checked() {
    let error = tools().call("find_contact", json!({"nam": "Ada"})).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
    assert_eq!(error.message(), "the parameters do not fit at /name: it is required");
}

#[tokio::test]
async fn result_is_the_plain_value() {
    let battery = tools().call("get_battery", ()).await.unwrap();
    let battery: BTreeMap<String, serde_json::Value> = battery.decode().unwrap();
    assert_eq!((battery["level"].as_f64().unwrap() as f32, battery["charging"].clone()), (0.8, json!(true)));
    let photos = tools().call("export_album", json!({"album": "Rome"})).await.unwrap();
    assert_eq!(photos.decode::<usize>().unwrap(), 3);
}

#[tokio::test]
async fn message_of_the_author_is_sent_and_a_source_error_is_not() {
    let nobody = tools().call("find_contact", json!({"name": "Bob"})).await.unwrap_err();
    assert_eq!((nobody.code(), nobody.message()), (ErrorCode::EXECUTION_ERROR, "nobody of that name"));
    let broken = tools().call("find_contact", json!({"name": "Broken"})).await.unwrap_err();
    assert_eq!((broken.code(), broken.message()), (ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE));
    let unknown = tools().call("find_contacts", ()).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UNKNOWN_TOOL);
}

#[tokio::test]
async fn function_has_any_of_eight_signatures() {
    async fn bare() -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_context(_: ToolContext) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_state(_: State<u8>) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_arguments(_: Export) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_both(_: ToolContext, _: State<u8>) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_context_arguments(_: ToolContext, _: Export) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_state_arguments(_: State<u8>, _: Export) -> Result<(), ToolError> {
        Ok(())
    }
    async fn with_all(_: ToolContext, State(it): State<u8>, export: Export) -> Result<String, ToolError> {
        Ok(format!("{it} {}", export.album))
    }
    check_tool(&bare);
    check_tool(&with_context);
    check_tool(&with_state);
    check_tool(&with_arguments);
    check_tool(&with_both);
    check_tool(&with_context_arguments);
    check_tool(&with_state_arguments);
    check_tool(&with_all);

    let tools = Tools::with_state(7_u8)
        .tool("bare", "", bare)
        .tool("with_context", "", with_context)
        .tool("with_state", "", with_state)
        .tool("with_arguments", "", with_arguments)
        .tool("with_both", "", with_both)
        .tool("with_context_arguments", "", with_context_arguments)
        .tool("with_state_arguments", "", with_state_arguments)
        .tool("with_all", "", with_all)
        .tool("closure", "", |export: Export| async move { Ok(export.album) });
    for tool in tools.list() {
        let takes_arguments = tool.name().as_str().ends_with("arguments")
            || ["with_all", "closure"].contains(&tool.name().as_str());
        assert_eq!(tools.call(tool.name().as_str(), ()).await.is_err(), takes_arguments, "{tool:?}");
        tools.call(tool.name().as_str(), json!({"album": "Rome"})).await.unwrap();
        let takes_context = ["with_context", "with_both", "with_context_arguments", "with_all"];
        assert_eq!(
            tools.uses_cancel_grace(tool.name()),
            takes_context.contains(&tool.name().as_str()),
            "{tool:?}"
        );
    }
    let text: String = tools.call("with_all", json!({"album": "Rome"})).await.unwrap().decode().unwrap();
    assert_eq!(text, "7 Rome");
}

/// A user's own source, and a sink for any source.
#[tokio::test]
async fn sink_accepts_any_source() -> anyhow::Result<()> {
    struct Echo;
    impl ToolSource for Echo {
        fn list(&self) -> Vec<Tool> {
            Vec::new()
        }
        async fn execute(&self, tool: &ToolName, arguments: Value, _cx: ToolContext) -> Outcome {
            let fields: serde_json::Map<String, serde_json::Value> = arguments.decode()?;
            if fields.is_empty() {
                Err(serde_json::to_string(&fields)?)?;
            }
            Ok(Value::encode(&(tool.as_str(), fields))?)
        }
    }
    async fn repl(tools: impl ToolSource, line: &str) -> anyhow::Result<String> {
        let (name, json) = line.split_once(' ').unwrap_or((line, "{}"));
        let cx = ToolContext::new("terminal", Duration::from_secs(30));
        let outcome = tools.execute(&name.parse()?, Value::from_json(json)?, cx).await;
        Ok(format!("{:?}", outcome.map(|it| it.to_json().to_string())))
    }
    assert_eq!(repl(tools(), "export_album {\"album\": \"Rome\"}").await?, "Ok(\"3\")");
    assert!(repl(Echo, "x").await?.contains("execution_error"));
    assert!(repl(Arc::new(Echo.prefixed("fs")), "fs.x {\"a\":1}").await?.starts_with("Ok(\"[\\\"x\\\""));
    assert!(repl(Echo, "no/name {}").await.is_err());
    Ok(())
}

#[test]
fn invalid_tool_is_reported_when_it_is_offered() {
    async fn text(_: String) -> Result<(), ToolError> {
        Ok(())
    }
    let name = |text: &str| text.parse().unwrap();
    assert_eq!(tools().check(), Ok(()));
    for (tools, expected) in [
        (
            Tools::new().tool("a b", "", get_battery),
            RegisterError::Name("a b".parse::<ToolName>().unwrap_err()),
        ),
        (
            Tools::new().tool("bridge.echo", "", get_battery),
            RegisterError::Reserved { name: name("bridge.echo") },
        ),
        (
            Tools::new().tool("a", "", get_battery).tool("a", "", get_battery).tool("b c", "", get_battery),
            RegisterError::Duplicate { name: name("a") },
        ),
        (Tools::new().tool("a", "", text), RegisterError::NotAMap { name: name("a") }),
        (
            Tools::new().tool("a", "", ToolOptions::destructive().on(text)),
            RegisterError::NotAMap { name: name("a") },
        ),
    ] {
        assert_eq!(tools.check(), Err(expected));
    }
}

/// A source whose list can be replaced.
#[derive(Default)]
struct Listed {
    tools: Mutex<Vec<Tool>>,
    changed: Notify,
    validates: bool,
}

impl Listed {
    fn new(validates: bool, tools: Vec<Tool>) -> Arc<Self> {
        Arc::new(Self { tools: Mutex::new(tools), changed: Notify::new(), validates })
    }

    fn set(&self, tools: Vec<Tool>) {
        *self.tools.lock().unwrap() = tools;
        self.changed.notify_one();
    }
}

impl ToolSource for Listed {
    fn list(&self) -> Vec<Tool> {
        self.tools.lock().unwrap().clone()
    }

    async fn execute(&self, _tool: &ToolName, arguments: Value, _context: ToolContext) -> Outcome {
        Ok(arguments)
    }

    fn changed(&self) -> impl Future<Output = ()> + Send {
        self.changed.notified()
    }

    fn validates_arguments(&self) -> bool {
        self.validates
    }
}

fn named(name: &str) -> Tool {
    Tool::new(name.parse().unwrap(), "")
}

fn too_long(name: &str) -> Tool {
    named(name).with_title("x".repeat(257))
}

/// The reason for leaving out a tool of [`too_long`].
fn why(tool: &ToolName) -> RegisterError {
    RegisterError::TooLarge { name: tool.clone(), part: "title", size: 257, limit: 256 }
}

#[tokio::test(start_paused = true)]
async fn tool_over_a_limit_alone_is_left_out_of_a_changed_list() {
    let room = MemoryRoom::new();
    let source = Listed::new(false, vec![named("kept")]);
    let client = Client::builder().tools(Arc::clone(&source)).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    assistant.call("kept", ()).await.unwrap();
    let mut events = client.events();
    source.set(vec![named("kept"), too_long("long"), named("new"), named("new")]);
    let mut left_out = Vec::new();
    while left_out.len() < 2 {
        if let Event::ToolLeftOut { tool, why } = events.recv().await.unwrap() {
            left_out.push((tool, why));
        }
    }
    let (new, long): (ToolName, ToolName) = ("new".parse().unwrap(), "long".parse().unwrap());
    assert_eq!(left_out, [(new.clone(), RegisterError::Duplicate { name: new }), (long.clone(), why(&long))]);
    assert_eq!(client.left_out(), left_out);
    for tool in ["kept", "new"] {
        assistant.call(tool, ()).await.unwrap();
    }
    let refused = assistant.call("long", ()).await.unwrap_err();
    assert!(matches!(refused, CallError::UnknownTool { .. }));
    assert_eq!(
        refused.to_string(),
        "phone has \"long\", but it is not offered: the title of \"long\" has 257 bytes; the limit is 256"
    );
    source.set(vec![named("kept")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.left_out(), []);
    let again = std::iter::from_fn(|| events.recv().now_or_never().flatten());
    assert_eq!(again.filter(|event| matches!(event, Event::ToolLeftOut { .. })).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn join_leaves_out_tools_only_of_sources_that_validate_arguments() {
    let room = MemoryRoom::new();
    let tools = || vec![named("kept"), too_long("long")];
    let strict = Client::builder().tools(Listed::new(false, tools())).join_over(room.client("strict")).await;
    assert!(matches!(strict, Err(JoinError::Register(RegisterError::TooLarge { .. }))), "{strict:?}");
    let own = Client::builder().tool("kept", "", async || Ok::<_, ToolError>("mine"));
    let client = own.tools(Listed::new(true, tools())).join_over(room.client("phone")).await.unwrap();
    let [(kept, clash), (long, size)] = &client.left_out()[..] else { panic!("{:?}", client.left_out()) };
    assert_eq!(*clash, RegisterError::Duplicate { name: kept.clone() });
    assert_eq!(*size, why(long));
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let text: String = assistant.call("kept", ()).await.unwrap().decode().unwrap();
    assert_eq!(text, "mine", "the client's own function precedes its sources");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_renamed_or_cut_at_the_start_is_said_to_client_and_caller() {
    let room = MemoryRoom::new();
    let mut many: Vec<Tool> = (0..130).map(|n| named(&format!("t{n:03}"))).collect();
    many[0] = Tool::new("t000".parse().unwrap(), "d".repeat(9_000));
    let own = Client::builder().tools(Listed::new(true, vec![named("t001")]));
    let client = own.tools(Listed::new(true, many)).join_over(room.client("phone")).await.unwrap();
    let notes = client.tool_notes();
    let said: Vec<String> = notes
        .iter()
        .map(|note| match note {
            Event::ToolLeftOut { tool, why } => format!("{tool}: {why}"),
            Event::DescriptionCut { tool, size, offered } => format!("{tool}: {offered} of {size}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[1].starts_with("t128: ") && said[2].starts_with("t129: "), "{said:?}");
    assert_eq!(said[3], "t000: 8192 of 9000");
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let refused = assistant.call("t129", ()).await.unwrap_err().to_string();
    assert!(
        refused.contains("phone has \"t129\", but it is not offered: ") && refused.contains("128"),
        "{refused}"
    );
    let named = assistant.call("t128", ()).to("phone").await.unwrap_err().to_string();
    assert!(named.contains("phone has \"t128\", but it is not offered: "), "{named}");
    let offered = assistant.tools();
    let long = offered.iter().find(|it| it.tool.name().as_str() == "t000").unwrap();
    assert_eq!(long.tool.description().len(), 8_192);
    // A tool that nobody has is another matter.
    let unknown = assistant.call("nothing", ()).await.unwrap_err().to_string();
    assert!(!unknown.contains("phone has"), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn function_returns_a_result_that_keeps_its_meaning() {
    fn result() -> ToolResult {
        let document = r#"{"content": [{"type": "text", "text": "5 €"}], "n": 1.50}"#;
        let native = Native::new(ToolSystem::MCP, document);
        ToolResult::text("looking").with_person_text("5 €").with_structured(json!(null)).with_native(native)
    }
    let room = MemoryRoom::new();
    let client = Client::builder().tool("balance", "", async || Ok::<_, ToolError>(result())).tool(
        "broken",
        "",
        async || Err::<(), _>(ToolError::from("no bank").with_partial(result().into())),
    );
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let read = ToolResult::of(&assistant.call("balance", ()).await.unwrap());
    assert_eq!(read, result());
    assert_eq!(assistant.call("balance", ()).await.unwrap().decode::<ToolResult>().unwrap(), read);
    let Err(CallError::Tool(error)) = assistant.call("broken", ()).await else { panic!("it succeeded") };
    assert_eq!(ToolResult::of_error(&error), read);
}
