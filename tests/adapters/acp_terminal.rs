//! Commands and files that an agent asks for over the protocol: only what a person has allowed.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CancellationToken, Client, ToolContext, ToolError, ToolSource as _,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{Happened, RecordedOutcome, Recording, calls},
};

use crate::{
    acp_client::{context, is_gone, prompt},
    acp_script::AgentScript,
    folder::Folder,
};

/// Functions of a script: each sends one request, and keeps the reply.
const TERMINAL: &str = r#"
request() { ask "$1" "{\"sessionId\":\"s1\",$2}"; keep replies "$reply"; }
create() { request terminal/create "\"command\":\"sh\",\"args\":[\"-c\",\"$1\"]${2:+,$2}"; }
of() { request "terminal/$1" "\"terminalId\":\"$2\""; }
until_output() { until case "$reply" in *"$2"*) true ;; *) false ;; esac; do ask terminal/output "{\"sessionId\":\"s1\",\"terminalId\":\"$1\"}"; done; }
"#;

/// The time after which a test fails because processes do not end.
const BOUND: Duration = Duration::from_secs(30);

type Asked = Arc<Mutex<Vec<Prompt>>>;

/// A context whose person gives this answer, and what the person was asked.
fn answering(answer: PromptAnswer) -> (ToolContext, Asked) {
    let asked: Asked = Arc::default();
    let theirs = Arc::clone(&asked);
    let context = context().with_answers(move |prompt| {
        theirs.lock().unwrap().push(prompt);
        let answer = answer.clone();
        async move { Ok(answer) }
    });
    (context, asked)
}

fn allowing() -> (ToolContext, Asked) {
    answering(PromptAnswer::selected("run"))
}

/// Returns what the requests returned: a result, or the code of an error.
fn replies(script: &AgentScript) -> Vec<Json> {
    let read = |line: &str| {
        let mut reply: Json = serde_json::from_str(line).unwrap();
        if reply["error"].is_null() { reply["result"].take() } else { reply["error"]["code"].take() }
    };
    script.kept("replies").lines().map(read).collect()
}

/// Runs one prompt of an agent that may run commands in this folder.
async fn run(script: &AgentScript, body: &str, folder: &Path, context: ToolContext) -> Vec<Json> {
    let body = format!("{body}\nended \"$1\"");
    let agent = script.agent(&body, TERMINAL).folder(folder).allow_commands().await.unwrap();
    prompt(&agent, "Work", context).await.unwrap();
    agent.close().await;
    replies(script)
}

#[tokio::test]
async fn acp_c16_command_runs_after_a_yes_and_its_output_and_status_are_read() {
    let (script, folder) = (AgentScript::new("acp-terminal"), Folder::new());
    let (context, asked) = allowing();
    let body = r#"
        create 'printf hello; echo no >&2; pwd; exit 3'
        of wait_for_exit t1; of output t1; of release t1
        of output t1; of kill t1; of output t9; request terminal/output '"terminalId":7'"#;
    let replies = run(&script, body, &folder.file(""), context).await;
    let root = fs::canonicalize(folder.file("")).unwrap();
    assert_eq!(
        replies[..4],
        [
            json!({"terminalId": "t1"}),
            json!({"exitCode": 3, "signal": null}),
            json!({
                "output": format!("hellono\n{}\n", root.display()),
                "truncated": false,
                "exitStatus": {"exitCode": 3, "signal": null},
            }),
            json!({}),
        ]
    );
    assert_eq!(replies[4..], [-32_602, -32_602, -32_602, -32_602]);
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Permission(ask)] = &asked[..] else { panic!("{asked:?}") };
    // The person reads which program it is.
    let sh = toolbridge::process::Command::find("sh").unwrap().program().to_str().unwrap().to_owned();
    let place = folder.file("");
    let text = format!(
        "{} asks to run a command in {}: {sh} -c 'printf hello; echo no >&2; pwd; exit 3'",
        script.name(),
        place.display()
    );
    assert_eq!(ask.text.as_deref(), Some(&*text));
    assert_eq!(ask.tool_call.kind.as_deref(), Some("execute"));
    let input = ask.tool_call.raw_input.as_ref().unwrap().to_json();
    assert_eq!(
        input,
        json!({"command": sh, "args": ["-c", "printf hello; echo no >&2; pwd; exit 3"], "env": [], "cwd": place})
    );
    assert_eq!(
        ask.options.iter().map(|it| it.kind.as_str()).collect::<Vec<_>>(),
        ["allow_once", "reject_once"]
    );
}

#[tokio::test]
async fn command_without_a_clear_yes_does_not_run() {
    let folder = Folder::new();
    let nobody = context().with_answers(|_| async { Err(ToolError::from("nobody is there")) });
    let cases = [
        ("nobody", nobody, 0),
        ("refused", answering(PromptAnswer::selected("refuse")).0, 0),
        ("other", answering(PromptAnswer::selected("allow_always")).0, 0),
        ("declined", answering(PromptAnswer::declined()).0, 0),
        // What is said must name the option.
        ("said", answering(PromptAnswer::selected("run").text("yes")).0, 0),
        ("named", answering(PromptAnswer::selected("run").text("Run it!")).0, 1),
    ];
    for (name, context, runs) in cases {
        let script = AgentScript::new(&format!("acp-terminal-{name}"));
        let marker = folder.file(name);
        let body = format!("create 'touch {}'; of wait_for_exit t1", marker.display());
        let replies = run(&script, &body, &folder.file(""), context).await;
        assert_eq!(marker.exists(), runs == 1, "{name}: {replies:?}");
        assert_eq!(replies[0] == json!(-32_600), runs == 0, "{name}: {replies:?}");
    }
}

#[tokio::test]
async fn acp_c9_yes_to_a_command_is_never_kept() {
    let script = AgentScript::new("acp-terminal-again");
    // The agent names a tool of its own as questions about commands do, and is allowed it for always.
    let ask = r#"request session/request_permission '"toolCall":{"toolCallId":"1","name":"terminal"},"options":[{"optionId":"run","name":"Always","kind":"allow_always"}]'"#;
    let body = format!("{ask}; {ask}; create true; create true; create true");
    let (context, asked) = allowing();
    let replies = run(&script, &body, Path::new("/"), context).await;
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "run"}});
    assert_eq!(replies[..2], [yes.clone(), yes]);
    assert_eq!(replies[4], json!({"terminalId": "t3"}));
    // Once about the tool, which is kept, and about each command.
    assert_eq!(asked.lock().unwrap().len(), 1 + 3);
}

#[tokio::test]
async fn acp_c9_command_is_asked_about_whatever_the_settings_allow() {
    let script = AgentScript::new("acp-terminal-kinds");
    let body = r#"create true; ended "$1""#;
    let agent = script.agent(body, TERMINAL).allow_commands().allow_kind("execute").allow_kind("other");
    let agent = agent.await.unwrap();
    let (context, asked) = answering(PromptAnswer::declined());
    prompt(&agent, "Work", context).await.unwrap();
    agent.close().await;
    assert_eq!((replies(&script), asked.lock().unwrap().len()), (vec![json!(-32_600)], 1));
}

#[tokio::test]
async fn acp_c16_output_over_the_protocol_is_kept_from_its_end_at_a_character_boundary() {
    let script = AgentScript::new("acp-terminal-limit");
    let body = r#"create 'printf abéüöä' '"outputByteLimit":7'; of wait_for_exit t1; of output t1"#;
    let replies = run(&script, body, Path::new("/"), allowing().0).await;
    assert_eq!((&replies[2]["output"], &replies[2]["truncated"]), (&json!("üöä"), &json!(true)));
}

#[tokio::test]
async fn killed_command_keeps_its_output_and_ends_with_its_group() {
    let script = AgentScript::new("acp-terminal-kill");
    let body = r#"
        create 'sleep 1000 & echo $! $$; exec sleep 1000'
        until_output t1 '\n'
        of kill t1; of wait_for_exit t1; of output t1; of kill t1"#;
    let replies = run(&script, body, Path::new("/"), allowing().0).await;
    assert_eq!(replies[2], json!({"exitCode": null, "signal": "15"}));
    let output = replies[3]["output"].as_str().unwrap();
    let pids: Vec<i32> = output.split_whitespace().map(|it| it.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| is_gone(*pid)), "{pids:?}");
    assert_eq!(replies[4], json!({}), "it has ended already");
}

#[tokio::test]
async fn commands_end_with_their_agent_and_are_limited_in_number() {
    let script = AgentScript::new("acp-terminal-many");
    let body = r#"for n in 1 2 3 4 5 6 7 8; do create 'echo $$; exec sleep 1000'; until_output "t$n" '\n'; keep output "$reply"; done
        create true"#;
    let (context, asked) = allowing();
    let replies = run(&script, body, Path::new("/"), context).await;
    assert_eq!(replies[8], -32_600, "the ninth: {replies:?}");
    assert_eq!(asked.lock().unwrap().len(), 8);
    let pids = pids(&script);
    assert_eq!(pids.len(), 8);
    all_gone(&pids).await;
}

#[tokio::test]
async fn commands_that_are_asked_for_at_once_are_limited_in_number() {
    let script = AgentScript::new("acp-terminal-at-once");
    let body = r#"
        for n in $(seq 10); do
            printf '{"jsonrpc":"2.0","id":%s,"method":"terminal/create","params":{"sessionId":"s1","command":"sleep","args":["1000"]}}\n' $n
        done
        say ready
        for n in $(seq 10); do IFS= read -r reply; keep replies "$reply"; done"#;
    // The person answers when all of them have come.
    let (ready, asked) = (CancellationToken::new(), Asked::default());
    let (announced, answers) = (ready.clone(), Arc::clone(&asked));
    let context = context()
        .with_progress(move |it| {
            if it.message.as_deref() == Some("ready") {
                announced.cancel();
            }
        })
        .with_answers(move |prompt| {
            answers.lock().unwrap().push(prompt);
            let ready = ready.clone();
            async move {
                ready.cancelled().await;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                Ok(PromptAnswer::selected("run"))
            }
        });
    let replies = run(&script, body, Path::new("/"), context).await;
    assert_eq!(replies.iter().filter(|it| **it == json!(-32_600)).count(), 2, "{replies:?}");
    assert_eq!(asked.lock().unwrap().len(), 8, "nobody is asked about a command that cannot run");
}

#[tokio::test]
async fn acp_c12_commands_of_a_cancelled_turn_are_killed() {
    let script = AgentScript::new("acp-terminal-cancelled");
    // The command of an earlier turn goes on. One turn is cancelled by the person, one by the agent.
    let body = r#"
        create 'echo $$; exec sleep 1000'; until_output "t$((n=${n:-0}+1))" '\n'; keep output "$reply"
        case "$2" in
        *person*) say ready; IFS= read -r line; answer "$1" '{"stopReason":"cancelled"}' ;;
        *agent*) answer "$1" '{"stopReason":"cancelled"}' ;;
        *) ended "$1" ;;
        esac"#;
    let agent = script.agent(body, TERMINAL).allow_commands().await.unwrap();
    prompt(&agent, "begin", allowing().0).await.unwrap();
    let token = CancellationToken::new();
    let cancel = token.clone();
    let context = allowing().0.with_cancellation(token);
    let context = context.with_progress(move |it| {
        if it.message.as_deref() == Some("ready") {
            cancel.cancel();
        }
    });
    prompt(&agent, "by the person", context).await.unwrap_err();
    prompt(&agent, "by the agent", allowing().0).await.unwrap_err();
    let pids = pids(&script);
    assert_eq!(pids.len(), 3);
    all_gone(&pids[1..]).await;
    assert!(!is_gone(pids[0]));
    agent.close().await;
    all_gone(&pids).await;
}

/// Returns the processes whose ids the commands wrote.
fn pids(script: &AgentScript) -> Vec<i32> {
    let pid = |line: &str| {
        let reply: Json = serde_json::from_str(line).unwrap();
        reply["result"]["output"].as_str().unwrap().trim().parse().unwrap()
    };
    script.kept("output").lines().map(pid).collect()
}

async fn all_gone(pids: &[i32]) {
    let gone = async {
        while !pids.iter().all(|pid| is_gone(*pid)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, gone).await.unwrap_or_else(|_| panic!("{pids:?}"));
}

#[tokio::test]
async fn command_whose_stream_a_daemon_keeps_open_has_an_end() {
    let (script, folder) = (AgentScript::new("acp-terminal-daemon"), Folder::new());
    let (program, pid) = (folder.file("daemon.sh"), folder.file("pid"));
    let daemon =
        "setsid sh -c 'echo $$ > \"$0\"; exec sleep 1000' \"$1\" & until [ -s \"$1\" ]; do :; done; echo up";
    fs::write(&program, daemon).unwrap();
    let body =
        format!("create 'sh {} {}'; of wait_for_exit t1; of output t1", program.display(), pid.display());
    let replies = run(&script, &body, Path::new("/"), allowing().0).await;
    let daemon = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    assert_eq!(
        (&replies[1], &replies[2]["output"]),
        (&json!({"exitCode": 0, "signal": null}), &json!("up\n"))
    );
}

#[tokio::test]
async fn path_of_a_command_counts_from_the_folder_that_is_shown() {
    let (script, folder) = (AgentScript::new("acp-terminal-path"), Folder::new());
    let program = folder.file("build.sh");
    fs::write(&program, "#!/bin/sh\necho built\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let cwd = folder.file("").display().to_string();
    let body = format!(
        r#"request terminal/create '"command":"./build.sh","cwd":"{cwd}"'
        of wait_for_exit t1; of output t1
        request terminal/create '"command":"./build.sh"'
        request terminal/create '"command":"true","cwd":"relative"'
        request terminal/create '"command":"no-such-program-here"'
        request terminal/create '"command":"tr\u0000ue"'"#
    );
    let replies = run(&script, &body, Path::new("/"), allowing().0).await;
    assert_eq!(replies[2]["output"], "built\n");
    assert_eq!(replies[3..], [-32_602, -32_602, -32_602, -32_602]);
}

#[tokio::test]
async fn sec_a3_command_gets_no_tokens_from_the_environment() {
    let script = AgentScript::new("acp-terminal-env");
    let body =
        r#"create env '"env":[{"name":"OWN","value":"a b"}]'; of wait_for_exit t1; of output t1; ended "$1""#;
    let (context, asked) = allowing();
    let agent = script.agent(body, TERMINAL).env("OF_THE_AGENT", "planted").allow_commands().await.unwrap();
    prompt(&agent, "Work", context).await.unwrap();
    agent.close().await;
    let replies = replies(&script);
    let env = replies[2]["output"].as_str().unwrap();
    assert!(env.contains("OWN=a b") && env.contains("PATH="), "{env}");
    for none in ["LIVEKIT", "TOOLBRIDGE", "CARGO", "OF_THE_AGENT"] {
        assert!(!env.contains(none), "{none}: {env}");
    }
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Permission(ask)] = &asked[..] else { panic!("{asked:?}") };
    assert!(ask.text.as_deref().unwrap().ends_with("sh -c env with 'OWN=a b'"), "{ask:?}");
}

#[tokio::test]
async fn acp_c16_output_of_a_released_terminal_is_shown_in_its_call() {
    let script = AgentScript::new("acp-terminal-shown");
    let body = r#"
        create 'printf 3-passed'; of wait_for_exit t1
        call '"toolCallId":"1","title":"Test","kind":"execute","status":"in_progress","content":[{"type":"terminal","terminalId":"t1"}]'
        of release t1
        change '"toolCallId":"1","status":"completed"'
        ended "$1""#;
    let agent = script.agent(body, TERMINAL).allow_commands().await.unwrap();
    let (room, folder) = (MemoryRoom::new(), Folder::new());
    let file = folder.file("room.mcap");
    let person = |_: PromptRequest| async { Ok::<_, ToolError>(PromptAnswer::selected("run")) };
    let assistant = Assistant::builder().tools(agent.clone()).prompt(person).record(&file);
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    let phone = Client::builder().join_over(room.client("phone")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "Test"})).await.unwrap();
    assistant.close().await;
    phone.close().await;
    agent.close().await;
    let entries = || Recording::open(&file).unwrap().entries();
    let call = calls(entries()).calls.into_iter().find(|it| it.tool == "Test").unwrap();
    assert_eq!(call.outcome, RecordedOutcome::Ok);
    let shown = |at: &usize| match &entries().nth(*at).unwrap().what {
        Happened::Packet(packet) => String::from_utf8_lossy(&packet.payload).contains("3-passed"),
        _ => false,
    };
    assert!(call.entries.iter().any(shown), "the output is in no frame of the call");
}

#[tokio::test]
async fn sec_a3_files_outside_of_the_folder_are_refused_over_the_protocol() {
    let (script, folder) = (AgentScript::new("acp-files"), Folder::new());
    let work = folder.file("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("a.txt"), "one\ntwo\n").unwrap();
    let secret = folder.file("secret.txt");
    fs::write(&secret, "hunter2").unwrap();
    symlink(&secret, work.join("link")).unwrap();
    symlink("..", work.join("up")).unwrap();
    symlink("/proc/self", work.join("self")).unwrap();
    let paths: [PathBuf; 8] = [
        secret.clone(),
        work.join("../secret.txt"),
        work.join("link"),
        work.join("up/secret.txt"),
        work.join("self/environ"),
        "/proc/self/environ".into(),
        format!("/proc/{}/root{}", std::process::id(), secret.display()).into(),
        "a.txt".into(),
    ];
    let read = |path: &Path| format!("request fs/read_text_file '\"path\":\"{}\"'\n", path.display());
    let write = |path: &Path| {
        format!("request fs/write_text_file '\"path\":\"{}\",\"content\":\"new\"'\n", path.display())
    };
    let mut body = read(&work.join("a.txt")) + &write(&work.join("b.txt")) + &read(&work.join("b.txt"));
    body += &paths.iter().map(|path| read(path) + &write(path)).collect::<String>();
    body += &format!(
        "ask fs/read_text_file '{{\"sessionId\":\"s2\",\"path\":\"{}\"}}'; keep replies \"$reply\"\n",
        work.join("a.txt").display()
    );
    // Commands were not allowed.
    body += "create true; of output t1\nended \"$1\"";
    let agent = script.agent(&body, TERMINAL).allow_files(&work).await.unwrap();
    prompt(&agent, "Read", allowing().0).await.unwrap();
    agent.close().await;
    let initialize: Json = serde_json::from_str(script.kept("initialize").trim()).unwrap();
    let offered = &initialize["params"]["clientCapabilities"];
    assert_eq!(offered["fs"], json!({"readTextFile": true, "writeTextFile": true}));
    assert_eq!(offered["terminal"], false);
    let replies = replies(&script);
    assert_eq!(replies[..3], [json!({"content": "one\ntwo\n"}), json!({}), json!({"content": "new"})]);
    let (outside, rest) = replies[3..].split_at(2 * paths.len());
    assert!(outside.iter().all(|it| *it == -32_602), "{outside:?}");
    assert_eq!(rest, [-32_602, -32_601, -32_601]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "hunter2");
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "one\ntwo\n");
}
