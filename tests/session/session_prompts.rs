//! Prompts between two sessions: which clients may get them, and from which participants.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use serde_json::json;
use toolbridge::{
    CallError, Config, ErrorCode, Role, Value,
    frame::{Configuration, Kind, Message, Meta, RegisteredTool, ToolsRegister},
    prompt::{PermissionPrompt, Prompt, PromptAnswer, PromptedCall},
    session::{Request, SelectionPolicy},
    transport::Participant,
};

use crate::session_world::{MS, SECOND, World, plain_request, request};

fn permission() -> PermissionPrompt {
    PermissionPrompt::new(PromptedCall::new("wipe")).option("y", "Yes", "allow_once").option(
        "n",
        "No",
        "reject_once",
    )
}

fn ask() -> Request {
    Request::new("bridge.permission", Value::encode(&permission()).unwrap())
}

/// An assistant, and clients whose people answer with the first option or as the prompt says.
fn room(config: Config, clients: &[&str]) -> World {
    let mut world = World::new();
    world.assistant("a", config);
    for client in clients {
        answers(&mut world, client);
    }
    world.run(200 * MS);
    world
}

fn answers(world: &mut World, client: &str) {
    world.client(client, Config::default().prompts(true), &["t"]);
    world.handle(client, |job| {
        let prompt = match Prompt::read(&job.tool, &job.arguments) {
            Ok(prompt) => prompt,
            Err(error) => return Some(Err(error)),
        };
        Some(prompt.answered(&match &prompt {
            Prompt::Permission(ask) => PromptAnswer::selected(&ask.options[0].option_id),
            Prompt::Choose(_) => PromptAnswer::choice(0),
            Prompt::Authorize(_) => PromptAnswer::done(),
            _ => PromptAnswer::submitted(&json!({"to": "Rome"})).unwrap(),
        }))
    });
}

#[test]
fn only_client_that_answers_prompts_gets_all_four() {
    let mut world = room(Config::default(), &["phone"]);
    world.client("tv", Config::default(), &["u"]); // answers none
    world.run(200 * MS);
    let answer: PromptAnswer = world.ask("a", ask()).unwrap().decode().unwrap();
    assert!(permission().chosen(&answer).is_some_and(|option| option.allows()));
    let all = [
        (
            "bridge.choose",
            json!({"text": "Which?", "choices": ["a", "b"]}),
            json!({"outcome": "selected", "selected": 0}),
        ),
        ("bridge.authorize", json!({"url": "https://x.example/"}), json!({"outcome": "done"})),
        ("bridge.form", json!({"schema": {}}), json!({"outcome": "submitted", "data": {"to": "Rome"}})),
    ];
    for (tool, parameters, expected) in all {
        let result = world.ask("a", Request::new(tool, Value::from(parameters))).unwrap();
        assert_eq!(result.to_json(), expected);
    }
    // Prompts are not listed as tools, and other reserved names are not called.
    assert!(world.session("a").tools().iter().all(|offer| !offer.tool.name().is_reserved()));
    assert!(matches!(world.call("a", request("bridge.wipe")), Err(CallError::UnknownTool { .. })));
}

#[test]
fn client_that_lists_no_prompts_gets_none() {
    let mut world = room(Config::default(), &[]);
    world.client("tv", Config::default(), &["t"]);
    world.run(200 * MS);
    let error = world.call("a", ask().to("tv")).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }) && !error.may_have_run(), "{error:?}");
    let error = world.ask("a", ask()).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    assert!(world.sent("a", Kind::TOOL_USE_REQUEST).is_empty());
    let listed = |name: &str| {
        let (_, frame) = &world.sent(name, Kind::CONFIGURATION)[0];
        let Ok(Message::Configuration(it)) = frame.message() else { panic!("no Configuration") };
        it.features.unwrap()
    };
    assert!(!listed("tv").contains(&"tool_prompt".to_owned()));
    assert!(!listed("a").contains(&"tool_prompt".to_owned()));
    assert!(listed("a").contains(&"tool_claim".to_owned()));
}

#[test]
fn client_without_prompts_replies_unknown_tool() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let request = plain_request("1", "bridge.permission");
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
    world.run(SECOND);
    let results = world.received("a", Kind::TOOL_USE_RESULT);
    let [Message::ToolUseResult(result)] = results.as_slice() else { panic!("{results:?}") };
    assert_eq!(result.error_code, Some(ErrorCode::UNKNOWN_TOOL));
}

#[test]
fn plain_client_gets_no_prompt() {
    let mut world = room(Config::default(), &[]);
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let features = Some(vec!["tool_prompt".to_owned()]);
    let configuration = with!(Configuration::default(), features = features);
    world.send("phone", &["a"], &Meta::new(), &Message::Configuration(configuration));
    let tools = vec![with!(RegisteredTool::default(), name = "t".to_owned())];
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools)),
    );
    world.run(200 * MS);
    assert!(matches!(world.call("a", ask().to("phone")), Err(CallError::UnknownTool { .. })));
}

#[test]
fn prompt_goes_to_the_named_or_the_selected_client() {
    let mut world = room(Config::default(), &["phone", "tv"]);
    match world.call("a", ask()).unwrap_err() {
        CallError::Ambiguous { owners, .. } => assert_eq!(owners, ["phone", "tv"]),
        other => panic!("{other:?}"),
    }
    assert!(world.ask("a", ask().to("tv")).is_ok());
    assert_eq!(world.executed.last().unwrap().0, "tv");
    let policy = SelectionPolicy::by(|tool, candidates| {
        assert_eq!(tool, Some("bridge.permission"));
        candidates.last().map(|it| it.identity.clone())
    });
    let mut world = room(Config::default().choose(policy), &["phone", "tv"]);
    assert!(world.ask("a", ask()).is_ok());
    assert_eq!(world.executed.last().unwrap().0, "tv");
}

#[test]
fn sec_i2_only_the_bound_assistant_may_prompt_a_person() {
    let mut world = room(Config::default(), &["phone"]);
    world.stranger("x");
    world.assistant("b", Config::default());
    world.run(200 * MS);
    let mut theirs = plain_request("1", "bridge.permission");
    theirs.parameters = Value::encode(&permission()).unwrap();
    world.send("x", &["phone"], &Meta::new(), &Message::ToolUseRequest(theirs));
    let error = world.ask("b", ask().to("phone")).unwrap_err();
    assert!(
        matches!(error, CallError::NotBound { .. }),
        "the client is bound to another assistant: {error:?}"
    );
    world.run(SECOND);
    assert!(world.executed.is_empty());
}

#[test]
fn sec_i6_prompt_name_cannot_be_registered() {
    let mut world = room(Config::default(), &[]);
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "i1");
    world.send("phone", &["a"], &meta, &Message::Configuration(Configuration::default()));
    let tools = vec![with!(RegisteredTool::default(), name = "bridge.permission".to_owned())];
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools)),
    );
    world.run(200 * MS);
    assert!(world.session("a").tools().is_empty());
    assert!(matches!(world.call("a", ask().to("phone")), Err(CallError::UnknownTool { .. })));
}

#[test]
fn ninth_open_prompt_is_busy_and_tools_are_not() {
    let mut world = room(Config::default(), &["phone"]);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(Value::empty())));
    let keys: Vec<_> = (0..9).map(|_| world.call("a", ask()).unwrap()).collect();
    world.run(200 * MS);
    assert_eq!(world.session("phone").open_jobs(), 8);
    assert!(matches!(world.settled("a", keys[8]), Some(Err(CallError::Busy { .. }))));
    assert!(world.ask("a", request("t")).is_ok());
    world.with("a", |session, now| session.cancel(now, keys[0]));
    world.run(200 * MS);
    world.call("a", ask()).unwrap();
    world.run(200 * MS);
    assert_eq!(world.session("phone").open_jobs(), 8);
}

#[test]
fn sec_p3_observers_do_not_see_sign_in_addresses() {
    let mut world = room(Config::default(), &["phone"]);
    let sid = world.sid();
    world.play(&Participant::new("recorder", sid).role(Role::Observer));
    world.run(200 * MS);
    let url = json!({"url": "https://x.example/oauth?state=hunter2"});
    assert!(world.ask("a", Request::new("bridge.authorize", Value::from(url))).is_ok());
    world.ask("a", ask()).unwrap();
    world.run(200 * MS);
    let seen = world.received("recorder", Kind::TOOL_USE_REQUEST);
    let [Message::ToolUseRequest(authorize), Message::ToolUseRequest(permission)] = seen.as_slice() else {
        panic!("{seen:?}")
    };
    assert_eq!(authorize.parameters, Value::empty());
    assert!(!permission.parameters.is_empty());
}

#[test]
fn invalid_prompt_is_refused_with_its_path() {
    let mut world = room(Config::default(), &["phone"]);
    match world.ask("a", Request::new("bridge.choose", Value::from(json!({"text": "?", "choices": []})))) {
        Err(CallError::Tool(error)) => {
            assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
            assert!(error.message().contains("choices has 0 entries"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
