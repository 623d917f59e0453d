//! IBM watsonx Orchestrate: widgets and forms in results of MCP servers.
