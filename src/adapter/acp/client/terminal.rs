//! Runs commands for an agent, only if a person has allowed that when the agent was configured, and agrees to
//! the exact command.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::{io::AsyncReadExt as _, process::ChildStdout, sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    choice::chosen,
    shown::{Question, TurnContext},
};
use crate::{
    Value,
    adapter::{
        acp::result::TerminalOutput,
        jsonrpc::error::{self, RpcError},
    },
    process::{Child, Command, Exit},
    prompt::{MAX_PROMPT_TEXT, PermissionPrompt, PromptedCall},
};

/// The most commands that one agent runs at once.
const MAX_RUNNING: usize = 8;

/// The most terminals whose output is kept.
const MAX_KEPT: usize = 64;

/// The most output that is kept of one command, in bytes, whatever the agent asks for.
const MAX_OUTPUT: usize = 256 << 10;

/// The longest answer with the output of a command, in bytes: JSON writes a control character with six, and U+FFFD stands with
/// three for a byte that is not UTF-8.
pub(super) const MAX_ANSWER: usize = 6 * MAX_OUTPUT + 1_024;

/// The most output that is kept of a released terminal, in bytes: it is only shown.
const MAX_SHOWN: usize = 16 << 10;

/// The most arguments, and variables, of a command.
const MAX_WORDS: usize = 256;

/// How long the output of a command that has ended is read. Only a process that has left its group can still write.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Runs a program with one stream for its output and its errors. The shell reads this text alone: the program and its
/// arguments are parameters.
const BOTH_STREAMS: &str = "exec \"$0\" \"$@\" 2>&1";

/// The terminals of one connection.
pub(super) struct Terminals {
    /// `None`: no command may run.
    options: Option<Options>,
    state: Mutex<State>,
}

/// How commands run.
#[derive(Clone)]
pub(super) struct Options {
    /// The folder of commands that name none.
    pub(super) folder: PathBuf,
    pub(super) supervisor: Option<PathBuf>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// The last one before the turn.
    before_turn: u64,
    terminals: BTreeMap<u64, Terminal>,
    tasks: JoinSet<()>,
}

struct Terminal {
    buffer: Arc<Mutex<Buffer>>,
    end: watch::Receiver<Option<Ended>>,
    kill: CancellationToken,
    is_released: bool,
}

/// The end of what a command has written.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    limit: usize,
    is_truncated: bool,
}

/// How a command ended.
#[derive(Clone, Debug, Default)]
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    #[serde(default)]
    cwd: Option<PathBuf>,
    #[serde(default)]
    output_byte_limit: Option<usize>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

impl Terminals {
    pub(super) fn new(options: Option<Options>) -> Self {
        Self { options, state: Mutex::default() }
    }

    pub(super) fn is_allowed(&self) -> bool {
        self.options.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn: its commands are those that are started from now on.
    pub(super) fn begin_turn(&self) {
        let state = &mut *self.state();
        state.before_turn = state.last;
    }

    /// Kills the commands of a turn that was cancelled. Its place has ended, so that no other one starts.
    pub(super) fn kill_turn(&self) {
        let state = self.state();
        for (_, terminal) in state.terminals.range(state.before_turn + 1..) {
            terminal.kill.cancel();
        }
    }

    /// Returns what is known of a terminal that a call shows. It stays known after its release.
    pub(super) fn shown(&self, id: &str) -> TerminalOutput {
        let state = self.state();
        let Some(terminal) = number(id).and_then(|id| state.terminals.get(&id)) else {
            return TerminalOutput::default();
        };
        let (output, _) = lock(&terminal.buffer).text();
        let exit_code = terminal.end.borrow().as_ref().and_then(|end| end.code);
        TerminalOutput { output: Some(output), exit_code }
    }

    /// Answers a request `terminal/…`.
    pub(super) async fn answer(
        &self,
        agent: &str,
        method: &str,
        params: &Json,
        place: Option<&TurnContext>,
    ) -> Result<Json, RpcError> {
        if method == "terminal/create" {
            return self.create(agent, params, place).await;
        }
        let id = params["terminalId"].as_str().and_then(number);
        let id = id.ok_or_else(|| RpcError::new(error::INVALID_PARAMS, "there is no such terminal"))?;
        let (buffer, mut end, kill) = {
            let state = self.state();
            let terminal = state.terminals.get(&id).filter(|it| !it.is_released);
            let terminal =
                terminal.ok_or_else(|| RpcError::new(error::INVALID_PARAMS, "there is no such terminal"))?;
            (Arc::clone(&terminal.buffer), terminal.end.clone(), terminal.kill.clone())
        };
        match method {
            "terminal/output" => {
                let (output, truncated) = lock(&buffer).text();
                let status = end.borrow().as_ref().map_or(Json::Null, Ended::to_json);
                Ok(json!({"output": output, "truncated": truncated, "exitStatus": status}))
            }
            "terminal/wait_for_exit" => {
                let ended = end.wait_for(Option::is_some).await;
                let ended = ended.map(|end| end.clone().unwrap_or_default()).unwrap_or_default();
                Ok(ended.to_json())
            }
            "terminal/kill" => {
                kill.cancel();
                Ok(json!({}))
            }
            "terminal/release" => {
                kill.cancel();
                let mut buffer = lock(&buffer);
                buffer.limit = MAX_SHOWN;
                buffer.cut();
                drop(buffer);
                if let Some(terminal) = self.state().terminals.get_mut(&id) {
                    terminal.is_released = true;
                }
                Ok(json!({}))
            }
            _ => Err(RpcError::new(error::METHOD_NOT_FOUND, "there is no such method")),
        }
    }

    async fn create(
        &self,
        agent: &str,
        params: &Json,
        place: Option<&TurnContext>,
    ) -> Result<Json, RpcError> {
        let invalid = |text: &str| RpcError::new(error::INVALID_PARAMS, text);
        let options = self
            .options
            .as_ref()
            .ok_or_else(|| RpcError::new(error::METHOD_NOT_FOUND, "commands are not allowed"))?;
        let create: Create =
            serde_json::from_value(params.clone()).map_err(|_| invalid("the parameters cannot be read"))?;
        if create.args.len() > MAX_WORDS || create.env.len() > MAX_WORDS {
            return Err(invalid("the command has more than 256 arguments or variables"));
        }
        let texts = [&create.command]
            .into_iter()
            .chain(&create.args)
            .chain(create.env.iter().flat_map(|it| [&it.name, &it.value]));
        if texts.clone().any(|text| text.contains('\0'))
            || create.env.iter().any(|it| it.name.is_empty() || it.name.contains('='))
        {
            return Err(invalid("the command has a word or a variable that no program can get"));
        }
        let folder = create.cwd.clone().unwrap_or_else(|| options.folder.clone());
        if !folder.is_absolute() || !folder.is_dir() {
            return Err(invalid("`cwd` is not the absolute path of a folder"));
        }
        self.state().has_room()?;
        let refuse = |text: &str| RpcError::new(error::INVALID_REQUEST, text);
        let place = place.ok_or_else(|| refuse("no prompt is open"))?;
        let program = program(&create.command, &folder).map_err(invalid)?;
        let question = place.question().await.map_err(|_| refuse("the turn is over"))?;
        self.state().has_room()?; // the question before may have been about a command, too
        allowed(agent, &create, &program, &folder, &question).await?;
        let command = command(&create, &program, folder, options).map_err(invalid)?;
        let limit = create.output_byte_limit.unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT);
        self.start(&command, limit, place).map(|id| json!({"terminalId": format!("t{id}")}))
    }

    /// Kills the commands that run.
    pub(super) async fn close(&self) {
        let mut tasks = std::mem::take(&mut self.state().tasks);
        tasks.shutdown().await;
    }

    fn start(&self, command: &Command, limit: usize, place: &TurnContext) -> Result<u64, RpcError> {
        let mut state = self.state();
        state.has_room()?;
        if place.is_over() {
            return Err(RpcError::new(error::INVALID_REQUEST, "the turn is over"));
        }
        let (child, stdin, stdout) =
            command.spawn().map_err(|_| RpcError::new(error::INTERNAL, "the command cannot be started"))?;
        drop(stdin); // nobody types
        let buffer = Arc::new(Mutex::new(Buffer { limit, ..Buffer::default() }));
        let (ended, end) = watch::channel(None);
        let kill = CancellationToken::new();
        state.last += 1;
        let id = state.last;
        while state.terminals.len() >= MAX_KEPT {
            let oldest = state.terminals.iter().find(|(_, it)| it.is_released).map(|(id, _)| *id);
            let Some(oldest) = oldest.or_else(|| state.terminals.keys().next().copied()) else { break };
            if let Some(terminal) = state.terminals.remove(&oldest) {
                terminal.kill.cancel(); // nobody can end it any more
            }
        }
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(run(child, stdout, Arc::clone(&buffer), kill.clone(), ended));
        state.terminals.insert(id, Terminal { buffer, end, kill, is_released: false });
        Ok(id)
    }
}

impl State {
    /// Checks that another command may run.
    fn has_room(&self) -> Result<(), RpcError> {
        let running = self.terminals.values().filter(|it| it.end.borrow().is_none()).count();
        match running < MAX_RUNNING {
            true => Ok(()),
            false => Err(RpcError::new(error::INVALID_REQUEST, "too many commands are running; release one")),
        }
    }
}

/// Reads what a command writes until it ends or is killed.
async fn run(
    mut child: Child,
    mut stdout: ChildStdout,
    buffer: Arc<Mutex<Buffer>>,
    kill: CancellationToken,
    ended: watch::Sender<Option<Ended>>,
) {
    let exit = {
        let ending = async {
            tokio::select! {
                biased;
                exit = child.wait() => return exit.ok(),
                () = kill.cancelled() => {}
            }
            child.terminate().await.ok()
        };
        tokio::pin!(ending);
        tokio::select! {
            exit = &mut ending => exit,
            () = keep(&mut stdout, &buffer) => ending.await,
        }
    };
    // What it wrote last. A process that has left its group may hold the stream open.
    let _ = timeout(LAST_OUTPUT, keep(&mut stdout, &buffer)).await;
    let _ = ended.send(Some(exit.map(|exit| Ended::of(&exit)).unwrap_or_default())); // nobody may be waiting
}

/// Keeps the output of a command up to the end of the stream.
async fn keep(stdout: &mut ChildStdout, buffer: &Mutex<Buffer>) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(size @ 1..) = stdout.read(&mut chunk).await {
        lock(buffer).add(&chunk[..size]);
    }
}

/// Asks the person. A yes is for this command alone, and is never kept.
async fn allowed(
    agent: &str,
    create: &Create,
    program: &str,
    folder: &Path,
    question: &Question<'_>,
) -> Result<(), RpcError> {
    let refuse = |text: &str| RpcError::new(error::INVALID_REQUEST, text);
    let shown = |_| refuse("the command cannot be shown");
    let words = [program].into_iter().chain(create.args.iter().map(String::as_str));
    let line = shlex::try_join(words).map_err(shown)?;
    let variables: Vec<String> = create.env.iter().map(|it| format!("{}={}", it.name, it.value)).collect();
    let with = shlex::try_join(variables.iter().map(String::as_str)).map_err(shown)?;
    let with = if variables.is_empty() { String::new() } else { format!(" with {with}") };
    let text = format!("{agent} asks to run a command in {}: {line}{with}", folder.display());
    if text.len() > MAX_PROMPT_TEXT {
        return Err(refuse("the command is too long to be shown to a person"));
    }
    let input = json!({"command": program, "args": create.args, "env": variables, "cwd": folder});
    let mut call = PromptedCall::new("terminal").title(&line).raw_input(Value::from(input));
    call.kind = Some("execute".to_owned());
    let prompt = PermissionPrompt::new(call).text(text).option("run", "Run it", "allow_once").option(
        "refuse",
        "Do not run it",
        "reject_once",
    );
    match chosen(&prompt, "execute", question).await {
        Some(option) if option.allows() => Ok(()),
        _ => Err(refuse("the person has not allowed the command")),
    }
}

/// Returns the path of the program that runs: a name with `/` starts at the folder of the command, as in a shell.
fn program(name: &str, folder: &Path) -> Result<String, &'static str> {
    let found = if name.contains('/') { Command::new(folder.join(name)) } else { Command::find(name) };
    let program = found.map_err(|_| "there is no such program")?;
    program.program().to_str().map(str::to_owned).ok_or("the path of the program is not UTF-8")
}

fn command(
    create: &Create,
    program: &str,
    folder: PathBuf,
    options: &Options,
) -> Result<Command, &'static str> {
    let shell = Command::new("/bin/sh").map_err(|_| "there is no /bin/sh")?;
    let mut command = shell.arg("-c").arg(BOTH_STREAMS).arg(program);
    command = create.args.iter().fold(command, Command::arg).folder(folder).inherit_user();
    command = create.env.iter().fold(command, |command, it| command.env(&it.name, &it.value));
    Ok(match &options.supervisor {
        Some(supervisor) => command.supervisor(supervisor),
        None => command,
    })
}

impl Buffer {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.cut();
    }

    /// Keeps the end.
    fn cut(&mut self) {
        if self.bytes.len() > self.limit {
            self.is_truncated = true;
            self.bytes.drain(..self.bytes.len() - self.limit);
        }
    }

    /// Returns the text, from its first whole character on, and whether its start is missing.
    fn text(&self) -> (String, bool) {
        let is_inside = |byte: &&u8| **byte & 0xc0 == 0x80;
        let start =
            if self.is_truncated { self.bytes.iter().take(3).take_while(is_inside).count() } else { 0 };
        (String::from_utf8_lossy(&self.bytes[start..]).into_owned(), self.is_truncated)
    }
}

impl Ended {
    fn of(exit: &Exit) -> Self {
        use std::os::unix::process::ExitStatusExt as _;

        Self { code: exit.status().code(), signal: exit.status().signal() }
    }

    fn to_json(&self) -> Json {
        json!({"exitCode": self.code, "signal": self.signal.map(|signal| signal.to_string())})
    }
}

fn number(id: &str) -> Option<u64> {
    id.strip_prefix('t')?.parse().ok()
}

fn lock(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolContext;

    /// Time passes only while everything waits.
    #[tokio::test(start_paused = true)]
    async fn killed_command_that_ignores_sigterm_is_killed_after_2_s() {
        let options = Options { folder: "/".into(), supervisor: None };
        let terminals = Terminals::new(Some(options));
        let place = TurnContext::new(ToolContext::new("caller", Duration::from_secs(60)));
        let deaf = "trap '' TERM; echo up; while :; do sleep 1000; done";
        let command = Command::new("/bin/sh").unwrap().arg("-c").arg(deaf);
        let id = terminals.start(&command, MAX_OUTPUT, &place).unwrap();
        while terminals.shown(&format!("t{id}")).output.as_deref() != Some("up\n") {
            tokio::task::yield_now().await;
        }
        let begun = tokio::time::Instant::now();
        let ask = async |method| {
            let params = json!({"terminalId": format!("t{id}")});
            terminals.answer("agent", method, &params, None).await.unwrap()
        };
        ask("terminal/kill").await;
        assert_eq!(ask("terminal/wait_for_exit").await, json!({"exitCode": null, "signal": "9"}));
        // Its input was closed when it began, so it gets no time for that.
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }

    #[test]
    fn program_with_a_slash_is_found_in_the_folder_of_the_command() {
        let folder = std::env::temp_dir().join(format!("toolbridge-terminal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("run.sh"), "").unwrap();
        let expected = folder.join("./run.sh").to_str().unwrap().to_owned();
        assert_eq!(program("./run.sh", &folder), Ok(expected));
        assert_eq!(program("/bin/sh", &folder), Ok("/bin/sh".to_owned()));
        assert!(program("sh", &folder).unwrap().starts_with('/'));
        assert!(program("./no-such.sh", &folder).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn acp_c16_output_is_kept_from_its_end_at_a_character_boundary() {
        let mut buffer = Buffer { limit: 7, ..Buffer::default() };
        buffer.add("ab".as_bytes());
        assert_eq!(buffer.text(), ("ab".to_owned(), false));
        buffer.add("éüöä".as_bytes()); // 10 bytes: the limit is inside of a character
        assert_eq!(buffer.text(), ("üöä".to_owned(), true));
        let mut buffer = Buffer { limit: 5, ..Buffer::default() };
        buffer.add("😀😀".as_bytes());
        assert_eq!(buffer.text(), ("😀".to_owned(), true));
        // Bytes that are not text are shown as such.
        let mut buffer = Buffer { limit: 4, ..Buffer::default() };
        buffer.add(&[0x80; 9]);
        assert_eq!(buffer.text().0.chars().count(), 1);
    }

    /// Returns the error of a request for a command.
    async fn refused(params: Json) -> String {
        let terminals = Terminals::new(Some(Options { folder: "/".into(), supervisor: None }));
        terminals.create("agent", &params, None).await.unwrap_err().message
    }

    #[tokio::test]
    async fn command_with_too_many_words_is_refused() {
        let words = vec!["x"; MAX_WORDS + 1];
        let variables = vec![json!({"name": "A", "value": ""}); MAX_WORDS + 1];
        for params in [json!({"command": "ls", "args": words}), json!({"command": "ls", "env": variables})] {
            assert!(refused(params).await.contains("more than 256 arguments or variables"));
        }
        assert!(refused(json!({"command": "ls", "args": &words[1..]})).await.contains("no prompt is open"));
    }

    #[tokio::test]
    async fn word_or_variable_that_no_program_can_get_is_refused() {
        for params in [
            json!({"command": "ls", "args": ["a\0b"]}),
            json!({"command": "l\0s"}),
            json!({"command": "ls", "env": [{"name": "A", "value": "\0"}]}),
        ] {
            assert!(refused(params).await.contains("that no program can get"));
        }
    }

    #[tokio::test]
    async fn variable_without_a_plain_name_is_refused() {
        for name in ["", "A=B", "="] {
            let params = json!({"command": "ls", "env": [{"name": name, "value": ""}]});
            assert!(refused(params).await.contains("that no program can get"), "{name}");
        }
    }

    #[tokio::test]
    async fn folder_of_a_command_is_an_absolute_path() {
        for folder in ["src", "", "/no/such/folder", "/bin/sh"] {
            let params = json!({"command": "ls", "cwd": folder});
            assert!(refused(params).await.contains("absolute path of a folder"), "{folder}");
        }
    }

    #[tokio::test]
    async fn agent_runs_8_commands_at_once() {
        let terminals = Terminals::new(Some(Options { folder: "/".into(), supervisor: None }));
        let place = TurnContext::new(ToolContext::new("caller", Duration::from_secs(60)));
        let command = Command::new("/bin/sleep").unwrap().arg("1000");
        for _ in 0..MAX_RUNNING {
            terminals.start(&command, MAX_OUTPUT, &place).unwrap();
        }
        let refused = terminals.start(&command, MAX_OUTPUT, &place).unwrap_err();
        assert!(refused.message.contains("too many commands"), "{}", refused.message);
        terminals.close().await;
    }
}
