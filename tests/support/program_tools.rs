//! Programs as tools, for tests of what runs them.

use std::{
    fs::{self, File, Permissions},
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value as Json, json};
use tokio::{sync::oneshot, task::JoinHandle};
use toolbridge::{ErrorCode, Outcome, ToolContext, ToolSource as _, Value, programs::ProgramTools};

/// Creates a folder for one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{}-{test}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    folder
}

pub(crate) fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tools.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// One tool `t`, a shell script.
pub(crate) fn shell(script: &str, more: &str) -> ProgramTools {
    let script = toml::Value::from(script);
    ProgramTools::from_toml(&format!(
        "[[tools]]\nname = \"t\"\ndescription = \"\"\ncommand = [\"/bin/sh\", \"-c\", {script}, \"sh\"]\n{more}"
    ))
    .unwrap()
}

pub(crate) fn context() -> ToolContext {
    ToolContext::new("test", Duration::from_secs(600))
}

pub(crate) async fn run(tools: &ProgramTools, arguments: &Json) -> Outcome {
    tools.execute(&"t".parse().unwrap(), Value::encode(arguments).unwrap(), context()).await
}

pub(crate) async fn failure(tools: &ProgramTools) -> (ErrorCode, String) {
    let error = run(tools, &json!({})).await.unwrap_err();
    (error.code(), error.to_string())
}

/// A named pipe that a script opens for all its children: it ends when the last of them has ended.
pub(crate) struct ProcessPipe {
    pub(crate) path: PathBuf,
    /// The test's own end, so that a script that is stopped before it opens the pipe blocks no reader.
    own_end: File,
    begun: Option<oneshot::Receiver<String>>,
    ended: JoinHandle<()>,
}

impl ProcessPipe {
    pub(crate) fn new(test: &str) -> Self {
        let path = folder(test).join("pipe");
        let _ = fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let own_end = File::options().read(true).write(true).open(&path).unwrap();
        let (begin, begun) = oneshot::channel();
        let mut pipe = BufReader::new(File::open(&path).unwrap());
        let ended = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            pipe.read_line(&mut line).unwrap();
            let _ = begin.send(line);
            pipe.read_to_end(&mut Vec::new()).unwrap();
        });
        Self { path, own_end, begun: Some(begun), ended }
    }

    /// A tool that reports its start through the pipe, and then runs the script.
    pub(crate) fn tool(&self, script: &str, more: &str) -> ProgramTools {
        shell(&format!("exec 3>'{}'; {script}", self.path.display()), more)
    }

    /// Waits for the script's first line.
    pub(crate) async fn begun(&mut self) -> String {
        self.begun.take().unwrap().await.unwrap().trim().to_owned()
    }

    pub(crate) async fn all_processes_ended(self) {
        drop(self.own_end);
        self.ended.await.unwrap();
    }
}
