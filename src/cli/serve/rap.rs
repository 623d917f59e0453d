//! `toolbridge rap`: serves the tools of a room to a runtime of the Reactive Agent Protocol (RAP).

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use url::Url;

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
    adapter::rap::{self, NamedHost, RapListener, RapServeError, RoomToolset},
};

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
The command prints the base URL of the toolset, for the configuration of a RAP runtime. Its path is a secret: whoever \
has it can call the tools. Results are posted to the callback of each call; one on this machine or on a private network \
has to be allowed:
  toolbridge rap --room home --allow-callback 127.0.0.1";

const UNENCRYPTED: &str = "warning: RAP is served over unencrypted HTTP, so anyone on the network path can read and use the secret path";

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Identity of a known client, which can be called before LiveKit announces it (repeatable)
    #[arg(long = "client", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    clients: Vec<String>,

    /// Listen for HTTP at this address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    #[command(flatten)]
    offered: OfferOptions,

    #[command(flatten)]
    toolset: ToolsetOptions,
}

/// How a toolset is reached, and where its results may go.
#[derive(Debug, Args)]
pub(in crate::cli) struct ToolsetOptions {
    /// URL under which RAP runtimes reach the address, if that is a proxy. The secret path is added to it
    #[arg(long, value_name = "URL", value_parser = public)]
    public: Option<String>,

    /// Send results to callbacks of this host too, although it is on this machine or on a private network, or has no HTTPS
    /// (repeatable)
    #[arg(long, value_name = "HOST[:PORT]")]
    allow_callback: Vec<NamedHost>,
}

impl ToolsetOptions {
    /// Returns whether any option was given.
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.public.is_some() || !self.allow_callback.is_empty()
    }

    /// Listens for HTTP.
    pub(in crate::cli) async fn listen(
        &self,
        assistant: &Assistant,
        offered: &OfferOptions,
        address: SocketAddr,
    ) -> Result<RapListener, Failure> {
        if !address.ip().is_loopback() {
            hint(UNENCRYPTED);
        }
        let toolset =
            offered.set(rap::serve(assistant.clone()), |it, name| it.allow(name), |it, name| it.deny(name));
        let toolset = self.allow_callback.iter().cloned().fold(toolset, RoomToolset::allow_callback);
        let toolset = self.public.iter().fold(toolset, RoomToolset::public_url);
        toolset.listen(address).await.map_err(|error| match error {
            RapServeError::PublicUrl { .. } => Failure::usage(error),
            other => Failure::failed(format!("cannot listen at {address}: {other}")),
        })
    }
}

/// Checks what can be checked before the room is joined.
fn public(text: &str) -> Result<String, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(text.to_owned()),
        _ => Err("it is not a URL such as https://tools.example.com/home".to_owned()),
    }
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.room_arguments.target("rap", Role::Assistant)?;
    let mut builder = Assistant::builder().connect_options(target.options.clone());
    for client in &arguments.clients {
        builder = builder.client(client.as_str());
    }
    file::can_listen(arguments.listen)?;
    let joining = async { builder.join(&target.url, &target.token).await.map_err(file::not_joined) };
    let assistant = unless_interrupted(joining).await?;
    let listening = arguments.toolset.listen(&assistant, &arguments.offered, arguments.listen).await;
    let listener = match listening {
        Ok(listener) => listener,
        Err(error) => {
            assistant.close().await;
            return Err(error);
        }
    };
    writeln!(io::stdout(), "url: {}", listener.url())?;
    let ended = tokio::select! {
        biased;
        () = interrupted() => Ok(()),
        () = connection_state::print_changes(&assistant, None) => Ok(()), // never completes
        reason = assistant.closed() => Err(Failure::failed(reason)),
    };
    listener.close().await;
    assistant.close().await;
    ended
}
