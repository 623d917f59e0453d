// Both ends of LiveKit's RPC over the SDKs for Node and browsers, whose participants have the same methods: see
// rpc_calls.py and rpc_methods.py.

const after = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));

// A text that compresses as texts do: a client refuses one that expands more than 64 times.
function text(length) {
  return Array.from({ length: length / 2 + 1 }, (_, n) => `${n} `).join("").slice(0, length);
}

// Makes these calls to the participant `peer`, one after the other, and says the outcome of each.
export async function makeCalls(participant, RpcError, peer, calls, say) {
  for (const [at, call] of calls.entries()) {
    const payload = call.payload ?? JSON.stringify({ text: text(call.bytes - 11) });
    const began = performance.now();
    let more;
    try {
      const result = await participant.performRpc({
        destinationIdentity: peer,
        method: call.method,
        payload,
        responseTimeout: (call.timeout ?? 15) * 1000,
      });
      const isLong = result.length > 1000;
      const same = isLong && JSON.stringify(JSON.parse(result)) === JSON.stringify(JSON.parse(payload));
      more = isLong ? { length: result.length, same } : { payload: result };
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      more = { code: error.code, message: error.message, data: error.data };
    }
    say("result", { at, ms: Math.round((performance.now() - began) * 10) / 10, ...more });
  }
}

// Registers the methods of an app. Each run is said.
export function registerMethods(participant, RpcError, say) {
  const methods = {
    echo: async (payload) => payload,
    "lamp/on: all": async (payload) => payload,
    slow: async (payload) => after(3000, payload),
    text: async () => "at home",
    large: async (payload) => JSON.stringify({ text: "x".repeat(JSON.parse(payload).bytes - 11) }),
    fail: async () => {
      throw new RpcError(101, "the lamp is broken", JSON.stringify({ left: 2 }));
    },
    crash: async () => {
      throw new Error("a secret of the app");
    },
    hang: async () => after(600_000),
  };
  for (const [name, run] of Object.entries(methods)) {
    participant.registerRpcMethod(name, async ({ payload }) => {
      say("ran", { method: name });
      return run(payload);
    });
  }
}
