//! Participants that want rights that their tokens do not give them. Most have LiveKit's SDK for Python alone.

use std::{
    fmt::Write as _,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use flate2::write::DeflateEncoder;
use futures_util::StreamExt as _;
use libtest_mimic::Trial;
use livekit_protocol::{SignalResponse, leave_request::Action, signal_response::Message};
use livekit_token::{AccessToken, Claims, VideoGrants};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::Semaphore};
use toolbridge::{
    Assistant, Client, Consent, ConsentRequest, Event, State, Tool, ToolError, ToolOptions, Tools,
    livekit::{ConnectOptions, LiveKitTransport},
    prompt::PromptRequest,
    transport::{
        Compression, Packet, ROLE_ATTRIBUTE, RPC_REQUEST_TOPIC, RpcError, RpcMessage, RpcRequest,
        RpcResponse, StreamPart, TextStream, Transport as _, TransportEvent,
    },
};

use crate::{
    ends::{Running, assistant, client, double, event},
    program::{Program, missing_for, tools_file},
    server::{KEY, Kind, SECRET, Server, kind, shared},
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![intruders:
        method_that_an_app_registers_late_is_called_within_the_owner_wait,
        sec_i13_resume_with_a_token_without_the_role_gets_rights_from_livekits_server_alone,
    ];
    let tests: [Named; 12] = [
        ("client_of_a_killed_agent_serves_the_next_one", || Box::pin(killed_agent())),
        ("sec_i3_instance_of_an_assistant_gives_no_rights_to_its_thief", || Box::pin(stolen_instance())),
        ("sec_i3_consent_once_is_not_inherited_by_a_caller_by_rpc", || Box::pin(inherited_consent(true))),
        ("sec_i3_consent_once_is_not_inherited_by_a_named_caller_by_rpc", || {
            Box::pin(inherited_consent(false))
        }),
        ("sec_i3_result_of_a_call_by_rpc_does_not_reach_a_newcomer_without_rights", || Box::pin(newcomer())),
        ("sec_i11_caller_by_rpc_that_loses_its_role_is_stopped_and_unbound", || Box::pin(lost_role())),
        ("sec_i2_caller_by_rpc_that_is_not_the_assistant_asks_the_person_nothing", || Box::pin(kiosk())),
        ("sec_i4_agent_with_another_role_runs_nothing_and_hides_no_assistant", || Box::pin(other_roles())),
        ("sec_c1_packet_with_maps_as_keys_costs_a_client_no_more_than_any_other", || Box::pin(map_keys())),
        ("sec_r5_compressed_requests_beyond_the_rate_are_not_expanded", || Box::pin(bombs())),
        ("sec_r6_assistant_is_answered_while_a_caller_by_rpc_floods", || Box::pin(flood())),
        ("each_refusal_beyond_the_rate_reaches_livekits_sdk", || Box::pin(many_refusals())),
    ];
    for (name, test) in tests {
        trials.push(trial_with(&format!("intruders::{name}"), || missing_for("intruder.py"), test));
    }
    trials
}

type Test = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
type Named = (&'static str, fn() -> Test);

/// What a tool returns that nobody without rights may read.
const RESULT: &str = "a secret result";

/// A program whose participants do what they are told: see `tests/peers/intruder.py`.
struct Intruder {
    program: Program,
    /// What it has said that nobody has waited for yet.
    heard: Vec<Value>,
    calls: u64,
}

impl Intruder {
    fn start(server: &Server) -> anyhow::Result<Self> {
        let program = Program::peer(server, "", "intruder.py", &[])?.start()?;
        Ok(Self { program, heard: Vec::new(), calls: 0 })
    }

    /// Returns the first event with all of these values that was not returned before.
    async fn event(&mut self, wanted: Value) -> anyhow::Result<Value> {
        let is_it = |value: &Value| {
            wanted.as_object().is_some_and(|all| all.iter().all(|(key, wanted)| value[key] == *wanted))
        };
        if let Some(at) = self.heard.iter().position(is_it) {
            return Ok(self.heard.remove(at));
        }
        let heard = &mut self.heard;
        let search = |line: &str| {
            let value: Value = serde_json::from_str(line).ok()?;
            if is_it(&value) {
                return Some(value);
            }
            heard.push(value);
            None
        };
        self.program.find(&wanted.to_string(), search).await
    }

    async fn command(&mut self, does: &str, name: &str, mut more: Value) -> anyhow::Result<()> {
        (more["do"], more["as"]) = (does.into(), name.into());
        self.program.write(&more.to_string()).await?;
        self.event(json!({"event": "done", "do": does, "as": name})).await?;
        Ok(())
    }

    async fn join(&mut self, name: &str, token: &str) -> anyhow::Result<()> {
        self.command("join", name, json!({"token": token})).await
    }

    /// Sends the client `phone` these packets.
    async fn send(&mut self, name: &str, packets: Value) -> anyhow::Result<()> {
        self.command("send", name, json!({"to": "phone", "packets": packets})).await
    }

    /// Waits until the participant sees the client `phone`.
    async fn sees_phone(&mut self, name: &str) -> anyhow::Result<()> {
        self.event(json!({"event": "sees", "as": name, "identity": "phone"})).await?;
        Ok(())
    }

    /// Begins a call of the client `phone` by RPC, and returns its number.
    async fn begin(&mut self, name: &str, method: &str, payload: &Value) -> anyhow::Result<u64> {
        self.calls += 1;
        let payload = payload.to_string();
        let call =
            json!({"to": "phone", "method": method, "payload": payload, "timeout": 15, "id": self.calls});
        self.command("rpc", name, call).await?;
        Ok(self.calls)
    }

    /// Waits for the outcome of a call.
    async fn outcome(&mut self, call: u64) -> anyhow::Result<Value> {
        self.event(json!({"event": "answered", "id": call})).await
    }

    async fn call(&mut self, name: &str, method: &str, payload: &Value) -> anyhow::Result<Value> {
        let call = self.begin(name, method, payload).await?;
        self.outcome(call).await
    }
}

/// How often a tool ran.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

async fn erase(State(runs): State<Runs>) -> Result<(), ToolError> {
    runs.0.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

impl Runs {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// A tool `erase`, which needs this consent.
    fn tools(&self, consent: Consent) -> Tools<Runs> {
        Tools::with_state(self.clone()).tool("erase", "", ToolOptions::default().consent(consent).on(erase))
    }
}

/// Signs a token for an agent with this role.
fn agent(room: &str, identity: &str, role: Option<&str>, may_change: bool) -> anyhow::Result<String> {
    let grants = VideoGrants {
        room_join: true,
        room: room.into(),
        can_update_own_metadata: Some(may_change),
        ..Default::default()
    };
    let token = AccessToken::with_api_key(KEY, SECRET).with_identity(identity).with_kind("agent");
    let attributes = role.map(|role| (ROLE_ATTRIBUTE, role));
    Ok(token.with_grants(grants).with_attributes(attributes).to_jwt()?)
}

/// Returns a Configuration with this `meta`, and requests of `erase`.
fn configuration_and_requests(room: &str, mut meta: Value) -> Value {
    meta["bridge.heard"] = true.into();
    let listed = ["tool_use", "tool_register", "tool_ack"];
    let configuration = json!({"conversationId": room, "features": listed});
    json!([
        {"type": 12, "stanza": -100_000, "meta": meta, "body": configuration},
        request("erase", "a", -100_001),
        request("erase", "b", -100_002),
    ])
}

fn request(tool: &str, id: &str, stanza: i32) -> Value {
    let body =
        json!({"id": id, "toolName": tool, "parameters": {}, "execution": "client", "timeoutMs": 20_000});
    json!({"type": 6, "stanza": stanza, "body": body})
}

/// How long after an assistant's goodbye a thief joins as it. livekit-server announces participants every 3 s, and a thief
/// tries to act before that.
const AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2)];

async fn stolen_instance() -> anyhow::Result<()> {
    if kind() == Kind::Dev {
        return stolen(Some(AFTER[0])).await; // it announces participants at once
    }
    let [first, second, third] = AFTER;
    tokio::try_join!(stolen(Some(first)), stolen(Some(second)), stolen(Some(third)), stolen(None))?;
    Ok(())
}

/// A token without a role joins as `phone` before the client does, and is shown the assistant's instance. Another one joins
/// as the assistant with all that it was shown: so long after the goodbye, or while the assistant is present.
async fn stolen(after: Option<Duration>) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("stolen-{after:?}"));
    let mut intruder = Intruder::start(&server)?;
    let brain = assistant(&server, &room, "brain", Assistant::builder().client("phone")).await?;
    intruder.join("spy", &server.token(&room, "phone", &[])?).await?;
    let instance = json!({"bridge.instance": "ab".repeat(16), "bridge.heard": false});
    let greeting = json!([{"type": 12, "stanza": 1, "meta": instance, "body": {"conversationId": room}}]);
    intruder.command("send", "spy", json!({"to": "brain", "packets": greeting})).await?;
    let shown = intruder.event(json!({"event": "frame", "as": "spy", "type": 12})).await?;
    intruder.command("leave", "spy", json!({})).await?;

    let runs = Runs::default();
    let phone = client(&server, &room, "phone", Client::builder().tools(runs.tools(Consent::Never))).await?;
    let mut events = phone.events();
    brain.call("erase", ()).owner_wait(Duration::from_secs(15)).await?;
    if let Some(after) = after {
        brain.close().await;
        event(&mut events, "the goodbye", |it| matches!(it, Event::Bound(None)).then_some(())).await?;
        tokio::time::sleep(after).await;
    }
    intruder.join("thief", &server.token(&room, "brain", &[])?).await?;
    intruder.send("thief", configuration_and_requests(&room, shown["meta"].clone())).await?;
    let is_thief = |it: Event| match it {
        Event::Joined(who) if who.identity() == "brain" => {
            who.attribute(ROLE_ATTRIBUTE).is_none().then_some(())
        }
        _ => None,
    };
    event(&mut events, "the announcement of the thief", is_thief).await?;
    // The packets of one sender are handled in their order.
    intruder.send("thief", json!([request("erase", "c", -100_003)])).await?;
    loop {
        let result = intruder.event(json!({"event": "frame", "as": "thief", "type": 7})).await?;
        ensure!(result["body"]["success"] == false, "{result}");
        if result["body"]["id"] == "c" {
            break;
        }
    }
    ensure!(runs.count() == 1, "the thief ran a tool: {} runs", runs.count());
    Ok(())
}

/// A person says yes once for the assistant. Another program under its identity, which calls by RPC, is asked about again.
async fn inherited_consent(has_role: bool) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("inherited-consent-{has_role}"));
    let (runs, questions) = (Runs::default(), Arc::new(AtomicUsize::new(0)));
    let asked = questions.clone();
    let person = move |_: ConsentRequest| {
        let is_first = asked.fetch_add(1, Ordering::SeqCst) == 0;
        async move { is_first }
    };
    let phone = Client::builder().tools(runs.tools(Consent::OncePerSession)).consent(person).answer_rpc();
    let phone = if has_role { phone } else { phone.assistant("brain") };
    let phone = client(&server, &room, "phone", phone).await?;
    let mut events = phone.events();
    let brain = assistant(&server, &room, "brain", Assistant::builder().client("phone")).await?;
    brain.call("erase", ()).owner_wait(Duration::from_secs(10)).await?;
    brain.close().await;
    event(&mut events, "the goodbye", |it| matches!(it, Event::Bound(None)).then_some(())).await?;
    let mut intruder = Intruder::start(&server)?;
    let role: &[_] = if has_role { &[(ROLE_ATTRIBUTE, "assistant")] } else { &[] };
    intruder.join("heir", &server.token(&room, "brain", role)?).await?;
    intruder.sees_phone("heir").await?;
    let outcome = intruder.call("heir", "erase", &json!({})).await?;
    let questions = questions.load(Ordering::SeqCst);
    ensure!(runs.count() == 1 && questions == 2, "{} runs, {questions} questions: {outcome}", runs.count());
    ensure!(outcome["code"].is_number(), "{outcome}");
    Ok(())
}

/// A tool that runs until the test lets it end.
#[derive(Clone)]
struct Held {
    started: Arc<Semaphore>,
    ended: Arc<Semaphore>,
}

async fn until_released(State(held): State<Held>) -> Result<String, ToolError> {
    held.started.add_permits(1);
    held.ended.acquire().await.map_err(|_| ToolError::new("closed", "the test has ended"))?.forget();
    Ok(RESULT.to_owned())
}

async fn newcomer() -> anyhow::Result<()> {
    tokio::try_join!(newcomer_with(None), newcomer_with(Some("observer")))?;
    Ok(())
}

/// While a call by RPC runs, a token without rights takes over the caller's identity.
async fn newcomer_with(role: Option<&str>) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("newcomer-{}", role.unwrap_or("none")));
    let held = Held { started: Arc::new(Semaphore::new(0)), ended: Arc::new(Semaphore::new(0)) };
    let tools = Tools::with_state(held.clone()).tool("held", "", until_released);
    let phone = client(&server, &room, "phone", Client::builder().tools(tools).answer_rpc()).await?;
    let mut events = phone.events();
    let mut intruder = Intruder::start(&server)?;
    intruder.join("caller", &server.key().assistant(&room, "brain").sign()?).await?;
    intruder.sees_phone("caller").await?;
    intruder.begin("caller", "held", &json!({})).await?;
    soon("the run", held.started.acquire()).await??.forget();
    let attributes: Vec<_> = role.map(|role| (ROLE_ATTRIBUTE, role)).into_iter().collect();
    let token = server.token(&room, "brain", &attributes)?;
    let mut newcomer = ConnectOptions::new().announce_rpc(true).join(&server.url(), &token).await?;
    let sid = newcomer.local().sid().clone();
    let is_it = |it: Event| matches!(it, Event::Joined(who) if *who.sid() == sid).then_some(());
    event(&mut events, "the newcomer", is_it).await?;
    held.ended.add_permits(1);
    // The client answers in order, so the answer to a call that is refused ends what it has to say.
    let refused = RpcRequest::new("refused", "erase", "{}", 10_000);
    newcomer.send(Packet::rpc("phone".into(), RpcMessage::Request(refused))).await?;
    loop {
        match soon("the refusal", newcomer.recv()).await?.context("the connection ended")? {
            TransportEvent::Rpc { message: RpcMessage::Response(it), .. } if it.id == "refused" => {
                ensure!(it.outcome.is_err(), "it may call");
                return Ok(());
            }
            TransportEvent::Rpc { message: RpcMessage::Response(_), .. } => bail!("it got the result"),
            TransportEvent::Stream { .. } => bail!("it got the result as a stream"),
            _ => {}
        }
    }
}

/// The assistant calls by RPC alone. The room service takes its role while its tool runs.
async fn lost_role() -> anyhow::Result<()> {
    let (server, room, running) = (shared()?, "lost-role", Running::default());
    let phone = Client::builder().tools(running.tools()).tool("double", "", double).answer_rpc();
    let phone = client(&server, room, "phone", phone).await?;
    let mut events = phone.events();
    let mut intruder = Intruder::start(&server)?;
    intruder.join("caller", &server.key().assistant(room, "brain").sign()?).await?;
    intruder.sees_phone("caller").await?;
    let call = intruder.begin("caller", "held", &json!({})).await?;
    running.until(1).await?;
    let none = json!({"room": room, "identity": "brain", "attributes": {ROLE_ATTRIBUTE: ""}});
    server.room_service("UpdateParticipant", room, none).await?;
    event(&mut events, "the end of the binding", |it| matches!(it, Event::Bound(None)).then_some(())).await?;
    running.until(0).await?;
    let outcome = intruder.outcome(call).await?;
    ensure!(outcome["code"].is_number(), "{outcome}");
    let outcome = intruder.call("caller", "double", &json!({"n": 21})).await?;
    ensure!(outcome["code"].is_number() && phone.assistant().is_none(), "{outcome}");
    let other = assistant(&server, room, "other", Assistant::builder().client("phone")).await?;
    let value = other.call("double", json!({"n": 21})).owner_wait(Duration::from_secs(10)).await?;
    ensure!(value.decode::<u32>()? == 42, "{value:?}");
    Ok(())
}

/// A participant that may call tools by RPC, because the author names it, is not the assistant that may ask the person.
async fn kiosk() -> anyhow::Result<()> {
    let (server, room, asked) = (shared()?, "kiosk", Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    let person = move |_: PromptRequest| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err(ToolError::new("declined", "no")) }
    };
    let phone = Client::builder().tool("double", "", double).prompt(person).answer_rpc();
    let phone = phone.rpc_caller("kiosk").assistant("brain");
    let _phone = client(&server, room, "phone", phone).await?;
    let mut intruder = Intruder::start(&server)?;
    intruder.join("kiosk", &server.token(room, "kiosk", &[])?).await?;
    intruder.sees_phone("kiosk").await?;
    let options = json!([{"optionId": "y", "name": "yes", "kind": "allow_always"}]);
    for (method, question) in [
        (
            "bridge.authorize",
            json!({"text": "Sign in again", "service": "bank", "url": "https://phish.example/"}),
        ),
        ("bridge.form", json!({"text": "Your card?", "schema": {"type": "object", "properties": {}}})),
        ("bridge.choose", json!({"text": "Which?", "choices": ["a", "b"]})),
        ("bridge.permission", json!({"text": "Erase?", "toolCall": {"name": "erase"}, "options": options})),
    ] {
        let outcome = intruder.call("kiosk", method, &question).await?;
        let asked = asked.load(Ordering::SeqCst);
        ensure!(outcome["code"].is_number() && asked == 0, "{method} asked the person: {outcome}");
    }
    let outcome = intruder.call("kiosk", "double", &json!({"n": 21})).await?;
    ensure!(outcome["payload"] == "42", "{outcome}");
    Ok(())
}

/// A role wins over the kind `AGENT`.
async fn other_roles() -> anyhow::Result<()> {
    let (server, room, runs) = (shared()?, "other-roles", Runs::default());
    let phone = Client::builder().tools(runs.tools(Consent::Never)).answer_rpc();
    let phone = client(&server, room, "phone", phone).await?;
    let mut events = phone.events();
    let mut intruder = Intruder::start(&server)?;
    let roles = ["observer", "client", "admin", "Assistant"];
    let agents: Vec<_> = roles.into_iter().flat_map(|role| [(role, false), (role, true)]).collect();
    let name = |role: &str, may_change: bool| format!("{role}-{may_change}");
    for (role, may_change) in &agents {
        let name = name(role, *may_change);
        intruder.join(&name, &agent(room, &name, Some(role), *may_change)?).await?;
    }
    for (role, may_change) in &agents {
        let name = name(role, *may_change);
        intruder.sees_phone(&name).await?;
        intruder.send(&name, json!([request("erase", &name, -1)])).await?;
        let outcome = intruder.call(&name, "erase", &json!({})).await?;
        ensure!(outcome["code"].is_number(), "{name}: {outcome}");
        let result = intruder.event(json!({"event": "frame", "as": name, "type": 7})).await?;
        ensure!(result["body"]["errorCode"] == "permission_denied", "{name}: {result}");
        ensure!(runs.count() == 0 && phone.assistant().is_none(), "{name}: {} runs", runs.count());
    }
    // They are still here, and the client takes the only assistant.
    let brain = assistant(&server, room, "brain", Assistant::builder().client("phone")).await?;
    brain.call("erase", ()).owner_wait(Duration::from_secs(10)).await?;
    let bound = |it: Event| match it {
        Event::Bound(Some(who)) => Some(Ok(who)),
        Event::AmbiguousAssistant { candidates } => Some(Err(candidates)),
        _ => None,
    };
    let bound = event(&mut events, "the binding", bound).await?;
    ensure!(bound.as_ref().is_ok_and(|who| *who == "brain") && runs.count() == 1, "{bound:?}");
    Ok(())
}

/// An agent is killed, and the next one calls by RPC under another identity.
async fn killed_agent() -> anyhow::Result<()> {
    /// The time that may pass: the grace period of 5 s, 3 s after a ping, and 3 s until the next agent is announced.
    const LONGEST: Duration = Duration::from_secs(14);
    /// How long the next agent waits before it calls again.
    const PAUSE: Duration = Duration::from_millis(300);
    let (server, room) = (shared()?, "killed-agent");
    let phone = Client::builder().tool("double", "", double).answer_rpc();
    let _phone = client(&server, room, "phone", phone).await?;
    let mut first = Intruder::start(&server)?;
    first.join("first", &agent(room, "first", None, false)?).await?;
    first.sees_phone("first").await?;
    let outcome = first.call("first", "double", &json!({"n": 1})).await?;
    ensure!(outcome["payload"] == "2", "{outcome}");
    let mut next = Intruder::start(&server)?;
    next.join("next", &agent(room, "next", None, false)?).await?;
    next.sees_phone("next").await?;
    first.program.kill();
    let killed = Instant::now();
    loop {
        let outcome = next.call("next", "double", &json!({"n": 2})).await?;
        if outcome["payload"] == "4" {
            return Ok(());
        }
        ensure!(killed.elapsed() < LONGEST, "not served {:?} after the end: {outcome}", killed.elapsed());
        let message = outcome["message"].as_str().unwrap_or_default();
        ensure!(
            !message.contains("not supported"),
            "the method is there, and the error denies it: {outcome}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// An app replies that it has no such method until it has registered it.
async fn method_that_an_app_registers_late_is_called_within_the_owner_wait() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "late-method");
    let token = server.key().participant(room, "app").sign()?;
    let mut app = ConnectOptions::new().join(&server.url(), &token).await?;
    let tool = Tool::new("where".parse()?, "of the app");
    let brain = assistant(&server, room, "brain", Assistant::builder().rpc_tool("app", tool)).await?;
    let call = brain.call("where", ()).owner_wait(Duration::from_secs(10)).start();
    let mut ids: Vec<String> = Vec::new();
    let answers = async {
        while let Some(event) = app.recv().await {
            let TransportEvent::Rpc { message: RpcMessage::Request(request), .. } = event else { continue };
            if request.method != "where" {
                continue;
            }
            let outcome = match ids.len() {
                0 => Err(RpcError::new(1400, "Method not supported at destination", "")),
                _ => Ok("here".into()),
            };
            ensure!(!ids.contains(&request.id), "the id of a call that has an outcome is used again");
            ids.push(request.id.clone());
            let response = RpcMessage::Response(RpcResponse::new(&*request.id, outcome));
            for message in [RpcMessage::Ack { id: request.id }, response] {
                app.send(Packet::rpc("brain".into(), message)).await?;
            }
        }
        bail!("the app's connection ended")
    };
    let value = tokio::select! {
        value = call => value?,
        ended = answers => return ended,
    };
    ensure!(value.decode::<String>()? == "here", "{value:?}");
    Ok(())
}

/// livekit-server gives a connection that resumes the rights of the identity's holder, so a weaker token becomes a stronger
/// one. The guide says so, and `toolbridge dev` does not do it.
async fn sec_i13_resume_with_a_token_without_the_role_gets_rights_from_livekits_server_alone()
-> anyhow::Result<()> {
    let (server, room) = (shared()?, "weak-resume");
    let _brain = assistant(&server, room, "brain", Assistant::builder()).await?;
    let token = server.token(room, "brain", &[])?;
    let address = format!("{}/rtc?access_token={token}&reconnect=1&protocol=16&sdk=js", server.url());
    let stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    let (mut socket, _) = tokio_tungstenite::client_async(address, stream).await?;
    let answer = loop {
        let message = soon("an answer", socket.next()).await?.context("the connection ended")??;
        if message.is_binary() {
            match SignalResponse::decode(message.into_data())?.message {
                Some(Message::RefreshToken(token)) => break Ok(token),
                Some(Message::Leave(leave)) => break Err(leave.action()),
                _ => {}
            }
        }
    };
    match (kind(), answer) {
        (Kind::Dev, Err(Action::Reconnect)) => {
            let warning = "a connection that resumes \"brain\" in the room \"weak-resume\" must rejoin, because its token has \
                           other rights: role was \"assistant\" and is none";
            let log = server.log()?;
            ensure!(log.contains(warning), "{log}");
        }
        (Kind::LiveKit, Ok(stronger)) => {
            let role = Claims::from_unverified(&stronger)?.attributes.remove(ROLE_ATTRIBUTE);
            ensure!(role.as_deref() == Some("assistant"), "{role:?}: correct the guide about tokens");
        }
        (kind, other) => bail!("{kind:?}: {:?}", other.map(|_| "a token")),
    }
    Ok(())
}

/// The command line's client, which this participant may call by RPC, and its assistant.
async fn measured(server: &Server, room: &str, caller: &str) -> anyhow::Result<(Program, Assistant)> {
    let file = tools_file(room, &[("ping", "echo '{}'")])?;
    let arguments = ["client", "--room", room, "--identity", "phone", "--answer-rpc", "--rpc-caller", caller];
    let mut phone = Program::toolbridge(server, &arguments).arg("--tools").arg(&file).start()?;
    phone.line("joined as phone").await?;
    let brain = assistant(server, room, "brain", Assistant::builder().client("phone")).await?;
    brain.call("bridge.echo", json!({})).to("phone").owner_wait(Duration::from_secs(10)).await?;
    Ok((phone, brain))
}

/// A stranger sends packets that differ only in whether maps are keys of maps.
async fn map_keys() -> anyhow::Result<()> {
    const PACKETS: usize = 20;
    let (server, room) = (shared()?, "map-keys");
    let (phone, _brain) = measured(&server, room, "nobody").await?;
    let mut intruder = Intruder::start(&server)?;
    intruder.join("stranger", &server.token(room, "stranger", &[])?).await?;
    intruder.sees_phone("stranger").await?;
    let mut costs = Vec::new();
    for (n, levels) in [0, 0, 3].into_iter().enumerate() {
        let before = phone.cpu_time()?;
        let packet = json!({"hex": hex(&nested(levels, 60_000))});
        intruder.send("stranger", vec![packet; PACKETS].into()).await?;
        // The packets of one sender are handled in their order.
        intruder
            .send("stranger", json!([request("ping", &format!("last-{n}"), -1 - i32::try_from(n)?)]))
            .await?;
        intruder.event(json!({"event": "frame", "as": "stranger", "type": 7})).await?;
        costs.push(phone.cpu_time()?.saturating_sub(before));
    }
    let [_, plain, hostile] = costs[..] else { bail!("{costs:?}") };
    ensure!(hostile < 3 * plain + Duration::from_millis(300), "{plain:?} and {hostile:?}");
    Ok(())
}

/// Returns a frame of an unknown type whose body is an array of nils, or maps of 32 keys around it, in which the next level
/// is the first key.
fn nested(levels: usize, nils: u32) -> Vec<u8> {
    let mut inner = [&[0xdd][..], &nils.to_be_bytes(), &vec![0xc0; nils as usize]].concat();
    for _ in 0..levels {
        let others = (1..32).flat_map(|n| [n, 0xc0]).collect();
        inner = [vec![0xde, 0, 32], inner, vec![0xc0], others].concat();
    }
    [&b"\x82\xa4type\xcd\x23\x28\xa4body"[..], &inner].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A caller sends more requests than the rate allows. Each has 1 KB on the wire and 512 KB when it is expanded.
async fn bombs() -> anyhow::Result<()> {
    /// Fewer than one second's.
    const FEW: usize = 40;
    const MANY: usize = 1_000;
    let (server, room) = (shared()?, "bombs");
    let (phone, _brain) = measured(&server, room, "kiosk").await?;
    let token = server.token(room, "kiosk", &[])?;
    let mut kiosk = ConnectOptions::new().announce_rpc(true).join(&server.url(), &token).await?;
    let text = format!("{{\"a\":\"{}\"}}", " ".repeat(512 << 10));
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes())?;
    let bomb = Bytes::from(encoder.finish()?);
    let mut costs = Vec::new();
    for (round, count) in [1, FEW, MANY].into_iter().enumerate() {
        let before = phone.cpu_time()?;
        for n in 0..count {
            let id = format!("{round}-{n}");
            kiosk.send(compressed_request("nothing", &id, &bomb, text.len(), true)).await?;
        }
        // The client answers in order, and this one when the rate allows it again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let last = format!("{round}-last");
        echo(&mut kiosk, &last).await?;
        costs.push(phone.cpu_time()?.saturating_sub(before));
    }
    let [_, few, many] = costs[..] else { bail!("{costs:?}") };
    ensure!(many < 8 * few + Duration::from_secs(1), "{few:?} and {many:?}");
    Ok(())
}

/// Makes a call by RPC, and waits for its answer.
async fn echo(kiosk: &mut LiveKitTransport, id: &str) -> anyhow::Result<()> {
    let request = RpcRequest::new(id, "bridge.echo", "{}", 10_000);
    kiosk.send(Packet::rpc("phone".into(), RpcMessage::Request(request))).await?;
    loop {
        let event = soon("the last answer", kiosk.recv()).await?.context("the connection ended")?;
        if matches!(event, TransportEvent::Rpc { message: RpcMessage::Response(it), .. } if it.id == id) {
            return Ok(());
        }
    }
}

/// A caller sends at once as many requests of the largest size as a client reads in a minute. Each has about 500 KB on the wire.
async fn flood() -> anyhow::Result<()> {
    const REQUESTS: u64 = 40;
    let (server, room) = (shared()?, "share");
    let (_phone, brain) = measured(&server, room, "kiosk").await?;
    let token = server.token(room, "kiosk", &[])?;
    let mut kiosk = ConnectOptions::new().announce_rpc(true).join(&server.url(), &token).await?;
    echo(&mut kiosk, "announced").await?;
    let noise = |n: u32| format!("{}{}", n.wrapping_mul(2_654_435_761), " ".repeat(290));
    let text = format!("{{\"a\":\"{}\"}}", (0..53_000).map(noise).collect::<String>());
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes())?;
    let payload = Bytes::from(encoder.finish()?);
    let began = Instant::now();
    for n in 0..REQUESTS {
        kiosk.send(compressed_request("ping", &format!("r{n}"), &payload, text.len(), false)).await?;
    }
    soon("the assistant's call", brain.call("ping", json!({})).to("phone").into_future()).await??;
    let (mut ran, mut refused) = (0, 0);
    while ran + refused < REQUESTS {
        match soon("an answer", kiosk.recv()).await?.context("the connection ended")? {
            TransportEvent::Rpc { message: RpcMessage::Response(it), .. } => {
                let error = it.outcome.err().context("a result is a stream")?;
                ensure!(error.message.starts_with("busy: "), "{}", error.message);
                refused += 1;
            }
            TransportEvent::Stream { part: StreamPart::Header(_), .. } => ran += 1,
            _ => {}
        }
    }
    // The first one, and one for each two seconds.
    let most = 2 + began.elapsed().as_secs() / 2;
    ensure!((1..=most).contains(&ran), "{ran} of {REQUESTS} ran, and {most} may");
    Ok(())
}

/// A stranger calls three times as often as it is refused in a second. LiveKit's SDK waits 7 s for an acknowledgement.
async fn many_refusals() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "many-refusals");
    let (_phone, _brain) = measured(&server, room, "nobody").await?;
    let mut intruder = Intruder::start(&server)?;
    intruder.join("stranger", &server.token(room, "stranger", &[])?).await?;
    intruder.sees_phone("stranger").await?;
    // Until the server has announced the stranger, a client keeps 32 requests.
    intruder.call("stranger", "ping", &json!({})).await?;
    let mut calls = Vec::new();
    for _ in 0..150 {
        calls.push(intruder.begin("stranger", "ping", &json!({})).await?);
    }
    for call in calls {
        let outcome = intruder.outcome(call).await?;
        let data = outcome["data"].as_str().unwrap_or_default();
        ensure!(outcome["code"] == 1500 && data.contains("permission_denied"), "{outcome}");
    }
    Ok(())
}

/// A request by RPC whose payload, of this length, is compressed.
fn compressed_request(method: &str, id: &str, payload: &Bytes, length: usize, inline: bool) -> Packet {
    let mut stream = TextStream::new(length);
    for (key, value) in [
        ("lk.rpc_request_id", id),
        ("lk.rpc_request_method", method),
        ("lk.rpc_request_response_timeout_ms", "10000"),
        ("lk.rpc_request_version", "2"),
    ] {
        stream.attributes.insert(key.to_owned(), value.to_owned());
    }
    (stream.inline, stream.compression) = (inline, Compression::Deflate);
    let mut packet = Packet::text("phone".into(), RPC_REQUEST_TOPIC, payload.clone(), stream);
    packet.stream = Some(format!("s-{id}").into());
    packet
}
