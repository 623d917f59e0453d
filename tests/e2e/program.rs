//! Programs that the tests start: the built `toolbridge`, and peers over the official SDKs.

use std::{
    env,
    ffi::OsStr,
    fmt, fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command as StdCommand, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use crate::{
    BOUND, browser,
    server::{self, KEY, Kind, SECRET, Server},
    soon,
};

/// A program to be started.
pub(crate) struct Planned(Command);

/// A running program in its own process group; killed when dropped.
pub(crate) struct Program {
    child: Child,
    pid: Pid,
    /// Read all the time, because a program with a full output pipe blocks.
    lines: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
    errors: Option<JoinHandle<String>>,
}

/// How much of a program's output is shown when a test fails, in bytes: its end.
const SHOWN: usize = 4_096;

/// The result of a program.
pub(crate) struct Output {
    /// Its status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |text: &str| {
            String::from_utf8_lossy(&text.as_bytes()[text.len().saturating_sub(SHOWN)..]).into_owned()
        };
        f.debug_struct("Output")
            .field("code", &self.code)
            .field("stdout", &end(&self.stdout))
            .field("stderr", &end(&self.stderr))
            .finish()
    }
}

/// Returns whether the peers of `tests/peers` are installed.
pub(crate) fn has_peers() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| finds(&["peers", "find"]))
}

/// Returns whether the older SDK is installed.
fn has_older_peers() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| finds(&["peers/older", "find"]))
}

/// Returns whether the script finds what these arguments name.
fn finds(arguments: &[&str]) -> bool {
    let found =
        StdCommand::new(script()).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Returns the part that a test with this program of `tests/peers` needs and that is missing, if any.
pub(crate) fn missing_for(program: &str) -> Option<&'static str> {
    server::missing()
        .or_else(|| (!has_peers()).then_some("tests/peers (scripts/parts peers)"))
        .or_else(|| {
            (program.starts_with("older/") && !has_older_peers())
                .then_some("tests/peers/older (scripts/parts peers/older)")
        })
        .or_else(|| (is_page(program) && browser::path().is_none()).then_some("chromium"))
}

/// Returns whether this program of `tests/peers` opens a page.
fn is_page(program: &str) -> bool {
    ["browser.mjs", "rpc_browser.mjs"].iter().any(|page| program.starts_with(page))
}

/// Returns the script that starts the peers and the other readers of recordings.
pub(crate) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/parts")
}

fn folders() -> PathBuf {
    env::temp_dir().join(format!("toolbridge-e2e-{}", std::process::id()))
}

/// Returns the folder for the profiles of browsers, which a killed one leaves behind.
pub(crate) fn profiles() -> anyhow::Result<PathBuf> {
    let folder = folders().join("profiles");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Called when all tests have ended.
pub(crate) fn remove_files() {
    let _ = fs::remove_dir_all(folders());
}

/// Returns a folder with this name for this thread's server: the same test runs with both at once.
pub(crate) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let of_server = match server::kind() {
        Kind::LiveKit => "livekit",
        Kind::Dev => "dev",
    };
    let folder = folders().join(of_server).join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Writes a file of tools that are shell scripts, in its own folder.
pub(crate) fn tools_file(name: &str, tools: &[(&str, &str)]) -> anyhow::Result<PathBuf> {
    let folder = folder(name)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    let path = folder.join("tools.toml");
    let mut text = String::new();
    for (name, line) in tools {
        text += &format!(
            "[[tools]]\nname = {name:?}\ndescription = \"Runs a line of shell\"\ncommand = [\"/bin/sh\", \"-c\", {line:?}]\n\n"
        );
    }
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

impl Program {
    /// The built program, with the server's address and key in its environment.
    pub(crate) fn toolbridge(server: &Server, arguments: &[&str]) -> Planned {
        // The test's parent may ignore SIGHUP, which a child inherits, and would then ignore a closed terminal.
        let mut command = StdCommand::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_toolbridge")]);
        command.args(arguments).env("LIVEKIT_URL", server.url());
        command.env("LIVEKIT_API_KEY", KEY).env("LIVEKIT_API_SECRET", SECRET).env_remove("LIVEKIT_TOKEN");
        command.env_remove("RUST_LOG");
        Planned::new(command)
    }

    /// Another program, which finds the built one on its path.
    pub(crate) fn other(server: &Server, program: &str, arguments: &[&str]) -> Planned {
        let built = Path::new(env!("CARGO_BIN_EXE_toolbridge")).parent().unwrap_or_else(|| Path::new("/"));
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [built.to_owned()].into_iter().chain(env::split_paths(&path));
        let mut command = StdCommand::new(program);
        command.args(arguments).env("LIVEKIT_URL", server.url());
        command.env("LIVEKIT_API_KEY", KEY).env("LIVEKIT_API_SECRET", SECRET).env_remove("LIVEKIT_TOKEN");
        command.env_remove("RUST_LOG").env("PATH", env::join_paths(folders).unwrap_or_default());
        Planned::new(command)
    }

    /// A peer of `tests/peers`: a program, which its own first arguments may follow after spaces, and further arguments.
    pub(crate) fn peer(
        server: &Server,
        token: &str,
        program: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Planned> {
        let mut command = StdCommand::new(script());
        command.arg("run").args(program.split_ascii_whitespace()).args(arguments);
        command.env("LIVEKIT_URL", server.url()).env("LIVEKIT_TOKEN", token);
        if is_page(program) {
            command.env("TMPDIR", profiles()?);
            command
                .env("BROWSER", browser::shared()?)
                .env("CHROMIUM", browser::path().context("no browser")?);
        }
        Ok(Planned::new(command))
    }

    /// Waits for the first line that contains this text.
    pub(crate) async fn line(&mut self, wanted: &str) -> anyhow::Result<String> {
        self.find(wanted, |line| line.contains(wanted).then(|| line.to_owned())).await
    }

    /// Waits for the first line that is JSON with this `event`.
    pub(crate) async fn event(&mut self, wanted: &str) -> anyhow::Result<Value> {
        self.find(wanted, |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["event"] == wanted).then_some(value)
        })
        .await
    }

    /// Waits for the first line that `wanted` accepts.
    pub(crate) async fn find<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let search = async {
            while let Some(line) = self.lines.recv().await {
                let found = wanted(&line);
                self.seen.push(line);
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            bail!("the program ended")
        };
        let found = soon(what, search).await.and_then(|found| found);
        match found {
            Ok(found) => Ok(found),
            Err(error) => {
                self.kill();
                let errors = match self.errors.take() {
                    Some(errors) => errors.await?,
                    None => String::new(),
                };
                Err(error.context(format!("{what:?} among {:#?}\n{errors}", self.seen)))
            }
        }
    }

    /// Writes a line to its standard input.
    pub(crate) async fn write(&mut self, line: &str) -> anyhow::Result<()> {
        self.write_part(format!("{line}\n").as_bytes()).await
    }

    /// Writes a part of a line to its standard input.
    pub(crate) async fn write_part(&mut self, part: &[u8]) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("its standard input is closed")?;
        stdin.write_all(part).await?;
        Ok(stdin.flush().await?)
    }

    /// Returns the most memory that it has had, in bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<usize> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid.as_raw_nonzero()))?;
        let kilobytes =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
        Ok(kilobytes.context("no VmHWM")?.parse::<usize>()? * 1024)
    }

    /// Returns the time that processors have worked for it.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        /// The unit of `/proc/PID/stat` on Linux, in milliseconds.
        const TICK: u64 = 10;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()))?;
        // The name in parentheses may have spaces.
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        Ok(Duration::from_millis(TICK * ticks.sum::<Result<u64, _>>()?))
    }

    /// Waits for the first line that is JSON with all of these values.
    pub(crate) async fn json(&mut self, wanted: Value) -> anyhow::Result<Value> {
        let entries = wanted.as_object().cloned().unwrap_or_default();
        self.find(&wanted.to_string(), |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            entries.iter().all(|(key, wanted)| value[key] == *wanted).then_some(value)
        })
        .await
    }

    /// Sends it this signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }

    /// Sends it and all its children this signal.
    pub(crate) fn signal_all(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process_group(self.pid, signal)?)
    }

    /// Kills it and all its children.
    pub(crate) fn kill(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> anyhow::Result<()> {
        Ok(kill_process(self.pid, Signal::INT)?)
    }

    /// Waits for its end, with its standard input left open.
    pub(crate) async fn ended(mut self) -> anyhow::Result<Output> {
        let open = self.child.stdin.take();
        let output = self.finish().await;
        drop(open);
        output
    }

    /// Closes its standard input and waits for its end.
    pub(crate) async fn finish(self) -> anyhow::Result<Output> {
        self.finish_within(BOUND).await
    }

    /// Waits for its end within this time.
    pub(crate) async fn finish_within(mut self, bound: Duration) -> anyhow::Result<Output> {
        drop(self.child.stdin.take());
        let rest = async {
            while let Some(line) = self.lines.recv().await {
                self.seen.push(line);
            }
            self.child.wait().await
        };
        let status = timeout(bound, rest).await.context("the program did not end")??;
        let stderr = self.errors.take().context("its standard error was read before")?.await?;
        let stdout = self.seen.iter().map(|line| format!("{line}\n")).collect();
        Ok(Output { code: status.code(), stdout, stderr })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.kill();
        }
    }
}

impl Planned {
    fn new(mut command: StdCommand) -> Self {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        Self(command)
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    pub(crate) fn args(mut self, arguments: &[&str]) -> Self {
        self.0.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Removes key and secret from its environment.
    pub(crate) fn without_key(mut self) -> Self {
        self.0.env_remove("LIVEKIT_API_KEY").env_remove("LIVEKIT_API_SECRET");
        self
    }

    pub(crate) fn start(mut self) -> anyhow::Result<Program> {
        let mut child = self.0.spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32)).context("no process id")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no output")?).lines();
        let (read, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stdout.next_line().await {
                let _ = read.send(line);
            }
        });
        let mut stderr = child.stderr.take().context("no errors")?;
        let errors = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes).await;
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Program { child, pid, lines, seen: Vec::new(), errors: Some(errors) })
    }

    /// Starts it without reading what it prints, so that its pipes fill.
    pub(crate) fn start_unread(mut self) -> anyhow::Result<Child> {
        Ok(self.0.spawn()?)
    }

    /// Starts it and waits for its end.
    pub(crate) async fn run(self) -> anyhow::Result<Output> {
        self.start()?.finish().await
    }
}
