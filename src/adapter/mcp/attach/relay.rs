//! Carries what one side sends to the other.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Deserialize;
use serde_json::{Value as Json, value::RawValue};
use tokio::{sync::oneshot, task::JoinSet};

use crate::adapter::{
    jsonrpc::{
        error::{INTERNAL, RpcError},
        id::Id,
        inbox::{Incoming, Request},
        message::changed,
        open::Reply,
        peer::{Headers, MessageParts, Peer},
    },
    mcp::source::{
        headers::encoded,
        http::Incomings,
        lifecycle::{INITIALIZE, Protocol, VERSION_KEY},
        live::unreadable,
    },
};

/// The most requests of one side that are open at once: the server runs as many calls.
pub(super) const MAX_OPEN: usize = 64;

const CANCELLED: &str = "notifications/cancelled";

/// The request that stays open.
const LISTEN: &str = "subscriptions/listen";

/// One direction.
pub(in crate::adapter::mcp) struct Relay {
    from: Arc<Peer>,
    to: Arc<Peer>,
    /// What the server has agreed on with the host.
    agreed: Arc<OnceLock<Protocol>>,
    /// The other direction, to whose requests notifications of this one belong.
    other: Option<Arc<Relay>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    tasks: JoinSet<()>,
    streams: JoinSet<()>,
}

/// A request that is not answered.
struct Open {
    /// Its id at the side that has sent it.
    id: Id,
    /// Its id at the other side.
    number: Arc<OnceLock<u64>>,
    /// Takes the reason of its cancellation. Closed when the request has ended.
    cancel: Option<oneshot::Sender<Option<String>>>,
}

impl Relay {
    /// Carries what a host sends.
    pub(super) fn to_server(host: Arc<Peer>, server: Arc<Peer>) -> Arc<Self> {
        let (agreed, state) = (Arc::default(), Mutex::default());
        Arc::new(Self { from: host, to: server, agreed, other: None, state })
    }

    /// Carries what the server of these requests sends.
    pub(super) fn to_host(requests: &Arc<Self>) -> Arc<Self> {
        let (from, to) = (Arc::clone(&requests.to), Arc::clone(&requests.from));
        let other = Some(Arc::clone(requests));
        Arc::new(Self { from, to, agreed: Arc::clone(&requests.agreed), other, state: Mutex::default() })
    }

    pub(super) fn agreed(&self) -> &Arc<OnceLock<Protocol>> {
        &self.agreed
    }

    /// Carries a message. Requests are answered later.
    pub(super) async fn carry(self: &Arc<Self>, message: Incoming) {
        match message {
            Incoming::Request(request) => self.request(request).await,
            Incoming::Notification { method, params } => {
                let params = params.as_deref();
                if method == CANCELLED && self.cancel(params) {
                    return;
                }
                let params = params.map(|params| self.renamed(params));
                let mut message = MessageParts::raw(&method, params.as_deref());
                message.headers = self.headers(&method, params.as_deref());
                self.to.tell(message).await;
            }
            Incoming::Unnamed(_) => {} // it is in the log
        }
    }

    async fn request(self: &Arc<Self>, request: Request) {
        if !self.has_room() {
            let text = format!("busy: {MAX_OPEN} requests are open already; wait for one to end");
            return self.from.refuse(Some(&request.id), RpcError::new(INTERNAL, text)).await;
        }
        let state = &mut *self.state();
        let (cancel, cancelled) = oneshot::channel();
        let (id, number) = (request.id.clone(), Arc::default());
        state.open.push(Open { id, number: Arc::clone(&number), cancel: Some(cancel) });
        let tasks = if request.method == LISTEN { &mut state.streams } else { &mut state.tasks };
        tasks.spawn(Arc::clone(self).answer(request, number, cancelled));
    }

    fn has_room(&self) -> bool {
        let state = &mut *self.state();
        while state.tasks.try_join_next().is_some() || state.streams.try_join_next().is_some() {}
        state.open.retain(|open| open.cancel.as_ref().is_some_and(|it| !it.is_closed()));
        state.open.len() < MAX_OPEN
    }

    /// Sends a request to the other side, and its answer back. One that is cancelled has none.
    async fn answer(
        self: Arc<Self>,
        Request { id, method, params, .. }: Request,
        number: Arc<OnceLock<u64>>,
        cancelled: oneshot::Receiver<Option<String>>,
    ) {
        let reply = match self.to.begin(method == LISTEN) {
            Ok(mut request) => {
                let _ = number.set(request.id());
                let mut message = MessageParts::raw(&method, params.as_deref());
                message.headers = self.headers(&method, params.as_deref());
                tokio::select! {
                    reply = request.send(message) => reply,
                    Ok(reason) = cancelled => return reason.into_iter().for_each(|it| request.set_reason(it)),
                }
            }
            Err(_) => None,
        };
        let failed = |text: String| Err(RpcError::new(INTERNAL, text));
        let answer = match reply {
            Some(Reply::Result(text)) => {
                if method == INITIALIZE {
                    self.agree(&text);
                }
                // Outside of strings, a newline in JSON is a space.
                RawValue::from_string(text.replace(['\n', '\r'], " "))
                    .or_else(|error| failed(error.to_string()))
            }
            Some(Reply::Error(failure)) => Err(failure.into()),
            Some(Reply::Unreadable(reason)) => failed(unreadable(&reason)),
            Some(Reply::Lost(reason)) => failed(reason),
            None => failed(
                self.to.failure().map_or_else(|| "the connection has ended".to_owned(), |it| it.to_string()),
            ),
        };
        self.from.answer(&id, answer, None).await;
    }

    /// Notes the version that the server has chosen.
    fn agree(&self, result: &str) {
        let result: Json = serde_json::from_str(result).unwrap_or_default();
        if let Some(version) = result["protocolVersion"].as_str() {
            let _ = self.agreed.set(Protocol { version: version.to_owned().into(), is_sessionless: false });
        }
    }

    /// Cancels a request of this direction. Returns whether it is open.
    fn cancel(&self, params: Option<&RawValue>) -> bool {
        let params: Json = params.and_then(|it| serde_json::from_str(it.get()).ok()).unwrap_or_default();
        let id = Id::of(&params["requestId"]);
        let mut state = self.state();
        let is_it = |open: &&mut Open| Some(&open.id) == id.as_ref() && open.cancel.is_some();
        let Some(open) = state.open.iter_mut().rev().find(is_it) else { return false };
        let reason = params["reason"].as_str().map(str::to_owned);
        open.cancel.take().is_some_and(|cancel| cancel.send(reason).is_ok())
    }

    /// Returns what a request of the newest version says in its head, too.
    fn headers(&self, method: &str, params: Option<&RawValue>) -> Headers {
        let params: Json = params
            .filter(|params| self.other.is_none() && params.get().contains(VERSION_KEY))
            .and_then(|params| serde_json::from_str(params.get()).ok())
            .unwrap_or_default();
        let Some(version) = params["_meta"][VERSION_KEY].as_str() else { return Headers::new() };
        let name = ["name", "uri", "taskId"].iter().find_map(|key| params[*key].as_str());
        let all = [
            ("mcp-protocol-version", Some(version.to_owned())),
            ("mcp-method", Some(method.to_owned())),
            ("mcp-name", name.map(encoded)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// Returns parameters with the sender's ids of the requests that they name: those of a subscription, or of a cancellation.
    fn renamed(&self, params: &RawValue) -> Box<RawValue> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(default, borrow, rename = "requestId")]
            request: Option<&'a RawValue>,
            #[serde(default, borrow, rename = "_meta")]
            meta: Option<Meta<'a>>,
        }
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(default, borrow, rename = "io.modelcontextprotocol/subscriptionId")]
            subscription: Option<&'a RawValue>,
        }
        let named = self.other.as_ref().and_then(|other| {
            let Params { request, meta } = serde_json::from_str(params.get()).ok()?;
            let named = [request, meta.and_then(|meta| meta.subscription)].into_iter().flatten();
            let changes: Vec<_> = named.filter_map(|raw| Some((raw.get(), other.name_of(raw)?))).collect();
            RawValue::from_string(changed(params.get(), changes)).ok()
        });
        named.unwrap_or_else(|| params.to_owned())
    }

    /// Returns the sender's id of a request.
    fn name_of(&self, number: &RawValue) -> Option<String> {
        let number = Id::read(number.get().as_bytes())?.whole()?;
        let state = self.state();
        let open = state.open.iter().find(|open| open.number.get() == Some(&number))?;
        Some(open.id.as_json().to_owned())
    }

    /// Waits until all requests but the subscriptions are answered. Dropping the future ends them.
    pub(super) async fn answered(&self) {
        let mut tasks = std::mem::take(&mut self.state().tasks);
        while tasks.join_next().await.is_some() {}
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Incomings for Arc<Relay> {
    async fn incoming(&self, message: Incoming) {
        self.carry(message).await;
    }
}
