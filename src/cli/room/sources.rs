//! Reads `--tools`, `--mcp`, `--rap` and `--acp`: the tools that a client, an assistant or an editor's agent
//! runs on this machine.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use futures_util::future::{join, join_all};
use tokio::time::timeout;

use crate::cli::{
    room::{
        consent::{Asked, ConsentPrompt},
        grant::Listed,
    },
    terminal::failure::{Failure, hint},
};
use toolbridge::{
    Builder, ToolSource,
    adapter::{
        SourceError,
        acp::{self, AcpCommand, AcpTool},
        mcp::{self, McpServer, McpTools},
        rap::{self, RapTools, RapToolset},
    },
    programs::{ProgramTools, ToolsFileError},
    tools::SourceHealth,
};

#[derive(Debug, Args)]
pub(in crate::cli) struct SourceArguments {
    /// TOML file that defines programs, MCP servers, RAP toolsets and agents as tools (see examples/tools.toml). Programs and
    /// agents run on this machine
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// MCP server whose tools are offered: a command, which runs on this machine, or a URL (repeatable). Its words are
    /// split as by a shell, and nothing is expanded. `NAME=` before it sets the name of the server. A command starts in the current folder
    #[arg(long, value_name = "[NAME=]COMMAND|URL", value_parser = server)]
    mcp: Vec<String>,

    /// RAP toolset whose tools are offered: its URL before `/.well-known/rap-toolset` (repeatable). `NAME=` before it sets
    /// the name of the toolset. Its tools answer at a free port of 127.0.0.1; a `[[rap]]` of --tools sets another address
    #[arg(long, value_name = "[NAME=]URL", value_parser = toolset)]
    rap: Vec<String>,

    /// Agent of the Agent Client Protocol (ACP) that becomes one tool (repeatable): a command, which runs on this machine in the
    /// current folder. Its words are split as by a shell. `NAME=` before it sets the name of the tool
    #[arg(long, value_name = "[NAME=]COMMAND", value_parser = server)]
    acp: Vec<String>,

    /// Let the agents of --acp read and write the files of this folder, and of no other, through toolbridge
    #[arg(long, value_name = "DIR", requires = "acp")]
    allow_fs: Option<PathBuf>,

    /// Let the agents of --acp run commands through toolbridge. A person is asked before each, with the exact command
    #[arg(long, requires = "acp")]
    allow_terminal: bool,

    /// Pass this environment variable on to the agents of --acp, such as the one with their API key (repeatable)
    #[arg(long, value_name = "NAME", requires = "acp", value_parser = variable)]
    agent_env: Vec<String>,

    /// Run this tool, under the name that it is offered by, without asking for consent (repeatable). `SERVER.*` stands for
    /// all tools of an MCP server or a RAP toolset, and another name that ends in `*` for all tools whose names start with it
    #[arg(long, value_name = "TOOL")]
    yes: Vec<String>,
}

/// What a participant offers.
pub(in crate::cli) struct Sources {
    pub(in crate::cli) programs: Option<ProgramTools>,
    pub(in crate::cli) servers: Vec<McpTools>,
    pub(in crate::cli) toolsets: Vec<RapTools>,
    pub(in crate::cli) agents: Vec<AcpTool>,
    pub(in crate::cli) consent: Option<ConsentPrompt>,
}

impl Sources {
    /// Returns whether there is no tool in any of them now.
    pub(in crate::cli) fn offer_none(&self) -> bool {
        let of_programs = self.programs.iter().flat_map(|it| it.list());
        let of_servers = self.servers.iter().flat_map(|it| it.list());
        let of_toolsets = self.toolsets.iter().flat_map(|it| it.list());
        of_programs.chain(of_servers).chain(of_toolsets).next().is_none() && self.agents.is_empty()
    }

    /// Returns whether tools of these sources may ask a person something: to sign in, to choose, or to fill in a form.
    pub(in crate::cli) fn may_ask(&self) -> bool {
        !(self.servers.is_empty() && self.toolsets.is_empty() && self.agents.is_empty())
    }
}

/// Returns the builder of a client or of an assistant with these sources.
pub(in crate::cli) fn with_sources<P>(mut builder: Builder<P>, sources: Sources) -> Builder<P> {
    if let Some(prompt) = sources.consent {
        builder = builder.consent(move |request| prompt.clone().ask(request));
    }
    if let Some(programs) = sources.programs {
        builder = builder.tools(programs);
    }
    builder = sources.servers.into_iter().fold(builder, Builder::tools);
    builder = sources.toolsets.into_iter().fold(builder, Builder::tools);
    sources.agents.into_iter().fold(builder, Builder::tools)
}

impl SourceArguments {
    /// Loads the programs, and starts the servers. `asked` says whose consent tools need.
    pub(in crate::cli) async fn start(&self, asked: Asked) -> Result<Sources, Failure> {
        let (mut programs, mut servers, mut toolsets, mut agents) =
            (None, Vec::new(), Vec::new(), Vec::new());
        if let Some(path) = &self.tools {
            programs = Some(read_programs(path)?);
            servers = mcp::from_file(path).map_err(|error| of_file(path, &error))?;
            toolsets = rap::from_file(path).map_err(|error| of_file(path, &error))?;
            agents = acp::from_file(path).map_err(|error| of_file(path, &error))?;
        }
        servers.extend(self.mcp.iter().map(|text| named(text)));
        toolsets.extend(self.rap.iter().map(|text| named_toolset(text)));
        agents.extend(self.acp.iter().map(|text| self.agent(text)).collect::<Result<Vec<_>, _>>()?);
        let has_none =
            self.tools.is_none() && [&self.mcp, &self.rap, &self.acp].iter().all(|it| it.is_empty());
        if has_none && !self.yes.is_empty() {
            return Err(Failure::usage("--yes is for tools of --tools, --mcp, --rap or --acp"));
        }
        // All of them start while the toolsets are read.
        let offered = servers.into_iter().map(begun).collect::<Result<Vec<_>, _>>()?;
        let started_agents = agents.into_iter().map(begun_agent).collect::<Result<Vec<_>, _>>()?;
        let toolsets = started_toolsets(toolsets).await?;
        for toolset in toolsets.iter().filter(|it| it.health() != SourceHealth::Up) {
            let (name, health) = (toolset.name().unwrap_or_default(), toolset.health());
            hint(&format!("{name} is {health}; it is read again until it answers"));
        }
        let is_alone = programs.is_none() && toolsets.is_empty();
        wait_for(&offered, &started_agents, is_alone).await?;
        // In the order in which the participant gets them: it decides about names that several have.
        let of_programs = programs.iter().map(|it| listed(None, it));
        let of_servers = offered.iter().map(|it| listed(it.name(), it));
        // A toolset that is down can be allowed as a whole. The tool of an agent is known before the agent is up.
        let of_toolsets = toolsets.iter().map(|it| Listed { is_missing: false, ..listed(it.name(), it) });
        let of_agents = started_agents
            .iter()
            .map(|it| Listed { is_missing: false, ..listed(Some(it.name().to_owned()), it) });
        let listed: Vec<_> = of_programs.chain(of_servers).chain(of_toolsets).chain(of_agents).collect();
        let consent = ConsentPrompt::of(&listed, &self.yes, asked)?;
        Ok(Sources { programs, servers: offered, toolsets, agents: started_agents, consent })
    }

    /// Returns the agent that an `--acp` names.
    fn agent(&self, text: &str) -> Result<AcpCommand, Failure> {
        let (name, command) = split(text);
        let agent = in_current_folder(acp::line(command), self.allow_fs.as_deref(), self.allow_terminal)?;
        let agent = self.agent_env.iter().fold(agent, AcpCommand::inherit);
        Ok(match name {
            Some(name) => agent.name(name),
            None => agent,
        })
    }
}

/// Starts a server through this program, which ends it when this process is killed, and waits for it.
pub(in crate::cli) async fn started(server: McpServer) -> Result<McpTools, Failure> {
    server.supervisor(this_program()?).await.map_err(not_started)
}

/// Starts a server through this program, without waiting for it.
fn begun(server: McpServer) -> Result<McpTools, Failure> {
    server.supervisor(this_program()?).begin().map_err(not_started)
}

fn not_started(error: SourceError) -> Failure {
    match error {
        SourceError::Setting { .. } => Failure::usage(error),
        other => Failure::failed(other),
    }
}

fn listed(server: Option<String>, source: &impl ToolSource) -> Listed {
    Listed { server, tools: source.list(), is_missing: source.health() != SourceHealth::Up }
}

/// How long servers and agents may take to start before the room is joined without them.
const START_WAIT: Duration = Duration::from_secs(10);

/// Waits for servers and agents, and says which of them are missing. Those are offered when they are up.
///
/// # Errors
/// None of them starts, and there is nothing else to offer.
async fn wait_for(servers: &[McpTools], agents: &[AcpTool], is_alone: bool) -> Result<(), Failure> {
    let of_servers = join_all(servers.iter().map(has_begun));
    let of_agents = join_all(agents.iter().map(has_begun));
    let _ = timeout(START_WAIT, join(of_servers, of_agents)).await; // the others are missing
    let of_servers = servers.iter().map(|it| (it.name(), it.health(), it.last_failure()));
    let of_agents = agents.iter().map(|it| (Some(it.name().to_owned()), it.health(), it.last_failure()));
    let all: Vec<_> = of_servers.chain(of_agents).collect();
    let is_down = |health: &SourceHealth| matches!(health, SourceHealth::Down { .. });
    if is_alone && all.iter().all(|(_, health, _)| is_down(health)) {
        return match all.into_iter().next() {
            Some((name, health, failure)) => Err(Failure::failed(
                failure.unwrap_or_else(|| format!("{} is {health}", name.unwrap_or_default())),
            )),
            None => Ok(()),
        };
    }
    for (name, health, failure) in all.into_iter().filter(|(_, health, _)| *health != SourceHealth::Up) {
        let what = failure.unwrap_or_else(|| format!("{} is {health}", name.unwrap_or_default()));
        let then = if is_down(&health) { "started again until it works" } else { "waited for" };
        hint(&format!("{what}; it is missing now, is {then}, and is offered then"));
    }
    Ok(())
}

/// Resolves when a source is up, or its first start has failed.
async fn has_begun(source: &impl ToolSource) {
    while source.health() == SourceHealth::Starting {
        source.changed().await;
    }
}

/// Reads toolsets, and says which of their tools are not offered.
pub(in crate::cli) async fn started_toolsets(toolsets: Vec<RapToolset>) -> Result<Vec<RapTools>, Failure> {
    let started = rap::toolsets(toolsets).await.map_err(not_started)?;
    for toolset in &started {
        let name = toolset.name().unwrap_or_default();
        for (tool, reason) in toolset.left_out() {
            hint(&format!("{tool} of {name} is not offered: {reason}"));
        }
    }
    Ok(started)
}

/// Checks the form of a `--rap`.
pub(in crate::cli) fn toolset(text: &str) -> Result<String, String> {
    if !["http://", "https://"].iter().any(|scheme| split(text).1.starts_with(scheme)) {
        return Err("a URL such as https://tools.example.com is missing".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns the toolset that a `--rap` names.
pub(in crate::cli) fn named_toolset(text: &str) -> RapToolset {
    let (name, url) = split(text);
    match name {
        Some(name) => rap::toolset(url).name(name),
        None => rap::toolset(url),
    }
}

/// Lets an agent work in the current folder, and do through toolbridge what the options allow.
pub(in crate::cli) fn in_current_folder(
    agent: AcpCommand,
    files: Option<&Path>,
    runs_commands: bool,
) -> Result<AcpCommand, Failure> {
    let folder = env::current_dir()
        .map_err(|error| Failure::failed(format!("cannot determine the current folder: {error}")))?;
    let agent = agent.folder(folder);
    let agent = if let Some(files) = files { agent.allow_files(files) } else { agent };
    Ok(if runs_commands { agent.allow_commands() } else { agent })
}

/// Starts an agent through this program, which ends it when this process is killed, and waits for it.
pub(in crate::cli) async fn started_agent(agent: AcpCommand) -> Result<AcpTool, Failure> {
    supervised(agent)?.await.map_err(not_started)
}

/// Starts an agent through this program, without waiting for it.
fn begun_agent(agent: AcpCommand) -> Result<AcpTool, Failure> {
    supervised(agent)?.begin().map_err(not_started)
}

fn supervised(agent: AcpCommand) -> Result<AcpCommand, Failure> {
    let agent = agent.supervisor(this_program()?);
    Ok(match env::current_exe() {
        Ok(program) => agent.attach_program(program),
        Err(_) => agent,
    })
}

/// Checks an `--agent-env`. A value does not belong on the command line, where other users of this machine can read it.
pub(in crate::cli) fn variable(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['=', '\0']) {
        return Err("the name of a variable is expected, without a value".to_owned());
    }
    if env::var_os(text).is_none() {
        return Err("this variable is not set".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks the form of a `--mcp` or an `--acp`.
pub(in crate::cli) fn server(text: &str) -> Result<String, String> {
    if split(text).1.trim().is_empty() {
        return Err("a command or a URL is missing".to_owned());
    }
    Ok(text.to_owned())
}

/// Splits `NAME=COMMAND`. A name has letters, digits, `_` and `-`.
fn split(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-'))
    };
    match text.split_once('=') {
        Some((name, rest)) if is_name(name) => (Some(name), rest),
        _ => (None, text),
    }
}

/// Returns the server that a `--mcp` names.
pub(in crate::cli) fn named(text: &str) -> McpServer {
    let (name, place) = split(text);
    let is_url = ["http://", "https://"].iter().any(|scheme| place.starts_with(scheme));
    let server = if is_url { mcp::http(place) } else { in_this_folder(mcp::line(place)) };
    match name {
        Some(name) => server.name(name),
        None => server,
    }
}

/// Starts a server where the command line was written, as a shell does: its words may be relative paths.
fn in_this_folder(server: McpServer) -> McpServer {
    match env::current_dir() {
        Ok(folder) => server.folder(folder),
        Err(_) => server,
    }
}

/// Loads the programs of a file. Errors name the file.
fn read_programs(path: &Path) -> Result<ProgramTools, Failure> {
    let tools = ProgramTools::from_file(path).map_err(|error| of_file(path, &error))?;
    Ok(tools.supervisor(this_program()?))
}

fn of_file(path: &Path, error: &ToolsFileError) -> Failure {
    match error {
        ToolsFileError::Untrusted(error) => Failure::usage(error), // it names the file
        of_its_content => Failure::usage(format!("{}: {of_its_content}", path.display())),
    }
}

/// Returns the path of the running binary, which stays valid when its file is replaced.
fn this_program() -> Result<PathBuf, Failure> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        return Ok(link.to_owned());
    }
    env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot determine the path of this program: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stands_before_an_equals_sign() {
        assert_eq!(split("files=mcp-files /srv"), (Some("files"), "mcp-files /srv"));
        assert_eq!(split("npx -y server --level=3"), (None, "npx -y server --level=3"));
        assert_eq!(split("https://mcp.example.com/?a=b"), (None, "https://mcp.example.com/?a=b"));
        assert!(server("files=").is_err() && server(" ").is_err());
    }

    #[test]
    fn agents_get_only_named_variables_that_are_set() {
        assert_eq!(variable("PATH").as_deref(), Ok("PATH"));
        for (text, wrong) in
            [("", "name"), ("KEY=hunter2", "without a value"), ("NO_SUCH_VARIABLE", "not set")]
        {
            let error = variable(text).unwrap_err();
            assert!(error.contains(wrong) && !error.contains("hunter2"), "{error}");
        }
    }
}
