//! A RAP toolset inside the test: it records what its runtime sends, and the test posts what its tools say.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{sync::Arc, time::Duration};

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Mutex, mpsc},
    task::JoinSet,
};
use toolbridge::adapter::rap::{self, RapToolset};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// One request of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    /// The headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Json,
}

impl Received {
    pub(crate) fn callback(&self) -> String {
        self.body["callback_url"].as_str().unwrap().to_owned()
    }

    /// Returns a message of this type about this invocation.
    pub(crate) fn message(&self, kind: &str, more: &Json) -> Json {
        let mut message = json!({"type": kind, "group_id": self.body["group_id"]});
        match kind {
            "view_update" => {}
            "subscription_event" => message["tool_call_id"] = self.body["id"].clone(),
            _ => message["id"] = self.body["id"].clone(),
        }
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    }

    /// Posts a message of this type, and returns the status.
    pub(crate) async fn say(&self, kind: &str, more: Json) -> u16 {
        post(&self.callback(), &self.message(kind, &more)).await
    }

    /// Posts a result with this text, and returns the status.
    pub(crate) async fn answer(&self, text: &str) -> u16 {
        self.say("tool_result", json!({"text": text})).await
    }
}

/// In place of a status: the request gets no answer.
pub(crate) const NO_ANSWER: u16 = 0;

type Status = Arc<dyn Fn(&Received, usize) -> u16 + Send + Sync>;

/// A toolset whose server accepts what it gets, unless the test says otherwise.
pub(crate) struct Toolset {
    pub(crate) url: String,
    received: Mutex<mpsc::UnboundedReceiver<Received>>,
    _serving: JoinSet<()>,
}

impl Toolset {
    /// Starts a toolset with one tool, `t`, which takes anything.
    pub(crate) async fn start() -> Self {
        Self::of(json!([tool("t", json!({}))])).await
    }

    pub(crate) async fn of(tools: Json) -> Self {
        Self::with(tools, |_, _| 200).await
    }

    /// Starts a toolset that answers the n-th invocation, counted from 1, with a status. Notices are number 0.
    pub(crate) async fn with(
        tools: Json,
        status: impl Fn(&Received, usize) -> u16 + Send + Sync + 'static,
    ) -> Self {
        Self::serving(
            move |url| json!({"name": "set", "endpoint": format!("{url}/invoke"), "tools": tools}),
            status,
        )
        .await
    }

    /// Starts a server with the manifest that a function returns for its URL.
    pub(crate) async fn serving(
        manifest: impl FnOnce(&str) -> Json,
        status: impl Fn(&Received, usize) -> u16 + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let manifest: Arc<str> = manifest(&url).to_string().into();
        let (to_test, received) = mpsc::unbounded_channel();
        let (status, count): (Status, _) = (Arc::new(status), Arc::new(Mutex::new(0)));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (manifest, status) = (Arc::clone(&manifest), Arc::clone(&status));
                let (to_test, count) = (to_test.clone(), Arc::clone(&count));
                connections.spawn(async move {
                    let Some(request) = read(stream).await else { return };
                    let (received, mut stream) = request;
                    let (status, body) = match received.path.as_str() {
                        "/.well-known/rap-toolset" => (200, &*manifest),
                        "/invoke" => {
                            let mut count = count.lock().await;
                            *count += 1;
                            (status(&received, *count), "")
                        }
                        _ => (status(&received, 0), ""),
                    };
                    let _ = to_test.send(received);
                    if status == NO_ANSWER {
                        return std::future::pending().await;
                    }
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                });
            }
        });
        Self { url, received: Mutex::new(received), _serving: serving }
    }

    pub(crate) fn source(&self) -> RapToolset {
        rap::toolset(&self.url).name("builds")
    }

    /// Returns the next request.
    pub(crate) async fn next(&self) -> Received {
        let mut received = self.received.lock().await;
        tokio::time::timeout(PATIENCE, received.recv()).await.expect("no request came").unwrap()
    }

    /// Returns the next request to this path. Others are skipped.
    pub(crate) async fn next_of(&self, path: &str) -> Received {
        loop {
            let received = self.next().await;
            if received.path == path {
                return received;
            }
        }
    }

    /// Returns the next invocation.
    pub(crate) async fn invocation(&self) -> Received {
        self.next_of("/invoke").await
    }

    /// Returns the paths of the requests that have come and were not looked at.
    pub(crate) async fn others(&self) -> Vec<String> {
        let mut received = self.received.lock().await;
        std::iter::from_fn(|| received.try_recv().ok()).map(|it| it.path).collect()
    }
}

/// Returns the definition of a tool, with these fields besides the required ones.
pub(crate) fn tool(name: &str, more: Json) -> Json {
    let mut tool = json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
    if let (Json::Object(tool), Json::Object(more)) = (&mut tool, more) {
        tool.extend(more);
    }
    tool
}

async fn read(stream: TcpStream) -> Option<(Received, BufReader<TcpStream>)> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let path = head.split(' ').nth(1)?.to_owned();
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some((Received { path, head, body }, stream))
}

/// Posts a message, and returns the status.
pub(crate) async fn post(url: &str, message: &Json) -> u16 {
    request("POST", url, "content-type: application/json; charset=utf-8\r\n", &message.to_string()).await
}

/// Sends a request, and returns the status.
pub(crate) async fn request(method: &str, url: &str, headers: &str, body: &str) -> u16 {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} /{path} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server may answer before it has read the body.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("no answer came");
    let answer = String::from_utf8_lossy(&answer);
    answer
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or_else(|| panic!("no status in {answer:?}"))
}
