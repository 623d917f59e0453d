//! Calls through a real server, from handle to handle.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use livekit_token::{AccessToken, VideoGrants};
use serde_json::json;
use tokio::task::JoinSet;
use toolbridge::{
    Assistant, CallError, Client, ClientBuilder, ErrorCode, Event, Identity, JoinError, ToolContext,
    ToolError, Tools, Value,
    frame::{Kind, Meta},
    livekit::LiveKitTransport,
    session::{Destination, Unaccepted},
    tools::{Execution, NotAdmitted, RegisterError},
};

use crate::{
    ends::{Gate, Running, assistant, client, double, event, hang, offers, pair, started, unhurried},
    relay::Relay,
    server::{KEY, SECRET, Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![calls:
        client_known_by_its_attribute_waits_for_the_announcement,
        named_participants_need_no_announcement,
        call_crosses_the_server,
        result_values_are_preserved,
        call_of_the_assistants_own_tool_reaches_the_client,
        frames_of_the_app_pass_in_both_directions,
        progress_passes,
        two_hundred_calls_over_four_clients_get_their_own_results,
        sixty_fifth_open_call_to_one_client_is_refused,
        request_of_16_mib_passes_and_one_more_byte_is_refused,
        too_large_result_is_an_error_with_both_numbers,
        tools_too_large_for_a_frame_are_an_error_at_join,
        dropping_a_call_stops_the_function,
        timeout_names_its_milliseconds_and_stops_the_function,
        tool_without_an_owner_is_unknown,
        each_call_of_a_second_assistant_is_denied,
        two_candidates_and_none_configured_bind_none,
        participant_without_permission_to_send_gets_the_reason,
        client_with_an_ordinary_token_is_called,
        two_ends_with_ordinary_tokens_call_if_the_client_names_its_assistant,
        second_client_with_an_ordinary_token_is_refused_with_the_reason,
    ]
}

async fn call_crosses_the_server() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = Client::builder().tool("double", "Twice", double);
    let (_phone, brain) = pair(&server, "crosses", phone, Assistant::builder()).await?;
    ensure!(brain.call("double", json!({"n": 21})).await?.decode::<u64>()? == 42);
    let offered = brain.tools();
    ensure!(offered.len() == 1 && offered[0].owner == "phone", "{offered:?}");
    ensure!(offered[0].tool.description() == "Twice" && offered[0].tool.input_schema().is_some());
    Ok(())
}

async fn result_values_are_preserved() -> anyhow::Result<()> {
    async fn fail() -> Result<(), ToolError> {
        Err(ToolError::new("too_dark", "the lamp is broken").with_partial(Value::from(json!({"lux": 3}))))
    }
    async fn read() -> Result<String, ToolError> {
        Ok(std::fs::read_to_string("/a/path/that/stays/here")?)
    }
    async fn panics() -> Result<(), ToolError> {
        panic!("the text of a panic stays here")
    }
    let server = shared()?;
    let phone = Client::builder()
        .tool("fail", "", fail)
        .tool("read", "", read)
        .tool("panics", "", panics)
        .tool("double", "", double);
    let (_phone, brain) = pair(&server, "survives", phone, Assistant::builder()).await?;
    match brain.call("fail", ()).await {
        Err(CallError::Tool(error)) => {
            ensure!(error.code().as_str() == "too_dark" && error.message() == "the lamp is broken");
            ensure!(error.partial().context("no partial result")?.to_json() == json!({"lux": 3}));
        }
        other => bail!("{other:?}"),
    }
    for tool in ["read", "panics"] {
        match brain.call(tool, ()).await {
            Err(CallError::Tool(error)) => {
                ensure!(error.code() == ErrorCode::EXECUTION_ERROR);
                ensure!(!format!("{error:?}").contains("stays"), "{error:?}");
            }
            other => bail!("{other:?}"),
        }
    }
    match brain.call("double", json!({"n": "many"})).await {
        Err(CallError::Tool(error)) => {
            ensure!(error.code() == ErrorCode::INVALID_PARAMETERS && error.message().contains("/n"));
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn call_of_the_assistants_own_tool_reaches_the_client() -> anyhow::Result<()> {
    let server = shared()?;
    let brain = Assistant::builder().tool("search", "", double);
    let (phone, brain) = pair(&server, "own", Client::builder().tool("hello", "", hang), brain).await?;
    let mut events = phone.events();
    // After a call both know each other; otherwise the broadcast would come from an unknown sender.
    let mut hello = brain.call("hello", ()).start();
    started(&mut hello).await?;
    let call = brain.call("search", json!({"n": 4})).start();
    let id = call.id().cloned().context("no id")?;
    ensure!(call.await?.decode::<u64>()? == 8);
    event(&mut events, "the request", |event| match event {
        Event::Requested { call, tool, execution: Execution::Server, owner, by } if call == id => {
            (tool == "search" && owner == "assistant" && by == "assistant").then_some(())
        }
        _ => None,
    })
    .await?;
    event(&mut events, "the result", |event| match event {
        Event::Settled { call, tool, execution: Execution::Server, outcome: Ok(()), .. } => {
            (call == id && tool == "search").then_some(())
        }
        _ => None,
    })
    .await
}

async fn frames_of_the_app_pass_in_both_directions() -> anyhow::Result<()> {
    let server = shared()?;
    let (phone, brain) =
        pair(&server, "frames", Client::builder().tool("double", "", double), Assistant::builder()).await?;
    brain.call("double", json!({"n": 1})).await?;
    let mut events = [phone.events(), brain.events()];
    let to = |name: &str| Destination::Peers(vec![name.into()]);
    let body = |text: &str| Value::from(json!({"text": text}));
    brain.send_frame(to("phone"), Kind::new(9), Meta::default(), body("from the assistant"))?;
    phone.send_frame(to("assistant"), Kind::new(4711), Meta::default(), body("from the phone"))?;
    let wanted = [("assistant", 9, "from the assistant"), ("phone", 4711, "from the phone")];
    for (events, (sender, kind, text)) in events.iter_mut().zip(wanted) {
        let frame = event(events, "the frame", |event| match event {
            Event::Frame { from, frame } if from.identity() == sender => Some(frame),
            _ => None,
        })
        .await?;
        ensure!(frame.kind().code() == kind && frame.body().to_json() == json!({"text": text}), "{frame:?}");
    }
    Ok(())
}

async fn progress_passes() -> anyhow::Result<()> {
    async fn steps(cx: ToolContext) -> Result<u8, ToolError> {
        cx.progress("half way");
        cx.cancelled().await;
        Ok(1)
    }
    let server = shared()?;
    let (_phone, brain) =
        pair(&server, "progress", Client::builder().tool("steps", "", steps), Assistant::builder()).await?;
    let mut call = brain.call("steps", ()).start();
    started(&mut call).await?;
    let step = soon("the progress", call.progress()).await?.context("the call ended")?;
    ensure!(step.message.as_deref() == Some("half way"), "{step:?}");
    Ok(())
}

async fn two_hundred_calls_over_four_clients_get_their_own_results() -> anyhow::Result<()> {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 50; // a second's worth at the default rate limit
    let server = shared()?;
    let mut brain = Assistant::builder();
    let mut phones = Vec::new();
    for n in 0..CLIENTS {
        let name = format!("phone-{n}");
        let builder = Client::builder().tools(Gate::tools(EACH as usize)).assistant("assistant");
        phones.push(client(&server, "many", &name, builder).await?);
        brain = brain.client(name);
    }
    let brain = assistant(&server, "many", "assistant", brain).await?;
    let mut calls = JoinSet::new();
    for n in 0..CLIENTS * EACH {
        let call = brain.call("gate", json!({"n": n})).to(format!("phone-{}", n % CLIENTS));
        calls.spawn(async move { (n, call.await) });
    }
    let mut order = Vec::new();
    while let Some(ended) = soon("the result", calls.join_next()).await? {
        let (n, result) = ended?;
        ensure!(result?.decode::<u64>()? == 2 * n, "call {n} got the result of another call");
        order.push(n);
    }
    ensure!(order.len() == 200 && !order.is_sorted(), "{order:?}");
    ensure!(brain.open_calls() == 0 && phones.iter().all(|phone| phone.open_jobs() == 0));
    Ok(())
}

async fn sixty_fifth_open_call_to_one_client_is_refused() -> anyhow::Result<()> {
    let server = shared()?;
    // 64 calls within a second exceed the client's own rate limit.
    let phone = Client::builder().configure(unhurried).tool("hang", "", hang).tool("double", "", double);
    let (phone, brain) = pair(&server, "sixty-four", phone, Assistant::builder()).await?;
    brain.call("double", json!({"n": 1})).await?;
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut call = brain.call("hang", ()).start();
        started(&mut call).await?;
        open.push(call);
    }
    let error = brain.call("double", json!({"n": 1})).await.unwrap_err();
    ensure!(matches!(error, CallError::TooManyOpen { open: 64 }) && !error.may_have_run(), "{error:?}");
    // A stopped call keeps its slot until its owner has acknowledged the stop.
    let mut events = phone.events();
    drop(open.pop());
    event(&mut events, "the stop", |event| matches!(event, Event::Settled { .. }).then_some(())).await?;
    soon("a free slot", async {
        loop {
            match brain.call("double", json!({"n": 1})).await {
                Err(CallError::TooManyOpen { .. }) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    })
    .await??;
    Ok(())
}

async fn request_of_16_mib_passes_and_one_more_byte_is_refused() -> anyhow::Result<()> {
    async fn length(text: Text) -> Result<usize, ToolError> {
        Ok(text.text.len())
    }
    let server = shared()?;
    let phone = Client::builder().tool("length", "", length);
    let (_phone, brain) = pair(&server, "sizes-of-requests", phone, Assistant::builder()).await?;
    let ask = |size: usize| brain.call("length", json!({"text": "x".repeat(size)}));
    ensure!(ask(1).await?.decode::<usize>()? == 1);
    const MOST: usize = 16 * 1024 * 1024;
    const BELOW: usize = MOST - 30; // a value below the limit, whose frame is above it
    let CallError::TooLarge { size, limit: MOST } = ask(BELOW).await.unwrap_err() else {
        bail!("a frame above 16 MiB passed")
    };
    let fits = BELOW - (size - MOST);
    ensure!(ask(fits).await?.decode::<usize>()? == fits);
    let error = ask(fits + 1).await.unwrap_err();
    ensure!(matches!(error, CallError::TooLarge { size, limit: MOST } if size == MOST + 1), "{error:?}");
    let text = error.to_string();
    ensure!(text.contains("16777217") && text.contains("16777216"), "{text}");
    Ok(())
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Text {
    text: String,
}

async fn too_large_result_is_an_error_with_both_numbers() -> anyhow::Result<()> {
    async fn novel() -> Result<String, ToolError> {
        Ok("x".repeat(17 << 20))
    }
    let server = shared()?;
    let phone = Client::builder().tool("novel", "", novel);
    let (_phone, brain) = pair(&server, "sizes-of-results", phone, Assistant::builder()).await?;
    match brain.call("novel", ()).await {
        Err(CallError::Tool(error)) => {
            ensure!(error.code() == ErrorCode::RESULT_TOO_LARGE, "{error:?}");
            let numbers: Vec<usize> = error
                .message()
                .split(|it: char| !it.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            ensure!(numbers.contains(&(16 << 20)) && numbers.iter().any(|it| *it > 17 << 20), "{error:?}");
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn tools_too_large_for_a_frame_are_an_error_at_join() -> anyhow::Result<()> {
    let server = shared()?;
    let mut tools = Tools::new();
    for n in 0..100 {
        tools = tools.tool(&format!("tool-{n}"), &"x".repeat(3_000), double);
    }
    let token = server.key().client("sizes-of-tools", "phone").sign()?;
    let builder = Client::builder().configure(|it| it.caps.tools.description_bytes = 4_096).tools(tools);
    match builder.join(&server.url(), &token).await {
        Err(JoinError::Register(RegisterError::RegistrationTooLarge { size, limit })) => {
            ensure!(size > 300_000 && limit == 262_144, "{size} {limit}");
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn dropping_a_call_stops_the_function() -> anyhow::Result<()> {
    let running = Running::default();
    let server = shared()?;
    let phone = Client::builder().tools(running.tools());
    let (phone, brain) = pair(&server, "drop-a-call", phone, Assistant::builder()).await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    drop(call);
    running.until(0).await?;
    ensure!(phone.open_jobs() == 0);
    Ok(())
}

async fn timeout_names_its_milliseconds_and_stops_the_function() -> anyhow::Result<()> {
    let running = Running::default();
    let server = shared()?;
    let phone = Client::builder().tools(running.tools());
    let (_phone, brain) = pair(&server, "timeout", phone, Assistant::builder()).await?;
    let limit = Duration::from_millis(3_777);
    offers(&brain, "phone").await?;
    let mut call = brain.call("held", ()).timeout(limit).start();
    started(&mut call).await?;
    let error = soon("the timeout", call).await?.unwrap_err();
    ensure!(matches!(error, CallError::Timeout { limit: named } if named == limit), "{error:?}");
    ensure!(error.to_string().contains("3777 ms") && error.may_have_run(), "{error}");
    running.until(0).await
}

async fn tool_without_an_owner_is_unknown() -> anyhow::Result<()> {
    let server = shared()?;
    let (_phone, brain) =
        pair(&server, "nobody", Client::builder().tool("double", "", double), Assistant::builder()).await?;
    brain.call("double", json!({"n": 1})).await?;
    let wait = Duration::from_millis(200);
    let error = brain.call("treble", ()).owner_wait(wait).await.unwrap_err();
    ensure!(matches!(&error, CallError::UnknownTool { tool, .. } if &**tool == "treble"), "{error:?}");
    ensure!(!error.may_have_run());
    // A named owner that has registered is not waited for.
    let error = brain.call("treble", ()).to("phone").await.unwrap_err();
    ensure!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    Ok(())
}

async fn each_call_of_a_second_assistant_is_denied() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = client(&server, "second", "phone", Client::builder().tool("double", "", double)).await?;
    let mut events = phone.events();
    let one = assistant(&server, "second", "one", Assistant::builder().client("phone")).await?;
    ensure!(one.call("double", json!({"n": 1})).await?.decode::<u64>()? == 2);
    ensure!(phone.assistant() == Some("one".into()));

    // It can be called for an echo without having registered anything.
    let two = assistant(&server, "second", "two", Assistant::builder().client("phone")).await?;
    for _ in 0..2 {
        match two.call("bridge.echo", json!({"n": 1})).to("phone").await {
            Err(CallError::NotBound { clients, assistants, .. }) => {
                ensure!(clients == ["phone"] && *assistants == ["one"], "{clients:?} {assistants:?}");
            }
            other => bail!("{other:?}"),
        }
    }
    event(&mut events, "the complaint", |event| match event {
        Event::Violation { by: Some(by), .. } if by == "two" => Some(()),
        _ => None,
    })
    .await?;
    ensure!(
        one.call("double", json!({"n": 2})).await?.decode::<u64>()? == 4,
        "the first assistant is no longer bound"
    );
    Ok(())
}

async fn two_candidates_and_none_configured_bind_none() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = client(&server, "ambiguous", "phone", Client::builder().tool("double", "", double)).await?;
    let mut events = phone.events();
    let join =
        async |name: &str| assistant(&server, "ambiguous", name, Assistant::builder().client("phone")).await;
    let one = join("one").await?;
    one.call("double", json!({"n": 1})).await?;
    let mut others = Vec::new();
    for name in ["two", "three"] {
        let other = join(name).await?;
        // Any reply, even this one, shows that the client has received it.
        let refused = other.call("bridge.echo", json!({})).to("phone").await;
        ensure!(matches!(refused, Err(CallError::NotBound { .. })), "{refused:?}");
        others.push(other);
    }
    one.close().await;
    let candidates = event(&mut events, "the ambiguity", |event| match event {
        Event::AmbiguousAssistant { candidates } => Some(candidates),
        _ => None,
    })
    .await?;
    ensure!(candidates == [Identity::from("three"), Identity::from("two")], "{candidates:?}");
    ensure!(phone.assistant().is_none());
    others.pop();
    let bound = event(&mut events, "the choice", |event| match event {
        Event::Bound(Some(who)) => Some(who),
        _ => None,
    })
    .await?;
    ensure!(bound == "two", "{bound}");
    Ok(())
}

async fn named_participants_need_no_announcement() -> anyhow::Result<()> {
    let server = shared()?;
    let began = Instant::now();
    let (phone, brain) =
        pair(&server, "named-at-once", Client::builder().tool("double", "", double), Assistant::builder())
            .await?;
    let joined = began.elapsed();
    let (mut of_phone, mut of_brain) = (phone.events(), brain.events());
    ensure!(brain.call("double", json!({"n": 1})).await?.decode::<u64>()? == 2);
    println!("named by their authors: two joins {joined:?}, to the first result {:?}", began.elapsed());
    // The participant that joined last got the list of participants at its join; the other is still to be told of it.
    let known = [phone.participants().len(), brain.participants().len()];
    ensure!(known.iter().sum::<usize>() <= 1, "{known:?}");
    for (events, known, other) in [(&mut of_phone, known[0], "assistant"), (&mut of_brain, known[1], "phone")]
    {
        if known == 0 {
            event(events, "the announcement", |event| match event {
                Event::Joined(who) if who.identity() == other => Some(()),
                _ => None,
            })
            .await?;
            println!("{other} was announced after {:?}", began.elapsed());
        }
    }
    Ok(())
}

async fn client_known_by_its_attribute_waits_for_the_announcement() -> anyhow::Result<()> {
    let server = shared()?;
    let began = Instant::now();
    let phone = client(&server, "by-attribute", "phone", Client::builder().tool("double", "", double));
    let brain = assistant(&server, "by-attribute", "assistant", Assistant::builder());
    let (phone, brain) = tokio::try_join!(phone, brain)?;
    let joined = began.elapsed();
    ensure!(brain.call("double", json!({"n": 1})).await?.decode::<u64>()? == 2);
    println!("known by attribute: two joins {joined:?}, to the first result {:?}", began.elapsed());
    ensure!(brain.participants().iter().any(|who| who.identity() == "phone"));
    ensure!(phone.participants().iter().any(|who| who.identity() == "assistant"));
    Ok(())
}

async fn participant_without_permission_to_send_gets_the_reason() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().assistant("muted", "assistant").listen_only().sign()?;
    let brain = Assistant::builder().client("phone").join(&server.url(), &token).await?;
    let phone = client(&server, "muted", "phone", Client::builder().tool("double", "", double)).await?;
    let error = brain.call("double", json!({"n": 1})).await.unwrap_err();
    ensure!(matches!(error, CallError::NotAllowed) && !error.may_have_run(), "{error:?}");
    ensure!(error.to_string().contains("canPublishData"), "{error}");
    brain.close().await;
    phone.close().await;

    let token = server.key().client("muted", "phone").listen_only().sign()?;
    let phone = Client::builder().assistant("assistant").tool("double", "", double);
    let phone = phone.join(&server.url(), &token).await?;
    let mut events = phone.events();
    let brain = assistant(&server, "muted", "assistant", Assistant::builder().client("phone")).await?;
    event(&mut events, "the reason", |event| matches!(event, Event::NotAllowed).then_some(())).await?;
    let error = brain.call("double", json!({"n": 1})).owner_wait(Duration::from_secs(1)).await.unwrap_err();
    ensure!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    Ok(())
}

/// A token as any token server makes it: an identity, a room, and no role attribute.
fn ordinary_token(room: &str, identity: &str) -> anyhow::Result<String> {
    let grants = VideoGrants { room_join: true, room: room.into(), ..VideoGrants::default() };
    Ok(AccessToken::with_api_key(KEY, SECRET).with_identity(identity).with_grants(grants).to_jwt()?)
}

async fn ordinary_client(
    server: &Server,
    room: &str,
    identity: &str,
    builder: ClientBuilder,
) -> anyhow::Result<Client> {
    Ok(builder.tool("double", "Twice", double).join(&server.url(), &ordinary_token(room, identity)?).await?)
}

async fn client_with_an_ordinary_token_is_called() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "ordinary-client");
    let brain = assistant(&server, room, "assistant", Assistant::builder()).await?;
    let phone = ordinary_client(&server, room, "phone", Client::builder()).await?;
    offers(&brain, "phone").await?;
    ensure!(brain.call("double", json!({"n": 21})).await?.decode::<u64>()? == 42);
    ensure!(phone.assistant() == Some("assistant".into()));
    Ok(())
}

async fn two_ends_with_ordinary_tokens_call_if_the_client_names_its_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "ordinary-both");
    let token = ordinary_token(room, "assistant")?;
    let brain = Assistant::builder().join(&server.url(), &token).await?;
    let _phone = ordinary_client(&server, room, "phone", Client::builder().assistant("assistant")).await?;
    offers(&brain, "phone").await?;
    ensure!(brain.call("double", json!({"n": 21})).await?.decode::<u64>()? == 42);
    Ok(())
}

async fn second_client_with_an_ordinary_token_is_refused_with_the_reason() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "ordinary-second");
    let brain = assistant(&server, room, "assistant", Assistant::builder()).await?;
    let mut at_brain = brain.events();
    let _phone = ordinary_client(&server, room, "phone", Client::builder()).await?;
    offers(&brain, "phone").await?;
    let relay = Relay::start(&server).await?;
    let joined = LiveKitTransport::join(&relay.url(), &ordinary_token(room, "tablet")?).await?;
    // Nothing that it sends arrives before the test reads its events.
    relay.media().cut();
    let tablet = Client::builder().tool("double", "Twice", double).join_over(joined).await?;
    let mut at_tablet = tablet.events();
    relay.media().restore();
    let reason = event(&mut at_tablet, "the refusal", |event| match event {
        Event::Unaccepted { why: Unaccepted::Refused { by, reason } } if by == "assistant" => Some(reason),
        _ => None,
    })
    .await?;
    ensure!(reason.contains("toolbridge.role=client"), "{reason}");
    let why = event(&mut at_brain, "who is refused", |event| match event {
        Event::NotAdmitted { client, why } if client == "tablet" => Some(why),
        _ => None,
    })
    .await?;
    ensure!(why == NotAdmitted::NoRole { admitted: Some("phone".into()) }, "{why:?}");
    ensure!(brain.tools().iter().all(|offer| offer.owner == "phone"), "{:?}", brain.tools());
    ensure!(
        brain.call("double", json!({"n": 2})).await?.decode::<u64>()? == 4,
        "the first client is no longer registered"
    );
    Ok(())
}
