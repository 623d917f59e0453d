//! Runs programs on this machine as tools: JSON in on stdin, JSON out on stdout, no shell.

mod command;
mod entry;
mod run;
mod streams;

use std::{path::Path, sync::Arc};

use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{ErrorCode, Outcome, RegisterError, Tool, ToolError, ToolName},
    tools_file::ToolsFile,
    value::Value,
};

use self::command::CommandTemplate;
pub use crate::{
    process::supervise::{SUPERVISE, supervise},
    tools_file::ToolsFileError,
};

/// Offers the programs that a `tools.toml` lists as tools.
///
/// ```toml
/// [[tools]]
/// name = "get_weather"
/// description = "The weather in a city, now"
/// # An absolute program and its arguments; no shell reads them. After "--", an element that is one name in
/// # braces becomes that parameter's text. All parameters are on stdin in any case, as one JSON map.
/// command = ["/usr/local/bin/weather", "--json", "--", "{city}"]
/// # Optional, the rest. A table, or a string that holds the same as JSON.
/// input_schema = { type = "object", required = ["city"], properties = { city = { type = "string" } } }
/// timeout = "5s"                           # ms, s, m or h; default: the caller's limit
/// consent = "never"                        # never, once or always; default: never, always if destructive
/// destructive = false
/// idempotent = true
/// cwd = "weather"                          # default: the folder of this file
/// env = { LANG = "C.UTF-8", HOME = true }  # `true` takes over this process' own value
/// ```
///
/// A program's environment contains only `PATH=/usr/local/bin:/usr/bin:/bin` and the variables of `env`. It runs in a
/// process group of its own. Its result is the JSON value that it writes to stdout, at most 1 MiB; empty output is an
/// empty map. A status other than 0 is a failure, and the last line of stderr is its message. When the call is
/// cancelled or its time is up, the group gets a `SIGTERM`, and `SIGKILL` 2 s later; children that a program leaves
/// behind end in the same way. Only a process that leaves the group (`setsid`) escapes.
///
/// A process that is killed (`SIGKILL`, a crash, out of memory) cannot end its programs: they continue to run, unless
/// a [`supervisor`](Self::supervisor) ends them. The command line tool `toolbridge` is its own supervisor.
///
/// A program that needs a person's consent is an error when joining, unless the builder has a `consent` handler.
///
/// Requires Unix and a tokio runtime with I/O and time enabled.
///
/// ```
/// use std::time::Duration;
///
/// use toolbridge::{ToolContext, ToolSource, Value, programs::ProgramTools};
///
/// let tools = ProgramTools::from_toml(
///     r#"
///     [[tools]]
///     name = "echo"
///     description = "Gives its parameters back"
///     command = ["/bin/cat"]
///     timeout = "5s"
///     "#,
/// )?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let context = ToolContext::new("terminal", Duration::from_secs(30));
/// let result = tools.execute(&"echo".parse()?, Value::from_json(r#"{"a": 1}"#)?, context).await;
/// assert_eq!(result.unwrap().to_json()["a"], 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramTools {
    programs: Arc<[Program]>,
    supervisor: Option<Arc<Path>>,
}

/// A program and its tool definition.
#[derive(Debug)]
struct Program {
    tool: Tool,
    command: CommandTemplate,
}

impl ProgramTools {
    /// Reads a `tools.toml` file.
    ///
    /// A user who can change the file or one of its programs can run anything as this user. Therefore the file, each
    /// program and the folders that hold them must belong to this user or to root, and only their owner may have
    /// write permission, as sshd requires for `authorized_keys` (`StrictModes`). The same holds for every folder
    /// above them and every symbolic link on the path, except that a folder above may be writable by others if it has
    /// the sticky bit, as `/tmp` has. The file itself must not be a symbolic link. This is checked once, when the
    /// file is read.
    ///
    /// Not checked: the working folder (`cwd`), files that arguments name, such as the script of an interpreter, and
    /// files that a program itself loads.
    ///
    /// # Errors
    /// [`Untrusted`](ToolsFileError::Untrusted) if the file cannot be read or another user could change what runs; the
    /// other variants if its content is invalid.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ToolsFileError> {
        let programs = programs(ToolsFile::read(path.as_ref())?)?;
        Ok(Self { programs: programs.into(), supervisor: None })
    }

    /// Reads the text of a `tools.toml`. The programs run in `/` unless `cwd` is set. Who could change the programs
    /// is not checked.
    ///
    /// # Errors
    /// If the content is invalid.
    pub fn from_toml(text: &str) -> Result<Self, ToolsFileError> {
        let programs = programs(ToolsFile::parse(text, "/")?)?;
        Ok(Self { programs: programs.into(), supervisor: None })
    }

    /// Starts each program through this helper binary, an absolute path. The helper ends the program when this
    /// process is killed.
    ///
    /// The helper is `toolbridge`, or a binary whose `main` is [`programs::supervise`](supervise), of the same
    /// version as this library. One helper starts for each call, runs as long as the program, and holds a socket to
    /// this process. When the socket closes, it sends `SIGTERM` to the group and `SIGKILL` 2 s later, like a
    /// cancellation. If the helper is killed, this process ends the program, and the call fails. The program
    /// continues to run only if both are killed at once.
    ///
    /// With a helper the program no longer leads its process group, so it can leave the group by calling `setsid`.
    /// Signals that end a process, such as `SIGINT`, have their default action in the program, even if this process
    /// ignores them.
    ///
    /// Default: no helper.
    #[must_use]
    pub fn supervisor(mut self, helper: impl AsRef<Path>) -> Self {
        self.supervisor = Some(helper.as_ref().into());
        self
    }

    fn program(&self, tool: &ToolName) -> Option<&Program> {
        self.programs.iter().find(|program| program.tool.name() == tool)
    }
}

/// Returns the programs of a file. Each has a name of its own.
fn programs(file: ToolsFile) -> Result<Vec<Program>, ToolsFileError> {
    let mut programs: Vec<Program> = Vec::new();
    for entry in file.sections.tools {
        let program = entry::program(entry, &file.place)?;
        let name = program.tool.name();
        if programs.iter().any(|other| other.tool.name() == name) {
            return Err(RegisterError::Duplicate { name: name.clone() }.into());
        }
        programs.push(program);
    }
    Ok(programs)
}

impl ToolSource for ProgramTools {
    fn list(&self) -> Vec<Tool> {
        self.programs.iter().map(|program| program.tool.clone()).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let Some(program) = self.program(tool) else {
            let text = format!("there is no tool named {tool:?}");
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text));
        };
        let limit = program.tool.tool_options().timeout;
        run::run(&program.command, self.supervisor.as_deref(), limit, &arguments, &context).await
    }
}
