//! Defines what runs: a program, its arguments, its folder and its environment.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::ffi::OsStrExt as _,
    path::{self, Path, PathBuf},
    process,
    sync::Arc,
};

use rustix::fs::{Access, access};
use tokio::process::ChildStdout;

use super::{
    child::{Child, Stdin},
    group::{Group, Pipes},
    supervise::SUPERVISE,
};

/// The `PATH` of a child, unless its command sets or inherits another.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The variables that MCP's official SDKs pass to a server.
const USER_VARIABLES: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// A program, its arguments, its folder and its environment.
///
/// The environment contains only `PATH=/usr/local/bin:/usr/bin:/bin` and the variables that [`env`](Self::env),
/// [`inherit`](Self::inherit) and [`inherit_user`](Self::inherit_user) add. The folder is `/` unless
/// [`folder`](Self::folder) names another.
#[derive(Clone)]
pub struct Command {
    program: PathBuf,
    arguments: Vec<OsString>,
    folder: PathBuf,
    /// A variable without a value is inherited.
    environment: Vec<(OsString, Option<OsString>)>,
    supervisor: Option<Arc<Path>>,
}

impl Command {
    /// Creates the command of a program, an absolute path. A configuration file names a program in this form.
    ///
    /// # Errors
    /// [`NotAbsolute`](CommandError::NotAbsolute), [`BatchScript`](CommandError::BatchScript), or
    /// [`NotFound`](CommandError::NotFound) if there is no such file.
    pub fn new(program: impl Into<PathBuf>) -> Result<Self, CommandError> {
        let program = program.into();
        if !program.is_absolute() || program.as_os_str().as_bytes().contains(&0) {
            return Err(CommandError::NotAbsolute { program });
        }
        // Windows passes these to its shell, whose quoting cannot be made safe.
        let extension = program.extension().unwrap_or_default();
        if extension.eq_ignore_ascii_case("bat") || extension.eq_ignore_ascii_case("cmd") {
            return Err(CommandError::BatchScript { program });
        }
        if !program.is_file() {
            return Err(CommandError::NotFound { program });
        }
        Ok(Self {
            program,
            arguments: Vec::new(),
            folder: PathBuf::from("/"),
            environment: Vec::new(),
            supervisor: None,
        })
    }

    /// Creates the command of a program that a person names, as a shell finds it: a name without `/` is looked up in
    /// this process's `PATH`, and a path starts at the current folder.
    ///
    /// The program is found once, here. Folders of `PATH` that are not absolute are skipped: what they name depends on
    /// the current folder.
    ///
    /// # Errors
    /// As for [`new`](Self::new); `NotFound` also if no folder of `PATH` has an executable file of that name.
    pub fn find(name: impl AsRef<OsStr>) -> Result<Self, CommandError> {
        Self::find_in(name.as_ref(), &env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(name: &OsStr, search: &OsStr) -> Result<Self, CommandError> {
        let not_found = || CommandError::NotFound { program: name.into() };
        if name.as_bytes().contains(&b'/') {
            return Self::new(path::absolute(name).map_err(|_| not_found())?);
        }
        let mut candidates = env::split_paths(search).filter(|it| it.is_absolute()).map(|it| it.join(name));
        let is_program = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
        Self::new(candidates.find(is_program).ok_or_else(not_found)?)
    }

    /// Creates a command from the line that a person would type into a shell.
    ///
    /// The line is split into words as a POSIX shell splits it: quotes and backslashes hold a word together, and `#`
    /// at the start of a word begins a comment. Nothing is expanded: `$HOME`, `*`, `~` and `;` stay as they are. The
    /// first word is the program, as for [`find`](Self::find).
    ///
    /// # Errors
    /// [`Empty`](CommandError::Empty), [`Unbalanced`](CommandError::Unbalanced), or as for `find`.
    pub fn from_line(line: &str) -> Result<Self, CommandError> {
        let mut words = shlex::split(line).ok_or(CommandError::Unbalanced)?.into_iter();
        let command = Self::find(words.next().ok_or(CommandError::Empty)?)?;
        Ok(words.fold(command, Self::arg))
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets the folder that the program starts in. Default: `/`.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Sets an environment variable, also one that would be inherited.
    #[must_use]
    pub fn env(mut self, variable: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((variable.into(), Some(value.into())));
        self
    }

    /// Passes on the value that an environment variable has in this process when the child starts, if it has one.
    #[must_use]
    pub fn inherit(mut self, variable: impl Into<OsString>) -> Self {
        self.environment.push((variable.into(), None));
        self
    }

    /// Passes on the variables that MCP's official SDKs pass to a server: `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM`
    /// and `USER`. Other variables, such as `LIVEKIT_API_SECRET`, are never among them. Variables that
    /// [`env`](Self::env) set before keep their values.
    #[must_use]
    pub fn inherit_user(mut self) -> Self {
        let user = USER_VARIABLES.into_iter().map(|variable| (variable.into(), None));
        self.environment.splice(..0, user);
        self
    }

    /// Starts the program through this helper binary, an absolute path. The helper ends the process group when this
    /// process is killed or aborts; [`ProgramTools::supervisor`](crate::programs::ProgramTools::supervisor) describes
    /// it. Default: no helper.
    #[must_use]
    pub fn supervisor(mut self, helper: impl AsRef<Path>) -> Self {
        self.supervisor = Some(helper.as_ref().into());
        self
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a child that runs for long. Returns it with its standard input and output.
    ///
    /// # Errors
    /// The program or its supervisor cannot be started. If the supervisor cannot start the program,
    /// [`Child::wait`] returns that error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(&self) -> io::Result<(Child, Stdin, ChildStdout)> {
        let (group, pipes) = self.start()?;
        Child::new(group, pipes)
    }

    /// Starts the program in a process group of its own.
    pub(crate) fn start(&self) -> io::Result<(Group, Pipes)> {
        match self.supervisor {
            Some(_) => Group::start_supervised(self.to_std()),
            None => Group::start(self.to_std()),
        }
    }

    /// Returns what the operating system starts. With a supervisor, the supervisor is started in the same folder with
    /// the same environment, and starts the program.
    pub(crate) fn to_std(&self) -> process::Command {
        let mut command = match &self.supervisor {
            Some(supervisor) => {
                let mut command = process::Command::new(&**supervisor);
                command.arg(SUPERVISE).arg(&self.program);
                command
            }
            None => process::Command::new(&self.program),
        };
        command.args(&self.arguments).current_dir(&self.folder).env_clear().env("PATH", SEARCH_PATH);
        for (variable, value) in &self.environment {
            match value {
                Some(value) => command.env(variable, value),
                None => command.envs(env::var_os(variable).map(|value| (variable, value))),
            };
        }
        command
    }
}

/// Without arguments and values of the environment, which may hold secrets.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Why a command cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The command line has no words.
    #[error("the command is empty")]
    Empty,
    /// A quote is not closed, or the command line ends with a backslash.
    #[error("the command has a quote that is not closed, or ends with a backslash")]
    Unbalanced,
    /// The path of the program is not absolute.
    #[error("the path {} is not absolute", program.display())]
    NotAbsolute {
        /// The path.
        program: PathBuf,
    },
    /// The program is a batch script of Windows, whose arguments a shell would read.
    #[error("{} is a batch script; name an executable", program.display())]
    BatchScript {
        /// The path.
        program: PathBuf,
    },
    /// There is no such program.
    #[error("there is no program {}", program.display())]
    NotFound {
        /// The path, or the name that `PATH` does not have.
        program: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;

    fn words(line: &str) -> Result<Vec<OsString>, CommandError> {
        Command::from_line(line).map(|command| command.arguments)
    }

    #[test]
    fn sec_x1_line_is_split_as_a_shell_splits_it_and_nothing_is_expanded() {
        for (line, expected) in [
            ("cat", &[][..]),
            ("  cat\t-u\n", &["-u"]),
            (r#"cat 'a b' "c d" e\ f"#, &["a b", "c d", "e f"]),
            (r#"cat "" a'b'"c" '\' "\"""#, &["", "abc", "\\", "\""]),
            (
                "cat $HOME ~ * ; rm -rf / && `x` $(x) | y > z",
                &["$HOME", "~", "*", ";", "rm", "-rf", "/", "&&", "`x`", "$(x)", "|", "y", ">", "z"],
            ),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        for line in ["cat 'a", "cat \"a", "cat a\\", "'"] {
            assert_eq!(words(line), Err(CommandError::Unbalanced), "{line}");
        }
        for line in ["", " \t", "# cat"] {
            assert_eq!(words(line), Err(CommandError::Empty), "{line}");
        }
        assert_eq!(
            words("no-such-program x").unwrap_err().to_string(),
            "there is no program no-such-program"
        );
    }

    #[test]
    fn program_is_the_first_executable_file_in_path() {
        let folder = env::temp_dir().join(format!("toolbridge-path-{}", process::id()));
        for (name, mode) in [("a/p", 0o600), ("b/p", 0o700), ("c/p", 0o700)] {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir_all(folder.join("a/d/d")).unwrap();
        let search = env::join_paths(["a/d", "a", "b", "c"].map(|it| folder.join(it))).unwrap();
        let find = |name: &str| Command::find_in(name.as_ref(), &search).map(|it| it.program);
        assert_eq!(find("p"), Ok(folder.join("b/p")));
        assert_eq!(find("d"), Err(CommandError::NotFound { program: "d".into() }));
        let relative = env::join_paths(["", ".", "src"]).unwrap();
        assert!(Command::find_in("Cargo.toml".as_ref(), &relative).is_err());
        let here = Command::find_in("./Cargo.toml".as_ref(), &relative).map(|it| it.program);
        assert_eq!(here, Ok(env::current_dir().unwrap().join("Cargo.toml")));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sec_x2_only_named_variables_are_inherited() {
        let command = Command::new("/bin/cat").unwrap();
        let names = |command: Command| -> Vec<String> {
            command.to_std().get_envs().map(|(name, _)| name.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(command.clone()), ["PATH"]);
        assert_eq!(names(command.clone().inherit("CARGO_PKG_NAME")), ["CARGO_PKG_NAME", "PATH"]);
        let user = names(command.clone().inherit_user());
        assert!(user.iter().all(|name| USER_VARIABLES.contains(&name.as_str())), "{user:?}");
        for own in
            [command.clone().env("PATH", "/mine").inherit_user(), command.inherit_user().env("PATH", "/mine")]
        {
            let own = own.to_std();
            assert!(own.get_envs().any(|it| it == ("PATH".as_ref(), Some("/mine".as_ref()))));
        }
    }

    #[test]
    fn sec_x1_program_is_an_absolute_path() {
        let refused = |path: &str| Command::new(path).unwrap_err();
        assert!(matches!(refused("Cargo.toml"), CommandError::NotAbsolute { .. }));
        assert!(matches!(refused("/bin"), CommandError::NotFound { .. }));
        assert!(matches!(refused("/bin/no-such-program"), CommandError::NotFound { .. }));
    }

    #[test]
    fn path_with_a_nul_is_refused() {
        let refused = Command::new("/bin/cat\0").unwrap_err();
        assert!(matches!(refused, CommandError::NotAbsolute { .. }));
    }

    #[test]
    fn sec_x1_batch_script_is_refused() {
        let folder = env::temp_dir().join(format!("toolbridge-batch-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["run.bat", "run.CMD"] {
            let path = folder.join(name);
            fs::write(&path, "").unwrap();
            assert!(matches!(Command::new(path), Err(CommandError::BatchScript { .. })), "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sec_x2_child_has_a_fixed_search_path_and_folder() {
        let command = Command::new("/bin/cat").unwrap().to_std();
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
        let variables: Vec<_> = command.get_envs().collect();
        assert_eq!(variables, [("PATH".as_ref(), Some(SEARCH_PATH.as_ref()))]);
    }

    #[test]
    fn sec_x2_child_gets_no_other_variable_of_this_process() {
        let shown = Command::new("/usr/bin/env").unwrap().to_std().output().unwrap();
        assert!(!String::from_utf8(shown.stdout).unwrap().contains("CARGO"));
    }

    #[test]
    fn debug_output_has_no_arguments_and_no_values() {
        let command = Command::new("/bin/cat").unwrap().arg("hunter2").env("TOKEN", "hunter2");
        assert_eq!(format!("{command:?}"), "Command { program: \"/bin/cat\", .. }");
    }
}
