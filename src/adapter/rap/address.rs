//! Guards outgoing requests: which URLs may be used that the other side names, and what their hosts may stand for.
//!
//! A manifest names an `endpoint`, a tool a `response_url`, a runtime a `callback_url`. Whoever chooses such a URL could
//! reach through this process what only this process reaches (server-side request forgery). So a request goes only
//!
//! - to a host that a person has named ([`NamedHost`]), at any address, over `http` too, or
//! - over `https` to an address of the public internet. Each address that a name stands for is checked at the moment of
//!   the connection, and that address is connected to, so a name that is resolved again gains nothing.
//!
//! Redirects are not followed. A proxy would resolve names itself, so only hosts that a person named, except those of this
//! machine, are reached through the proxy of the environment.

use std::{fmt, io, net::SocketAddr, pin::Pin, str::FromStr, sync::Arc, time::Duration};

use reqwest::{
    Client, Method, RequestBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
};
use tokio::time::timeout;
use url::{Host, Url};

use crate::{
    adapter::web::{
        outgoing::guarded,
        public_address::{is_public, is_this_machine},
    },
    net::tls_error::cause,
};

/// The longest URL, in bytes: common servers refuse longer request lines.
pub(super) const MAX_URL: usize = 8 * 1024;

/// How long finding the addresses of a name may take.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// Why a URL cannot be used. It names the host alone: a path and a query may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("it is not a URL of http or https")]
    NotAUrl,
    #[error("the URL has {length} bytes; the limit is {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("{0} is reached by plain http, which anybody on the path can read; use https, or allow the host")]
    Plain(String),
    #[error("{0} is an address of this machine or of a private network; allow the host if that is meant")]
    Private(String),
    #[error("the HTTP client cannot be set up: {0}")]
    Setup(String),
}

/// The text is not a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host, such as agent.example, 10.0.0.7:8080 or [::1]:8080")]
pub struct InvalidHost(Box<str>);

/// A host that a person has named, for one port or for all. Requests may go there although it is on this machine or on a
/// private network, and over plain HTTP.
///
/// Hosts are compared as URLs write them: a name does not stand for its address.
///
/// ```
/// use toolbridge::adapter::rap::NamedHost;
///
/// assert_eq!("Agent.Example:8080".parse::<NamedHost>()?.to_string(), "agent.example:8080");
/// assert!("http://agent.example".parse::<NamedHost>().is_err());
/// # Ok::<(), toolbridge::adapter::rap::InvalidHost>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHost {
    host: Host,
    port: Option<u16>,
}

impl NamedHost {
    /// Returns the host and the port of a URL.
    pub(super) fn of(url: &Url) -> Option<Self> {
        Some(Self { host: url.host()?.to_owned(), port: url.port_or_known_default() })
    }

    fn is_of(&self, url: &Url) -> bool {
        let is_host = url.host().is_some_and(|host| host.to_owned() == self.host);
        is_host && (self.port.is_none() || self.port == url.port_or_known_default())
    }
}

impl FromStr for NamedHost {
    type Err = InvalidHost;

    /// Reads `HOST` or `HOST:PORT`. An IPv6 address with a port is in brackets.
    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let refused = || InvalidHost(text.chars().take(100).collect());
        if let Ok(ip) = text.parse() {
            return Ok(Self { host: Host::Ipv6(ip), port: None });
        }
        if text.contains(['/', '\\', '?', '#', '@', '*']) || text.ends_with(':') {
            return Err(refused());
        }
        // A URL leaves out the port that its scheme has anyway.
        let port = |scheme| Url::parse(&format!("{scheme}://{text}/")).ok().and_then(|it: Url| it.port());
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| refused())?;
        let host = url.host().ok_or_else(refused)?.to_owned();
        Ok(Self { host, port: port("http").or_else(|| port("https")) })
    }
}

impl fmt::Display for NamedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => self.host.fmt(f),
        }
    }
}

/// A URL that was checked. Its `Debug` form shows the host alone.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    url: Url,
    reach: Reach,
}

impl Target {
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the host and the port, which logs may name.
    pub(super) fn host(&self) -> String {
        host(&self.url)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("host", &self.host()).field("reach", &self.reach).finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Of the public internet.
    Public,
    /// Named by a person.
    Named,
    /// Named by a person, and on this machine.
    Local,
}

/// Sends requests to the hosts that a person has named, and to the public internet.
#[derive(Clone)]
pub(super) struct Outgoing {
    named: Arc<[NamedHost]>,
    lookup: Arc<dyn Lookup>,
    public: Client,
    to_named: Client,
    local: Client,
}

impl Outgoing {
    /// # Errors
    /// [`AddressError::Setup`].
    pub(super) fn new(named: impl IntoIterator<Item = NamedHost>) -> Result<Self, AddressError> {
        let lookup: Arc<dyn Lookup> = Arc::new(SystemLookup);
        Self::with_lookup(named, &lookup)
    }

    pub(super) fn with_lookup(
        named: impl IntoIterator<Item = NamedHost>,
        lookup: &Arc<dyn Lookup>,
    ) -> Result<Self, AddressError> {
        let client = |reach: Reach| {
            let resolver = Resolver { lookup: Arc::clone(lookup), reach };
            guarded(resolver, reach == Reach::Named).map_err(AddressError::Setup)
        };
        Ok(Self {
            named: named.into_iter().collect(),
            lookup: Arc::clone(lookup),
            public: client(Reach::Public)?,
            to_named: client(Reach::Named)?,
            local: client(Reach::Local)?,
        })
    }

    /// Checks a URL, but not yet what the name of its host stands for: the connection does that.
    ///
    /// # Errors
    /// Any [`AddressError`] but `Setup`.
    pub(super) fn check(&self, url: &str) -> Result<Target, AddressError> {
        if url.len() > MAX_URL {
            return Err(AddressError::TooLong { length: url.len(), limit: MAX_URL });
        }
        let url = Url::parse(url).map_err(|_| AddressError::NotAUrl)?;
        let host_of_url = url.host().ok_or(AddressError::NotAUrl)?;
        let is_local = is_this_machine(&host_of_url);
        let is_public = match host_of_url {
            Host::Domain(_) => !is_local,
            Host::Ipv4(ip) => is_public(ip.into()),
            Host::Ipv6(ip) => is_public(ip.into()),
        };
        let is_named = self.named.iter().any(|it| it.is_of(&url));
        let reach = match (url.scheme(), is_named) {
            ("http" | "https", true) => {
                if is_local {
                    Reach::Local
                } else {
                    Reach::Named
                }
            }
            ("http" | "https", _) if !is_public => return Err(AddressError::Private(host(&url))),
            ("https", _) => Reach::Public,
            ("http", _) => return Err(AddressError::Plain(host(&url))),
            _ => return Err(AddressError::NotAUrl),
        };
        Ok(Target { url, reach })
    }

    /// Looks up what the name of a host stands for now. A name that is not found may be found later.
    ///
    /// # Errors
    /// [`AddressError::Private`], if a connection would be refused.
    pub(super) async fn look_up(&self, target: &Target) -> Result<(), AddressError> {
        let Some(Host::Domain(name)) = target.url.host().filter(|_| target.reach == Reach::Public) else {
            return Ok(());
        };
        match timeout(LOOKUP_LIMIT, self.lookup.lookup(name.to_owned())).await {
            Ok(Ok(found)) if !found.iter().all(|it| is_public(it.ip())) => {
                Err(AddressError::Private(host(&target.url)))
            }
            _ => Ok(()),
        }
    }

    /// Returns a request to a URL that was checked here. It has no limit of time but that of its connection.
    pub(super) fn request(&self, method: Method, target: &Target) -> RequestBuilder {
        let client = match target.reach {
            Reach::Public => &self.public,
            Reach::Named => &self.to_named,
            Reach::Local => &self.local,
        };
        client.request(method, target.url.clone())
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("named", &self.named).finish_non_exhaustive()
    }
}

/// Returns the reason why a request failed, which names no URL.
pub(super) fn reason(error: reqwest::Error) -> String {
    cause(&error.without_url())
}

/// Returns the host and the port in a text that may not be a URL, without what may be a password or a token.
pub(super) fn host_in(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Returns the host of a URL, with its port if the URL names one.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

pub(super) type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Finds the addresses of a name.
pub(super) trait Lookup: Send + Sync {
    fn lookup(&self, name: String) -> Found;
}

struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, name: String) -> Found {
        Box::pin(async move { Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.collect()) })
    }
}

/// Resolves the host names of one HTTP client again for each connection.
struct Resolver {
    lookup: Arc<dyn Lookup>,
    reach: Reach,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (found, reach) = (self.lookup.lookup(name.as_str().to_owned()), self.reach);
        Box::pin(async move {
            let found = found.await?;
            // A name of which one address is private is not the name of a public server.
            if reach == Reach::Public && !found.iter().all(|it| is_public(it.ip())) {
                return Err(AddressError::Private(name.as_str().to_owned()).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Gives each of its answers once, and then the last one again.
#[cfg(test)]
pub(super) struct Answers(std::sync::Mutex<Vec<&'static [&'static str]>>);

#[cfg(test)]
impl Answers {
    /// Returns what sends requests to the addresses in these answers, each a list of a name's addresses.
    pub(super) fn outgoing(answers: &[&'static [&'static str]], named: &[&str]) -> Outgoing {
        let named = named.iter().map(|it| it.parse().unwrap());
        let lookup: Arc<dyn Lookup> = Arc::new(Self(std::sync::Mutex::new(answers.to_vec())));
        Outgoing::with_lookup(named, &lookup).unwrap()
    }
}

#[cfg(test)]
impl Lookup for Answers {
    fn lookup(&self, _name: String) -> Found {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        let found = answer.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
        Box::pin(async move { Ok(found) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;

    fn resolving(answers: &[&'static [&'static str]], named: &[&str]) -> Outgoing {
        Answers::outgoing(answers, named)
    }

    fn outgoing(named: &[&str]) -> Outgoing {
        Outgoing::new(named.iter().map(|it| it.parse().unwrap())).unwrap()
    }

    /// A server on this machine that answers with a redirect to itself, and counts its connections.
    struct Server {
        port: u16,
        connections: Arc<AtomicUsize>,
        _task: JoinSet<()>,
    }

    impl Server {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connections = Arc::new(AtomicUsize::new(0));
            let (counter, mut task) = (Arc::clone(&connections), JoinSet::new());
            task.spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    counter.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.read(&mut [0; 4096]).await;
                    let head = format!(
                        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}/again\r\ncontent-length: 0\r\n\
                         connection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(head.as_bytes()).await;
                }
            });
            Self { port, connections, _task: task }
        }

        fn connections(&self) -> usize {
            self.connections.load(Ordering::SeqCst)
        }
    }

    async fn post(outgoing: &Outgoing, url: &str) -> Result<u16, String> {
        let target = outgoing.check(url).map_err(|error| error.to_string())?;
        let response = outgoing.request(Method::POST, &target).body("{}").send().await.map_err(reason)?;
        Ok(response.status().as_u16())
    }

    #[test]
    fn plain_http_and_private_addresses_are_for_hosts_that_a_person_named() {
        let outgoing = outgoing(&["127.0.0.1:8080", "runtime.lan", "::1", "agent.example:80"]);
        for good in [
            "https://agent.example.com/cb?token=hunter2",
            "https://1.1.1.1/",
            "http://127.0.0.1:8080/cb",
            "https://127.0.0.1:8080/cb",
            "http://RUNTIME.lan:1234/",
            "http://[::1]:7/",
            "http://agent.example/",
        ] {
            assert!(outgoing.check(good).is_ok(), "{good}");
        }
        let refused = |url: &str| outgoing.check(url).unwrap_err();
        assert_eq!(refused("http://agent.example:81/cb"), AddressError::Plain("agent.example:81".into()));
        assert_eq!(refused("http://127.0.0.1:8081/?hunter2"), AddressError::Private("127.0.0.1:8081".into()));
        for bad in ["agent.example.com", "ftp://agent.example", "file:///etc/passwd", "https://", ""] {
            assert_eq!(refused(bad), AddressError::NotAUrl, "{bad}");
        }
        let long = format!("https://agent.example/{}", "a".repeat(MAX_URL));
        assert_eq!(refused(&long), AddressError::TooLong { length: long.len(), limit: MAX_URL });
    }

    #[test]
    fn sec_a2_every_spelling_of_a_private_address_is_refused() {
        let outgoing = outgoing(&[]);
        for url in [
            "https://127.0.0.1/",
            "https://localhost/",
            "https://localhost./",
            "https://app.localhost/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::ffff:169.254.169.254]/",
            "https://[::ffff:a9fe:a9fe]/",
            "https://[::169.254.169.254]/",
            "https://[64:ff9b::a9fe:a9fe]/",
            "https://[fd00:ec2::254]/",
            "https://[fe80::1]/",
            "https://2852039166/",
            "https://0xa9fea9fe/",
            "https://0251.0376.0251.0376/",
            "https://127.1/",
            "https://0/",
            "https://10.0.0.7/",
            "http://169.254.169.254/",
            "https://public.example@127.0.0.1/",
        ] {
            assert!(matches!(outgoing.check(url), Err(AddressError::Private(_))), "{url}");
        }
    }

    #[test]
    fn named_host_is_compared_as_a_url_writes_it() {
        let named = |text: &str| text.parse::<NamedHost>().map(|it| it.to_string());
        for (text, expected) in [
            ("Agent.Example", "agent.example"),
            ("agent.example:80", "agent.example:80"),
            ("agent.example:443", "agent.example:443"),
            ("10.0.0.7:8080", "10.0.0.7:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("[::1]", "[::1]"),
            ("::1", "[::1]"),
        ] {
            assert_eq!(named(text).as_deref(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            ":80",
            "http://agent.example",
            "agent.example/",
            "a b",
            "agent.example:",
            "x:99999",
            "*",
            "a@b",
        ] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secret_of_a_url_is_in_no_error_and_no_debug_form() {
        let outgoing = outgoing(&[]);
        for url in ["http://agent.example/hunter2?hunter2", "https://127.0.0.1/hunter2", "hunter2://hunter2"]
        {
            let error = outgoing.check(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let target = outgoing.check("https://me:hunter2@agent.example/hunter2?hunter2#hunter2").unwrap();
        assert_eq!(target.host(), "agent.example");
        assert!(!format!("{target:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn sec_a2_name_of_a_private_address_is_refused_before_a_packet_leaves() {
        let server = Server::start().await;
        let url = format!("https://agent.example:{}/cb?hunter2", server.port);
        for answer in [
            &["127.0.0.1"] as &[&str],
            &["::ffff:127.0.0.1"],
            &["::1"],
            &["127.0.0.1", "1.1.1.1"],
            &["1.1.1.1", "127.0.0.1"],
        ] {
            let outgoing = resolving(&[answer], &[]);
            let refused = post(&outgoing, &url).await.unwrap_err();
            assert!(refused.contains("private network") && !refused.contains("hunter2"), "{refused}");
            // It is found without a connection, too.
            let found = outgoing.look_up(&outgoing.check(&url).unwrap()).await.unwrap_err().to_string();
            assert!(found.contains("private network") && !found.contains("hunter2"), "{found}");
        }
        assert_eq!(server.connections(), 0);
        // The server is reached by that name if a person has named it.
        let outgoing = resolving(&[&["127.0.0.1"]], &["agent.example"]);
        assert_eq!(outgoing.look_up(&outgoing.check(&url).unwrap()).await, Ok(()));
        assert_eq!(post(&outgoing, &url.replace("https", "http")).await, Ok(302));
        assert_eq!(server.connections(), 1);
        let public = resolving(&[&["1.1.1.1"]], &[]);
        assert_eq!(public.look_up(&public.check(&url).unwrap()).await, Ok(()));
    }

    #[tokio::test]
    async fn sec_a2_name_that_resolves_anew_to_a_private_address_is_refused_then() {
        let server = Server::start().await;
        let resolver = Resolver {
            lookup: Arc::new(Answers(std::sync::Mutex::new(vec![&["1.1.1.1"], &["127.0.0.1"]]))),
            reach: Reach::Public,
        };
        let resolve = async || {
            let found = resolver.resolve("agent.example".parse().unwrap()).await;
            found.map(|found| found.map(|it| it.ip().to_string()).collect::<Vec<_>>())
        };
        assert_eq!(resolve().await.unwrap(), ["1.1.1.1"]);
        assert!(resolve().await.is_err());
        assert!(resolve().await.is_err());
        // Each connection asks the resolver, whatever an earlier one was told.
        let outgoing = resolving(&[&["::ffff:169.254.169.254"], &["127.0.0.1"]], &[]);
        let url = format!("https://agent.example:{}/", server.port);
        for _ in 0..2 {
            assert!(post(&outgoing, &url).await.unwrap_err().contains("private network"));
        }
        assert_eq!(server.connections(), 0);
    }

    #[tokio::test]
    async fn sec_a2_redirect_is_not_followed() {
        let server = Server::start().await;
        let outgoing = outgoing(&["127.0.0.1"]);
        assert_eq!(post(&outgoing, &format!("http://127.0.0.1:{}/cb", server.port)).await, Ok(302));
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn sec_a2_mapped_address_is_refused_before_a_packet_leaves() {
        let server = Server::start().await;
        for host in ["[::ffff:127.0.0.1]", "127.0.0.1", "localhost", "[::ffff:7f00:1]"] {
            for scheme in ["http", "https"] {
                let refused = post(&outgoing(&[]), &format!("{scheme}://{host}:{}/", server.port)).await;
                assert!(refused.unwrap_err().contains("private network"), "{scheme}://{host}");
            }
        }
        assert_eq!(server.connections(), 0);
    }

    #[tokio::test]
    async fn sec_a2_guarded_request_goes_through_no_proxy() {
        use crate::adapter::web::public_address::{PROXY, passes_with_proxy};

        let Some(port) =
            std::env::var(PROXY).ok().and_then(|proxy| proxy.rsplit_once(':')?.1.parse::<u16>().ok())
        else {
            let proxy = Server::start().await;
            let name = "adapter::rap::address::tests::sec_a2_guarded_request_goes_through_no_proxy";
            let url = format!("http://127.0.0.1:{}", proxy.port);
            let passed = tokio::task::spawn_blocking(move || passes_with_proxy(name, &url)).await.unwrap();
            assert!(passed && proxy.connections() == 0, "{} connections", proxy.connections());
            return;
        };
        // Neither a public address nor this machine is reached through the proxy: it would resolve the name itself.
        assert_ne!(port, 0);
        let public = resolving(&[&["127.0.0.1"]], &[]);
        assert!(post(&public, "https://agent.example/").await.unwrap_err().contains("private network"));
        let local = outgoing(&["localhost"]);
        assert!(post(&local, "http://localhost:1/").await.is_err());
    }
}
