//! Sends HTTP requests to one server.

use std::{fmt, sync::Arc};

use reqwest::{
    Client, Method, RequestBuilder, Response,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use url::Url;

use super::outgoing::{BAD_TOKEN, HttpError, bearer, body, said, sent, status_error};
use crate::adapter::words;

/// The client of a server at one URL.
#[derive(Clone)]
pub(in crate::adapter) struct HttpClient {
    client: Client,
    url: Arc<str>,
    host: Arc<str>,
    bearer: Option<HeaderValue>,
}

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
        let url = Url::parse(&self.url).ok();
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
impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Returns the media type of an answer, in lower case and without its parameters.
pub(in crate::adapter) fn media_type(response: &Response) -> Option<String> {
    let header = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::dns::{Name, Resolve, Resolving};
    use tokio::net::TcpListener;

    use super::*;
    use crate::adapter::web::{
        outgoing::guarded,
        public_address::{PROXY, passes_with_proxy},
    };

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
