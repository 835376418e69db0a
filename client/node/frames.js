// Bulk messages {header, padding, payload}, and the Chunks of a stream.
//
// To grpc-js a payload is a Buffer, anywhere in memory. So an array of a reply is a view where it
// is aligned for its type, and else a copy. Of a request there is no padding: it would spare the
// server one copy, and nothing else.

const CHUNK_BYTES = 1 << 20;
const ALIGNMENT = 64;
const DTYPES = {
  DTYPE_INT64: BigInt64Array,
  DTYPE_FLOAT32: Float32Array,
  DTYPE_UINT32: Uint32Array,
  DTYPE_UINT8: Uint8Array,
};

/** The arrays of a message: add them, put their places into the header. */
export class Arrays {
  #parts = [];
  #bytes = 0;

  /** Append a typed array; return where it lies. */
  add(array, shape = [array.length]) {
    const offset = Math.ceil(this.#bytes / ALIGNMENT) * ALIGNMENT;
    const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
    this.#parts.push(Buffer.alloc(offset - this.#bytes), bytes);
    this.#bytes = offset + bytes.length;
    const [dtype] = Object.entries(DTYPES).find(([, kind]) => array instanceof kind);
    return { dtype, shape, offset };
  }

  /** Return the message with its header. */
  message(header) {
    return { header, payload: Buffer.concat(this.#parts) };
  }
}

/** Return an array of a message that came: a view, or a copy where it is not aligned. */
export function arrayOf({ payload }, { dtype, shape, offset }) {
  const kind = DTYPES[dtype];
  const count = shape.map(Number).reduce((product, length) => product * length, 1);
  const start = Number(offset);
  const bytes = payload.subarray(start, start + count * kind.BYTES_PER_ELEMENT);
  const own = bytes.byteOffset % kind.BYTES_PER_ELEMENT ? new Uint8Array(bytes) : bytes;
  return new kind(own.buffer, own.byteOffset, count);
}

/** Yield a serialised message as Chunks. */
export function* chunksOf(serialised) {
  for (let start = 0; start < serialised.length; start += CHUNK_BYTES) {
    const piece = serialised.subarray(start, start + CHUNK_BYTES);
    yield { total_bytes: start ? 0 : serialised.length, piece };
  }
}

/** Yield the serialised messages that a stream of Chunks has, each when its last piece has come. */
export async function* joined(chunks) {
  let [total, size, pieces] = [0, 0, []];
  for await (const chunk of chunks) {
    total ||= Number(chunk.total_bytes);
    size += chunk.piece.length;
    pieces.push(chunk.piece);
    if (size === total) {
      yield Buffer.concat(pieces);
      [total, size, pieces] = [0, 0, []];
    }
  }
  if (size) throw new Error(`a stream ended after ${size} of ${total} bytes`);
}
