//! Agents as children that attack: `sec_x1` and `sec_x2` for ACP. `mcp_abuse.rs` has `sec_x3` for both kinds of servers.

use std::{fs, future::IntoFuture as _};

use serde_json::Value as Json;
use toolbridge::{
    Consent, ErrorCode, ToolSource as _,
    adapter::{SourceError, acp},
    tools::SourceHealth,
};

use crate::{
    acp_client::{context, prompt},
    acp_script::AgentScript,
    mcp_abuse::{SHELL_TEXTS, STUBBORN},
    program_tools::{self, ProcessPipe},
};

#[tokio::test]
async fn sec_x1_words_of_an_agents_command_and_its_prompts_reach_no_shell() {
    let script = AgentScript::new("acp-x1");
    let more = r#"for word do printf '%s\0' "$word"; done > "$0.words""#;
    drop(script.agent(r#"keep prompts "$2"; ended "$1""#, more));
    let folder = program_tools::folder("acp-x1-folder");
    let command = script.command();
    let (sh, path) = command.split_once(' ').unwrap();
    let words: Vec<&str> = [sh, path].into_iter().chain(SHELL_TEXTS).collect();
    let line = shlex::try_join(words.iter().copied()).unwrap();
    // Unquoted, these are words as well.
    let bare = [";", "touch", "ran", ">", "$HOME/x", "`touch", "ran`"];
    for (agent, expected) in [
        (acp::stdio(words), &SHELL_TEXTS[..]),
        (acp::line(&line), &SHELL_TEXTS),
        (acp::line(&format!("{command} {}", bare.join(" "))), &bare),
    ] {
        let agent = agent.consent(Consent::Never).folder(&folder).await.unwrap();
        let given = script.kept("words");
        assert_eq!(given.trim_end_matches('\0').split('\0').collect::<Vec<_>>(), expected);
        for text in SHELL_TEXTS.into_iter().chain(["a\0b", "\u{1b}[2J", "\"}}\n{\"jsonrpc\":\"2.0\""]) {
            prompt(&agent, text, context()).await.unwrap();
            let written: Json = serde_json::from_str(script.kept("prompts").lines().last().unwrap()).unwrap();
            assert_eq!(written["params"]["prompt"][0]["text"], text);
        }
        agent.close().await;
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "something ran");
    for nul in [acp::line("sh -c \0"), acp::stdio(["sh", "a\0b"]), acp::stdio(["s\0h"])] {
        let error = nul.await.unwrap_err();
        assert!(matches!(error, SourceError::Setting { .. } | SourceError::NotStarted { .. }), "{error}");
    }
}

#[tokio::test]
async fn sec_x2_agent_that_ignores_its_end_and_its_children_are_killed() {
    for end in ["close", "drop", "drop of the close", "drop of the start"] {
        let mut pipe = ProcessPipe::new("acp-stubborn");
        let script = AgentScript::new("acp-stubborn-agent");
        let open = if end == "drop of the start" { "new_session() { :; }" } else { "" };
        let more = format!("exec 3>'{}'; {STUBBORN}\n{open}", pipe.path.display());
        let mut starting = script.agent(r#"ended "$1""#, &more).into_future();
        if end == "drop of the start" {
            tokio::select! {
                _ = &mut starting => panic!("it has not opened a session"),
                line = pipe.begun() => assert_eq!(line, "begun"),
            }
            drop(starting);
        } else {
            let agent = starting.await.unwrap();
            match end {
                "close" => agent.close().await,
                "drop" => drop(agent),
                _ => {
                    let mut closing = Box::pin(agent.close());
                    assert!(futures_util::poll!(&mut closing).is_pending());
                    drop(closing);
                    drop(agent);
                }
            }
        }
        pipe.all_processes_ended().await;
    }
}

#[tokio::test]
async fn sec_x2_agent_with_endless_lines_that_are_no_messages_ends_with_its_children_when_it_is_closed() {
    let mut pipe = ProcessPipe::new("acp-yes");
    let script = AgentScript::new("acp-yes-agent");
    let body = format!("exec 3>'{}'; trap '' TERM; sleep 1000 & echo begun >&3; yes", pipe.path.display());
    let agent = script.agent(&body, "").await.unwrap();
    let closing = async {
        pipe.begun().await;
        agent.close().await;
    };
    let (outcome, ()) = tokio::join!(prompt(&agent, "Talk", context()), closing);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::EXECUTION_ERROR);
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_agent_with_a_line_without_an_end_is_killed_with_its_children() {
    let pipe = ProcessPipe::new("acp-zero");
    let script = AgentScript::new("acp-zero-agent");
    let body =
        format!("exec 3>'{}'; trap '' TERM; sleep 1000 & echo begun >&3; cat /dev/zero", pipe.path.display());
    let agent = script.agent(&body, "").await.unwrap();
    let error = prompt(&agent, "Talk", context()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    assert!(error.message().contains("a line has no end after"), "{}", error.message());
    assert!(matches!(agent.health(), SourceHealth::Down { .. }), "{:?}", agent.health());
    pipe.all_processes_ended().await;
    agent.close().await;
}
