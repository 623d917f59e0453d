//! A room in which packets never stop coming: nothing else that a participant waits for may starve.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::Poll,
};

use tokio::sync::Notify;
use toolbridge::{
    Assistant, Client, ConsentRequest, Event, Tool, ToolContext, ToolError, ToolName, ToolOptions,
    ToolSource, Value,
    memory::{MemoryRoom, MemoryTransport},
    transport::{Capabilities, Lane, Packet, Participant, Peer, SendError, Transport, TransportEvent},
};

/// So many packets that the flood is over only if something has starved meanwhile.
const FLOOD: u32 = 200_000;

/// Receives a stranger's packet whenever nothing else has arrived, as long as some are left.
struct Flooded {
    inner: MemoryTransport,
    left: Arc<AtomicU32>,
}

impl Transport for Flooded {
    fn local(&self) -> Participant {
        self.inner.local()
    }

    fn room(&self) -> String {
        self.inner.room()
    }

    fn present(&self) -> Vec<Participant> {
        self.inner.present()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        self.inner.send(packet)
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        let mut next = pin!(self.inner.recv());
        let flood = poll_fn(|cx| match next.as_mut().poll(cx) {
            Poll::Ready(event) => Poll::Ready(Some(event)),
            Poll::Pending if self.left.load(SeqCst) > 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        if let Some(event) = flood.await {
            return event;
        }
        self.left.fetch_sub(1, SeqCst);
        Some(TransportEvent::packet(Peer::new("stranger", "PA_99"), Lane::Reliable, vec![0xc1]))
    }
}

/// Returns a transport of the client `phone`, and how many packets its flood has left: none before it is set.
fn flooded(room: &MemoryRoom) -> (Flooded, Arc<AtomicU32>) {
    let left = Arc::new(AtomicU32::new(0));
    (Flooded { inner: room.client("phone"), left: Arc::clone(&left) }, left)
}

#[tokio::test]
async fn person_says_yes_during_a_flood_and_the_tool_runs() {
    let room = MemoryRoom::new();
    let (transport, left) = flooded(&room);
    let erase = ToolOptions::destructive().on(async || Ok::<_, ToolError>(1));
    let consent = async |_: ConsentRequest| true;
    let _phone =
        Client::builder().tool("erase", "erases", erase).consent(consent).join_over(transport).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    left.store(FLOOD, SeqCst);
    assistant.call("erase", ()).to("phone").await.unwrap();
    assert_ne!(left.load(SeqCst), 0, "the answer waited for the end of the flood");
}

/// A source that has another tool after its change.
#[derive(Clone, Default)]
struct Changing(Arc<(AtomicBool, Notify)>);

impl Changing {
    fn change(&self) {
        self.0.0.store(true, SeqCst);
        self.0.1.notify_one();
    }
}

impl ToolSource for Changing {
    fn list(&self) -> Vec<Tool> {
        let names: &[&str] = if self.0.0.load(SeqCst) { &["one", "two"] } else { &["one"] };
        names.iter().map(|name| Tool::new(name.parse().unwrap(), "")).collect()
    }

    async fn execute(&self, _: &ToolName, _: Value, _: ToolContext) -> Result<Value, ToolError> {
        Ok(Value::empty())
    }

    async fn changed(&self) {
        self.0.1.notified().await;
    }
}

#[tokio::test]
async fn changed_tools_are_offered_during_a_flood() {
    let room = MemoryRoom::new();
    let (transport, left) = flooded(&room);
    let source = Changing::default();
    let _phone = Client::builder().tools(source.clone()).join_over(transport).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let mut events = assistant.events();
    assistant.ready("phone").await.unwrap();
    left.store(FLOOD, SeqCst);
    source.change();
    while assistant.tools().len() < 2 {
        while !matches!(events.recv().await.unwrap(), Event::ToolsChanged { .. }) {}
    }
    assert_ne!(left.load(SeqCst), 0, "the change waited for the end of the flood");
}
