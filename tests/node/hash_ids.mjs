// Hashes of ids that a test asks for: each a line of JSON on stdin, its hash a line on stdout.
//
// A line has `text` or, as decimal text, `integer`; `seed`, and `rows` or null.

import { createInterface } from 'node:readline';

import { hashId } from '../../client/node/hashing.js';

for await (const line of createInterface({ input: process.stdin })) {
  const { text, integer, seed, rows } = JSON.parse(line);
  const how = { seed: BigInt(seed), rows: rows === null ? null : BigInt(rows) };
  console.log(JSON.stringify(hashId(text ?? BigInt(integer), how).toString()));
}
