//! HTTP clients for one server each. A request goes to the server that was named, and nowhere else: redirects are refused,
//! names are resolved under guard, and the token stays out of every text.

#[cfg(all(feature = "mcp", unix))]
use std::fmt;
use std::{sync::Arc, time::Duration};

use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    dns::Resolve,
    header::{HeaderValue, LOCATION},
    redirect::Policy,
};
#[cfg(all(feature = "mcp", unix))]
use reqwest::{
    Method,
    header::{AUTHORIZATION, CONTENT_TYPE},
};

use super::public_address::tls;
use crate::{
    adapter::words,
    net::{redirect, tls_error::cause},
};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Why a request failed. It names the host alone: a path and a query may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::adapter) enum HttpError {
    /// No connection was made, so the server has not got the request.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: Arc<str>, reason: String },
    #[error("{host} ended the connection before it answered")]
    Broken { host: Arc<str>, reason: String },
    #[error("{host} requires authorization (HTTP {status}{}); set a bearer token with `bearer_env`", after(.said))]
    Unauthorized { host: Arc<str>, status: u16, said: Option<String> },
    #[error("{host} redirects to {to}, and redirects are not followed; use that address if you trust it")]
    Redirect { host: Arc<str>, to: String },
    #[error("{host} answered with HTTP {status}{}", after(.said))]
    Status { host: Arc<str>, status: u16, said: Option<String> },
    #[error("{host} answered with more than {limit} bytes")]
    TooLarge { host: Arc<str>, limit: usize },
}

/// Returns a client that follows no redirect. What it resolves names with is asked for each connection.
///
/// # Errors
/// The client cannot be set up, for this reason.
pub(in crate::adapter) fn guarded(
    resolver: impl Resolve + 'static,
    uses_proxy: bool,
) -> Result<Client, String> {
    let builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .referer(false)
        .tls_backend_preconfigured(tls().map_err(|error| error.to_string())?)
        .dns_resolver(Arc::new(resolver));
    let builder = if uses_proxy { builder } else { builder.no_proxy() };
    builder.build().map_err(|error| cause(&error.without_url()))
}

/// Returns the value of an `Authorization` header, which `Debug` does not show; `None` if the token has characters that a
/// header cannot have.
pub(in crate::adapter) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What is wrong with a token.
pub(in crate::adapter) const BAD_TOKEN: &str = "the bearer token has characters that a header cannot have";

/// Sends a request. `host` is the server in errors. The status of the answer may be any but that of a redirect, or of a
/// demand for a token.
///
/// # Errors
/// Any [`HttpError`] but `Status` and `TooLarge`.
pub(in crate::adapter) async fn sent(
    request: RequestBuilder,
    host: &Arc<str>,
    token: Option<&str>,
) -> Result<Response, HttpError> {
    let host = || Arc::clone(host);
    let response = request.send().await.map_err(|error| {
        let is_connecting = error.is_connect();
        let (host, reason) = (host(), cause(&error.without_url()));
        match is_connecting {
            true => HttpError::Unreachable { host, reason },
            false => HttpError::Broken { host, reason },
        }
    })?;
    let status = response.status();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let said = said(response, token).await;
            Err(HttpError::Unauthorized { host: host(), status: status.as_u16(), said })
        }
        _ if status.is_redirection() => Err(HttpError::Redirect { host: host(), to: target(&response) }),
        _ => Ok(response),
    }
}

/// Returns the error for an answer with another status than a success.
pub(in crate::adapter) async fn status_error(
    response: Response,
    host: &Arc<str>,
    token: Option<&str>,
) -> HttpError {
    let status = response.status().as_u16();
    HttpError::Status { host: Arc::clone(host), status, said: said(response, token).await }
}

/// Returns the body of an answer.
///
/// # Errors
/// [`HttpError::TooLarge`], [`HttpError::Broken`].
pub(in crate::adapter) async fn body(
    mut response: Response,
    host: &Arc<str>,
    limit: usize,
) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => {
                return Err(HttpError::TooLarge { host: Arc::clone(host), limit });
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => {
                let (host, reason) = (Arc::clone(host), cause(&error.without_url()));
                return Err(HttpError::Broken { host, reason });
            }
        }
    }
}

/// Returns what the body of a refusal says, without the token.
async fn said(response: Response, token: Option<&str>) -> Option<String> {
    words::of_response(response, &token.into_iter().collect::<Vec<_>>()).await
}

/// The client of a server at one URL.
#[cfg(all(feature = "mcp", unix))]
#[derive(Clone)]
pub(in crate::adapter) struct HttpClient {
    client: Client,
    url: Arc<str>,
    host: Arc<str>,
    bearer: Option<HeaderValue>,
}

#[cfg(all(feature = "mcp", unix))]
impl HttpClient {
    /// Creates the client. `host` is the server in errors.
    ///
    /// # Errors
    /// The token cannot be used.
    pub(in crate::adapter) fn new(
        client: Client,
        url: &str,
        host: &str,
        token: Option<&str>,
    ) -> Result<Self, &'static str> {
        let bearer = match token {
            Some(token) => Some(bearer(token).ok_or(BAD_TOKEN)?),
            None => None,
        };
        Ok(Self { client, url: url.into(), host: host.into(), bearer })
    }

    pub(in crate::adapter) fn host(&self) -> Arc<str> {
        Arc::clone(&self.host)
    }

    /// Returns a request with the token.
    pub(in crate::adapter) fn request(&self, method: Method) -> RequestBuilder {
        let request = self.client.request(method, &*self.url);
        match &self.bearer {
            Some(bearer) => request.header(AUTHORIZATION, bearer),
            None => request,
        }
    }

    /// Sends a request: see [`sent`].
    pub(in crate::adapter) async fn send(&self, request: RequestBuilder) -> Result<Response, HttpError> {
        sent(request, &self.host, self.token()).await
    }

    /// Returns the error for an answer with another status than a success.
    pub(in crate::adapter) async fn status_error(&self, response: Response) -> HttpError {
        status_error(response, &self.host, self.token()).await
    }

    /// Returns what the body of a refusal says, without the token.
    pub(in crate::adapter) async fn said(&self, response: Response) -> Option<String> {
        said(response, self.token()).await
    }

    /// Returns what the body of a refusal says that was read already, without the token and the address.
    pub(in crate::adapter) fn said_in(&self, body: &[u8]) -> Option<String> {
        let url = url::Url::parse(&self.url).ok();
        let parts = url.as_ref().map(|url| [Some(url.path()), url.query()]).into_iter().flatten().flatten();
        words::of_body(body, &parts.chain(self.token()).collect::<Vec<_>>())
    }

    /// Returns the body of an answer: see [`body`].
    pub(in crate::adapter) async fn body(
        &self,
        response: Response,
        limit: usize,
    ) -> Result<Vec<u8>, HttpError> {
        body(response, &self.host, limit).await
    }

    fn token(&self) -> Option<&str> {
        let (_, token) = self.bearer.as_ref()?.to_str().ok()?.split_once(' ')?;
        Some(token)
    }
}

/// Without the token, and without the path of the URL.
#[cfg(all(feature = "mcp", unix))]
impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Returns the media type of an answer, in lower case and without its parameters.
#[cfg(all(feature = "mcp", unix))]
pub(in crate::adapter) fn media_type(response: &Response) -> Option<String> {
    let header = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Describes where a redirect leads to.
fn target(response: &Response) -> String {
    let location = response.headers().get(LOCATION).and_then(|it| it.to_str().ok());
    location.map_or_else(|| "another address".to_owned(), |it| redirect::describe(response.url(), it))
}

/// Returns the server's words, for the end of a sentence.
fn after(said: &Option<String>) -> String {
    said.as_ref().map(|said| format!(": {said}")).unwrap_or_default()
}

#[cfg(all(test, feature = "mcp", unix))]
mod tests {
    use reqwest::dns::{Name, Resolving};
    use tokio::net::TcpListener;

    use super::*;
    use crate::adapter::web::public_address::{PROXY, passes_with_proxy};

    /// Resolves nothing: the URLs here have addresses.
    struct NoNames;

    impl Resolve for NoNames {
        fn resolve(&self, _: Name) -> Resolving {
            Box::pin(async { Err("no name is looked up".into()) })
        }
    }

    fn client(url: &str, token: Option<&str>) -> HttpClient {
        HttpClient::new(guarded(NoNames, false).unwrap(), url, "mcp.example.com", token).unwrap()
    }

    #[test]
    fn sec_p3_bearer_token_is_in_no_debug_output() {
        let client = client("https://mcp.example.com/secret", Some("hunter2"));
        let request = client.request(Method::POST).build().unwrap();
        assert_eq!(request.headers()["authorization"], "Bearer hunter2");
        let shown = format!("{client:?} {:?} {request:?}", client.bearer);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!format!("{client:?}").contains("secret"));
        assert_eq!(client.token(), Some("hunter2"));
        assert!(HttpClient::new(client.client, "", "", Some("a\nb")).is_err());
    }

    #[tokio::test]
    async fn sec_a2_server_of_this_machine_is_reached_through_no_proxy() {
        if std::env::var_os(PROXY).is_none() {
            let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", proxy.local_addr().unwrap());
            let name =
                "adapter::web::client::tests::sec_a2_server_of_this_machine_is_reached_through_no_proxy";
            let passed = tokio::task::spawn_blocking(move || passes_with_proxy(name, &url)).await.unwrap();
            assert!(passed, "the request did not reach the server");
            return;
        }
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&format!("http://{}/", server.local_addr().unwrap()), None);
        tokio::select! {
            accepted = server.accept() => assert!(accepted.is_ok()),
            () = tokio::time::sleep(Duration::from_secs(10)) => panic!("the proxy got the request"),
            _ = client.send(client.request(Method::GET)) => panic!("the proxy got the request"),
        }
    }
}
