//! Chromium: where it is, and one that runs for all pages of `tests/peers`.

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::program::{profiles, script};

static SHARED: Mutex<Option<Browser>> = Mutex::new(None);

/// A running browser, which ends when its program's standard input does, also when the tests die.
struct Browser {
    program: Child,
    devtools: String,
}

/// Returns the path of Chromium. Debian's package has the first name; the others are its names elsewhere.
pub(crate) fn path() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.find(|path| path.is_file())
}

/// Returns the address of the one browser of this run, in which a page is a tab. It is started once, because a start costs
/// about as much as ten tabs.
pub(crate) fn shared() -> anyhow::Result<String> {
    let mut shared = SHARED.lock().unwrap();
    if let Some(browser) = shared.as_ref().filter(|it| TcpStream::connect(&it.devtools).is_ok()) {
        return Ok(browser.devtools.clone());
    }
    let started = Browser::start()?;
    let devtools = started.devtools.clone();
    *shared = Some(started);
    Ok(devtools)
}

/// Called when all tests have ended.
pub(crate) fn stop_shared() {
    SHARED.lock().unwrap().take();
}

impl Browser {
    fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(script());
        command.args(["run", "chromium.mjs"]).env("CHROMIUM", path().context("needs chromium")?);
        command.env("TMPDIR", profiles()?);
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(program.stdout.take().context("no output")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "chromium did not start");
        let ready: Value = serde_json::from_str(&line)?;
        let devtools = ready["devtools"].as_str().context("no address")?.to_owned();
        Ok(Self { program, devtools })
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}
