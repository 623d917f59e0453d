//! `toolbridge call`: joins as an assistant, calls one tool and leaves.

use std::{
    cell::Cell,
    io::{self, IsTerminal as _, Read as _, Write as _},
    time::Duration,
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep, timeout_at};

use crate::cli::{
    room::{
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        connection_state,
        record_option::RecordOption,
    },
    terminal::{
        clock,
        failure::{Failure, hint},
        file,
        interrupt::{interrupted, unless_interrupted},
        render::{self, View},
        screen, text,
    },
};
use toolbridge::{
    Assistant, CallError, EncodeError, Event, Events, Identity, Role, Tool, ToolError, ToolResult, Value,
    tools::{InvalidToolName, NameMap, NameRules},
    transport::Participant,
    vocabulary::{self, CallErrorKind},
};

/// The time before a message says what the command is waiting for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the call itself waits when no client offers the tool. Within this time it can tell a client bound to another
/// assistant from a client whose registration has not arrived yet.
const REASON: Duration = Duration::from_secs(3);

/// Once one client offers the tool, how long to wait for the registrations of the other clients.
const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// The maximum length of a progress line, in characters.
const LONGEST_PROGRESS: usize = 200;

/// The maximum size of the arguments, in bytes: the largest frame of 16 MiB as base64.
const LONGEST_JSON: u64 = 24 * 1024 * 1024;

/// How long closing waits for open calls; only cancelled calls can be open then.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    /// Tool to call
    tool: String,

    /// Arguments as one JSON object, such as '{"on": true}', or - to read them from standard input
    #[arg(default_value = "{}", value_name = "JSON")]
    arguments: String,

    /// Further words, which are an error: people expect `key=value` to work
    #[arg(hide = true)]
    more: Vec<String>,

    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Client that runs the tool; needed if several clients offer it
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    to: Option<String>,

    /// Call a method of an app without toolbridge, by LiveKit's RPC; the app is the one that --to names
    #[arg(long, value_enum, requires = "to")]
    via: Option<Via>,

    /// How long to wait for a client that offers the tool, or for the client named by --to
    #[arg(long, default_value = "10s", value_parser = clock::span, value_name = "TIME")]
    wait: Duration,

    /// Time limit of the call, from 1ms to 10m, counted from when the request can be sent; 30s unless the tool sets
    /// another
    #[arg(long, value_parser = clock::limit, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Print one JSON object with `value`, or `error` with its code, message and mayHaveRun; and the times
    #[arg(long)]
    json: bool,

    /// How to show the result [default: screen on a terminal, otherwise json]
    #[arg(long, value_enum, conflicts_with = "json")]
    view: Option<View>,

    #[command(flatten)]
    record: RecordOption,
}

/// How the client is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Via {
    /// By LiveKit's RPC, unless the client uses toolbridge's handshake
    Rpc,
}

pub(in crate::cli) async fn run(mut arguments: Arguments) -> Result<(), Failure> {
    let json = parameters(&arguments)?;
    let target = arguments.room_arguments.target("call", Role::Assistant)?;
    let mut builder = Assistant::builder().connect_options(target.options.clone()).drain(DRAIN);
    match (&arguments.to, arguments.via) {
        (Some(owner), Some(Via::Rpc)) => {
            let tool = method(&arguments.tool).map_err(|error| Failure::usage(error.to_string()))?;
            arguments.tool = tool.name().to_string();
            builder = builder.rpc_tool(owner.as_str(), tool);
        }
        (Some(owner), None) => builder = builder.client(owner.as_str()),
        (None, _) => {}
    }
    arguments.record.check(arguments.room_arguments.is_encrypted())?;
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record(path).record_options(options);
    }
    let mut times = Times::default();
    let began = Instant::now();
    let joining = async { builder.join(&target.url, &target.token).await.map_err(file::not_joined) };
    let joined = unless_interrupted(joining).await;
    times.join = began.elapsed();
    let assistant = match joined {
        Ok(assistant) => assistant,
        Err(Failure::Failed(message)) => {
            return if arguments.json {
                print(&failure(&stopped(CallErrorKind::Closed, "not_joined", message, false), &times))?;
                Err(Failure::Reported(Failure::NOTHING_RAN))
            } else {
                Err(Failure::NothingRan(message))
            };
        }
        Err(other) => return Err(other),
    };
    let call_state = ToolCall { assistant: &assistant, arguments: &arguments, called: Cell::new(None) };
    let began = Instant::now();
    let result = tokio::select! {
        biased;
        () = interrupted() => None,
        result = call_state.ask(&json) => Some(result),
    };
    times.wait = call_state.called.get().map_or_else(|| began.elapsed(), |called| called - began);
    times.took = call_state.called.get().map(|called| called.elapsed());
    // An interrupted call has been dropped, which cancels it. Closing the assistant delivers the cancellation.
    assistant.close().await;
    let recorded = arguments.record.outcome(assistant.recording());
    let Some(result) = result else {
        if arguments.json {
            let (message, ran) = ("the call was interrupted".to_owned(), times.took.is_some());
            print(&failure(&stopped(CallErrorKind::Cancelled, "cancelled", message, ran), &times))?;
        }
        return Err(Failure::Interrupted);
    };
    if arguments.json {
        return show_json(result, &times).and(recorded);
    }
    show(result, arguments.view.unwrap_or_else(View::of_stdout)).and(recorded)
}

/// The duration of each phase.
#[derive(Debug, Default)]
struct Times {
    /// Joining the room.
    join: Duration,
    /// Waiting for a client after the join.
    wait: Duration,
    /// From the request to the outcome; `None` if no request was made.
    took: Option<Duration>,
}

/// Returns a method of an app as a tool. Its name is that of the tool if it can be, such as `lamp_on` for `lamp/on`.
fn method(name: &str) -> Result<Tool, InvalidToolName> {
    let names = NameMap::new(NameRules::Tool, [name]);
    let fitting = name.parse().or_else(|_| names.converted(name).unwrap_or_default().parse())?;
    Ok(Tool::new(fitting, "").with_rpc_method(name))
}

/// Parses the arguments from the command line, or from standard input, which can carry larger ones.
fn parameters(arguments: &Arguments) -> Result<Value, Failure> {
    let given = &arguments.arguments;
    let mut text = String::new();
    if given == "-" {
        io::stdin().lock().take(LONGEST_JSON).read_to_string(&mut text)?;
    }
    let json = Value::from_json(if given == "-" { &text } else { given });
    match json.map_err(EncodeError::from).and_then(Value::into_arguments) {
        Ok(json) if arguments.more.is_empty() => Ok(json),
        json => {
            let problem = json.err().filter(|error| !matches!(error, EncodeError::NotAMap { .. }));
            Err(Failure::usage(not_an_object(arguments, problem.map(|error| error.to_string()))))
        }
    }
}

/// Explains that the arguments are not one JSON object. `key=value` is not accepted, because only the tool's schema could
/// tell whether `1` is a number or a text; so the message has the command with JSON instead, for the person to check.
fn not_an_object(arguments: &Arguments, problem: Option<String>) -> String {
    let words: Vec<_> = std::iter::once(&arguments.arguments).chain(&arguments.more).collect();
    if let Some(json) = words.iter().map(|word| pair(word)).collect::<Option<serde_json::Map<_, _>>>() {
        let json = Json::from(json).to_string().replace('\'', r"'\''");
        return format!(
            "the arguments must be one JSON object; write: toolbridge call {} '{json}'",
            arguments.tool
        );
    }
    let problem = problem.map(|problem| format!(" ({problem})")).unwrap_or_default();
    format!(
        "the arguments must be one JSON object in quotes, such as toolbridge call {} '{{\"city\": \"Rome\"}}'{problem}",
        arguments.tool
    )
}

/// Returns what `key=value` probably means: the value is JSON if it can be read as that, otherwise text.
fn pair(word: &str) -> Option<(String, Json)> {
    let (key, value) = word.split_once('=')?;
    let is_name =
        |key: &str| !key.is_empty() && key.chars().all(|it| it.is_alphanumeric() || "_-.".contains(it));
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    is_name(key).then(|| (key.to_owned(), value))
}

/// One call and the state around it.
struct ToolCall<'a> {
    assistant: &'a Assistant,
    arguments: &'a Arguments,
    /// When the last request was made.
    called: Cell<Option<Instant>>,
}

impl ToolCall<'_> {
    async fn ask(&self, json: &Value) -> Result<Value, CallError> {
        let until = Instant::now() + self.arguments.wait;
        let call = async {
            let mut events = self.assistant.events();
            self.someone(until).await;
            loop {
                self.called.set(Some(Instant::now()));
                let result = self.once(json, until).await;
                // The client is bound to another assistant, and the tool did not run. The client unbinds soon if
                // that assistant has left, as an earlier `call` from this terminal has.
                let is_bound = matches!(result, Err(CallError::NotBound { .. }));
                if !is_bound || !offers_change(&mut events, until).await {
                    return result;
                }
            }
        };
        tokio::select! {
            result = call => result,
            // These two futures never complete.
            () = self.hint() => Err(CallError::Cancelled),
            () = connection_state::print_changes(self.assistant, Some(&self.arguments.record)) => Err(CallError::Cancelled),
        }
    }

    /// Waits for a client that can run the tool.
    async fn someone(&self, until: Instant) {
        match &self.arguments.to {
            Some(owner) => {
                let left = until.saturating_duration_since(Instant::now());
                // If the client is not ready by then, the call reports why.
                let _ = self.assistant.ready(owner.as_str()).within(left).await;
            }
            // The call waits for the rest of the time and finds out why no client offers the tool.
            None => {
                let end = until.checked_sub(REASON).unwrap_or_else(Instant::now);
                offers(self.assistant, &self.arguments.tool, end).await;
            }
        }
    }

    async fn once(&self, json: &Value, until: Instant) -> Result<Value, CallError> {
        let call = self.assistant.call(&self.arguments.tool, json);
        let call = match &self.arguments.to {
            Some(owner) => call.to(owner.as_str()).owner_wait(Duration::ZERO),
            None => call.owner_wait(until.saturating_duration_since(Instant::now()).min(REASON)),
        };
        let call = match self.arguments.timeout {
            Some(limit) => call.timeout(limit),
            None => call,
        };
        let mut call = call.start();
        let is_watched = io::stderr().is_terminal();
        while let Some(step) = call.progress().await {
            if is_watched && let Some(message) = &step.message {
                screen::print_foreign(&text::line(&format!("… {message}"), LONGEST_PROGRESS));
            }
        }
        call.await
    }

    /// Prints what the command is waiting for, if the wait is long.
    async fn hint(&self) {
        sleep(PATIENCE).await;
        if self.called.get().is_none() {
            let who = self.arguments.to.as_deref().unwrap_or("a client that offers it");
            hint(&format!("waiting for {who} (LiveKit may announce participants up to 3 s late) …"));
        }
        std::future::pending::<()>().await;
    }
}

/// Waits until the tools of any participant change. Returns false if none do in time.
async fn offers_change(events: &mut Events, until: Instant) -> bool {
    loop {
        match timeout_at(until, events.recv()).await {
            Ok(Some(Event::ToolsChanged { .. })) => return true,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// Waits until a client offers the tool, and then briefly for other clients that may offer it as well, so that the
/// fastest client is not preferred.
async fn offers(assistant: &Assistant, tool: &str, mut until: Instant) {
    let mut events = assistant.events();
    let mut found = false;
    loop {
        let offers = assistant.tools();
        if !found && offers.iter().any(|offer| offer.tool.name().as_str() == tool) {
            found = true;
            until = until.min(Instant::now() + OTHERS_WAIT);
        }
        let silent = |who: &Participant| {
            who.token_role() == Some(Role::Client)
                && !offers.iter().any(|offer| offer.owner == *who.identity())
        };
        if found && !assistant.participants().iter().any(silent) {
            return;
        }
        match timeout_at(until, events.recv()).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// Returns a value as JSON without what is for the model alone: this command has no model.
fn for_people(value: &Value) -> Json {
    let result = ToolResult::of(value);
    let public = result.for_clients();
    if public == result { value.to_json() } else { public.to_value().to_json() }
}

fn print(json: &Json) -> io::Result<()> {
    writeln!(io::stdout(), "{}", text::json(json))
}

fn show_json(result: Result<Value, CallError>, times: &Times) -> Result<(), Failure> {
    match result {
        Ok(body) => {
            let mut line = json!({"value": for_people(&body)});
            times.add_to(&mut line);
            print(&line)?;
            Ok(())
        }
        Err(error) => {
            let ran = error.may_have_run();
            let plain = vocabulary::CallError::from(&error);
            // What is for the model alone stays out of it.
            let partial = ToolError::from(error).for_clients().partial().map(Value::to_json_text);
            let partial = partial.map(|text| vocabulary::Json { text });
            print(&failure(&vocabulary::CallError { for_model: None, partial, ..plain }, times))?;
            Err(Failure::Reported(if ran { Failure::FAILED } else { Failure::NOTHING_RAN }))
        }
    }
}

fn failure(error: &vocabulary::CallError, times: &Times) -> Json {
    let mut line = json!({"error": error.to_json()});
    times.add_to(&mut line);
    line
}

/// The error of a call that this command has ended.
fn stopped(kind: CallErrorKind, code: &str, message: String, may_have_run: bool) -> vocabulary::CallError {
    vocabulary::CallError { may_have_run, ..vocabulary::CallError::nothing_ran(kind, code, message) }
}

impl Times {
    fn add_to(&self, line: &mut Json) {
        line["joinMs"] = clock::ms(self.join).into();
        line["waitMs"] = clock::ms(self.wait).into();
        line["tookMs"] = self.took.map_or(Json::Null, |took| clock::ms(took).into());
    }
}

fn show(result: Result<Value, CallError>, view: View) -> Result<(), Failure> {
    match result {
        Ok(value) => Ok(show_value(&value, view)?),
        Err(CallError::Ambiguous { tool, owners }) => {
            let owners: Vec<_> = owners.iter().map(Identity::as_str).collect();
            let owners = owners.join(", ");
            Err(Failure::NothingRan(format!(
                "ambiguous: several clients offer {tool}: {owners}; choose one with --to (the tool did not run)"
            )))
        }
        Err(error) => {
            let ran = error.may_have_run();
            let error = ToolError::from(error).for_clients();
            if let Some(partial) = error.partial().filter(|_| view == View::Screen) {
                show_value(partial, view)?;
            }
            let text = format!("{}: {}", error.code(), error.message());
            Err(if ran {
                Failure::Failed(text)
            } else {
                Failure::NothingRan(format!("{text} (the tool did not run)"))
            })
        }
    }
}

fn show_value(value: &Value, view: View) -> io::Result<()> {
    match view {
        View::Json => print(&for_people(value)),
        View::Screen => write!(io::stdout(), "{}", render::screen(value, render::has_colors())),
        View::Voice => {
            let speech = render::speech(value);
            if speech.needs_model {
                hint("a model speaks about this result in its own words");
            }
            match speech.text {
                Some(text) => writeln!(io::stdout(), "{text}"),
                None => {
                    hint("this result has no text to speak");
                    Ok(())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use toolbridge::{Client, ToolContext, memory::MemoryRoom};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn arguments_that_are_no_json_object_are_refused_with_the_command_to_write() {
        let refusal = |words: &[&str]| {
            let line = [&["call", "set_lamp"], words].concat();
            parameters(&Line::parse_from(line).arguments).map_err(|error| match error {
                Failure::Usage(text) => text,
                other => panic!("{other:?}"),
            })
        };
        for (words, json) in [
            (&["on=true"][..], r#"'{"on":true}'"#),
            (&["on=true", "level=3", "name=it's late"], r#"'{"on":true,"level":3,"name":"it'\''s late"}'"#),
            (&["list=[1,2]", "empty="], r#"'{"list":[1,2],"empty":""}'"#),
        ] {
            let text = refusal(words).unwrap_err();
            assert_eq!(
                text,
                format!("the arguments must be one JSON object; write: toolbridge call set_lamp {json}")
            );
        }
        for words in [&["{on: true}"][..], &["[1]"], &["{}", "on=true"], &["{\"a\":", "1}"], &["=1"], &["on"]]
        {
            let text = refusal(words).unwrap_err();
            assert!(text.starts_with("the arguments must be one JSON object in quotes, such as"), "{text}");
        }
        assert!(refusal(&[]).is_ok() && refusal(&["{\"on\": true}"]).is_ok());
    }

    async fn nap(context: ToolContext) -> Result<(), ToolError> {
        sleep(context.time_left() - Duration::from_millis(100)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_client_does_not_count_toward_the_timeout() {
        for to in [&["--to", "phone"][..], &[]] {
            let line = [&["call", "nap", "--timeout", "2s", "--wait", "9s"], to].concat();
            let arguments = Line::parse_from(line).arguments;
            let room = MemoryRoom::new();
            let assistant =
                Assistant::builder().client("phone").join_over(room.assistant("a")).await.unwrap();
            let call_state =
                ToolCall { assistant: &assistant, arguments: &arguments, called: Cell::new(None) };
            let late = async {
                sleep(Duration::from_secs(5)).await;
                Client::builder().tool("nap", "", nap).join_over(room.client("phone")).await.unwrap()
            };
            let arguments = Value::empty();
            let (result, _phone) = tokio::join!(call_state.ask(&arguments), late);
            result.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn absent_client_ends_the_call_before_the_tool_runs() {
        let arguments = Line::parse_from(["call", "t", "--to", "phone", "--wait", "3s"]).arguments;
        let room = MemoryRoom::new();
        let assistant = Assistant::builder().client("phone").join_over(room.assistant("a")).await.unwrap();
        let call_state = ToolCall { assistant: &assistant, arguments: &arguments, called: Cell::new(None) };
        let began = Instant::now();
        let error = call_state.ask(&Value::empty()).await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5), "{error} after {:?}", began.elapsed());
    }
}
