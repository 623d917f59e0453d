// Some tools of tools.mjs as an MCP server in this process, over HTTP: they have progress, large results and a memory, which
// programs have not. Of the protocol, it has what toolbridge's client uses.

import { createServer } from 'node:http';

import { makeOptions } from './tools.mjs';

const NAMES = ['make', 'broken', 'hang', 'steps', 'note', 'until'];
const PROTOCOL = '2025-06-18';

/** JSON-RPC's codes. */
const UNKNOWN_METHOD = -32_601;
const INVALID_PARAMS = -32_602;

/** Serves the tools. Returns the URL, and `note` of tools.mjs. */
export async function serveTools(t) {
  const { options, note } = makeOptions(Error);
  const tools = Object.fromEntries(NAMES.map((name) => [name, options[name]]));
  const running = new Map();
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const part of request.setEncoding('utf8')) text += part;
    if (request.method !== 'POST') return response.writeHead(405).end();
    const { id, method, params } = JSON.parse(text);
    if (method === 'notifications/cancelled') running.get(params.requestId)?.abort({ reason: 'caller' });
    if (id === undefined) return response.writeHead(202).end();
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const say = (message) => response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`);
    const controller = new AbortController();
    running.set(id, controller);
    const { progressToken } = params?._meta ?? {};
    const progress = (message) => say({ method: 'notifications/progress', params: { progressToken, progress: 1, message } });
    say({ id, ...(await answer(tools, method, params, { signal: controller.signal, progress })) });
    running.delete(id);
    response.end();
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}/mcp`, note };
}

async function answer(tools, method, params, context) {
  switch (method) {
    case 'initialize':
      return { result: { protocolVersion: PROTOCOL, capabilities: { tools: {} }, serverInfo: { name: 'tools', version: '1' } } };
    case 'tools/list':
      return { result: { tools: NAMES.map((name) => ({ name, description: tools[name].description, inputSchema: { type: 'object' } })) } };
    case 'tools/call': {
      const tool = tools[params.name];
      if (tool === undefined) return { error: { code: INVALID_PARAMS, message: `unknown tool ${params.name}` } };
      try {
        const value = await tool.execute(params.arguments ?? {}, context);
        return { result: { content: [{ type: 'text', text: JSON.stringify(value) }] } };
      } catch {
        return { result: { isError: true, content: [{ type: 'text', text: 'the tool failed' }] } };
      }
    }
    default:
      return { error: { code: UNKNOWN_METHOD, message: `unknown method ${method}` } };
  }
}
