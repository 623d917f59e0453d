//! As little HTTP as a RAP tool and a runtime need, so that it adds as little as possible to what is measured.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

/// Starts a server on this machine, and returns its address. `answer` gets the path and the body of each request, and
/// returns the body of the response.
pub(super) async fn serve(answer: impl Fn(&str, Vec<u8>) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                stream.set_nodelay(true).expect("set");
                let mut stream = BufReader::new(stream);
                while let Some((head, body)) = read(&mut stream).await {
                    let path = head.split(' ').nth(1).unwrap_or_default();
                    let text = answer(path, body);
                    let length = text.len();
                    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A connection to a server, which stays open.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    /// Connects to the host of a URL.
    pub(super) async fn to(url: &str) -> Self {
        let host = split(url).0.to_owned();
        let stream = TcpStream::connect(&host).await.expect("connected");
        stream.set_nodelay(true).expect("set");
        Self { stream: BufReader::new(stream), host }
    }

    /// Posts a JSON body, and returns the status.
    pub(super) async fn post(&mut self, url: &str, body: &str) -> u16 {
        self.stream.write_all(post(&self.host, split(url).1, body).as_bytes()).await.expect("written");
        self.status().await
    }

    pub(super) async fn write(&mut self, requests: &str) {
        self.stream.write_all(requests.as_bytes()).await.expect("written");
    }

    /// Reads a response, and returns its status.
    pub(super) async fn status(&mut self) -> u16 {
        let (head, _) = read(&mut self.stream).await.expect("a response");
        head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{head}"))
    }
}

/// Returns the text of a request.
pub(super) fn post(host: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Returns the host and the path of a URL.
pub(super) fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("http");
    rest.split_at(rest.find('/').unwrap_or(rest.len()))
}

/// Reads the head and the body of a request or a response. Returns `None` at the end of the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let length = head.lines().find(is_length).and_then(|line| line.split_once(':')?.1.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}
