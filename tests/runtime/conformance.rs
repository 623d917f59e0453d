//! Runs the scripts of `bindings/conformance`, which every shell in another language runs, against this library's own
//! `Client` and `Assistant`.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName,
    ToolSource, Turn, Value,
    memory::MemoryRoom,
    session::SelectionPolicy,
    tools::ProgressStatus,
    vocabulary::{self, form::Read as _},
};

/// Steps of rules that this library leaves to its user: what a question shows, and what becomes of a handler that throws. A room in
/// memory has no rejoins and no reasons, a source's tools do not change here, and a turn that has ended cannot be named.
const LEFT_OUT: &[&str] = &["warned", "asked", "disconnect", "offer", "endTurn"];

/// What tools and events have noticed.
#[derive(Clone)]
struct Log(watch::Sender<Vec<Json>>);

impl Log {
    fn add(&self, entry: Json) {
        self.0.send_modify(|entries| entries.push(entry));
    }

    async fn until(&self, matches: impl Fn(&Json) -> bool) -> Json {
        let mut entries = self.0.subscribe();
        let entries = entries.wait_for(|all| all.iter().any(&matches)).await.unwrap();
        entries.iter().find(|it| matches(it)).unwrap().clone()
    }

    fn all(&self, key: &str) -> Vec<Json> {
        self.0.borrow().iter().filter_map(|it| it.get(key).cloned()).collect()
    }
}

/// The tools of one participant.
struct Scripted {
    tools: BTreeMap<String, Json>,
    gates: HashMap<String, CancellationToken>,
    log: Log,
}

impl ToolSource for Scripted {
    fn list(&self) -> Vec<Tool> {
        let tool = |(name, it): (&String, &Json)| {
            let mut options = it.clone();
            options.as_object_mut().unwrap().remove("does");
            options["name"] = name.as_str().into();
            options["description"] = name.as_str().into();
            options["inputSchema"] = json!({"type": "object"});
            vocabulary::Tool::read(&options.to_string()).unwrap().into_core().unwrap()
        };
        self.tools.iter().map(tool).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, cx: ToolContext) -> Outcome {
        let name = tool.as_str();
        let does = &self.tools[name]["does"];
        self.log.add(json!({"started": name}));
        let stopped = async {
            cx.cancelled().await;
            self.log.add(json!({"stopped": name, "reason": cx.stopped().unwrap().as_str()}));
            if does["deaf"] == true {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stopped => Err(ToolError::cancelled()),
            outcome = self.run(name, does, arguments, &cx) => outcome,
        }
    }
}

impl Scripted {
    async fn run(&self, name: &str, does: &Json, arguments: Value, cx: &ToolContext) -> Outcome {
        if does["deaf"] == true {
            std::future::pending::<()>().await;
        }
        if let Some(text) = does["throw"].as_str() {
            return Err(ToolError::internal(std::io::Error::other(text.to_owned())));
        }
        for report in does["report"].as_array().into_iter().flatten() {
            cx.progress(progress(report));
            sleep(Duration::from_millis(150)).await; // ten reports a second are sent
        }
        if does.get("wait").is_some() {
            self.gates[name].cancelled().await;
        }
        if let Some(fail) = does.get("fail") {
            let code = fail["code"].as_str().unwrap_or("execution_error");
            let error = ToolError::new(ErrorCode::from(code.to_owned()), fail["message"].as_str().unwrap());
            return Err(match fail.get("partial") {
                Some(partial) => error.with_partial(Value::from(partial.clone())),
                None => error,
            });
        }
        Ok(if does["return"] == "arguments" { arguments } else { Value::from(does["return"].clone()) })
    }
}

fn progress(report: &Json) -> Progress {
    with!(
        Progress::default(),
        status = match report["status"].as_str() {
            Some("pending") => ProgressStatus::Pending,
            _ => ProgressStatus::InProgress,
        },
        message = report["message"].as_str().map(str::to_owned),
        content = report.get("content").map(|content| Value::from(content.clone()))
    )
}

/// A call that was started.
struct Started {
    tool: String,
    cancel: CancellationToken,
    steps: Arc<Mutex<Vec<Json>>>,
    ended: Option<JoinHandle<Result<Value, CallError>>>,
}

struct Run {
    log: Log,
    room: MemoryRoom,
    gates: HashMap<String, CancellationToken>,
    clients: BTreeMap<String, Client>,
    assistant: Assistant,
    calls: HashMap<u64, Started>,
    turns: HashMap<String, Turn>,
    late: BTreeMap<String, Json>,
}

impl Run {
    async fn new(script: &Json) -> Self {
        let log = Log(watch::Sender::new(Vec::new()));
        let room = MemoryRoom::new();
        let mut gates = HashMap::new();
        let mut source = |tools: &Json| {
            let tools: BTreeMap<String, Json> = tools
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, it)| (name.clone(), it.clone()))
                .collect();
            gates.extend(tools.keys().map(|name| (name.clone(), CancellationToken::new())));
            let gates = gates.clone();
            Scripted { tools, gates, log: log.clone() }
        };
        let described = match script.get("clients") {
            Some(clients) => clients.as_object().unwrap().clone(),
            None if script.get("tools").is_some() => [(
                "phone".to_owned(),
                json!({"tools": script["tools"], "consent": script["consent"], "caps": script["caps"]}),
            )]
            .into_iter()
            .collect(),
            None => serde_json::Map::new(),
        };
        let mut builder = Assistant::builder().tools(source(&script["assistant"]["tools"]));
        if script["assistant"]["choose"] == "first" {
            builder = builder.choose(SelectionPolicy::First);
        }
        let mut joining = Vec::new();
        let mut late = BTreeMap::new();
        for (identity, it) in &described {
            let builder = Client::builder().tools(source(&it["tools"]));
            if it["joinsLater"] == true {
                late.insert(identity.clone(), it.clone());
                continue;
            }
            joining.push((identity.clone(), client(builder, it, &log)));
        }
        let assistant = builder.join_over(room.assistant("agent")).await.unwrap();
        let mut clients = BTreeMap::new();
        for (identity, builder) in joining {
            let client = builder.join_over(room.client(&*identity)).await.unwrap();
            watch_requests(&client, &log);
            clients.insert(identity, client);
        }
        for identity in clients.keys().filter(|identity| !client_tools(&described[*identity]).is_empty()) {
            assistant.ready(identity.as_str()).await.unwrap();
        }
        Self { log, room, gates, clients, assistant, calls: HashMap::new(), turns: HashMap::new(), late }
    }

    async fn step(&mut self, step: &Json) {
        let text = |key: &str| step[key].as_str().unwrap().to_owned();
        let (kind, of) = step.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "call" => self.call(step),
            "result" => self.result(step).await,
            "cancel" => self.calls[&of.as_u64().unwrap()].cancel.cancel(),
            "bargeIn" => self.turn(&text("bargeIn")).barge_in(),
            "started" => drop(self.log.until(|it| it["started"] == *of).await),
            "open" => self.gates[&text("open")].cancel(),
            "stopped" => {
                let found = self.log.until(|it| it["stopped"] == *of).await;
                assert_eq!(found["reason"], step["reason"]);
            }
            "arrived" => {
                let tool = self.calls[&of.as_u64().unwrap()].tool.clone();
                self.log.until(|it| it["requested"] == tool.as_str()).await;
            }
            "progress" => {
                let steps = self.calls[&of.as_u64().unwrap()].steps.lock().unwrap().clone();
                assert_eq!(Json::from(steps), step["is"]);
            }
            "askedTimes" => assert_eq!(self.log.all("asked").len() as u64, of.as_u64().unwrap()),
            "ran" => assert_eq!(Json::from(self.log.all("started")), *of),
            "late" => self.late_result(step).await,
            "lose" => self.room.pause(&text("lose")),
            "restore" => self.room.resume(&text("restore")),
            "join" => {
                let it = self.late.remove(&text("join")).unwrap();
                let tools = client_tools(&it).into_iter().collect();
                let source = Scripted { tools, gates: HashMap::new(), log: self.log.clone() };
                let builder = client(Client::builder().tools(source), &it, &self.log);
                let joined = builder.join_over(self.room.client(text("join"))).await.unwrap();
                self.clients.insert(text("join"), joined);
            }
            "close" if of == "agent" => drop(self.assistant.close().await),
            "close" => drop(self.clients[&text("close")].close().await),
            other => panic!("unknown step {other}"),
        }
    }

    fn turn(&mut self, name: &str) -> &Turn {
        self.turns.entry(name.to_owned()).or_insert_with(|| self.assistant.turn())
    }

    fn call(&mut self, step: &Json) {
        let tool = step["tool"].as_str().unwrap().to_owned();
        let arguments = expand(step.get("arguments").unwrap_or(&json!({})));
        let millis = |key: &str| step[key].as_u64().map(Duration::from_millis);
        let mut asked = match step["turn"].as_str() {
            Some(turn) => self.turn(turn).call(&tool, arguments),
            None => self.assistant.call(&tool, arguments),
        };
        if let Some(to) = step["to"].as_str() {
            asked = asked.to(to);
        }
        if let Some(limit) = millis("timeoutMs") {
            asked = asked.timeout(limit);
        }
        if let Some(wait) = millis("ownerWaitMs") {
            asked = asked.owner_wait(wait);
        }
        let (cancel, steps) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
        let (canceled, told) = (cancel.clone(), Arc::clone(&steps));
        let mut call = asked.start();
        let ended = tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    step = call.progress() => match step {
                        Some(step) => told.lock().unwrap().push(fields(&step)),
                        None => return call.await,
                    },
                    () = canceled.cancelled() => {
                        call.cancel();
                        return call.await;
                    }
                }
            }
        });
        let id = step["call"].as_u64().unwrap();
        self.calls.insert(id, Started { tool, cancel, steps, ended: Some(ended) });
    }

    async fn result(&mut self, step: &Json) {
        let call = self.calls.get_mut(&step["result"].as_u64().unwrap()).unwrap();
        let found = call.ended.take().unwrap().await.unwrap();
        compare(step, &found);
    }

    async fn late_result(&self, step: &Json) {
        loop {
            if let Some(late) = self
                .assistant
                .late_results()
                .into_iter()
                .find(|it| *it.tool == *step["late"].as_str().unwrap())
            {
                return compare(step, &late.result);
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn client_tools(it: &Json) -> BTreeMap<String, Json> {
    it["tools"].as_object().into_iter().flatten().map(|(name, it)| (name.clone(), it.clone())).collect()
}

fn client(builder: toolbridge::ClientBuilder, it: &Json, log: &Log) -> toolbridge::ClientBuilder {
    let caps = it["caps"].clone();
    let builder = builder.configure(|config| {
        let cap = |name: &str| caps[name].as_u64().map(|cap| cap as usize);
        let requests = &mut config.caps.requests;
        requests.running_jobs = cap("runningJobs").unwrap_or(requests.running_jobs);
        requests.waiting_jobs = cap("waitingJobs").unwrap_or(requests.waiting_jobs);
    });
    let Some(consent) = it["consent"].as_str().map(str::to_owned) else { return builder };
    let log = log.clone();
    builder.consent(move |_| {
        log.add(json!({"asked": true}));
        let consent = consent.clone();
        async move { if consent == "wait" { std::future::pending().await } else { consent == "allow" } }
    })
}

fn watch_requests(client: &Client, log: &Log) {
    let (mut events, log) = (client.events(), log.clone());
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let toolbridge::Event::Requested { tool, .. } = event {
                log.add(json!({"requested": tool}));
            }
        }
    });
}

fn fields(step: &Progress) -> Json {
    let mut fields = json!({"status": step.status.as_str()});
    if let Some(message) = &step.message {
        fields["message"] = message.as_str().into();
    }
    if let Some(content) = &step.content {
        fields["content"] = content.to_json();
    }
    fields
}

fn compare(step: &Json, found: &Result<Value, CallError>) {
    match (step.get("error"), found) {
        (Some(expected), Err(error)) => {
            let plain = vocabulary::CallError::from(error).to_json();
            for (key, value) in expected.as_object().unwrap() {
                assert_eq!(plain[key], *value, "{key}: {error}");
            }
        }
        (None, Ok(value)) => {
            let value = if value.is_map() { value.to_json() } else { json!({"value": value.to_json()}) };
            assert_eq!(value, expand(&step["value"]));
        }
        _ => panic!("{step}: {found:?}"),
    }
}

/// `{"repeat": "x", "times": 3}` is `xxx`.
fn expand(value: &Json) -> Json {
    match value {
        Json::Object(fields) if fields.contains_key("repeat") => {
            fields["repeat"].as_str().unwrap().repeat(fields["times"].as_u64().unwrap() as usize).into()
        }
        Json::Object(fields) => fields.iter().map(|(key, it)| (key.clone(), expand(it))).collect(),
        other => other.clone(),
    }
}

/// Returns whether this library can be compared in all that a script says.
fn is_shared(script: &Json) -> bool {
    let text = script.to_string();
    let left_out =
        |step: &Json| LEFT_OUT.iter().any(|kind| step.get(kind).is_some()) || step.get("rejoins").is_some();
    // Here the compiler checks a code, no text is half an emoji, and a tool without a consent handler is an error when joining.
    let other = ["fails where it is written", "surrogate pair", "is not offered where nobody can be asked"];
    !script["steps"].as_array().unwrap().iter().any(left_out) && !other.iter().any(|name| text.contains(name))
}

#[tokio::test(start_paused = true)]
async fn own_participants_conform() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("bindings/conformance/scripts.json");
    // The archive of the library has no bindings.
    let Ok(text) = fs::read_to_string(file) else { return println!("skipped: the scripts are not here") };
    // Half of a surrogate pair is no text here.
    let text = text.replace("\\ud83d ", "").replace("\\ude00", "");
    let scripts: Vec<Json> = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for script in scripts.iter().filter(|script| is_shared(script)) {
        println!("{}", script["name"]);
        let mut run = Run::new(script).await;
        for step in script["steps"].as_array().unwrap() {
            println!("  {step}");
            let limit = Duration::from_secs(60);
            tokio::time::timeout(limit, run.step(step)).await.expect("the step takes too long");
            tokio::task::yield_now().await;
        }
        compared += 1;
    }
    println!("{compared} of {} scripts", scripts.len());
    assert!(compared > 40, "{compared}");
}
