// Calls that a test asks for: each a line of JSON on stdin, what came of it a line on stdout.
//
//     node calls.js ADDRESS PROTO
//
// A line has `verb`, and `request` or, of a bulk verb, `tables` with arrays of numbers; `how` is
// the client's way of sending, `timeoutMs` its deadline.

import { createInterface } from 'node:readline';

import { Client } from './client.js';
import { Arrays } from './frames.js';

const [address, proto] = process.argv.slice(2);
const client = await Client.connect(address, proto, { timeoutMs: 300_000 });

function bulk({ tables, header = {} }) {
  const arrays = new Arrays();
  const placed = tables.map(({ keys, gradients, ...named }) => {
    if (keys) named.keys = arrays.add(BigInt64Array.from(keys, BigInt));
    if (gradients) {
      const { rows, shape } = gradients;
      named.gradients = arrays.add(Float32Array.from(rows), shape);
    }
    return named;
  });
  return arrays.message({ ...header, tables: placed });
}

async function answer({ verb, how = 'call', timeoutMs = 300_000, ...asked }) {
  client.timeoutMs = timeoutMs;
  try {
    const reply = await client[how](verb, asked.tables ? bulk(asked) : asked.request);
    return reply.header ?? reply;
  } catch ({ kind, code, isFinal, message }) {
    return { kind, code, isFinal, message };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
client.close();
