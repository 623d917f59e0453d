// Makes the two modules that shells import: `assemble.mjs GLUE FOLDER`. GLUE has the glue of wasm-bindgen (`core_bg.js`) and the
// module as wasm2js translated it (`lowered.js`); FOLDER/wasm has the module as WebAssembly.
import { readFileSync, writeFileSync } from "node:fs";

const [glueFolder, folder] = process.argv.slice(2);
const glue = readFileSync(`${glueFolder}/core_bg.js`, "utf8");
const lowered = readFileSync(`${glueFolder}/lowered.js`, "utf8");

// The glue exports what the module imports, beside the class: those become one object.
const imports = [...glue.matchAll(/^export function (__wb\w+)\(/gm)].map((it) => it[1]).filter((it) => it !== "__wbg_set_wasm");
const parts = glue.replaceAll(/^export (?=function __wb)/gm, "");
if (parts.match(/^export /gm)?.length !== 1) throw new Error("the glue exports something else than the class Session");
// A WebAssembly memory that grows detaches its buffer, and the glue notices that. One in plain JavaScript leaves the old buffer as it was.
const checks = [
  ["cachedUint8ArrayMemory0.byteLength === 0", "cachedUint8ArrayMemory0.buffer !== wasm.memory.buffer"],
  ["cachedDataViewMemory0.buffer.detached === true || (cachedDataViewMemory0.buffer.detached === undefined && ", "("],
];
const plainParts = checks.reduce((text, [detached, changed]) => {
  if (!text.includes(detached)) throw new Error(`the glue does not check ${detached}`);
  return text.replaceAll(detached, changed);
}, parts);
const importObject = `{ ${imports.join(", ")} }`;

const interfaceOfSession = `/** One end of the protocol: see bindings/README.md. After a panic, every call throws. */
export declare class Session {
  private constructor();
  /** Creates a session from the input \`create\`. Throws an Error with the property \`field\` if it is malformed. */
  static create(input: string): Session;
  /** Passes an input or a query, whose field \`bytes\` may be beside it. Returns its reply. Throws as \`create\` does. */
  handle(input: string, bytes?: Uint8Array): string | undefined;
  /** Returns the next output without its field \`bytes\`. */
  nextOutput(): string | undefined;
  /** Takes the bytes of the last output. */
  takeBytes(): Uint8Array | undefined;
  /** Returns when the input \`timeout\` is due, in milliseconds since the driver's zero point. */
  nextDeadline(): number | undefined;
  free(): void;
}
`;

writeFileSync(
  `${folder}/wasm/core.js`,
  `${parts}
const imports = { "./core_bg.js": ${importObject} };
let loading;

function start(instance) {
  __wbg_set_wasm(instance.exports);
  instance.exports.__wbindgen_start?.();
  return Session;
}

/** Starts the module asynchronously. It is started once. */
export function load(source) {
  loading ??= (async () => {
    const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
    return start(await WebAssembly.instantiate(module, imports));
  })();
  return loading;
}

/** Starts the module at once. Browsers allow that for large modules only in workers. */
export function loadSync(source) {
  if (wasm === undefined) {
    const module = source instanceof WebAssembly.Module ? source : new WebAssembly.Module(source);
    start(new WebAssembly.Instance(module, imports));
  }
  return Session;
}
`,
);
writeFileSync(
  `${folder}/wasm/core.d.ts`,
  `${interfaceOfSession}
/** Starts the module asynchronously. It is started once. */
export declare function load(source: BufferSource | WebAssembly.Module): Promise<typeof Session>;
/** Starts the module at once. Browsers allow that for large modules only in workers. */
export declare function loadSync(source: BufferSource | WebAssembly.Module): typeof Session;
`,
);

// wasm2js writes a module that imports the glue, instantiates itself and exports the result: the function between is what is needed.
const begin = lowered.search(/^function asmFunc\(/m);
const end = lowered.search(/^(var|const) retasmFunc = asmFunc\(/m);
const before = lowered.slice(0, begin).split("\n").filter((line) => !line.startsWith("import "));
if (begin < 0 || end < 0) throw new Error("wasm2js has written something else than one function");

writeFileSync(
  `${folder}/plain/core.js`,
  `${textCoders()}
${plainParts}
${before.join("\n")}
${lowered.slice(begin, end)}
/** Starts the module. It is started once. */
export function load() {
  if (wasm === undefined) {
    __wbg_set_wasm(asmFunc({ "./core_bg.js": ${importObject} }));
    wasm.__wbindgen_start?.();
  }
  return Session;
}
`,
);
writeFileSync(
  `${folder}/plain/core.d.ts`,
  `${interfaceOfSession}
/** Starts the module. It is started once. */
export declare function load(): typeof Session;
`,
);

// Engines without WebAssembly may lack these, too. Texts of the core are valid UTF-8.
function textCoders() {
  return `const TextDecoder = globalThis.TextDecoder ?? class {
  decode(bytes = []) {
    const units = [];
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      const first = bytes[at++];
      let point = first;
      if (first >= 0xf0) point = ((first & 7) << 18) | ((bytes[at++] & 63) << 12) | ((bytes[at++] & 63) << 6) | (bytes[at++] & 63);
      else if (first >= 0xe0) point = ((first & 15) << 12) | ((bytes[at++] & 63) << 6) | (bytes[at++] & 63);
      else if (first >= 0xc0) point = ((first & 31) << 6) | (bytes[at++] & 63);
      if (point > 0xffff) units.push(0xd7c0 + (point >> 10), 0xdc00 | (point & 0x3ff));
      else units.push(point);
      if (units.length > 4096) text += String.fromCharCode(...units.splice(0));
    }
    return text + String.fromCharCode(...units);
  }
};
const TextEncoder = globalThis.TextEncoder ?? class {
  encode(text) {
    const bytes = new Uint8Array(text.length * 3);
    let length = 0;
    for (const char of text) {
      let point = char.codePointAt(0);
      if (point >= 0xd800 && point < 0xe000) point = 0xfffd;
      if (point < 0x80) bytes[length++] = point;
      else if (point < 0x800) bytes[length++] = 0xc0 | (point >> 6);
      else if (point < 0x10000) bytes[length++] = 0xe0 | (point >> 12);
      else bytes[length++] = 0xf0 | (point >> 18);
      if (point >= 0x10000) bytes[length++] = 0x80 | ((point >> 12) & 63);
      if (point >= 0x800) bytes[length++] = 0x80 | ((point >> 6) & 63);
      if (point >= 0x80) bytes[length++] = 0x80 | (point & 63);
    }
    return bytes.subarray(0, length);
  }
};`;
}
