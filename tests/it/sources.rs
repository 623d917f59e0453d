//! The life of a tool source: its health while the participant is in the room, and its end.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{sync::Notify, time::Instant};
use toolbridge::{
    Client, Event, Outcome, SOURCE_CLOSE, SourceHealth, Tool, ToolContext, ToolError, ToolName, ToolSource,
    Tools, Value, memory::MemoryRoom,
};

/// A source whose process can be stopped.
#[derive(Default)]
struct Process {
    health: Mutex<SourceHealth>,
    changed: Notify,
    closed: AtomicUsize,
    hangs: bool,
}

impl ToolSource for Process {
    fn list(&self) -> Vec<Tool> {
        vec![Tool::new("t".parse().unwrap(), "")]
    }

    async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
        Ok(arguments)
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }

    fn name(&self) -> Option<String> {
        Some("server".to_owned())
    }

    fn health(&self) -> SourceHealth {
        self.health.lock().unwrap().clone()
    }

    async fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            std::future::pending().await
        }
    }
}

#[tokio::test(start_paused = true)]
async fn health_of_a_named_source_is_reported() {
    let (room, source) = (MemoryRoom::new(), Arc::new(Process::default()));
    let unnamed = Tools::new().tool("u", "", async || Ok::<_, ToolError>(1));
    let client = Client::builder().tools(Arc::clone(&source)).tools(unnamed);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let mut events = client.events();
    let up = client.sources();
    assert_eq!((up.len(), &*up[0].name, up[0].health.clone()), (1, "server", SourceHealth::Up));
    let down =
        SourceHealth::Down { reason: "it exited with status 1".into(), since: Instant::now().into_std() };
    *source.health.lock().unwrap() = down.clone();
    source.changed.notify_one();
    loop {
        if let Event::Source(status) = events.recv().await.unwrap() {
            break assert_eq!(status.health, down);
        }
    }
    assert_eq!(client.sources()[0].health.to_string(), "down: it exited with status 1");
}

#[tokio::test(start_paused = true)]
async fn sources_are_closed_once_after_the_participant_has_left() {
    let room = MemoryRoom::new();
    let source = Arc::new(Process::default());
    let slow = Arc::new(Process { hangs: true, ..Process::default() });
    let client = Client::builder().tools(Arc::clone(&source)).tools(Arc::clone(&slow).prefixed("slow"));
    let client = client.join_over(room.client("phone")).await.unwrap();
    assert_eq!(source.closed.load(Ordering::SeqCst), 0);
    let began = Instant::now();
    client.close().await;
    assert_eq!(began.elapsed(), SOURCE_CLOSE, "a source that hangs is given up");
    assert_eq!(source.closed.load(Ordering::SeqCst), 1);
    assert_eq!(slow.closed.load(Ordering::SeqCst), 1);
}
