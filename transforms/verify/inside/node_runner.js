// The untrusted half of the `call` verifier for JavaScript: one case in one process of node, inside the sandbox.
//
// node node_runner.js INPUT ANSWER: the descriptors of what is asked and of where the answer goes. Frames and values are
// those of `worker.py` and `values.py`; `docs/tasks.md` says which value becomes which. The program shares this process:
// one that forges its answer has done no more than return that value.
"use strict";

// Ours, whatever the program makes of the global names.
const { Array, BigInt, Error, Map, Math, Number, Object, ReferenceError, Reflect, Set, String, Uint8Array } = globalThis;
const { Buffer } = require("buffer");
const fs = require("fs");
const vm = require("vm");
const { types } = require("util");
const { createRequire } = require("module");

const MAX_DEPTH = 100;
const [input, output] = process.argv.slice(2).map(Number);
const reallyExit = process.reallyExit.bind(process);
const writeSync = fs.writeSync;
const { isProxy, isPromise, isUint8Array } = types;
const { getPrototypeOf, getOwnPropertyDescriptor, defineProperty } = Object;
const ownKeys = Reflect.ownKeys;
const LONE = /\p{Surrogate}/u;

class Unsupported extends Error { get name() { return "UnsupportedType"; } }
class TooDeep extends Error { get name() { return "TooDeep"; } }
class TooLarge extends Error { get name() { return "TooLarge"; } }

// Reading values.

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  take(count) {
    this.at += count;
    return this.data.subarray(this.at - count, this.at);
  }

  size() {
    return this.take(4).readUInt32BE();
  }

  value() {
    const tag = String.fromCharCode(this.take(1)[0]);
    switch (tag) {
      case "N": return null;
      case "T": return true;
      case "F": return false;
      case "i": return integer(this.take(this.size()));
      case "f": return this.take(8).readDoubleBE();
      case "s": return text(this.take(this.size()));
      case "b": return Uint8Array.from(this.take(this.size()));
      case "d": return this.dict();
      case "l": case "t": return this.items();
      case "e": case "z": return new Set(this.items());
    }
    throw new Unsupported(`JavaScript has no value for the tag ${tag}`);
  }

  items() {
    return Array.from({ length: this.size() }, () => this.value());
  }

  dict() {
    const pairs = Array.from({ length: this.size() }, () => [this.value(), this.value()]);
    if (!pairs.every(([key]) => typeof key === "string")) return new Map(pairs);
    const found = {};
    for (const [key, value] of pairs) { // an assignment to __proto__ would make no key
      defineProperty(found, key, { value, writable: true, enumerable: true, configurable: true });
    }
    return found;
  }
}

function integer(bytes) {
  const found = BigInt.asIntN(8 * bytes.length, BigInt("0x" + bytes.toString("hex")));
  return found >= Number.MIN_SAFE_INTEGER && found <= Number.MAX_SAFE_INTEGER ? Number(found) : found;
}

function text(bytes) { // UTF-8 in which lone surrogates have three bytes of their own
  let found = "";
  let from = 0;
  for (let at = bytes.indexOf(0xed); at !== -1; at = bytes.indexOf(0xed, at + 1)) {
    if (bytes[at + 1] >= 0xa0) {
      const code = 0xd000 | ((bytes[at + 1] & 0x3f) << 6) | (bytes[at + 2] & 0x3f);
      found += bytes.toString("utf8", from, at) + String.fromCharCode(code);
      from = at + 3;
    }
  }
  return found + bytes.toString("utf8", from);
}

// Writing values.

class Writer {
  constructor(most) {
    this.most = most;
    this.parts = [];
    this.length = 0;
  }

  add(bytes) {
    this.length += bytes.length;
    if (this.length > this.most) throw new TooLarge(`more than ${this.most} bytes when encoded`);
    this.parts.push(bytes);
  }

  head(tag, count) {
    const head = Buffer.alloc(5);
    head[0] = tag.charCodeAt(0);
    head.writeUInt32BE(count, 1);
    this.add(head);
  }

  sized(tag, bytes) {
    this.head(tag, bytes.length);
    this.add(bytes);
  }

  value(value, depth) {
    if (depth > MAX_DEPTH) throw new TooDeep(`containers nested deeper than ${MAX_DEPTH}`);
    switch (typeof value) {
      case "undefined": return this.add(Buffer.from("N"));
      case "boolean": return this.add(Buffer.from(value ? "T" : "F"));
      case "number": return this.double(value);
      case "bigint": return this.sized("i", bytesOf(value));
      case "string": return this.sized("s", wellFormed(value));
      case "object": return value === null ? this.add(Buffer.from("N")) : this.object(value, depth);
    }
    throw new Unsupported(`a ${typeof value} is not plain data`);
  }

  double(value) {
    const bytes = Buffer.alloc(9);
    bytes[0] = "f".charCodeAt(0);
    bytes.writeDoubleBE(value, 1);
    this.add(bytes);
  }

  object(value, depth) {
    if (isProxy(value)) throw new Unsupported("a Proxy is not plain data");
    const prototype = getPrototypeOf(value);
    if (prototype === Array.prototype && Array.isArray(value)) {
      this.head("l", value.length);
      for (let index = 0; index < value.length; index++) this.value(plain(value, String(index)), depth + 1);
    } else if (prototype === Map.prototype && types.isMap(value)) {
      this.pairs([...value], depth);
    } else if (prototype === Set.prototype && types.isSet(value)) {
      const items = [...value];
      this.head("e", items.length);
      for (const item of items) this.value(item, depth + 1);
    } else if (isUint8Array(value)) { // a Buffer is one
      this.sized("b", Buffer.from(value));
    } else if ((prototype === Object.prototype || prototype === null) && !types.isModuleNamespaceObject(value)) {
      const keys = ownKeys(value);
      if (keys.some((key) => typeof key === "symbol")) throw new Unsupported("a symbol is not plain data");
      this.pairs(keys.map((key) => [key, plain(value, key)]), depth);
    } else {
      throw new Unsupported("an object of a class of its own is not plain data");
    }
  }

  pairs(pairs, depth) {
    this.head("d", pairs.length);
    for (const [key, item] of pairs) {
      this.value(key, depth + 1);
      this.value(item, depth + 1);
    }
  }

  done() {
    return Buffer.concat(this.parts);
  }
}

function plain(owner, key) { // no getter is ever called; a hole in an array is undefined
  const found = getOwnPropertyDescriptor(owner, key);
  if (found !== undefined && !("value" in found)) throw new Unsupported("a getter is not plain data");
  return found === undefined ? undefined : found.value;
}

function bytesOf(number) {
  const magnitude = number < 0n ? -number : number;
  const count = Math.floor(magnitude.toString(16).length / 2) + 1;
  return Buffer.from(BigInt.asUintN(8 * count, number).toString(16).padStart(2 * count, "0"), "hex");
}

function wellFormed(value) {
  if (!LONE.test(value)) return Buffer.from(value, "utf8");
  const parts = [];
  for (const char of value) {
    const code = char.codePointAt(0);
    parts.push(code >= 0xd800 && code <= 0xdfff
      ? Buffer.from([0xe0 | (code >> 12), 0x80 | ((code >> 6) & 0x3f), 0x80 | (code & 0x3f)])
      : Buffer.from(char, "utf8"));
  }
  return Buffer.concat(parts);
}

// Answering.

function answer(tag, body) {
  const frame = Buffer.concat([Buffer.alloc(4), Buffer.from(tag), body]);
  frame.writeUInt32BE(frame.length - 4);
  for (let sent = 0; sent < frame.length;) sent += writeSync(output, frame, sent);
  reallyExit(0);
}

function describe(error) { // what was thrown may do anything when it is asked for its text
  let [name, message, location] = ["Error", "", ""];
  try {
    if (types.isNativeError(error)) {
      name = String(error.name);
      message = String(error.message);
      const stack = String(error.stack);
      const inside = /at (?:async )?(?:([^\s(]+) \()?solution\.js:(\d+):\d+/.exec(stack);
      const parsed = /^solution\.js:(\d+)\n/.exec(stack);
      if (inside) location = `line ${inside[2]} in ${(inside[1] || "<program>").slice(0, 80)}`;
      else if (parsed) location = `line ${parsed[1]}`;
    } else {
      message = `${typeof error} thrown: ${String(error)}`;
    }
  } catch { /* what is known until here */ }
  const writer = new Writer(1 << 20);
  writer.head("t", 3);
  for (const part of [name.slice(0, 100), message.slice(0, 300), location]) writer.value(part, 0);
  return writer.done();
}

function fail(error) {
  if (error instanceof Unsupported || error instanceof TooDeep) answer("U", describe(error));
  if (error instanceof TooLarge) answer("L", describe(error));
  answer("E", describe(error));
}

// The case.

function define(program, prefix) {
  const module = { exports: {} };
  const own = { module, exports: module.exports, require: createRequire(process.cwd() + "/solution.js") };
  for (const [name, value] of Object.entries(own)) {
    defineProperty(globalThis, name, { value, writable: true, enumerable: false, configurable: true });
  }
  if (prefix) vm.runInThisContext(prefix, { filename: "prefix.js" });
  let script;
  try {
    script = new vm.Script(program, { filename: "solution.js" });
  } catch (error) {
    answer("S", describe(error));
  }
  script.runInThisContext();
  return module;
}

function find(module, name) {
  const exported = module.exports;
  if (exported !== null && typeof exported === "object" && typeof exported[name] === "function") return exported[name];
  const found = vm.runInThisContext(`typeof ${name} === "undefined" ? undefined : ${name}`);
  if (typeof found === "function") return found;
  if (typeof exported === "function") return exported;
  throw new ReferenceError(`the program defines no function ${name}`);
}

async function main() {
  const data = fs.readFileSync(input);
  fs.closeSync(input);
  const reader = new Reader(data);
  const [[prefix, program, name, most], [args, kwargs]] = [reader.value(), reader.value()];
  const asked = Object.keys(kwargs).length ? [...args, kwargs] : args;
  process.on("uncaughtException", fail);
  process.abort = () => reallyExit(134); // as a shell tells of it: SIGABRT is how node ends when its heap is full
  for (const stream of [process.stdout, process.stderr]) { // else a flood fills our memory, not the pipe
    if (stream._handle && stream._handle.setBlocking) stream._handle.setBlocking(true);
  }
  try {
    const called = find(define(program, prefix), name)(...asked);
    const result = isPromise(called) ? await called : called;
    const writer = new Writer(most);
    writer.value(result, 0);
    answer("V", writer.done());
  } catch (error) {
    fail(error);
  }
}

main();
