//! A real LiveKit server on loopback, on ports of its own, gone when dropped or when the tests die.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use livekit_token::{AccessToken, VideoGrants};
use rustix::process::{Pid, Signal, kill_process};
use toolbridge::AccessKey;

const VERSION: &str = "v1.13.5";
pub(crate) const KEY: &str = "devkey";
pub(crate) const SECRET: &str = "secretsecretsecretsecretsecretsecret";
/// How long the server may take to answer, as a bound of failure.
const READY: Duration = Duration::from_secs(20);
/// Ports can be taken between looking for one and using it.
const TRIES: usize = 4;

/// Where the server's program is, if anywhere: `LIVEKIT_SERVER_BIN`, or where `scripts/livekit-server` puts it.
pub(crate) fn binary() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIVEKIT_SERVER_BIN") {
        return Some(path.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join(format!("toolbridge/livekit-server-{VERSION}/server"))).filter(|path| path.is_file())
}

static SHARED: Mutex<Option<Arc<Server>>> = Mutex::new(None);

/// One server for all tests that do it no harm; each uses a room of its own.
pub(crate) fn shared() -> anyhow::Result<Arc<Server>> {
    let mut shared = SHARED.lock().unwrap();
    if shared.is_none() {
        *shared = Some(Arc::new(Server::start("")?));
    }
    Ok(shared.clone().unwrap())
}

/// To be called when all tests have ended.
pub(crate) fn stop_shared() {
    SHARED.lock().unwrap().take();
}

/// A running server.
pub(crate) struct Server {
    /// A shell around the server: it kills it as soon as its standard input ends, so also when we die.
    guard: Child,
    pid: Pid,
    ports: Ports,
    rtc: String,
    secret: &'static str,
    log: PathBuf,
}

impl Server {
    /// Starts one and waits until it answers. `rtc` are more lines for that part of its configuration.
    pub(crate) fn start(rtc: &str) -> anyhow::Result<Self> {
        let binary = binary().context("needs livekit-server: build it with `scripts/livekit-server path`")?;
        let mut last = None;
        for _ in 0..TRIES {
            let mut server = Self::spawn(&binary, rtc, Ports::free()?, SECRET)?;
            match server.wait_until_ready() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error.context(fs::read_to_string(&server.log).unwrap_or_default())),
            }
        }
        Err(last.unwrap())
    }

    /// Kills it and starts it anew on the same ports, as one that was there before: it knows nobody.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.restart_with(self.secret)
    }

    /// The same with another secret: it takes no token of before.
    pub(crate) fn restart_with(&mut self, secret: &'static str) -> anyhow::Result<()> {
        let (ports, rtc) = (self.ports, self.rtc.clone());
        self.end();
        *self = Self::spawn(&binary().context("the server's program is gone")?, &rtc, ports, secret)?;
        self.wait_until_ready()
    }

    fn spawn(binary: &PathBuf, rtc: &str, ports: Ports, secret: &'static str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Ports { signalling: port, tcp, udp } = ports;
        let name = format!(
            "toolbridge-livekit-{}-{}.log",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let log = env::temp_dir().join(name);
        let config = format!(
            "port: {port}\nbind_addresses: [127.0.0.1]\nkeys: {{{KEY}: {secret}}}\nlogging: {{level: info}}\nrtc:\n  \
             udp_port: {udp}\n  tcp_port: {tcp}\n  use_external_ip: false\n  node_ip: 127.0.0.1\n  \
             enable_loopback_candidate: true\n  interfaces: {{includes: [lo]}}\n{rtc}\n"
        );
        let mut guard = Command::new("sh")
            .args([
                "-c",
                r#""$0" --config-body "$1" </dev/null >"$2" 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait"#,
            ])
            .arg(binary)
            .arg(config)
            .arg(&log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(guard.stdout.take().context("no output")?).read_line(&mut line)?;
        let pid = Pid::from_raw(line.trim().parse()?).context("no process id")?;
        Ok(Self { guard, pid, ports, rtc: rtc.to_owned(), secret, log })
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + READY;
        loop {
            match self.request("GET", "/", "", "") {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return Ok(()),
                other if Instant::now() > until => bail!("livekit-server did not answer: {other:?}"),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The address to join.
    pub(crate) fn url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.ports.signalling)
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.signalling
    }

    /// Where it takes packets.
    pub(crate) fn udp_port(&self) -> u16 {
        self.ports.udp
    }

    /// Where it takes packets over TCP.
    pub(crate) fn tcp_port(&self) -> u16 {
        self.ports.tcp
    }

    /// Its key, to make tokens with.
    pub(crate) fn key(&self) -> AccessKey {
        AccessKey::new(KEY, self.secret)
    }

    /// Ends it without a goodbye.
    pub(crate) fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        kill_process(self.pid, Signal::TERM).unwrap();
    }

    /// Makes it fall silent, with all sockets open.
    pub(crate) fn pause(&self) {
        kill_process(self.pid, Signal::STOP).unwrap();
    }

    /// Ends the silence.
    pub(crate) fn resume(&self) {
        kill_process(self.pid, Signal::CONT).unwrap();
    }

    /// Asks the server's room service to do something in this room.
    pub(crate) async fn room_service(
        &self,
        method: &str,
        room: &str,
        body: serde_json::Value,
    ) -> anyhow::Result<String> {
        let grants =
            VideoGrants { room_admin: true, room_create: true, room: room.into(), ..Default::default() };
        let token = AccessToken::with_api_key(KEY, self.secret).with_grants(grants).to_jwt()?;
        let path = format!("/twirp/livekit.RoomService/{method}");
        let answer = self.request("POST", &path, &token, &body.to_string())?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{method}: {answer}");
        Ok(answer)
    }

    fn request(&self, method: &str, path: &str, token: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports.signalling))?;
        stream.set_read_timeout(Some(READY))?;
        let bearer =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {bearer}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Server {
    /// Ends it and waits until it has ended.
    fn end(&mut self) {
        let Some(stdin) = self.guard.stdin.take() else { return };
        self.kill();
        drop(stdin);
        let _ = self.guard.wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// The ports of a server.
#[derive(Clone, Copy)]
struct Ports {
    signalling: u16,
    tcp: u16,
    udp: u16,
}

impl Ports {
    /// Three that nobody uses now.
    fn free() -> anyhow::Result<Self> {
        let (signalling, tcp) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        Ok(Self {
            signalling: signalling.local_addr()?.port(),
            tcp: tcp.local_addr()?.port(),
            udp: udp.local_addr()?.port(),
        })
    }
}
