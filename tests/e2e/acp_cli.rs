//! Agents of the command line: a conversation at the terminal, `--acp` of a client and of an assistant, and a published agent
//! that demands a sign-in.

use std::{
    fs,
    path::PathBuf,
    process::{Command as StdCommand, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tokio::task::yield_now;
use toolbridge::{Assistant, Client, ToolError, ToolResult, Tools, prompt::PromptAnswer};

use crate::{
    acp_agent::missing,
    acp_client::NODE,
    ends::{assistant, client, double, offers},
    program::{Planned, Program, folder, script},
    server::{self, Server, shared},
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    type Missing = fn() -> Option<&'static str>;
    let tests: [(&str, Missing, Test); 7] = [
        ("conversation_at_the_terminal", missing, || Box::pin(conversation())),
        ("folder_of_allow_fs_is_open_to_the_agent_of_a_conversation", missing, || Box::pin(files_of_acp())),
        ("folder_of_allow_fs_is_open_to_the_agent_of_a_client", missing, || Box::pin(files_of_a_client())),
        ("agent_of_a_client_works_on_its_machine", missing, || Box::pin(of_a_client())),
        ("agent_of_an_assistant_calls_the_tools_of_a_client", missing, || Box::pin(of_an_assistant())),
        ("published_agent_without_an_account_says_how_to_sign_in", missing_codex, || Box::pin(sign_in())),
        ("published_agent_does_not_outlive_the_command_line", missing_codex, || Box::pin(outlived())),
    ];
    let trial =
        |(name, missing, test): (&str, Missing, Test)| trial_with(&format!("acp_cli::{name}"), missing, test);
    tests.into_iter().map(trial).collect()
}

/// The command of the agent in Node, named `coder`.
fn coder() -> String {
    format!("coder={} run {NODE}", script().display())
}

/// Starts the program so that lines of standard error begin with `! ` and come with those of standard output.
fn terminal(server: &Server, arguments: &[&str]) -> anyhow::Result<Program> {
    let line = "exec toolbridge \"$@\" 2> >(sed -u 's/^/! /')";
    Program::other(server, "bash", &["-c", line, "bash"]).args(arguments).start()
}

/// A conversation with an agent, as a person at the terminal has it.
async fn conversation() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-conversation");
    let tools = Tools::new().tool("double", "Doubles a number", double);
    let _phone = client(&server, room, "phone", Client::builder().tools(tools)).await?;
    let script = script();
    let marker = folder(room)?.join("ran");
    let mut watch = Program::toolbridge(&server, &["watch", "--room", room]).start()?;
    let arguments = ["acp", "--room", room, "--client", "phone", "--allow-terminal", "--"];
    let agent = [script.to_str().context("not UTF-8")?, "run", NODE];
    let mut terminal = terminal(&server, &[&arguments[..], &agent].concat())?;
    let terminal = &mut terminal;
    terminal.line("! parts listens; type a prompt").await?;
    says(terminal, "say hello", &["hello"]).await?;
    says(terminal, "plan", &["! │ → Look around", "The agent ended its turn and said nothing."]).await?;
    // Everybody in the room sees the plan as a view of the assistant.
    watch.line("ViewUpdate").await?;
    watch.line("    ── parts/plan · plan, 0 of 1 done").await?;
    watch.line("    → Look around").await?;
    says(terminal, "room double {\"n\": 21}", &["\"value\":42"]).await?;

    // A plain yes is not enough to execute something.
    says(terminal, "permit execute", &["! │ parts asks: Run the tests", "! type `option 1 1`"]).await?;
    says(terminal, "yes", &["!   2: Do allow_always", "! type `option 1 1`"]).await?;
    says(terminal, "option 2 1", &["permit: o-allow_always"]).await?;
    let kept = "! │ Run the tests: allowed, as answered before for always";
    says(terminal, "permit execute", &[kept, "permit: o-allow_always"]).await?;
    says(terminal, "forget", &["! 1 permissions are forgotten"]).await?;
    says(terminal, "permit execute", &["! │ parts asks: Run the tests", "! type `option 1 2`"]).await?;
    says(terminal, "no", &["permit: o-reject_once"]).await?;

    // The agent asks with a form, a line for each field.
    let form = ["! │ parts asks: Who are you?", "! │ Your name:"];
    says(terminal, "ask", &form).await?;
    says(terminal, "", &["! a value is needed"]).await?;
    says(terminal, "Ada L.", &["ask: accept Ada L."]).await?;
    says(terminal, "ask", &form).await?;
    says(terminal, "no 4", &["ask: decline"]).await?;

    // Each command is asked about, with its words and its folder.
    let create = json!({"command": "touch", "args": [marker]});
    let touch = toolbridge::process::Command::find("touch")?;
    let (here, touch) = (std::env::current_dir()?, touch.program().display().to_string());
    let asks = format!("! │ parts asks to run a command in {}: {touch}", here.display());
    for (number, answer, said) in [
        (5, "no", r#"{"error":-32600}"#),
        (6, "option 1 6", r#"{"terminalId":"t1"}"#),
        (7, "no 7", r#"{"error":-32600}"#),
    ] {
        let type_it = format!("! type `option 1 {number}`");
        says(terminal, &format!("request terminal/create {create}"), &[&asks, &type_it]).await?;
        ensure!(marker.exists() == (number > 6), "before answer {number}");
        says(terminal, answer, &[&format!("request: {said}")]).await?;
        if number == 6 {
            says(terminal, "request terminal/wait_for_exit {\"terminalId\": \"t1\"}", &["\"exitCode\":0"])
                .await?;
        }
    }

    terminal.write("wait").await?;
    says(terminal, "cancel", &["! the prompt failed: "]).await?;
    says(terminal, "say bye", &["bye"]).await?;
    Ok(())
}

/// Types a line, and waits for lines with these texts in any order. Those of standard output come at the end of a prompt.
async fn says(terminal: &mut Program, line: &str, wanted: &[&str]) -> anyhow::Result<()> {
    terminal.write(line).await?;
    let mut missing = wanted.to_vec();
    let all_are_there = |line: &str| {
        let is_it = |text: &&str| line.contains(*text) && line.starts_with('!') == text.starts_with('!');
        missing.retain(|text| !is_it(text));
        missing.is_empty().then_some(())
    };
    terminal.find(&wanted.join(", "), all_are_there).await.with_context(|| format!("after {line:?}"))
}

/// A folder with a note, the note, and a secret beside the folder.
fn notes(room: &str) -> anyhow::Result<[PathBuf; 3]> {
    let outside = folder(room)?;
    let notes = outside.join("notes");
    fs::create_dir_all(&notes)?;
    let [note, secret] = [notes.join("a.txt"), outside.join("secret.txt")];
    fs::write(&note, "the first line\n")?;
    fs::write(&secret, "the secret\n")?;
    Ok([notes, note, secret])
}

fn request(method: &str, params: &Json) -> String {
    format!("request {method} {params}")
}

async fn files_of_acp() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-allow-fs");
    let [notes, note, secret] = notes(room)?;
    let script = script();
    let agent = [script.to_str().context("not UTF-8")?, "run", NODE];
    let start = async |options: &[&str]| -> anyhow::Result<Program> {
        let arguments = [&["acp", "--room", room], options, &["--"], &agent[..]].concat();
        let mut terminal = terminal(&server, &arguments)?;
        terminal.line("! parts listens; type a prompt").await?;
        Ok(terminal)
    };
    let read = |path: &PathBuf| request("fs/read_text_file", &json!({ "path": path }));
    let mut open = start(&["--allow-fs", notes.to_str().context("not UTF-8")?]).await?;
    says(&mut open, &read(&note), &["the first line"]).await?;
    for path in [&secret, &notes.join("../secret.txt")] {
        says(&mut open, &read(path), &["request: {\"error\":-"]).await?;
    }
    let new = notes.join("b.txt");
    let written = request("fs/write_text_file", &json!({"path": new, "content": "written"}));
    says(&mut open, &written, &["request: "]).await?;
    ensure!(fs::read_to_string(&new)? == "written");
    open.kill();
    // Without the option there are no files at all.
    let mut closed = start(&[]).await?;
    says(&mut closed, &read(&note), &["request: {\"error\":-32601}"]).await
}

async fn files_of_a_client() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-allow-fs-client");
    let [notes, note, secret] = notes(room)?;
    let coder = coder();
    let arguments = ["client", "--room", room, "--identity", "laptop", "--acp", &coder, "--yes", "coder"];
    let options = ["--allow-fs", notes.to_str().context("not UTF-8")?];
    let _laptop = Program::toolbridge(&server, &[&arguments[..], &options].concat()).start()?;
    let brain = assistant(&server, room, "assistant", Assistant::builder().client("laptop")).await?;
    offers(&brain, "laptop").await?;
    for (path, wanted) in [(&note, "the first line"), (&secret, "request: {\"error\":-")] {
        let prompt = request("fs/read_text_file", &json!({ "path": path }));
        let call = brain.call("coder", json!({ "prompt": prompt })).start();
        let result = ToolResult::of(&soon("the agent", call).await??);
        let said = result.for_model(1_000).text;
        ensure!(said.contains(wanted) && !said.contains("the secret"), "{said}");
    }
    brain.close().await;
    Ok(())
}

/// The agent is a tool of a client: its calls are progress of that tool, and the person at the client is asked.
async fn of_a_client() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-of-a-client");
    let coder = coder();
    let arguments = ["client", "--room", room, "--identity", "laptop", "--acp", &coder, "--yes", "coder"];
    // Only at a terminal is there a person to ask.
    let at_terminal = "import pty, sys; pty.spawn(sys.argv[1:])";
    let laptop =
        Program::other(&server, "python3", &["-c", at_terminal, "env", "--default-signal=HUP", "toolbridge"]);
    let mut laptop = laptop.args(&arguments).start()?;
    let brain = assistant(&server, room, "assistant", Assistant::builder().client("laptop")).await?;
    offers(&brain, "laptop").await?;
    let mut call = brain.call("coder", json!({"prompt": "call c1\npermit execute\nsay Done."})).start();
    // The agent's own calls are progress, of which the latest is never skipped: what it wants a permission for.
    let asked = async {
        while let Some(progress) = call.progress().await {
            if progress.message.as_deref() == Some("Run the tests: pending") {
                return Ok(());
            }
        }
        bail!("no progress says what the agent asks for")
    };
    soon("the question", asked).await??;
    laptop.line("coder asks: Run the tests").await?;
    laptop.line("type `option 1 1`").await?;
    laptop.write("option 1 1").await?;
    let result = ToolResult::of(&soon("the agent", call).await??);
    ensure!(result.for_model(1_000).text.contains("permit: o-allow_onceDone."), "{result:?}");
    ensure!(brain.calls().len() == 1, "a client cannot report calls: {:?}", brain.calls());
    brain.close().await;
    Ok(())
}

async fn of_an_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-of-an-assistant");
    let tools = Tools::new().tool("double", "Doubles a number", double);
    let always = |_| async { Ok::<_, ToolError>(PromptAnswer::selected("o-allow_always")) };
    let _phone = client(&server, room, "phone", Client::builder().tools(tools).prompt(always)).await?;
    let coder = coder();
    let arguments = ["assistant", "--room", room, "--client", "phone", "--acp", &coder, "--yes", "coder"];
    let mut brain = Program::toolbridge(&server, &arguments).start()?;
    brain.json(json!({"event": "tools_changed", "owner": "phone"})).await?;
    let prompt = json!({"prompt": "call c1\nroom double {\"n\": 21}"});
    let call = json!({"type": "call", "id": 1, "tool": "coder", "arguments": prompt});
    brain.write(&call.to_string()).await?;
    let result = brain.json(json!({"type": "result", "id": 1})).await?;
    let said = result["value"].to_string();
    ensure!(said.contains("stdio") && said.contains("42"), "{result}");
    // What the person has allowed for always is taken back by a command.
    let permit = json!({"type": "call", "id": 2, "tool": "coder", "arguments": {"prompt": "permit edit"}});
    brain.write(&permit.to_string()).await?;
    let result = brain.json(json!({"type": "result", "id": 2})).await?;
    ensure!(result["value"].to_string().contains("permit: o-allow_always"), "{result}");
    for count in [1, 0] {
        brain.write(r#"{"type": "forget_permissions"}"#).await?;
        brain.json(json!({"type": "event", "event": "permissions_forgotten", "count": count})).await?;
    }
    Ok(())
}

/// Returns the script of the published agent, if it is installed.
fn codex() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let found =
            StdCommand::new(script()).args(["peers/acp", "find"]).stderr(Stdio::null()).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
        let script = folder.join("node_modules/@zed-industries/codex-acp/bin/codex-acp.js");
        script.is_file().then(|| script.to_string_lossy().into_owned())
    };
    FOUND.get_or_init(find).as_deref()
}

fn missing_codex() -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    codex().is_none().then_some("tests/peers/acp (scripts/parts peers/acp)")
}

/// Returns the processes whose home is this folder, and their programs.
fn processes(home: &str) -> Vec<(Pid, String)> {
    let variable = format!("HOME={home}");
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let is_ours = environment.split(|it| *it == 0).any(|it| it == variable.as_bytes());
        let program = fs::read_link(entry.path().join("exe")).ok().filter(|_| is_ours)?;
        Some((pid, program.file_name()?.to_string_lossy().into_owned()))
    };
    all.filter_map(process).collect()
}

/// Waits until the programs with this home fulfil a condition.
async fn until(home: &str, what: &str, is_so: impl Fn(&[(Pid, String)]) -> bool) -> anyhow::Result<()> {
    let search = async {
        while !is_so(&processes(home)) {
            yield_now().await;
        }
    };
    soon(what, search).await.with_context(|| format!("{:?}", processes(home)))
}

fn planned(server: &Server, home: &str, room: &str, command: &[&str]) -> Planned {
    Program::toolbridge(server, &["acp", "--room", room, "--"]).args(command).env("HOME", home)
}

async fn sign_in() -> anyhow::Result<()> {
    let server = shared()?;
    let home = folder("acp-sign-in")?.to_str().context("not UTF-8")?.to_owned();
    let command = ["node", codex().context("run `scripts/parts peers/acp`")?];
    let output = planned(&server, &home, "acp-sign-in", &command).run().await?;
    let wanted = "toolbridge: agent \"codex-acp\" demands a sign-in: sign in with the agent's own program, or pass an API key on \
         to it (`env` of a tools.toml, --agent-env on the command line), then start this again; it offers: Login with ChatGPT, \
         Use CODEX_API_KEY (pass CODEX_API_KEY on to the agent), Use OPENAI_API_KEY (pass OPENAI_API_KEY on to the agent); \
         it says: Authentication required\n";
    ensure!(output.code == Some(1) && output.stdout.is_empty(), "{output:?}");
    ensure!(output.stderr == wanted, "{output:?}");
    until(&home, "the end of the agent", |all| all.is_empty()).await
}

/// The agent's native program runs under a script. It lives on when that is killed, and ends with the command line.
async fn outlived() -> anyhow::Result<()> {
    let server = shared()?;
    let home = folder("acp-outlived")?.to_str().context("not UTF-8")?.to_owned();
    // The refusal does not get through, so the agent is still awaited.
    let line = "node \"$0\" | sed -u /-32000/d";
    let command = ["sh", "-c", line, codex().context("run `scripts/parts peers/acp`")?];
    let program = planned(&server, &home, "acp-outlived", &command).start()?;
    let is = |all: &[(Pid, String)], name: &str| all.iter().any(|(_, it)| it == name);
    until(&home, "the native program", |all| is(all, "codex-acp")).await?;
    let wrapper = processes(&home).into_iter().find(|(_, it)| it == "node").context("no script")?;
    kill_process(wrapper.0, Signal::KILL)?;
    until(&home, "the end of the script", |all| !is(all, "node")).await?;
    ensure!(is(&processes(&home), "codex-acp"), "the native program has ended with its script");
    program.signal(Signal::KILL)?;
    until(&home, "the end of the native program", |all| all.is_empty()).await
}
