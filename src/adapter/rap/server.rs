//! Serves the room's tools as a RAP toolset: the model of a runtime calls what the clients in the room offer.
//!
//! [`http`] answers requests, and starts a task for each call that [`table`] has not seen before. [`call`] runs it, and
//! [`delivery`] sends its result.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::address::{NamedHost, Outgoing, host_in};
use crate::{
    Assistant,
    adapter::{
        filter::Filter,
        sink::Room,
        web::{
            secret::random_text,
            server::{reachable, serve as serve_http},
        },
    },
};

mod call;
mod delivery;
mod http;
mod invocation;
mod manifest;
mod table;

use call::{Calls, Waiting};
use http::Server;
use table::Table;

/// The longest name of a toolset, in characters: the specification's.
const MAX_NAME: usize = 128;

/// Serves the tools of the assistant's room as a RAP toolset.
///
/// The assistant keeps working as before. A tool that one participant offers is listed under its own name, one of
/// several as `owner__tool`. Names contain only characters that model APIs allow: a dot becomes `__`.
///
/// ```no_run
/// # async fn example(assistant: toolbridge::Assistant) -> Result<(), Box<dyn std::error::Error>> {
/// use toolbridge::adapter::rap;
///
/// let toolset = rap::serve(assistant).allow_callback("127.0.0.1:8090".parse()?).listen("127.0.0.1:0".parse()?).await?;
/// println!("{}", toolset.url()); // for the configuration of the runtime
/// # Ok(())
/// # }
/// ```
///
/// | what a runtime does | what follows |
/// | --- | --- |
/// | it calls a tool | status 200 at once; then the tool runs, and its result is posted to `callback_url` |
/// | it sends the same call again | status 200; the tool runs once |
/// | the tool fails, panics or takes too long, does not exist, or its arguments do not fit | a result that begins with `Error: ` |
/// | it answers a result with status 5xx, or not at all | the result is posted up to five times, 1 to 16 s apart |
/// | it cancels a call or closes a thread | status 200; the calls are cancelled |
/// | it names a callback on a private network | status 400, unless the host was [allowed](RoomToolset::allow_callback) |
/// | the name of its callback stands for such an address | status 200; the tool does not run, and nothing is posted |
///
/// A request has at most 4 MiB, 256 calls are open at once, and 64 run. Beyond that, or while 64 MiB of results wait to be
/// received, a call is answered with status 503, or its result says that the toolset is busy. An ended call is remembered
/// for 10 min. Progress is not part of the protocol.
pub fn serve(assistant: Assistant) -> RoomToolset {
    RoomToolset {
        assistant,
        filter: Filter::default(),
        name: "toolbridge".to_owned(),
        public: None,
        callbacks: Vec::new(),
    }
}

/// Serves the tools of a room to RAP runtimes: see [`serve`].
#[must_use = "a toolset does nothing until it listens"]
pub struct RoomToolset {
    assistant: Assistant,
    filter: Filter,
    name: String,
    public: Option<String>,
    callbacks: Vec<NamedHost>,
}

/// Why a toolset cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RapServeError {
    /// The address cannot be bound, or the operating system gives no random bytes.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The name is empty or too long.
    #[error("the toolset's name has {length} characters; it needs 1 to {limit}")]
    Name {
        /// Its length in characters.
        length: usize,
        /// The limit in characters.
        limit: usize,
    },
    /// The public URL cannot be used.
    #[error(
        "the public URL of {host:?} is not one such as https://tools.example.com/home, without user, query and fragment"
    )]
    PublicUrl {
        /// Its host.
        host: String,
    },
    /// The HTTP client for callbacks cannot be set up.
    #[error("{reason}")]
    Setup {
        /// The reason.
        reason: String,
    },
}

impl RoomToolset {
    /// Offers only tools that match this pattern or another allowed one. Default: all tools.
    ///
    /// A pattern is a tool's name, or `owner.tool`, or the name that a runtime sees. A `*` at its end stands for any text:
    /// `fs.*`, `phone.*`, `fs__read`.
    pub fn allow(mut self, pattern: impl Into<String>) -> Self {
        self.filter.allow([pattern.into()]);
        self
    }

    /// Does not offer tools that match this pattern, even if another pattern allows them.
    pub fn deny(mut self, pattern: impl Into<String>) -> Self {
        self.filter.deny([pattern.into()]);
        self
    }

    /// Sets the name of the toolset, at most 128 characters. Default: `toolbridge`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the URL under which runtimes reach the listener, if that is a proxy in front of it. The secret path is added
    /// to it. Default: the address that is listened on.
    pub fn public_url(mut self, url: impl Into<String>) -> Self {
        self.public = Some(url.into());
        self
    }

    /// Sends results to callbacks of this host, although it may be on this machine or on a private network, and over plain
    /// HTTP. Default: callbacks of the public internet, over HTTPS.
    pub fn allow_callback(mut self, host: NamedHost) -> Self {
        self.callbacks.push(host);
        self
    }

    /// Listens for HTTP connections at this address, under a path with 128 random bits, which is the secret of the
    /// toolset. Only programs on this machine reach a loopback address; port 0 selects a free port.
    ///
    /// # Errors
    /// Any [`RapServeError`].
    ///
    /// # Cancel safety
    /// Dropping the future before it completes listens to nothing.
    pub async fn listen(self, address: SocketAddr) -> Result<RapListener, RapServeError> {
        let length = self.name.chars().count();
        if !(1..=MAX_NAME).contains(&length) {
            return Err(RapServeError::Name { length, limit: MAX_NAME });
        }
        let public = self.public.as_deref().map(public_url).transpose()?;
        let outgoing = Outgoing::new(self.callbacks);
        let outgoing = outgoing.map_err(|error| RapServeError::Setup { reason: error.to_string() })?;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let public = public.unwrap_or_else(|| format!("http://{}", reachable(address)));
        let path = format!("/rap/{}", random_text()?);
        let url = format!("{public}{path}");
        let calls = Calls {
            room: Room::new(self.assistant, self.filter),
            table: Table::default(),
            outgoing,
            is_closing: AtomicBool::new(false),
            waiting: Waiting::default(),
        };
        let server = Arc::new(Server::new(calls, self.name, &path, format!("{url}/invoke"))?);
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(run(listener, server, stop.clone()));
        Ok(RapListener { address, url, stop, tasks })
    }
}

impl fmt::Debug for RoomToolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RoomToolset");
        out.field("name", &self.name).field("filter", &self.filter).field("callbacks", &self.callbacks);
        out.finish_non_exhaustive()
    }
}

/// Returns the public URL without the slash at its end.
fn public_url(text: &str) -> Result<String, RapServeError> {
    let refused = || RapServeError::PublicUrl { host: host_in(text).to_owned() };
    let url = Url::parse(text).map_err(|_| refused())?;
    let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if !matches!(url.scheme(), "http" | "https") || !is_plain || url.password().is_some() {
        return Err(refused());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A RAP toolset that listens for HTTP connections: see [`RoomToolset::listen`]. Dropping it ends all connections and
/// calls, without their results.
pub struct RapListener {
    address: SocketAddr,
    url: String,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl RapListener {
    /// Returns the base URL of the toolset, such as `http://127.0.0.1:40123/rap/tXk3…`. Whoever has it can call the tools.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address that the toolset listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the toolset has ended because its assistant left the room.
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing, and it can be called again.
    pub async fn closed(&mut self) {
        self.tasks.join_next().await;
    }

    /// Ends all connections and cancels their calls. Each of them has 2 s to deliver its result.
    ///
    /// # Cancel safety
    /// If the future is dropped, the calls end without their results.
    pub async fn close(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await;
    }
}

impl fmt::Debug for RapListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RapListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Answers requests until the toolset is closed or the assistant leaves.
async fn run(listener: TcpListener, server: Arc<Server>, stop: CancellationToken) {
    let answering = Arc::clone(&server);
    let answer = move |request| {
        let server = Arc::clone(&answering);
        async move { server.answer(request).await }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = server.calls().room.assistant().closed() => {}
        () = serve_http(listener, "RAP", answer) => {}
    }
    server.finish().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_url_is_kept_without_its_last_slash() {
        assert_eq!(public_url("https://tools.example.com/").unwrap(), "https://tools.example.com");
        assert_eq!(public_url("https://tools.example.com/home/").unwrap(), "https://tools.example.com/home");
        for bad in
            ["tools.example.com", "ftp://x", "https://x/?hunter2", "https://me:pw@x", "https://x/#a", ""]
        {
            let error = public_url(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains("pw"), "{error}");
        }
    }
}
