//! Rights belong to a join: another token for the identity of a participant that has left gives none of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, Event, State, ToolError, Tools, livekit::ConnectOptions,
    session::Unaccepted, tools::NotAssistant, transport::ROLE_ATTRIBUTE,
};

use crate::{
    ends::{assistant, client, event},
    server::{Server, shared},
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![joins:
        token_without_the_role_runs_nothing_under_a_departed_assistants_identity,
        client_whose_token_forbids_sending_runs_nothing,
    ]
}

/// When the second participant joins under the assistant's identity.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The assistant is in the room.
    Present,
    /// It has said goodbye.
    Unbound,
    /// The room has announced that it left.
    Left,
    /// It was removed, and the room has announced that it left.
    Removed,
}

async fn erase(State(runs): State<Arc<AtomicUsize>>) -> Result<(), ToolError> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

async fn token_without_the_role_runs_nothing_under_a_departed_assistants_identity() -> anyhow::Result<()> {
    let server = shared()?;
    let run = |moment, role| second_token(&server, moment, role);
    tokio::try_join!(
        run(Moment::Present, None),
        run(Moment::Present, Some("admin")),
        run(Moment::Unbound, None),
        run(Moment::Left, None),
        run(Moment::Left, Some("client")),
        run(Moment::Removed, None),
    )?;
    Ok(())
}

/// Lets an assistant call and leave. Then a participant with its identity and another token calls.
async fn second_token(server: &Server, moment: Moment, role: Option<&str>) -> anyhow::Result<()> {
    let room = format!("joins-{moment:?}-{}", role.unwrap_or("none"));
    let runs = Arc::new(AtomicUsize::new(0));
    let tools = Tools::with_state(Arc::clone(&runs)).tool("erase", "", erase);
    let phone = client(server, &room, "phone", Client::builder().tools(tools)).await?;
    let mut events = phone.events();
    let brain = assistant(server, &room, "brain", Assistant::builder().client("phone")).await?;
    brain.call("erase", ()).owner_wait(Duration::from_secs(10)).await?;
    match moment {
        Moment::Present => {}
        Moment::Unbound => {
            brain.close().await;
            event(&mut events, "the goodbye", |it| matches!(it, Event::Bound(None)).then_some(())).await?;
        }
        Moment::Left | Moment::Removed => {
            if let Moment::Left = moment {
                brain.close().await;
            } else {
                let gone = json!({"room": room, "identity": "brain"});
                server.room_service("RemoveParticipant", &room, gone).await?;
            }
            event(&mut events, "its leave", |it| {
                matches!(it, Event::Left(who) if who.identity() == "brain").then_some(())
            })
            .await?;
        }
    }
    let attributes: Vec<_> = role.map(|role| (ROLE_ATTRIBUTE, role)).into_iter().collect();
    let token = server.token(&room, "brain", &attributes)?;
    // Neither the library nor the command line joins with a token of another role, so the transport does.
    let transport = ConnectOptions::new().join(&server.url(), &token).await?;
    let other = Assistant::builder().client("phone").join_over(transport).await?;
    let call = other.call("erase", ()).timeout(Duration::from_secs(9)).owner_wait(Duration::from_secs(8));
    let outcome = call.await;
    ensure!(outcome.is_err() && runs.load(Ordering::SeqCst) == 1, "{moment:?} {role:?}: {outcome:?}");
    let named = other.call("erase", ()).to("phone").timeout(Duration::from_secs(3)).await;
    ensure!(named.is_err() && runs.load(Ordering::SeqCst) == 1, "{moment:?} {role:?}: {named:?}");
    let why = event(&mut events, "why it is not accepted", |it| match it {
        Event::Unaccepted { why: Unaccepted::NotAssistant { from, why } } if from == "brain" => Some(why),
        _ => None,
    })
    .await?;
    let expected = match role {
        None => NotAssistant::NoRole,
        Some("client") => NotAssistant::OtherRole { role: toolbridge::Role::Client },
        Some(value) => NotAssistant::UnknownRole { value: value.into() },
    };
    ensure!(why == expected, "{why:?}");
    Ok(())
}

async fn client_whose_token_forbids_sending_runs_nothing() -> anyhow::Result<()> {
    let server = shared()?;
    let runs = Arc::new(AtomicUsize::new(0));
    let tools = Tools::with_state(Arc::clone(&runs)).tool("erase", "", erase);
    let token = server.key().client("mute", "phone").listen_only().sign()?;
    let phone = Client::builder().tools(tools).assistant("brain").join(&server.url(), &token).await?;
    let brain = assistant(&server, "mute", "brain", Assistant::builder().client("phone")).await?;
    // It is called as a plain peer, since it answers nothing.
    let outcome = brain.call("erase", ()).to("phone").timeout(Duration::from_secs(8)).await;
    match outcome {
        Err(CallError::Timeout { .. } | CallError::Lost { .. } | CallError::UnknownTool { .. }) => {}
        other => bail!("{other:?}"),
    }
    ensure!(runs.load(Ordering::SeqCst) == 0, "a tool ran, and its result could not be sent");
    phone.close().await;
    Ok(())
}
