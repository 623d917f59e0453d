//! The built program behind a proxy: only the proxy can resolve `livekit.test`.

use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use toolbridge::{Client, Tools};

use crate::{
    ends::{client, double},
    program::{Output, Planned, Program, folder},
    server::{Server, shared},
    tls::TlsProxy,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![proxy:
        call_passes_the_proxy_of_the_environment,
        encrypted_call_passes_the_proxy_with_a_private_root,
        proxy_may_use_tls_itself,
        refusal_names_the_proxy_but_not_the_password,
        excluded_hosts_and_this_machine_are_reached_directly,
        doctor_looks_through_a_proxy,
    ]
}

const USER: &str = "ada:hunter2";

/// A proxy that opens tunnels to `livekit.test`, which is this machine, with a password.
struct Proxy {
    port: u16,
    /// The requested targets.
    asked: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl Proxy {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, asked) = (listener.local_addr()?.port(), Arc::default());
        let mut task = JoinSet::new();
        task.spawn(serve(listener, Arc::clone(&asked)));
        Ok(Self { port, asked, _task: task })
    }

    fn address(&self, user: &str) -> String {
        format!("http://{user}@127.0.0.1:{}", self.port)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(listener: TcpListener, asked: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let asked = asked.clone();
        connections.spawn(async move { drop(carry(stream, &asked).await) });
    }
}

async fn carry(stream: TcpStream, asked: &Mutex<Vec<String>>) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut target, mut allowed, mut line) = (String::new(), false, String::new());
    while stream.read_line(&mut line).await? > 2 {
        if let Some(rest) = line.strip_prefix("CONNECT ") {
            target = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        let credentials = format!("Proxy-Authorization: Basic {}", STANDARD.encode(USER));
        allowed |= line.trim_end() == credentials;
        line.clear();
    }
    asked.lock().unwrap().push(target.clone());
    let port = target.strip_prefix("livekit.test:").context("another host was requested")?.parse::<u16>()?;
    if !allowed {
        stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n").await?;
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    copy_bidirectional(&mut stream, &mut server).await?;
    Ok(())
}

async fn phone(server: &Server, room: &str) -> anyhow::Result<Client> {
    let tools = Tools::new().tool("double", "Doubles a number", double);
    client(server, room, "phone", Client::builder().tools(tools)).await
}

/// Runs `toolbridge call double` with this address of the server.
fn call(server: &Server, room: &str, url: &str) -> anyhow::Result<Planned> {
    let token = server.key().assistant(room, "brain").sign()?;
    let arguments = ["call", "double", r#"{"n": 21}"#, "--url", url, "--token", &token];
    Ok(Program::toolbridge(server, &arguments).without_key())
}

fn answered(output: &Output) -> anyhow::Result<()> {
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(serde_json::from_str::<Value>(&output.stdout)? == json!({"value": 42}), "{output:?}");
    Ok(())
}

async fn call_passes_the_proxy_of_the_environment() -> anyhow::Result<()> {
    let (server, room, proxy) = (shared()?, "proxy-plain", Proxy::start().await?);
    let _phone = phone(&server, room).await?;
    let url = format!("ws://livekit.test:{}", server.port());
    for variable in ["HTTP_PROXY", "all_proxy"] {
        let output = call(&server, room, &url)?.env(variable, proxy.address(USER)).run().await?;
        answered(&output)?;
    }
    let target = format!("livekit.test:{}", server.port());
    ensure!(proxy.asked() == [target.clone(), target], "the proxy got other requests: {:?}", proxy.asked());
    Ok(())
}

async fn encrypted_call_passes_the_proxy_with_a_private_root() -> anyhow::Result<()> {
    let (server, room, proxy) = (shared()?, "proxy-tls", Proxy::start().await?);
    let _phone = phone(&server, room).await?;
    let tls = TlsProxy::start(server.port()).await?;
    let root = folder("proxy")?.join("root.pem");
    std::fs::write(&root, &tls.root)?;
    let url = format!("wss://livekit.test:{}", tls.port());
    let planned = call(&server, room, &url)?.env("https_proxy", proxy.address(USER));
    answered(&planned.arg("--root-certificate").arg(&root).run().await?)?;
    ensure!(proxy.asked() == [format!("livekit.test:{}", tls.port())]);

    let untrusted = call(&server, room, &url)?.env("HTTPS_PROXY", proxy.address(USER)).run().await?;
    ensure!(untrusted.code == Some(4) && untrusted.stderr.contains("TLS connection to"), "{untrusted:?}");
    Ok(())
}

async fn proxy_may_use_tls_itself() -> anyhow::Result<()> {
    let (server, room, proxy) = (shared()?, "proxy-over-tls", Proxy::start().await?);
    let _phone = phone(&server, room).await?;
    let tls = TlsProxy::start(proxy.port).await?;
    let root = folder("proxy-over-tls")?.join("root.pem");
    std::fs::write(&root, &tls.root)?;
    let url = format!("ws://livekit.test:{}", server.port());
    let named = format!("https://{USER}@127.0.0.1:{}", tls.port());
    let planned = call(&server, room, &url)?.env("HTTP_PROXY", &named);
    answered(&planned.arg("--root-certificate").arg(&root).run().await?)?;
    let untrusted = call(&server, room, &url)?.env("HTTP_PROXY", &named).run().await?;
    ensure!(
        untrusted.code == Some(4) && untrusted.stderr.contains("signed by an unknown authority"),
        "{untrusted:?}"
    );
    ensure!(!untrusted.stderr.contains("hunter2"), "{untrusted:?}");
    Ok(())
}

async fn refusal_names_the_proxy_but_not_the_password() -> anyhow::Result<()> {
    let (server, proxy) = (shared()?, Proxy::start().await?);
    let url = format!("ws://livekit.test:{}", server.port());
    let output = call(&server, "proxy-no", &url)?
        .env("HTTP_PROXY", proxy.address("ada:wr0ng"))
        .env("RUST_LOG", "trace")
        .run()
        .await?;
    let why = "it demands credentials, or refuses those in the variable (407)";
    let refusal = format!("through the proxy 127.0.0.1:{} (HTTP_PROXY): {why}", proxy.port);
    ensure!(output.code == Some(4) && output.stderr.contains(&refusal), "{output:?}");
    let encoded = STANDARD.encode("ada:wr0ng");
    ensure!(!output.stderr.contains("wr0ng") && !output.stderr.contains(&encoded), "{output:?}");
    Ok(())
}

async fn excluded_hosts_and_this_machine_are_reached_directly() -> anyhow::Result<()> {
    let (server, room, proxy) = (shared()?, "proxy-none", Proxy::start().await?);
    let _phone = phone(&server, room).await?;
    let here = call(&server, room, &server.url())?.env("ALL_PROXY", proxy.address(USER));
    answered(&here.run().await?)?;
    let url = format!("ws://livekit.test:{}", server.port());
    let excepted = call(&server, room, &url)?
        .env("HTTP_PROXY", proxy.address(USER))
        .env("NO_PROXY", "example.com,.test")
        .run()
        .await?;
    ensure!(excepted.code == Some(4) && excepted.stderr.contains("cannot be reached"), "{excepted:?}");
    ensure!(proxy.asked().is_empty(), "{:?}", proxy.asked());
    Ok(())
}

async fn doctor_looks_through_a_proxy() -> anyhow::Result<()> {
    let (server, proxy) = (shared()?, Proxy::start().await?);
    let token = server.key().client("proxy-doctor", "phone").sign()?;
    let url = format!("ws://livekit.test:{}", server.port());
    let arguments = ["doctor", "--json", "--url", &url, "--token", &token];
    let planned = Program::toolbridge(&server, &arguments).without_key();
    let output = planned.env("HTTP_PROXY", proxy.address(USER)).run().await?;
    ensure!(output.code == Some(0), "{output:?}");
    let through = format!("through the proxy 127.0.0.1:{} (HTTP_PROXY)", proxy.port);
    ensure!(output.stdout.contains(&through), "{output:?}");
    ensure!(!output.stdout.contains("hunter2"), "{output:?}");
    Ok(())
}
