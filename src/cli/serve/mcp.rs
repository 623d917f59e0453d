//! `toolbridge mcp`: serves the tools of a room to a host of the Model Context Protocol (MCP).

use std::{
    env,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
};

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::cli::{
    room::{
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        connection_state,
        offered::OfferOptions,
    },
    terminal::{
        failure::{Failure, hint},
        file,
        interrupt::{interrupted, unless_interrupted},
    },
};
use toolbridge::{
    Assistant, Role,
    adapter::mcp::{self, AttachError, McpListener, RoomServer},
};

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
Configuration of an MCP host that starts the command itself (standard input and output):
  {\"mcpServers\": {\"room\": {\"command\": \"toolbridge\", \"args\": [\"mcp\", \"--room\", \"home\"]}}}
With --listen, hosts connect to the printed URL with the printed bearer token.
With --attach, a host that starts the command itself reaches such a server, and no second assistant joins the room. The \
token is in the environment variable TOOLBRIDGE_MCP_TOKEN.";

/// The variable of the bearer token for `--attach`. A command line can be seen by other users of the machine.
const TOKEN: &str = "TOOLBRIDGE_MCP_TOKEN";

const UNENCRYPTED: &str = "warning: MCP is served over unencrypted HTTP, so anyone on the network path can read and use the bearer token";

const NAMELESS: &str = "warning: MCP requests for the names of this machine are refused with status 403; allow each name or address that \
     hosts on other machines use with --allow-host";

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Identity of a known client, which can be called before LiveKit announces it (repeatable)
    #[arg(long = "client", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    clients: Vec<String>,

    /// Listen for HTTP at this address, such as 127.0.0.1:0, and print URL and bearer token. Default: standard input and output
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Carry standard input and output to the MCP server at this URL, such as that of a running assistant, and join no room.
    /// The bearer token is read from TOOLBRIDGE_MCP_TOKEN
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "clients", "allow", "deny", "allow_host"])]
    attach: Option<String>,

    #[command(flatten)]
    offered: OfferOptions,

    #[command(flatten)]
    serving: ServingOptions,
}

/// Host names that HTTP requests may use.
#[derive(Debug, Args)]
pub(in crate::cli) struct ServingOptions {
    /// Accept HTTP requests for this host name too (repeatable)
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
}

impl ServingOptions {
    /// Returns whether any option was given.
    pub(in crate::cli) fn is_given(&self) -> bool {
        !self.allow_host.is_empty()
    }

    /// Listens for HTTP.
    pub(in crate::cli) async fn listen(
        &self,
        assistant: &Assistant,
        offered: &OfferOptions,
        address: SocketAddr,
    ) -> Result<McpListener, Failure> {
        self.warnings(address.ip()).for_each(hint);
        let listening = self.server(assistant, offered).listen(address).await;
        listening.map_err(|error| Failure::failed(format!("cannot listen at {address}: {error}")))
    }

    /// Returns what to know about a server at this address.
    fn warnings(&self, address: IpAddr) -> impl Iterator<Item = &'static str> {
        let nameless = address.is_unspecified() && self.allow_host.is_empty();
        let warnings = [(!address.is_loopback(), UNENCRYPTED), (nameless, NAMELESS)];
        warnings.into_iter().filter_map(|(applies, warning)| applies.then_some(warning))
    }

    /// Returns the server of an assistant.
    fn server(&self, assistant: &Assistant, offered: &OfferOptions) -> RoomServer {
        let server = mcp::serve(assistant.clone());
        let server = offered.set(server, |it, name| it.allow(name), |it, name| it.deny(name));
        self.allow_host.iter().fold(server, |server, name| server.host(name))
    }
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    if let Some(url) = arguments.attach {
        return attach(url, &arguments.room_arguments).await;
    }
    let target = arguments.room_arguments.target("mcp", Role::Assistant)?;
    let mut builder = Assistant::builder().connect_options(target.options.clone());
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    arguments.listen.map_or(Ok(()), file::can_listen)?;
    let joining = async { builder.join(&target.url, &target.token).await.map_err(file::not_joined) };
    let assistant = unless_interrupted(joining).await?;
    let ended = tokio::select! {
        biased;
        () = interrupted() => Ok(()),
        () = connection_state::print_changes(&assistant, None) => Ok(()), // never completes
        ended = serve(&arguments, &assistant) => ended,
    };
    assistant.close().await;
    ended
}

/// Carries standard input and output to a server until either ends.
async fn attach(url: String, room: &RoomArguments) -> Result<(), Failure> {
    if room.is_given() {
        return Err(Failure::usage("--attach joins no room: leave out --room and --identity"));
    }
    let mut bridge = mcp::attach(url);
    if let Ok(token) = env::var(TOKEN) {
        bridge = bridge.bearer_token(token);
    }
    tokio::select! {
        biased;
        () = interrupted() => Ok(()),
        ended = bridge.over(tokio::io::stdin(), tokio::io::stdout()) => ended.map_err(|error| match error {
            AttachError::Address(_) => Failure::usage(error),
            other => Failure::failed(other),
        }),
    }
}

/// Serves until the host closes standard input, or the assistant leaves.
async fn serve(arguments: &Arguments, assistant: &Assistant) -> Result<(), Failure> {
    let Arguments { serving, offered, .. } = arguments;
    let Some(address) = arguments.listen else {
        return serving.server(assistant, offered).stdio().await.map_err(Failure::failed);
    };
    let listener = serving.listen(assistant, offered, address).await?;
    writeln!(io::stdout(), "url: {}\ntoken: {}", listener.url(), listener.token())?;
    Err(Failure::failed(assistant.closed().await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_on_all_addresses_without_a_name_is_warned_about() {
        let warnings = |address: &str, names: &[&str]| {
            let allow_host = names.iter().map(|name| (*name).to_owned()).collect();
            let options = ServingOptions { allow_host };
            options.warnings(address.parse().unwrap()).collect::<Vec<_>>()
        };
        assert!(warnings("127.0.0.1", &[]).is_empty());
        assert_eq!(warnings("192.0.2.7", &[]), [UNENCRYPTED]);
        assert_eq!(warnings("0.0.0.0", &[]), [UNENCRYPTED, NAMELESS]);
        assert_eq!(warnings("::", &["studio.local"]), [UNENCRYPTED]);
    }
}
