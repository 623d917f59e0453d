// The options of a room over Node's SDK, whose data is encrypted end to end if E2EE_KEY in the environment has its shared key.
export function options() {
  const key = process.env.E2EE_KEY;
  const encryption = key && { keyProviderOptions: { sharedKey: new TextEncoder().encode(key) } };
  return { autoSubscribe: false, dynacast: false, ...(encryption && { encryption }) };
}
