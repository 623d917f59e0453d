//! Answers the requests of one MCP connection.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation,
        InitializeRequestParams, InitializeResult, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig, SubscriptionFilter, Tool,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};

use super::{
    call,
    call::is_modern,
    changes::{Host, Listed, report_changes},
    definition::{definition, definitions},
};
use crate::adapter::sink::Room;
use tokio_util::sync::CancellationToken;

/// What a host may tell its model about this server.
const INSTRUCTIONS: &str = "The tools belong to apps that are connected to a LiveKit room. The list changes when apps join, \
     leave or change their tools.";

/// Methods with parameters of another form than the protocol says reach [`ServerHandler::on_custom_request`].
const METHODS: [&str; 5] =
    ["initialize", "server/discover", "subscriptions/listen", "tools/call", "tools/list"];

pub(super) struct Handler {
    shared: Arc<Room>,
    listed: Listed,
    /// Cancelled when the host sends nothing more. Its open calls may still be answered.
    closed: CancellationToken,
    /// Cancelled when the connection has ended.
    ended: CancellationToken,
}

impl Handler {
    pub(super) fn new(shared: Arc<Room>, closed: CancellationToken) -> Self {
        Self { shared, listed: Listed::default(), closed, ended: CancellationToken::new() }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        let server = Implementation::new("toolbridge", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    #[expect(clippy::disallowed_methods, reason = "the task ends with the connection")]
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let (shared, listed, ended) = (Arc::clone(&self.shared), self.listed.clone(), self.ended.clone());
        let host = Host::Connection(context.peer);
        tokio::spawn(ended.run_until_cancelled_owned(async move {
            report_changes(&shared, &listed, &host).await;
        }));
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params("unknown cursor: the list has one page", None));
        }
        let tools = definitions(&*self.shared.list().await);
        self.listed.set(&tools);
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        call::call(&self.shared, &self.closed, request, context).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        Some(definition(name, self.shared.catalog().get(name)?))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            "initialize" if is_modern(&context) => unknown("initialize"),
            "tools/call" => ErrorData::invalid_params(
                "the parameters of tools/call are `name`, a string, and `arguments`, an object",
                None,
            ),
            method if METHODS.contains(&method) => {
                ErrorData::invalid_params(format!("invalid parameters of {method}"), None)
            }
            method => unknown(method),
        })
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone()) // cut to what `get_info` advertises
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let listed = Listed::default();
        listed.set(&definitions(&self.shared.catalog()));
        let host = Host::Subscription(context.sink().clone());
        tokio::select! {
            () = report_changes(&self.shared, &listed, &host) => {}
            () = context.cancelled() => {}
        }
        Ok(())
    }
}

fn unknown(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method {method:?}"), None)
}
