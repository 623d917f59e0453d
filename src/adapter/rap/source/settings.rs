//! Holds the settings of a toolset, and their builder.

use std::{
    fmt,
    future::{Future, IntoFuture},
    net::SocketAddr,
    pin::Pin,
    time::Duration,
};

use url::Url;

use super::{
    KIND, RapTools,
    requests::{Endpoint, Server},
    start,
};
use crate::{
    Consent,
    adapter::{
        source::{
            SourceError,
            policy::{Bearer, Policy},
        },
        web::public_address::{is_public, is_this_machine},
    },
};

/// The time in which a server must give its manifest, if none is set.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A toolset whose tools are to be offered. Awaiting it reads its manifest, and returns its tools.
///
/// [`toolset`](super::toolset) creates it.
#[must_use = "a toolset is read when this is awaited"]
#[derive(Clone)]
pub struct RapToolset {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) policy: Policy,
    pub(super) callback: Option<String>,
    pub(super) callback_url: Option<String>,
    pub(super) hosts: Vec<String>,
    pub(super) user_id: Option<String>,
    pub(super) start_limit: Duration,
    pub(super) bearer: Option<Bearer>,
}

impl RapToolset {
    pub(super) fn new(name: String, url: String) -> Self {
        Self {
            name,
            url,
            policy: Policy::default(),
            callback: None,
            callback_url: None,
            hosts: Vec::new(),
            user_id: None,
            start_limit: START_LIMIT,
            bearer: None,
        }
    }

    /// Sets the toolset's name, for people. Its questions begin with it. A tool whose name another source offers already
    /// becomes `NAME.tool`. Default: the host.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the address and port to listen on for the answers of tools, such as `192.0.2.7:8099`. Default: a free port of
    /// `127.0.0.1`, which only tools on this machine reach.
    ///
    /// An address that the tools do not reach is an error at start, unless [`callback_url`](Self::callback_url) is set: one of
    /// this machine for a toolset on another one, and one of a private network for a toolset on the public internet.
    pub fn callback(mut self, address: impl Into<String>) -> Self {
        self.callback = Some(address.into());
        self
    }

    /// Sets the URL under which tools reach the [callback](Self::callback) address, if that is not
    /// `http://ADDRESS:PORT`: for a proxy that adds HTTPS, such as `https://bridge.example.com`.
    pub fn callback_url(mut self, url: impl Into<String>) -> Self {
        self.callback_url = Some(url.into());
        self
    }

    /// Sets the bearer token. It is sent to the toolset's own address alone. Default: none.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(Bearer::Token(token.into()));
        self
    }

    /// Sets the environment variable that holds the bearer token. It is read when the toolset is.
    pub fn bearer_env(mut self, variable: impl Into<String>) -> Self {
        self.bearer = Some(Bearer::Variable(variable.into()));
        self
    }

    /// Allows a host (`HOST` or `HOST:PORT`) as the place of the toolset's endpoint and of answers to its questions. It
    /// may be on a private network. Default: only the toolset's own host and port, and for answers the public internet over
    /// HTTPS.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Sets the user's id that tools get with each call. Default: none is sent.
    pub fn user_id(mut self, user: impl Into<String>) -> Self {
        self.user_id = Some(user.into());
        self
    }

    /// Puts this prefix and a dot before the name of each tool.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.policy.prefix = Some(prefix.into());
        self
    }

    /// Offers only these tools, by the toolset's names for them. A name that ends in `*` stands for all that start so.
    pub fn allow<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.policy.filter.allow(names.into_iter().map(Into::into));
        self
    }

    /// Does not offer these tools, even if [`allow`](Self::allow) names them.
    pub fn deny<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.policy.filter.deny(names.into_iter().map(Into::into));
        self
    }

    /// Sets when a person is asked before a tool runs. Default: always before one with the annotation `destructive`, else
    /// once per session.
    pub fn consent(mut self, consent: Consent) -> Self {
        self.policy.consent = Some(consent);
        self
    }

    /// Believes the annotation `readOnly`: such tools run without a question, unless [`consent`](Self::consent) is set.
    pub fn trust_hints(mut self) -> Self {
        self.policy.trusts_hints = true;
        self
    }

    /// Sets the longest time of one call. Default: the caller's limit; of a tool with the annotation `longRunning` the longest
    /// that the participant allows. More than that is an error when joining.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.policy.timeout = Some(limit);
        self
    }

    /// Sets the time in which the server must give its manifest. Default: 30 s.
    pub fn start_limit(mut self, limit: Duration) -> Self {
        self.start_limit = limit;
        self
    }

    /// Returns what errors name.
    pub(super) fn origin(&self) -> String {
        format!("{KIND} {:?}", self.name)
    }

    fn bad_callback(&self, reason: &str) -> SourceError {
        SourceError::setting(self.origin(), format!("its callback address cannot be used: {reason}"))
    }

    /// Checks that tools can use the callback: each call would run, and its answer be lost.
    pub(super) async fn check_callback(&self, server: &Server) -> Result<(), SourceError> {
        if let Some(url) = &self.callback_url {
            return is_base(url).then_some(()).ok_or_else(|| self.bad_callback(NO_BASE));
        }
        let callback = self.callback_address()?.ip();
        if is_public(callback) {
            return Ok(());
        }
        let is_reached = match server.place().await {
            Endpoint::Here | Endpoint::Unknown => true,
            Endpoint::Private => !callback.is_loopback(),
            Endpoint::Public => false,
        };
        let reason = "the toolset is not on this machine, and its tools do not reach that address; set `callback` to one that \
                      they reach, or `callback_url` if they reach it by another one";
        is_reached.then_some(()).ok_or_else(|| self.bad_callback(reason))
    }

    /// Returns the address to listen on for callbacks.
    pub(super) fn callback_address(&self) -> Result<SocketAddr, SourceError> {
        let address = self.callback_address_form().map_err(|reason| self.bad_callback(reason))?;
        if address.ip().is_unspecified() && self.callback_url.is_none() {
            let reason = "tools do not reach it by that address; set `callback_url` to the one that they use";
            return Err(self.bad_callback(reason));
        }
        Ok(address)
    }

    pub(super) fn callback_address_form(&self) -> Result<SocketAddr, &'static str> {
        let Some(text) = &self.callback else { return Ok(SocketAddr::from(([127, 0, 0, 1], 0))) };
        text.parse().map_err(|_| "it is not an address and a port, such as 127.0.0.1:8099")
    }
}

/// What is wrong with a callback URL.
const NO_BASE: &str =
    "`callback_url` must be a URL such as https://bridge.example.com, without user, query and fragment";

/// Returns whether a path can be added to a URL.
fn is_base(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let is_plain = url.username().is_empty() && url.password().is_none();
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    let is_http = ["http", "https"].contains(&url.scheme());
    is_http && is_plain && has_host && url.query().is_none() && url.fragment().is_none()
}

/// Returns whether others on the network can read what is sent to a callback URL, and with it the secret of a call.
pub(super) fn is_exposed(callback: &str) -> bool {
    let Ok(url) = Url::parse(callback) else { return false };
    let is_here = url.host().is_none_or(|host| is_this_machine(&host));
    url.scheme() == "http" && !is_here
}

/// Without the URL and credentials.
impl fmt::Debug for RapToolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RapToolset").field("name", &self.name).finish_non_exhaustive()
    }
}

impl IntoFuture for RapToolset {
    type Output = Result<RapTools, SourceError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Reads the manifest, and listens for callbacks.
    ///
    /// # Cancel safety
    /// Dropping the future ends the listener.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(start(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_address_that_nobody_reaches_needs_a_url() {
        let toolset = || RapToolset::new("t".into(), "https://x".into());
        assert!(toolset().callback_address().unwrap().ip().is_loopback());
        assert_eq!(
            toolset().callback("192.0.2.7:99").callback_address().unwrap().to_string(),
            "192.0.2.7:99"
        );
        let refused = |set: RapToolset| set.callback_address().unwrap_err().to_string();
        assert!(refused(toolset().callback("0.0.0.0:99")).contains("set `callback_url`"));
        assert!(refused(toolset().callback("localhost")).contains("is not an address and a port"));
        let proxied = toolset().callback("[::]:99").callback_url("https://bridge.example.com/");
        assert!(proxied.callback_address().is_ok());
    }

    #[test]
    fn plain_http_beyond_this_machine_is_exposed() {
        for url in ["http://10.0.0.7:8099", "http://bridge.example.com", "http://[2001:db8::1]:80"] {
            assert!(is_exposed(url), "{url}");
        }
        for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://bridge.example.com"]
        {
            assert!(!is_exposed(url), "{url}");
        }
    }

    #[tokio::test]
    async fn callback_that_tools_do_not_reach_is_refused_before_a_tool_runs() {
        let check = async |toolset: &str, callback: &str, url: Option<&str>| {
            let server = Server::new(toolset, &[], None).unwrap();
            let set = RapToolset::new("t".into(), toolset.into()).callback(callback);
            let set = url.into_iter().fold(set, RapToolset::callback_url);
            set.check_callback(&server).await.map_err(|error| error.to_string())
        };
        let (public, private, here) = ("https://1.1.1.1", "https://10.255.255.1", "http://127.0.0.1:9");
        for (toolset, callback) in [
            (here, "127.0.0.1:0"),
            ("http://localhost:9", "127.0.0.1:0"),
            (private, "10.0.0.9:99"),
            (private, "9.9.9.9:99"),
            (public, "9.9.9.9:99"),
        ] {
            assert_eq!(check(toolset, callback, None).await, Ok(()), "{toolset} {callback}");
        }
        for (toolset, callback) in
            [(private, "127.0.0.1:0"), (public, "127.0.0.1:0"), (public, "192.168.1.5:99")]
        {
            let refused = check(toolset, callback, None).await.unwrap_err();
            assert!(refused.contains("do not reach that address; set `callback`"), "{refused}");
        }
        // Whoever sets the URL knows how it is reached: by a tunnel, for example.
        for url in ["http://127.0.0.1:8099", "https://me.example/rap/"] {
            assert_eq!(check(public, "127.0.0.1:0", Some(url)).await, Ok(()));
        }
        for url in [
            "me.example",
            "ftp://me.example",
            "https://u:hunter2@me.example",
            "https://me.example/?hunter2",
            "https:",
        ] {
            let refused = check(here, "127.0.0.1:0", Some(url)).await.unwrap_err();
            assert!(refused.contains("must be a URL such as") && !refused.contains("hunter2"), "{refused}");
        }
    }
}
