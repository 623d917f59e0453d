//! Programs that a supervisor starts: they end with their client process, and otherwise run as without a supervisor.

use std::{
    fs::{self, Permissions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use toolbridge::{ErrorCode, ToolError, ToolSource as _, Value, programs::ProgramTools};

use crate::{
    cli::{complaint, run as run_cli, toolbridge},
    cli_dev::dev,
    program_tools::{ProcessPipe, context, file, folder, run, shell},
};

fn supervised(tools: ProgramTools) -> ProgramTools {
    tools.supervisor(env!("CARGO_BIN_EXE_toolbridge"))
}

/// An assistant that runs its own tool `t`, a shell script, in its own room.
fn calling(test: &str, script: &str) -> (Child, Child) {
    let script = toml::Value::from(script);
    let text = format!(
        "[[tools]]\nname = \"t\"\ndescription = \"\"\ncommand = [\"/bin/sh\", \"-c\", {script}]\ntimeout = \"10m\"\n"
    );
    let tools = file(&folder(test), &text);
    let (server, settings) = dev();
    let mut assistant = toolbridge(&["assistant", "--room", "r", "--tools", tools.to_str().unwrap()])
        .envs(settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = json!({"type": "call", "id": 1, "tool": "t", "timeoutMs": 600_000});
    writeln!(assistant.stdin.as_mut().unwrap(), "{line}").unwrap();
    (server, assistant)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn killed_client_ends_its_programs_and_their_children() {
    for (test, trap) in [("killed", ""), ("killed-deaf", "trap '' TERM; ")] {
        let mut pipe = ProcessPipe::new(test);
        // Neither the program nor its child holds a stream of the client.
        let script = format!(
            "{trap}exec 3>'{}' </dev/null >/dev/null 2>&1; sleep 1000 & echo begun >&3; while :; do sleep 1000; done",
            pipe.path.display()
        );
        let (server, assistant) = calling(test, &script);
        assert_eq!(pipe.begun().await, "begun");
        end(assistant);
        pipe.all_processes_ended().await;
        end(server);
    }
}

#[tokio::test]
async fn killed_supervisor_ends_its_program_and_the_call() {
    let mut pipe = ProcessPipe::new("no-supervisor");
    let script = "trap '' TERM; sleep 1000 & echo $PPID >&3; while :; do sleep 1000; done";
    let tools = supervised(pipe.tool(script, ""));
    let arguments = json!({});
    let kill = async {
        let supervisor = pipe.begun().await.parse().unwrap();
        assert_ne!(supervisor, std::process::id() as i32);
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    };
    let (outcome, ()) = tokio::join!(run(&tools, &arguments), kill);
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    assert!(error.message().contains("signal: 9"), "{error}");
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn supervised_program_has_the_same_outcome_as_without_supervisor() {
    let outcome = async |tools: &ProgramTools| {
        let arguments = json!({"text": "ä\n\"", "long": "x".repeat(400_000)});
        run(tools, &arguments).await.map(|body| body.to_json()).map_err(|error| {
            let source = error.source().map(ToString::to_string);
            (error.code(), error.message().to_owned(), source)
        })
    };
    for script in [
        "cat",
        "cat >/dev/null",
        "exec <&-; echo 7",
        "exec >&-; sleep 0; exit 0",
        "exec >&- 2>&- <&-; exit 4",
        "exit 3",
        "exit 255",
        "echo first >&2; echo last >&2; exit 1",
        "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1",
        "kill -9 $$",
        "kill -TERM $$",
        "kill -SEGV $$",
        "trap 'echo 8; exit 0' TERM; kill -TERM 0; exit 9",
        "kill -9 0",
        "kill -USR1 0", // not INT, which a background job may be started to ignore
        "echo hunter2",
        "echo '\"a\"; ",
        "echo 7; (echo late; sleep 1000) >/dev/null & ",
        "exec yes",
        r#"printf '["%s", "%s", "%s"]' "$PATH" "$PWD" "$HOME$LANG$CARGO_PKG_NAME""#,
        "ls /proc/self/fd | tr -d '\\n'",
        "exec /no/such/program",
        "grep -c . /proc/self/status >/dev/null; grep -E '^Sig(Blk|Cgt)' /proc/self/status >&2; exit 1",
    ] {
        let alone = shell(script, "");
        assert_eq!(outcome(&supervised(alone.clone())).await, outcome(&alone).await, "{script}");
    }
}

#[tokio::test]
async fn supervised_program_that_cannot_start_reports_the_reason_only_locally() {
    let program = folder("supervised-no-start").join("program");
    fs::write(&program, "no program").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o600)).unwrap();
    let text = format!("[[tools]]\nname = \"t\"\ndescription = \"\"\ncommand = [{program:?}]\n");
    let tools = ProgramTools::from_toml(&text).unwrap();
    let alone = run(&tools, &json!({})).await.unwrap_err();
    let error = run(&supervised(tools), &json!({})).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE));
    assert_eq!(error.source().unwrap().to_string(), alone.source().unwrap().to_string());
}

#[tokio::test]
async fn helper_that_is_not_a_supervisor_fails_the_call_and_runs_nothing() {
    let marks = folder("no-helper");
    let mark = marks.join("ran");
    let tools = shell(&format!("touch '{}'", mark.display()), "");
    for (helper, says) in [
        ("/no/such/helper", "No such file"),
        ("/bin/true", "the supervisor ended before it started the program"),
        ("/bin/echo", "the supervisor ended before it started the program"),
    ] {
        let error = run(&tools.clone().supervisor(helper), &json!({})).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE));
        let source = error.source().unwrap().to_string();
        assert!(source.contains(says), "{helper}: {source}");
    }
    assert!(!mark.exists());
}

#[tokio::test]
async fn cancelled_supervised_program_is_asked_to_end_and_then_killed() {
    let done = folder("supervised-cancel").join("tidied");
    let tidies =
        format!("trap 'touch {}; exit 1' TERM; echo begun >&3; while :; do sleep 0.01; done", done.display());
    let deaf = "trap '' TERM; sleep 1000 & echo begun >&3; while :; do sleep 1000; done";
    for script in [tidies.as_str(), deaf] {
        let mut pipe = ProcessPipe::new("supervised-cancelled");
        let tools = supervised(pipe.tool(script, ""));
        let (token, name) = (CancellationToken::new(), "t".parse().unwrap());
        let call = tools.execute(&name, Value::empty(), context().with_cancellation(token.clone()));
        let cancel = async {
            pipe.begun().await;
            token.cancel();
        };
        let (outcome, ()) = tokio::join!(call, cancel);
        assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
        pipe.all_processes_ended().await;
    }
    assert!(done.exists());
}

#[tokio::test]
async fn dropped_call_ends_its_supervised_program_and_the_supervisor() {
    let mut pipe = ProcessPipe::new("supervised-dropped");
    let tools = supervised(pipe.tool("trap '' TERM; echo $PPID >&3; sleep 1000 & wait", ""));
    let arguments: Json = json!({});
    let supervisor = tokio::select! {
        _ = run(&tools, &arguments) => panic!("the program ended by itself"),
        line = pipe.begun() => Pid::from_raw(line.parse().unwrap()).unwrap(),
    };
    pipe.all_processes_ended().await;
    // It is reaped in its own thread.
    while rustix::process::test_kill_process(supervisor).is_ok() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn supervisor_started_by_a_person_refuses() {
    for arguments in [&["supervise"][..], &["supervise", "/bin/true"]] {
        let complaint = complaint(&run_cli(arguments), 2);
        assert!(complaint.contains("`ProgramTools`") && complaint.lines().count() == 1, "{complaint}");
    }
    let mut child = toolbridge(&["supervise", "/bin/true"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("does not lead a process group"), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(2));
}
