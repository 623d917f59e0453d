// An MCP host over the official SDK for Node: lists the tools of a server, calls them, and prints a JSON line for each step.
//
//   node host.mjs stdio COMMAND [ARGUMENTS]
//   node host.mjs http URL TOKEN

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const print = (event) => console.log(JSON.stringify(event));
const [kind, ...where] = process.argv.slice(2);
const transport =
  kind === "stdio"
    ? new StdioClientTransport({ command: where[0], args: where.slice(1), env: process.env, stderr: "inherit" })
    : new StreamableHTTPClientTransport(new URL(where[0]), {
        requestInit: { headers: { Authorization: `Bearer ${where[1]}` } },
      });
const client = new Client({ name: "host", version: "1.0.0" });
const changed = new Promise((resolve) =>
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => resolve()),
);
// The client tells its transport which version it has agreed on.
transport.setProtocolVersion ??= (version) => (transport.protocolVersion = version);
await client.connect(transport);
print({ event: "connected", protocol: transport.protocolVersion });

const names = async () => (await client.listTools()).tools.map((tool) => tool.name);
print({ event: "tools", names: await names() });

const step = async (name, call) => {
  try {
    print({ event: name, result: await call() });
  } catch (error) {
    print({ event: name, error: error.code ?? null, message: error.message });
  }
};
await step("double", () => client.callTool({ name: "double", arguments: { n: 21 } }));
await step("wrong", () => client.callTool({ name: "double", arguments: { n: "x" } }));
await step("unknown", () => client.callTool({ name: "no_such_tool", arguments: {} }));

// The tool runs until it is stopped, which happens after its first progress.
const stop = new AbortController();
const progress = [];
const onprogress = (it) => {
  progress.push(it);
  stop.abort("no longer needed");
};
await step("stopped", () =>
  client.callTool({ name: "hang", arguments: {} }, undefined, { signal: stop.signal, onprogress }),
);
print({ event: "progress", progress });

print({ event: "waiting" });
await changed;
print({ event: "changed", names: await names() });
await client.close();
print({ event: "closed" });
