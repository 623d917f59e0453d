//! Sends requests to the server of a toolset: for its manifest, invocations, notices, and answers to its questions.

use std::{net::IpAddr, str::FromStr, time::Duration};

use reqwest::{
    Method, RequestBuilder,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde_json::{Value as Json, json};
use tokio::{
    net::lookup_host,
    time::{sleep, timeout},
};
use url::{Host, Url};

use crate::adapter::{
    rap::address::{AddressError, NamedHost, Outgoing, Target},
    web::{
        outgoing::{self, BAD_TOKEN, HttpError},
        public_address::{is_localhost, is_public, is_this_machine},
    },
};

/// The largest manifest, in bytes: a thousand tools with 4 KiB each.
const MAX_MANIFEST: usize = 4 << 20;

/// The longest time that a server may take to accept an invocation. It accepts before it works.
const ACCEPT_LIMIT: Duration = Duration::from_secs(10);

/// The longest time of a notice, and of the answer to a question. They are sent once.
const NOTICE_LIMIT: Duration = Duration::from_secs(5);

/// The longest time for finding out where a server is.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// The pauses before an invocation is sent again to a server that is not reached, or answers with a status of 500 or
/// more. A call waits at most about 4 s longer for them.
const PAUSES: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(3)];

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Why a request failed. It names the host alone: a path and a query may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{0}")]
    Address(#[from] AddressError),
    #[error("{0}")]
    Host(String),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{host} did not answer within {} s", .limit.as_secs_f64())]
    TooSlow { host: String, limit: Duration },
    #[error("the answer of {host} is not UTF-8")]
    NotUtf8 { host: String },
    #[error(
        "the address of a toolset is a URL such as https://tools.example.com, without user, query and fragment"
    )]
    Base,
    #[error(
        "`endpoint` is at {endpoint}, which is another origin than {base}; allow the host if that is meant"
    )]
    Endpoint { endpoint: String, base: String },
    #[error("{BAD_TOKEN}")]
    Bearer,
}

/// The server of a toolset, before its endpoint is known.
#[derive(Clone)]
pub(super) struct Server {
    base: Url,
    named: Vec<NamedHost>,
    outgoing: Outgoing,
    bearer: Option<HeaderValue>,
}

/// Where a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// On this machine.
    Here,
    /// On a private network.
    Private,
    /// On the public internet.
    Public,
    /// Its name is not known now.
    Unknown,
}

/// The server of a toolset.
pub(super) struct Requests {
    server: Server,
    endpoint: Target,
}

impl Server {
    /// Reads the base URL. `named` are hosts that may be used besides its own.
    pub(super) fn new(base: &str, named: &[String], bearer: Option<&str>) -> Result<Self, RequestError> {
        let base = Url::parse(base).map_err(|_| RequestError::Base)?;
        let is_plain = base.username().is_empty() && base.password().is_none();
        if !is_plain || base.query().is_some() || base.fragment().is_some() || base.cannot_be_a_base() {
            return Err(RequestError::Base);
        }
        let own = NamedHost::of(&base).ok_or(RequestError::Base)?;
        let host = |host: &String| {
            host.parse().map_err(|error: <NamedHost as FromStr>::Err| RequestError::Host(error.to_string()))
        };
        let named: Vec<NamedHost> = named.iter().map(host).collect::<Result<_, _>>()?;
        // Anybody on the path reads plain http, except on this machine and to a host that was named on purpose.
        let strict = Outgoing::new(named.clone())?;
        let is_local = base.host().is_some_and(|host| is_this_machine(&host));
        if base.scheme() != "https" && !is_local {
            strict.check(base.as_str())?;
        }
        let bearer = bearer.map(|token| outgoing::bearer(token).ok_or(RequestError::Bearer));
        let outgoing = Outgoing::new(named.iter().cloned().chain([own]))?;
        Ok(Self { base, named, outgoing, bearer: bearer.transpose()? })
    }

    /// Returns the host of the server.
    pub(super) fn host(&self) -> &str {
        self.base.host_str().unwrap_or_default()
    }

    /// Returns where the server is. An address of this machine is one that a socket can be bound to.
    pub(super) async fn place(&self) -> Endpoint {
        let found: Vec<IpAddr> = match self.base.host() {
            Some(Host::Ipv4(ip)) => vec![ip.into()],
            Some(Host::Ipv6(ip)) => vec![ip.into()],
            Some(Host::Domain(name)) if is_localhost(name) => return Endpoint::Here,
            Some(Host::Domain(name)) => match timeout(LOOKUP_LIMIT, lookup_host((name, 0))).await {
                Ok(Ok(found)) => found.map(|it| it.ip()).collect(),
                _ => return Endpoint::Unknown,
            },
            None => return Endpoint::Unknown,
        };
        let is_here = |ip: &IpAddr| ip.is_loopback() || std::net::UdpSocket::bind((*ip, 0)).is_ok();
        if found.is_empty() {
            Endpoint::Unknown
        } else if found.iter().any(is_here) {
            Endpoint::Here
        } else if found.iter().all(|ip| is_public(*ip)) {
            Endpoint::Public
        } else {
            Endpoint::Private
        }
    }

    /// Returns the text of the manifest.
    pub(super) async fn manifest(&self, limit: Duration) -> Result<String, RequestError> {
        let target = self.at("/.well-known/rap-toolset")?;
        let host = target.host();
        let fetch = async {
            let request = self.request(Method::GET, &target).header(ACCEPT, JSON);
            let response = sent(request, &target).await?;
            let body = outgoing::body(response, &host.as_str().into(), MAX_MANIFEST).await?;
            String::from_utf8(body).map_err(|_| RequestError::NotUtf8 { host: host.clone() })
        };
        let too_slow = |_| RequestError::TooSlow { host: host.clone(), limit };
        timeout(limit, fetch).await.map_err(too_slow)?
    }

    /// Sets the endpoint that the manifest names: at the server's own origin, or at a host that a person has named.
    pub(super) fn with_endpoint(self, endpoint: &str) -> Result<Requests, RequestError> {
        let target = self.outgoing.check(endpoint)?;
        let is_own = target.url().origin() == self.base.origin();
        if !is_own && !is_named(&self.named, target.url()) {
            let (endpoint, base) = (target.host(), self.host().to_owned());
            return Err(RequestError::Endpoint { endpoint, base });
        }
        Ok(Requests { server: self, endpoint: target })
    }

    fn at(&self, path: &str) -> Result<Target, AddressError> {
        self.outgoing.check(&format!("{}{path}", self.base.as_str().trim_end_matches('/')))
    }

    /// Returns a request. The bearer token is for the server's own origin alone.
    fn request(&self, method: Method, target: &Target) -> RequestBuilder {
        let request = self.outgoing.request(method, target);
        match &self.bearer {
            Some(bearer) if target.url().origin() == self.base.origin() => {
                request.header(AUTHORIZATION, bearer)
            }
            _ => request,
        }
    }
}

impl Requests {
    /// Returns the host of the server.
    pub(super) fn host(&self) -> &str {
        self.server.host()
    }

    /// Sends an invocation until the server has accepted it. `failed` learns of attempts that are followed by another one.
    ///
    /// An invocation that the server refuses (a status of 400 to 499) is not sent again.
    ///
    /// # Cancel safety
    /// Dropping the future sends it no further time.
    pub(super) async fn invoke(
        &self,
        invocation: &Json,
        failed: impl Fn(&RequestError),
    ) -> Result<(), RequestError> {
        let body = invocation.to_string();
        let mut pauses = PAUSES.iter();
        loop {
            let request = self.server.request(Method::POST, &self.endpoint);
            let request = request.header(CONTENT_TYPE, JSON).body(body.clone());
            let error = match timeout(ACCEPT_LIMIT, sent(request, &self.endpoint)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => RequestError::TooSlow { host: self.endpoint.host(), limit: ACCEPT_LIMIT },
            };
            match pauses.next().filter(|_| error.may_pass()) {
                Some(pause) => {
                    failed(&error);
                    sleep(*pause).await;
                }
                None => return Err(error),
            }
        }
    }

    /// Tells the server that a call is no longer needed. Sent once; nobody waits for it.
    pub(super) async fn cancel(&self, group: &str, id: &str) -> Result<(), RequestError> {
        self.notify("/cancel_tool_call", &json!({"thread_id": group, "tool_call_id": id})).await
    }

    /// Tells the server that no further invocation follows. Sent once.
    pub(super) async fn close(&self, group: &str) -> Result<(), RequestError> {
        self.notify("/close_thread", &json!({"thread_id": group})).await
    }

    async fn notify(&self, path: &str, notice: &Json) -> Result<(), RequestError> {
        let target = self.server.at(path)?;
        let request = self.server.request(Method::POST, &target);
        post(request, &target, notice).await
    }

    /// Checks the address that a question names for its answer. No packet is sent.
    pub(super) fn check(&self, response_url: &str) -> Result<Target, AddressError> {
        self.server.outgoing.check(response_url)
    }

    /// Answers a question. Sent once, without the bearer token.
    pub(super) async fn respond(&self, to: &Target, id: &str, selected: usize) -> Result<(), RequestError> {
        let request = self.server.outgoing.request(Method::POST, to);
        post(request, to, &json!({"id": id, "selected": selected})).await
    }
}

impl RequestError {
    /// Whether the same request may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Http(HttpError::Unreachable { .. } | HttpError::Broken { .. }) | Self::TooSlow { .. } => {
                true
            }
            Self::Http(HttpError::Status { status, .. }) => *status >= 500,
            _ => false,
        }
    }

    /// Whether the server has refused the request, so that it does nothing.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Http(HttpError::Unauthorized { .. } | HttpError::Redirect { .. }) => true,
            Self::Http(HttpError::Status { status, .. }) => *status < 500,
            _ => false,
        }
    }
}

/// Returns whether a host was named besides the server's own, for the port of the URL or for all.
fn is_named(named: &[NamedHost], url: &Url) -> bool {
    let of_port = NamedHost::of(url);
    let of_all = url.host_str().and_then(|host| host.parse().ok());
    named.iter().any(|it| [&of_port, &of_all].into_iter().flatten().any(|host| host == it))
}

async fn post(request: RequestBuilder, target: &Target, body: &Json) -> Result<(), RequestError> {
    let request = request.header(CONTENT_TYPE, JSON).body(body.to_string());
    match timeout(NOTICE_LIMIT, sent(request, target)).await {
        Ok(sent) => sent.map(|_| ()),
        Err(_) => Err(RequestError::TooSlow { host: target.host(), limit: NOTICE_LIMIT }),
    }
}

/// Sends a request, and returns the answer if its status is a success.
async fn sent(request: RequestBuilder, target: &Target) -> Result<reqwest::Response, RequestError> {
    let host = target.host().into();
    let response = outgoing::sent(request, &host, None).await?;
    match response.status().is_success() {
        true => Ok(response),
        false => Err(outgoing::status_error(response, &host, None).await.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::Instant};

    use super::*;

    fn server(base: &str, named: &[&str]) -> Result<Server, RequestError> {
        let named: Vec<String> = named.iter().map(|it| (*it).to_owned()).collect();
        Server::new(base, &named, None)
    }

    fn refused(base: &str, named: &[&str]) -> String {
        server(base, named).err().unwrap().to_string()
    }

    #[test]
    fn base_is_https_or_on_this_machine_or_allowed() {
        for good in
            ["https://tools.example.com", "https://10.0.0.7/rap/", "http://127.0.0.1:1", "http://localhost/"]
        {
            assert!(server(good, &[]).is_ok(), "{good}");
        }
        assert!(refused("http://tools.example.com/hunter2", &[]).contains("use https"));
        assert!(refused("http://10.0.0.7", &[]).contains("allow the host"));
        assert!(server("http://10.0.0.7:8080", &["10.0.0.7:8080"]).is_ok());
        assert!(refused("https://x", &["a b"]).contains("is not a host"));
        for bad in [
            "tools.example.com",
            "https://me:hunter2@x/",
            "https://x/?hunter2",
            "https://x/#hunter2",
            "mailto:x",
            "",
        ] {
            let error = refused(bad, &[]);
            assert!(error.contains("is a URL such as") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn rap_r18_endpoint_is_at_the_origin_of_its_manifest_or_at_an_allowed_host() {
        let endpoint = |endpoint: &str| {
            let server =
                server("https://tools.example.com/rap", &["other.example", "third.example:8443"]).unwrap();
            server.with_endpoint(endpoint).map(|it| it.host().to_owned())
        };
        for good in [
            "https://tools.example.com/elsewhere",
            "https://other.example/",
            "http://other.example:99/",
            "https://third.example:8443/",
        ] {
            assert_eq!(endpoint(good).as_deref(), Ok("tools.example.com"), "{good}");
        }
        for bad in [
            "https://tools.example.com:8443/",
            "https://tools.example.com.evil.example/",
            "https://third.example/",
            "https://evil.example/hunter2",
            "http://tools.example.com/",
            "https://169.254.169.254/",
            "https://127.0.0.1/",
            "invoke",
        ] {
            let error = endpoint(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{bad}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rap_r17_invocation_is_sent_again_to_a_server_that_is_not_reached() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let requests = server(&format!("http://{closed}"), &[]).unwrap();
        let requests = requests.with_endpoint(&format!("http://{closed}/invoke")).unwrap();
        let begun = Instant::now();
        let error = requests.invoke(&json!({}), |_| ()).await.unwrap_err();
        assert!(error.may_pass() && !error.is_refusal(), "{error}");
        assert!(begun.elapsed() >= PAUSES.iter().sum::<Duration>(), "{:?}", begun.elapsed());
    }

    #[test]
    fn only_what_may_pass_is_sent_again() {
        let status = |status| RequestError::from(HttpError::Status { host: "x".into(), status, said: None });
        for (error, again) in
            [(status(400), false), (status(429), false), (status(500), true), (status(503), true)]
        {
            assert_eq!((error.may_pass(), error.is_refusal()), (again, !again), "{error}");
        }
    }
}
