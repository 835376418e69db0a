// A client of embstore: calls, origins, attempts, errors. Made to be read, and to be copied with
// frames.js; docs/guide/other-languages.md says why each part is as it is.
//
// Numbers of 64 bits come and go as decimal strings, keys as BigInt64Array, rows as Float32Array.

import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { setTimeout as pause } from 'node:timers/promises';

import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

import { chunksOf, joined } from './frames.js';

const LOADING = { keepCase: true, longs: String, enums: String, defaults: true };
const OPTIONS = {
  'grpc.max_receive_message_length': -1, // the default, 4 MiB, is less than the server may send
  'grpc.max_send_message_length': -1,
  'grpc.enable_retries': 0, // the attempts are ours, they carry an origin
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 2000,
  'grpc.keepalive_time_ms': 60_000, // a peer that vanished without a word is found out
};
const [PAUSE_FIRST_MS, PAUSE_MAX_MS] = [20, 1000];
const FINISHES = new Set(['UpdateStep', 'ReleaseStep', 'SkipStep']);
const READS_ROWS = ['Lookup', 'LookupPooled', 'ReadRows'];
const READS = new Set([...READS_ROWS, 'GetTable', 'ListTables', 'GetDigest']);

// ---- Errors

/** `kind` is the class that the server named; '' of gRPC's own errors, whose `code` says more. */
export class EmbstoreError extends Error {
  constructor(kind, message, { code = grpc.status.UNKNOWN, isFinal = false } = {}) {
    super(kind ? `${kind}: ${message}` : message);
    Object.assign(this, { kind, code, isFinal });
  }
}

/** Return what a status stands for. */
function errorOf(status) {
  if (!(status.metadata instanceof grpc.Metadata)) return status; // not of a call
  const [kind = ''] = status.metadata.get('embstore-error');
  const isFinal = status.metadata.get('embstore-not-again').length > 0;
  return new EmbstoreError(kind, status.details, { code: status.code, isFinal });
}

/** Say why a call may be sent again: 'refused', it was not done; 'lost', nobody knows. */
function againAfter({ kind, code, isFinal }, verb) {
  if (isFinal) return '';
  if (kind === 'StoreClosedError' && FINISHES.has(verb)) return 'lost'; // it may have waited there
  if (kind === 'StoreClosedError' || kind === 'OverloadedError') return 'refused';
  const isLost = code === grpc.status.UNAVAILABLE || code === grpc.status.CANCELLED;
  return kind === '' && isLost ? 'lost' : '';
}

// ---- The client

/** Return all messages of a stream, read to its end: the status comes last. */
async function all(messages, deserialize) {
  const found = [];
  for await (const message of messages) found.push(deserialize(message));
  return found;
}

export class Client {
  #client = randomBytes(16).toString('hex');
  #last = 0;
  #open = new Set(); // sequences whose answers are still awaited
  #known = { store_id: '', instance: '', epoch: '0' };

  /** Connect to an address by the .proto file; `timeoutMs` is the deadline of a call. */
  static async connect(address, proto, { timeoutMs = 60_000, credentials, token } = {}) {
    const client = new Client();
    client.definition = loadSync(proto, LOADING);
    client.service = client.definition['embstore.v1.Embstore'];
    const Stub = grpc.makeGenericClientConstructor(client.service, 'Embstore');
    client.stub = new Stub(address, credentials ?? grpc.credentials.createInsecure(), OPTIONS);
    Object.assign(client, { timeoutMs, token });
    client.info = await client.call('GetServerInfo', {});
    return client;
  }

  close() {
    this.stub.close();
  }

  /** Make a call of one message and one answer; both at most limits.unary_bytes_max. */
  call(verb, request) {
    const one = (...how) =>
      new Promise((resolve, reject) => {
        const answered = (error, reply) => (error ? reject(error) : resolve(reply));
        this.stub[verb](request, ...how, answered);
      });
    return this.#attempts(verb, request, one);
  }

  /** Make a bulk call by the stream twin of its verb. */
  stream(verb, request) {
    const { requestSerialize, responseDeserialize } = this.service[verb];
    return this.#attempts(verb, request, async (...how) => {
      const call = this.stub[`${verb}Stream`](...how);
      Readable.from(chunksOf(requestSerialize(request))).pipe(call);
      const [reply] = await all(joined(call), responseDeserialize);
      return reply;
    });
  }

  /** Make a call that is answered by a stream of bulk messages; return all of them. */
  messages(verb, request, reply) {
    const { deserialize } = this.definition[`embstore.v1.${reply}`];
    return this.#attempts(verb, request, (...how) =>
      all(joined(this.stub[verb](request, ...how)), deserialize),
    );
  }

  /** Make a call in as many attempts as it takes, by the same origin, until its deadline. */
  async #attempts(verb, request, attempt) {
    const deadline = Date.now() + this.timeoutMs;
    const head = request.header ?? request;
    const origin = this.#isRemembered(verb) ? this.#begin() : undefined;
    let [pauseMs, wasLost] = [PAUSE_FIRST_MS, false];
    try {
      for (;;) {
        if (origin) head.origin = origin;
        const reply = await attempt(this.#metadata(), { deadline }).catch(errorOf);
        if (!(reply instanceof Error)) return this.#noted(verb, reply);
        const again = againAfter(reply, verb);
        if (!again || Date.now() + pauseMs > deadline) throw this.#meaning(reply, verb, wasLost);
        wasLost ||= again === 'lost';
        if (origin && wasLost) origin.attempt += 1;
        await pause(pauseMs * (0.5 + Math.random() / 2));
        pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS);
      }
    } finally {
      if (origin) this.#open.delete(origin.sequence);
    }
  }

  #metadata() {
    const metadata = new grpc.Metadata({ waitForReady: true });
    metadata.set('embstore-client', 'node');
    if (this.token) metadata.set('authorization', `Bearer ${this.token}`);
    return metadata;
  }

  /** Say whether the server remembers calls of a verb: its request has an origin. */
  #isRemembered(verb) {
    const { type } = this.service[verb].requestType;
    const head = type.nestedType.find(({ name }) => name === 'Header') ?? type;
    return head.field.some(({ name }) => name === 'origin');
  }

  /** Return the origin of a new call. */
  #begin() {
    const first = Math.min(this.#last + 1, ...this.#open);
    if (this.#last + 1 - first >= this.info.limits.remembered_calls_max) {
      throw new EmbstoreError('', 'too many calls are open; nothing was sent');
    }
    this.#last += 1;
    this.#open.add(this.#last);
    const finished_below = Math.min(...this.#open);
    const own = { client_id: this.#client, sequence: this.#last, finished_below, attempt: 0 };
    return { ...own, ...this.#known };
  }

  /** Take note of the state that a reply is of; return the reply. */
  #noted(verb, reply) {
    const { context } = reply.header ?? reply[0]?.header ?? reply;
    const known = this.#known;
    if (known.store_id && known.store_id !== context.store_id) {
      throw new EmbstoreError('', `the address serves another store now: ${context.store_id}`);
    }
    const isVoid = READS.has(verb) && !['0', context.epoch].includes(known.epoch);
    const isNewer = isVoid || known.epoch === '0' || verb === 'Restore';
    const epoch = isNewer ? context.epoch : known.epoch;
    Object.assign(known, { store_id: context.store_id, instance: context.instance, epoch });
    if (isVoid) {
      throw new EmbstoreError('OutcomeUnknownError', 'rows and t may have gone back');
    }
    return reply;
  }

  /** Return what an error means to the caller. */
  #meaning(error, verb, wasLost) {
    if (error.kind === 'OutcomeUnknownError') this.#known.epoch = '0'; // the next reply tells
    if (error.kind === 'SessionExpiredError' && wasLost && FINISHES.has(verb)) {
      return new EmbstoreError('OutcomeUnknownError', `${error.message}; open it, read last_step`);
    }
    return error;
  }
}
