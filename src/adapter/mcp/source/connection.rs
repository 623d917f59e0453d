//! Holds one connection to a server: starts it, asks for its tools, and ends it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Shared,
    address::Address,
    handler::Handler,
    http::{Http, Incomings as _},
    lifecycle,
    live::{Live, Unanswered},
    origin,
    settings::Endpoint,
};
use crate::{
    adapter::{
        jsonrpc::{
            inbox::Inbox,
            peer::{End, Peer},
            reader::Reader,
            rules::MCP,
        },
        source::{Pauses, SourceError, policy::Bearer, program::Program},
    },
    process::{Child, Exit},
};

/// The most requests that are open at once: a participant runs 64 calls.
const MAX_OPEN: usize = 256;

/// How long a server that has closed its output may take to end, so that its status can be reported. The output of one that
/// has closed its input is read for as long.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// How long the task may take that ends a session.
const END_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Connection {
    pub(super) live: Live,
    child: Option<Child>,
    /// Those that read and write.
    tasks: JoinSet<()>,
    subscription: JoinSet<()>,
}

impl Connection {
    /// Starts the server, and agrees on a version of the protocol before the deadline.
    ///
    /// # Cancel safety
    /// Dropping the future kills the server.
    pub(super) async fn start(shared: &Arc<Shared>, deadline: Instant) -> Result<Self, SourceError> {
        match &shared.settings.endpoint {
            Endpoint::Program(program) => Self::start_child(shared, program, deadline).await,
            Endpoint::Url(url) => Self::connect(shared, url, deadline).await,
        }
    }

    async fn connect(shared: &Arc<Shared>, url: &str, deadline: Instant) -> Result<Self, SourceError> {
        let address = Address::read(url);
        let address =
            address.map_err(|error| SourceError::setting(origin(&shared.name), error.to_string()))?;
        let token = shared.settings.bearer.as_ref().map(Bearer::token).transpose();
        let token = token.map_err(|reason| shared.fail(reason))?;
        let cannot = |reason: String| shared.fail(format!("the client cannot be set up: {reason}"));
        let client = address.client(token.as_deref()).map_err(cannot)?;
        let (peer, writer) = Peer::new(MAX_OPEN, &MCP);
        let live = Live::new(Arc::clone(&peer), true);
        let inbox = Inbox::new(Arc::clone(&shared.name), Arc::clone(&live.calls.ignored));
        let handler = Handler::new(shared, Arc::clone(&peer), Arc::clone(&live.calls));
        let is_within_event = Arc::new(AtomicBool::new(false));
        let (agreed, within) = (Arc::clone(&live.agreed), Arc::clone(&is_within_event));
        let http = Http::new(client, peer, inbox, handler, agreed, within);
        let mut tasks = JoinSet::new();
        tasks.spawn(http.run(writer));
        let connection = Self { live, child: None, tasks, subscription: JoinSet::new() };
        let opened =
            timeout_at(deadline, lifecycle::open(&connection.live.peer, &connection.live.agreed)).await;
        let reason = match opened {
            Ok(Ok(())) => return Ok(connection),
            Ok(Err(reason)) => reason,
            Err(_) if is_within_event.load(Ordering::Relaxed) => {
                let reason = "its event stream stopped within an event, which a blank line must end";
                format!("{}: {reason}", no_answer(shared))
            }
            Err(_) => no_answer(shared),
        };
        connection.abandon().await;
        Err(shared.fail(reason))
    }

    async fn start_child(
        shared: &Arc<Shared>,
        program: &Program,
        deadline: Instant,
    ) -> Result<Self, SourceError> {
        let server = &shared.name;
        let not_started = |source| SourceError::NotStarted { origin: origin(server), source };
        let (child, stdin, stdout) = program.command(&origin(server))?.spawn().map_err(not_started)?;
        let (peer, writer) = Peer::new(MAX_OPEN, &MCP);
        let live = Live::new(Arc::clone(&peer), false);
        let (name, ignored) = (Arc::clone(server), Arc::clone(&live.calls.ignored));
        let mut reader = Reader::new(stdout, Arc::clone(&peer), name, ignored);
        let handler = Handler::new(shared, Arc::clone(&peer), Arc::clone(&live.calls));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                match reader.next().await {
                    Ok(Some(message)) => handler.incoming(message).await,
                    Ok(None) => return,
                    Err(error) => {
                        let server = &*handler.server;
                        return tracing::warn!(server, %error, "the output of an MCP server cannot be read");
                    }
                }
            }
        });
        tasks.spawn(async move {
            if let Err(error) = writer.write(stdin).await {
                sleep(EXIT_GRACE).await; // what it wrote before is still read
                peer.end(End::Failed(format!("no message can be sent to it: {error}").into()));
            }
        });
        let connection = Self { live, child: Some(child), tasks, subscription: JoinSet::new() };
        let opened =
            timeout_at(deadline, lifecycle::open(&connection.live.peer, &connection.live.agreed)).await;
        let reason = match opened {
            Ok(Ok(())) => return Ok(connection),
            Ok(Err(reason)) => reason,
            Err(_) => no_answer(shared),
        };
        Err(connection.explained(server, reason).await)
    }

    /// Returns how the server has ended, or why its start failed and what it wrote. The server is killed.
    async fn explained(mut self, server: &str, reason: String) -> SourceError {
        let origin = origin(server);
        let Some(child) = &mut self.child else { return SourceError::protocol(origin, reason) };
        // One whose input is closed now ends because of that.
        if self.live.peer.has_ended()
            && let Ok(Ok(exit)) = timeout(EXIT_GRACE, child.wait()).await
        {
            return SourceError::Ended { origin, exit };
        }
        SourceError::Protocol { origin, reason, stderr: child.stderr() }
    }

    /// Asks for changes of the tool list, in versions of the protocol that announce them only then.
    pub(super) fn subscribe(&mut self, shared: &Arc<Shared>) {
        if self.live.is_modern() {
            self.subscription.spawn(subscribed(self.live.clone(), Arc::clone(shared)));
        }
    }

    /// Resolves when the server has ended or is no longer reachable, with the error.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn failed(&mut self, server: &str) -> SourceError {
        if let Some(exit) = self.exit().await {
            return SourceError::Ended { origin: origin(server), exit };
        }
        let stderr = self.child.as_ref().map(Child::stderr).unwrap_or_default();
        SourceError::Protocol { origin: origin(server), reason: self.end_without_exit(), stderr }
    }

    fn end_without_exit(&self) -> String {
        let silent = if self.child.is_some() { "it closed its output" } else { "the connection ended" };
        self.live.peer.failure().map_or_else(|| silent.to_owned(), |reason| reason.to_string())
    }

    /// Resolves when the server has ended or is no longer reachable, with its status if there is one.
    ///
    /// # Cancel safety
    /// Safe.
    async fn exit(&mut self) -> Option<Exit> {
        let peer = &self.live.peer;
        let Some(child) = &mut self.child else {
            peer.ended().await;
            return None;
        };
        tokio::select! {
            exit = child.wait() => {
                // What it wrote before it ended is still read.
                let _ = timeout(EXIT_GRACE, peer.ended()).await;
                exit.ok()
            }
            _ = peer.ended() => timeout(EXIT_GRACE, child.wait()).await.ok().and_then(Result::ok),
        }
    }

    /// Tells calls why the server has ended. The first reason counts.
    pub(super) fn tell_end(&self, reason: &str) {
        self.live.end.send_if_modified(|before| {
            let is_first = before.is_none();
            before.get_or_insert_with(|| reason.into());
            is_first
        });
        self.live.peer.end(End::Closed);
    }

    /// Ends a server that cannot be used: a child is killed, and a session ended.
    pub(super) async fn abandon(self) {
        if self.child.is_none() {
            self.close().await;
        }
    }

    /// Ends the server.
    pub(super) async fn close(mut self) {
        self.subscription.shutdown().await;
        self.tell_end("the server was closed");
        self.live.peer.close();
        match self.child.take() {
            Some(child) => _ = child.close().await,
            None => _ = timeout(END_GRACE, self.tasks.join_next()).await,
        }
        self.tasks.shutdown().await;
    }
}

/// Keeps a subscription of changes of the tool list. When it ends, it is made again, and the list is read.
async fn subscribed(live: Live, shared: Arc<Shared>) {
    let mut pauses = Pauses::new();
    let params = || Map::from_iter([("notifications".to_owned(), json!({"toolsListChanged": true}))]);
    loop {
        let start = Instant::now();
        live.calls.is_subscribed.store(false, Ordering::Relaxed);
        match live.request("subscriptions/listen", params(), true).await {
            // A server without such changes refuses.
            Err(Unanswered::Error(_)) if !live.calls.is_subscribed.load(Ordering::Relaxed) => return,
            Err(Unanswered::NotSent | Unanswered::Ended(_)) => return,
            _ => {}
        }
        sleep(pauses.after(start.elapsed())).await;
        shared.list_changed.notify_one(); // changes may have been missed
    }
}

fn no_answer(shared: &Shared) -> String {
    format!("it did not answer within {} s", shared.settings.start_limit.as_secs_f64())
}
