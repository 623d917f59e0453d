//! `toolbridge demo`: runs a client with four tools and an assistant that calls them.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    time::Duration,
};

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use crate::cli::{
    room::{
        connect::{JoinTarget, Server},
        record_option::RecordOption,
    },
    terminal::{
        clock,
        failure::Failure,
        file,
        interrupt::unless_interrupted,
        table::{
            Column::{self, Left, Rest, Right},
            Table,
        },
        text,
    },
};
use toolbridge::{
    Assistant, CallError, Client, Event, JoinError, Role, State, ToolContext, ToolError, Tools, Value,
    dev_server::DevServer,
    livekit::{ConnectOptions, Token},
};

/// The identities of the client and the assistant.
/// Time, participant, tool, side, outcome and duration of a call.
const COLUMNS: [Column; 6] = [Left(13), Left(10), Left(13), Left(9), Left(20), Right(11)];
/// The same for progress, which has a text instead of the last two.
const PROGRESS: [Column; 5] = [Left(13), Left(10), Left(13), Left(9), Rest];

const PHONE: &str = "phone";
const ASSISTANT: &str = "assistant";

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    server: Server,

    #[command(flatten)]
    record: RecordOption,
}

#[derive(Serialize)]
struct Battery {
    level: f32,
    charging: bool,
}

async fn get_battery() -> Result<Battery, ToolError> {
    Ok(Battery { level: 0.8, charging: true })
}

/// The phone's contacts.
#[derive(Clone)]
struct Contacts(BTreeMap<&'static str, &'static str>);

#[derive(Deserialize, JsonSchema)]
struct Find {
    /// The contact's name
    name: String,
}

async fn find_contact(State(contacts): State<Contacts>, find: Find) -> Result<String, ToolError> {
    let number = contacts.0.get(find.name.as_str()).ok_or("no contact has this name")?;
    Ok((*number).to_owned())
}

#[derive(Deserialize, JsonSchema)]
struct Lamp {
    /// Turn the lamp on
    on: bool,
}

async fn set_lamp(lamp: Lamp) -> Result<Json, ToolError> {
    Ok(json!({"on": lamp.on}))
}

#[derive(Deserialize, JsonSchema)]
struct Export {
    /// The number of photos
    photos: u8,
}

async fn export_album(context: ToolContext, export: Export) -> Result<Json, ToolError> {
    for photo in 1..=export.photos {
        tokio::time::sleep(Duration::from_millis(100)).await;
        context.progress(format!("{photo} of {}", export.photos));
    }
    Ok(json!({"photos": export.photos}))
}

#[derive(Deserialize, JsonSchema)]
struct Search {
    /// The search terms
    query: String,
}

async fn search_web(search: Search) -> Result<Json, ToolError> {
    Ok(json!({"results": [format!("A page about {}", search.query)]}))
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let (demo, phone, setup) = unless_interrupted(show(&arguments)).await?;
    // All is printed: a first signal no longer changes the outcome.
    demo.assistant.close().await;
    phone.close().await;
    setup.close().await;
    arguments.record.outcome(demo.assistant.recording())
}

/// Makes all calls and prints them.
async fn show(arguments: &Arguments) -> Result<(Demo, Client, Setup), Failure> {
    arguments.record.check(arguments.server.is_encrypted())?;
    let setup = Setup::find(&arguments.server).await?;
    let (phone, assistant) = join(&setup, &arguments.record).await?;
    let mut demo = Demo { assistant, began: Instant::now(), ended: Vec::new() };
    let heading = ["time (UTC)", "who", "tool", "execution", "outcome", "round trip"];
    writeln!(io::stdout(), "{}", Table::new(&COLUMNS).row(&heading))?;
    demo.call("get_battery", json!({})).await?;
    demo.call("find_contact", json!({"name": "Ada"})).await?;
    demo.call("set_lamp", json!({"on": true})).await?;
    demo.call("export_album", json!({"photos": 3})).await?;
    demo.call("search_web", json!({"query": "room acoustics"})).await?;
    // Failing calls: each of them has exactly one outcome as well.
    demo.call("find_contact", json!({"nam": "Ada"})).await?;
    demo.call("find_contact", json!({"name": "Bob"})).await?;
    demo.call_within("export_album", json!({"photos": 200}), Duration::from_millis(250)).await?;
    demo.call_within("open_garage", json!({}), Duration::from_millis(250)).await?;
    demo.summary()?;
    Ok((demo, phone, setup))
}

/// The server and the credentials of both participants.
struct Setup {
    phone: JoinTarget,
    assistant: JoinTarget,
    /// The embedded server, if no other server was given.
    own: Option<DevServer>,
}

impl Setup {
    /// Uses the given server or starts an embedded one. Prints which one.
    async fn find(server: &Server) -> Result<Self, Failure> {
        let room = format!("toolbridge-demo-{}", nanoid::nanoid!(6));
        if !server.is_named() {
            return Self::own(&room).await;
        }
        if server.token().is_some() {
            return Err(Failure::usage(
                "the demo joins as two participants and needs LIVEKIT_API_KEY and LIVEKIT_API_SECRET instead of a token",
            ));
        }
        let phone = server.target(Some(&room), Some(PHONE), "demo", Role::Client)?;
        let assistant = server.target(Some(&room), Some(ASSISTANT), "demo", Role::Assistant)?;
        writeln!(io::stdout(), "Using the LiveKit server {}, room {room}.\n", text::plain(server.url()?))?;
        Ok(Self { phone, assistant, own: None })
    }

    async fn own(room: &str) -> Result<Self, Failure> {
        let own = DevServer::start().await.map_err(Failure::failed)?;
        let key = own.key();
        let target = |token: Token| {
            let token = token.sign().map_err(Failure::failed)?;
            Ok::<_, Failure>(JoinTarget { url: own.url(), token, options: ConnectOptions::new() })
        };
        let (phone, assistant) = (target(key.client(room, PHONE))?, target(key.assistant(room, ASSISTANT))?);
        writeln!(
            io::stdout(),
            "Using an embedded development server at {}. Set LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET to \
            use a LiveKit server.\n",
            own.url()
        )?;
        Ok(Self { phone, assistant, own: Some(own) })
    }

    async fn close(self) {
        if let Some(own) = self.own {
            own.close().await;
        }
    }
}

async fn join(setup: &Setup, record: &RecordOption) -> Result<(Client, Assistant), Failure> {
    let contacts = Contacts(BTreeMap::from([("Ada", "+44 20 7946 0018")]));
    let tools = Tools::with_state(contacts)
        .tool("get_battery", "Returns the battery level (0 to 1) and whether it is charging", get_battery)
        .tool("find_contact", "Returns the phone number of a contact", find_contact)
        .tool("set_lamp", "Switches the lamp on or off", set_lamp)
        .tool("export_album", "Copies photos to the cloud", export_album);
    let client = Client::builder().tools(tools).assistant(ASSISTANT);
    let assistant = Assistant::builder().tool("search_web", "Searches the web", search_web).client(PHONE);
    let assistant = match record.target() {
        Some((path, options)) => assistant.record(path).record_options(options),
        None => assistant,
    };
    let failed = |error: JoinError| file::not_joined(error);
    let Setup { phone: target, assistant: other, .. } = setup;
    let phone = client
        .connect_options(target.options.clone())
        .join(&target.url, &target.token)
        .await
        .map_err(failed)?;
    let assistant = assistant.connect_options(other.options.clone());
    Ok((phone, assistant.join(&other.url, &other.token).await.map_err(failed)?))
}

struct Demo {
    assistant: Assistant,
    began: Instant,
    ended: Vec<(String, Duration)>,
}

impl Demo {
    async fn call(&mut self, tool: &str, arguments: Json) -> io::Result<()> {
        self.call_within(tool, arguments, Duration::from_secs(30)).await
    }

    async fn call_within(&mut self, tool: &str, arguments: Json, limit: Duration) -> io::Result<()> {
        let mut events = self.assistant.events();
        let began = Instant::now();
        let mut call = self.assistant.call(tool, arguments).timeout(limit).start();
        while let Some(step) = call.progress().await {
            if let Some(message) = &step.message {
                let (at, message) = (clock::time_of_day(), format!("… {}", text::plain(message)));
                let row = Table::new(&PROGRESS).row(&[&at, "", tool, "", &message]);
                writeln!(io::stdout(), "{row}")?;
            }
        }
        let id = call.id().cloned();
        let outcome = outcome(call.await);
        let took = began.elapsed();
        let (mut who, mut execution) = ("-".to_owned(), "-");
        while let Some(event) = events.recv().await {
            if let Event::Settled { call, owner, execution: by, .. } = event
                && Some(call) == id
            {
                who = owner.map_or(who, |owner| owner.to_string());
                execution = if who == "-" { "-" } else { by.as_str() };
                break;
            }
        }
        let (at, who, ms) = (clock::time_of_day(), text::plain(&who), took.as_secs_f64() * 1e3);
        let ms = format!("{ms:.2} ms");
        let row = Table::new(&COLUMNS).row(&[&at, &who, tool, execution, &outcome, &ms]);
        writeln!(io::stdout(), "{row}")?;
        self.ended.push((outcome, took));
        Ok(())
    }

    fn summary(&self) -> io::Result<()> {
        let mut counts = BTreeMap::<&str, u32>::new();
        for (outcome, _) in &self.ended {
            *counts.entry(outcome).or_default() += 1;
        }
        let each: Vec<_> = counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let fastest = self.ended.iter().filter(|(outcome, _)| outcome == "ok").map(|(_, took)| *took).min();
        let fastest =
            fastest.map(|took| format!(", fastest {:.2} ms", took.as_secs_f64() * 1e3)).unwrap_or_default();
        let (calls, took) = (self.ended.len(), self.began.elapsed().as_secs_f64());
        writeln!(
            io::stdout(),
            "\n{calls} calls, {calls} outcomes in {took:.1} s: {}{fastest}",
            each.join(", ")
        )
    }
}

fn outcome(result: Result<Value, CallError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => ToolError::from(error).code().to_string(),
    }
}
