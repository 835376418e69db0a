// A trainer in another language than the server's: plain calls, streams, and a look-ahead session.
//
//     node trainer.js ADDRESS PROTO
//
// It pulls every row towards a target, a number that follows from its key: the gradient is what the
// row is away from it. So what it sends depends on what it has read, to the bit. Before an update
// that is to be cut off it prints {"cut": TABLE}, and waits for a line; at its end it prints the
// digests of its tables, and how often each was updated.

import { randomBytes } from 'node:crypto';
import { createInterface } from 'node:readline';

import { Client } from './client.js';
import { Arrays, arrayOf } from './frames.js';

const [address, proto] = process.argv.slice(2);
const ADS = { name: 'ads', dim: 8, rows: 1000, batch: 64 };
const WIDE = { name: 'wide', dim: 256, rows: 5000, batch: 3000 }; // a stream of several Chunks
const SHARED = [ADS, WIDE];
const [TIMEOUT_MS, LEASE_MS] = [300_000, 300_000]; // the machine may be busy
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const client = await Client.connect(address, proto, { timeoutMs: TIMEOUT_MS });

async function cut(table) {
  console.log(JSON.stringify({ cut: table.name }));
  await lines.next();
}

// ---- What is trained

/** Create a table, or do nothing where it is there with this configuration. */
async function createTable({ name, dim, rows }, trained) {
  await client.call('CreateTable', { config: { name, dim, rows, ...trained } });
}

/** Return the keys of a batch, some of them more than once. */
function batchOf(step, { rows, batch }) {
  return BigInt64Array.from({ length: batch }, (_, i) => BigInt((step * 7919 + i * i * 31) % rows));
}

function gradientsOf(keys, rows, dim) {
  return rows.map((value, i) => value - (Number(keys[Math.floor(i / dim)] % 7n) - 3) / 4);
}

// ---- Plain calls

/** Look up a batch, and update its rows; `send` is one of the client's ways of sending. */
async function train(step, table, send, { isCut = false } = {}) {
  const keys = batchOf(step, table);
  const rows = await lookup(table, keys, send);
  if (isCut) await cut(table);
  return update(table, keys, gradientsOf(keys, rows, table.dim), send);
}

async function lookup({ name }, keys, send) {
  const arrays = new Arrays();
  const tables = [{ table: name, keys: arrays.add(keys) }];
  const reply = await send('Lookup', arrays.message({ tables }));
  return arrayOf(reply, reply.header.tables[0].rows);
}

async function update({ name, dim }, keys, gradients, send) {
  const arrays = new Arrays();
  const placed = { keys: arrays.add(keys), gradients: arrays.add(gradients, [keys.length, dim]) };
  const reply = await send('Update', arrays.message({ tables: [{ table: name, ...placed }] }));
  return Number(reply.header.t[name]);
}

// ---- A session

/** Return the tables of a step, and the keys of each, which a session wants once each. */
function stepOf(step) {
  const tables = step % 2 ? SHARED : [ADS];
  const once = (table) => new BigInt64Array(new Set(batchOf(step, table)));
  return tables.map((table) => ({ ...table, keys: once(table) }));
}

async function trainInSession(name, count) {
  const tables = SHARED.map((table) => table.name);
  await client.call('OpenSession', { name, tables, lease_ms: LEASE_MS });
  const own = { name, rank: 0, member: randomBytes(16).toString('hex') };
  const { member, last_step } = await client.call('JoinSession', own);
  const steps = Array.from({ length: count }, (_, i) => Number(last_step) + 1 + i);
  await announce(member, steps);
  for (const step of steps.slice(0, -1)) {
    const rows = await lookupStep(member, step);
    if (step === steps[0]) await cut(ADS);
    await updateStep(member, step, rows);
  }
  await lookupStep(member, steps.at(-1));
  await client.call('ReleaseStep', { member, step: steps.at(-1) });
  await client.call('CloseSession', { member, forget: true });
}

async function announce(member, numbers) {
  const arrays = new Arrays();
  const steps = numbers.map((step) => {
    const tables = stepOf(step).map(({ name, keys }) => ({ table: name, keys: arrays.add(keys) }));
    return { step, tables };
  });
  await client.call('Announce', arrays.message({ member, steps }));
}

/** Return the rows of each table of a step, from one message or two. */
async function lookupStep(member, step) {
  const found = new Map(
    stepOf(step).map(({ name, dim, keys }) => [name, new Float32Array(keys.length * dim)]),
  );
  for (const message of await client.messages('LookupStep', { member, step }, 'StepRowsReply')) {
    for (const { table, rows, positions } of message.header.tables) {
      const came = arrayOf(message, rows);
      const dim = Number(rows.shape[1]);
      const places = positions ? arrayOf(message, positions) : Array(Number(rows.shape[0])).keys();
      let at = 0;
      for (const place of places) {
        found.get(table).set(came.subarray(at, at + dim), place * dim);
        at += dim;
      }
    }
  }
  return found;
}

/** Send the gradients of a step: of every table that was announced, and of no other. */
async function updateStep(member, step, rows) {
  const arrays = new Arrays();
  const tables = stepOf(step).map(({ name, dim, keys }) => {
    const gradients = gradientsOf(keys, rows.get(name), dim);
    return { table: name, gradients: arrays.add(gradients, [keys.length, dim]) };
  });
  await client.stream('UpdateStep', arrays.message({ member, step, tables }));
}

// ---- The run

const unary = (...request) => client.call(...request);
const streamed = (...request) => client.stream(...request);
for (let i = 0; i < 2; i += 1) { // the second time they are there, which is fine
  const uniform = { low: -0.1, high: 0.1 };
  await createTable(ADS, { rowwise_adagrad: { learning_rate: 0.1 }, uniform });
  await createTable(WIDE, { adam: { learning_rate: 0.01 }, normal: { mean: 0, std: 0.02 } });
}
for (const step of [1, 2, 3]) await train(step, ADS, unary);
for (const step of [4, 5]) await train(step, WIDE, streamed);
await train(6, ADS, unary, { isCut: true });
await train(7, WIDE, streamed, { isCut: true });
await trainInSession('node', 4);

const tables = {};
for (const { name } of SHARED) {
  const { digest, t } = await client.call('GetDigest', { table: name });
  tables[name] = { digest, t: Number(t) };
}
console.log(JSON.stringify({ tables }));
client.close();
process.stdin.destroy();
