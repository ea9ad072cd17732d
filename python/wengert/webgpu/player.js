/**
 * Plays programs of wengert in a page, on the device of `navigator.gpu`:
 *
 *     const program = await Program.load('digits.safetensors');
 *     const device = await (await navigator.gpu.requestAdapter()).requestDevice();
 *     const player = new Player(program, device);
 *     const [probabilities] = await player.run([pixels]);
 *
 * A program comes from `wengert.webgpu.export(...).save(path)`. One file, no dependencies.
 */

const KEY = 'wengert.webgpu';
/** Optional features of WebGPU that programs can use. */
const FEATURES = ['shader-f16'];
const VERSIONS = [1, 2];
/** Invocations of a workgroup, and the most workgroups along one dimension. */
const GROUP = 64, MOST_GROUPS = 65535;
/** The most rounds of all loops of an invocation. */
const ROUNDS = 65000;
/** The most words of a dispatch. */
const WORDS = 1024;
/** All that is calculated of sizes stays below this, so that numbers hold it. */
const MOST = 2 ** 53;
/** The most loops inside each other, and the most dispatches of a run. */
const DEEPEST = 16, MOST_PLAYED = 2 ** 20;
/** Of how many sizes buffers are kept. */
const KEPT = 4;

/** The arrays that hold each dtype; float16 and bfloat16 travel as their bits. */
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
};

const SAFETENSORS = {
  BOOL: 'bool', I8: 'int8', U8: 'uint8', I16: 'int16', U16: 'uint16', I32: 'int32', U32: 'uint32',
  I64: 'int64', U64: 'uint64', F16: 'float16', BF16: 'bfloat16', F32: 'float32',
};

/** What is wrong with a file, an input, a device, or the data of a run. */
export class PlayerError extends Error {
  name = 'PlayerError';
}

function refuse(what) {
  throw new PlayerError(what);
}

function check(holds, what) {
  if (!holds) refuse(`not a program: ${what}`);
}

// Sizes

const TOKEN = / *(?:([0-9]{1,16})|([\p{L}\p{Nl}_][\p{L}\p{N}\p{M}_]{0,63})|(\/\/|[-+*%(),]))/uy;
/** What remains beside the quotient that is rounded down. */
function modulo(a, b) {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}

const OPERATORS = {
  '+': (a, b) => a + b,
  '-': (a, b) => a - b,
  '*': (a, b) => a * b,
  '//': (a, b) => (a - modulo(a, b)) / b,
  '%': modulo,
  min: Math.min,
  max: Math.max,
};

/** An expression over symbols, as a list of steps with operands first. */
class Size {
  constructor(text) {
    check(text.length <= 4096, 'an expression is too long');
    this.text = text;
    this.code = [];
    this.symbols = new Set();
    this.place = TOKEN.lastIndex = 0;
    this.depth = 0;
    this.next();
    this.sum();
    if (this.token) this.refuse();
  }

  refuse() {
    check(false, `no size: ${JSON.stringify(this.text.slice(0, 100))}`);
  }

  next() {
    this.token = null;
    if (this.place === this.text.length) return;
    TOKEN.lastIndex = this.place;
    const found = TOKEN.exec(this.text) ?? this.refuse();
    this.place = TOKEN.lastIndex;
    this.token = {number: found[1], name: found[2], sign: found[3]};
  }

  takes(...signs) {
    const sign = this.token?.sign;
    if (!sign || !signs.includes(sign)) return null;
    this.next();
    return sign;
  }

  needs(sign) {
    if (!this.takes(sign)) this.refuse();
  }

  sum() {
    this.product();
    for (let sign; (sign = this.takes('+', '-'));) {
      this.product();
      this.code.push(['do', sign]);
    }
  }

  product() {
    this.factor();
    for (let sign; (sign = this.takes('*', '//', '%'));) {
      this.factor();
      this.code.push(['do', sign]);
    }
  }

  factor() {
    if (++this.depth > 32) this.refuse();
    if (this.takes('-')) {
      this.factor();
      this.code.push(['negate']);
    } else if (this.takes('(')) {
      this.sum();
      this.needs(')');
    } else if (!this.token || this.token.sign) {
      this.refuse();
    } else {
      const {number, name} = this.token;
      this.next();
      if (number) {
        this.code.push(['number', Number(number)]);
      } else if (name === 'min' || name === 'max') {
        this.needs('(');
        this.sum();
        this.needs(',');
        this.sum();
        this.needs(')');
        this.code.push(['do', name]);
      } else {
        this.symbols.add(name);
        this.code.push(['name', name]);
      }
    }
    this.depth--;
  }

  /** Whether it is a symbol alone. */
  get isSymbol() {
    return this.code.length === 1 && this.symbols.size === 1;
  }

  at(sizes) {
    const stack = [];
    for (const [what, argument] of this.code) {
      if (what === 'number') {
        stack.push(argument);
      } else if (what === 'name') {
        stack.push(sizes.get(argument));
      } else if (what === 'negate') {
        stack.push(-stack.pop());
      } else {
        const b = stack.pop(), a = stack.pop();
        if (b === 0 && (argument === '//' || argument === '%')) {
          refuse(`${this.text} divides by zero`);
        }
        stack.push(OPERATORS[argument](a, b));
      }
      if (!(Math.abs(stack.at(-1)) < MOST)) refuse(`a size is too large: ${this.text}`);
    }
    return stack[0];
  }
}

/** How often a base is multiplied by itself, from 1, to reach a size. */
class Log {
  constructor(base, of) {
    Object.assign(this, {base, of});
  }

  at(sizes) {
    const of = valueOf(this.of, sizes);
    let times = 0;
    for (let reached = 1; reached < of; reached *= this.base) times++;
    return times;
  }
}

const valueOf = (size, sizes) => (typeof size === 'number' ? size : size.at(sizes));

// Numbers that sizes decide

const CALCULATIONS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  // JavaScript alone has NaN for some powers of 1 and -1.
  pow: (a, b) => (a === 1 || (Math.abs(a) === 1 && !Number.isFinite(b) && b === b) ? 1 : a ** b),
  max: (a, b) => (a !== a ? b : b !== b ? a : Math.max(a, b)),
  min: (a, b) => (a !== a ? b : b !== b ? a : Math.min(a, b)),
  sqrt: a => Math.sqrt(a),
  floor: a => Math.floor(a),
  negative: a => -a,
  abs: a => Math.abs(a),
};

/** A float64 from its bits in hexadecimal. */
function floatOf(bits) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt(`0x${bits}`));
  return view.getFloat64(0);
}

/** The bits of a number that keeps so many of its significand, rounded once, to even. */
function halfBits(value, significand, bias) {
  const top = 2 * bias + 1;
  const sign = (value < 0 || Object.is(value, -0) ? 1 : 0) * (top + 1) * 2 ** significand;
  const infinity = top * 2 ** significand;
  if (value !== value) return infinity + 2 ** (significand - 1);
  const size = Math.abs(value);
  if (size === Infinity) return sign + infinity;
  let exponent = 1 - bias;
  while (exponent < bias + 1 && size >= 2 ** (exponent + 1)) exponent++;
  const steps = size / 2 ** (exponent - significand);
  const down = Math.floor(steps), rest = steps - down;
  const whole = rest > 0.5 || (rest === 0.5 && down % 2 === 1) ? down + 1 : down;
  return sign + Math.min((exponent + bias - 1) * 2 ** significand + whole, infinity);
}

/** The bits of a number in memory, in the way in which casts of float64 round. */
function bitsOf(value, dtype) {
  if (dtype === 'float32') return BigInt(new Uint32Array(Float32Array.of(value).buffer)[0]);
  if (dtype === 'float16') return BigInt(halfBits(value, 10, 15));
  if (dtype === 'bfloat16') return BigInt(halfBits(value, 7, 127));
  if (dtype === 'bool') return value !== 0 ? 1n : 0n;
  const width = 8 * ARRAYS[dtype].BYTES_PER_ELEMENT, isSigned = !dtype.startsWith('u');
  const low = isSigned ? -(1n << BigInt(width - 1)) : 0n;
  const high = low + (1n << BigInt(width)) - 1n;
  let whole = 0n;
  if (value >= Number(high)) whole = high;
  else if (value <= Number(low)) whole = low;
  else if (value === value) whole = BigInt(Math.trunc(value));
  return BigInt.asUintN(width, whole);
}

// Programs

/** Lists of a description, and the most entries that each may have. */
const LISTS = {
  shaders: 4096, buffers: 65536, inputs: 1024, outputs: 1024, constants: 65536, state: 65536,
  conditions: 4096, numbers: 65536, refusals: 4096, dispatches: 65536, repeats: 4096,
};
const RELATIONS = {
  '==': (a, b) => a === b, '!=': (a, b) => a !== b, '<': (a, b) => a < b, '<=': (a, b) => a <= b,
};

/** The tensors of a safetensors file as bytes, by name, and its metadata. */
function safetensors(buffer) {
  check(buffer.byteLength >= 8, 'the file is too short');
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  check(length <= buffer.byteLength - 8, 'the header is longer than the file');
  let header;
  try {
    const text = new TextDecoder('utf-8', {fatal: true}).decode(new Uint8Array(buffer, 8, length));
    header = JSON.parse(text);
  } catch (error) {
    check(false, error.message);
  }
  check(isObject(header), 'the header is no object');
  const {__metadata__: metadata, ...entries} = header, tensors = new Map();
  const all = new Uint8Array(buffer, 8 + length);
  for (const [name, entry] of Object.entries(entries)) {
    const dtype = SAFETENSORS[entry?.dtype], {shape, data_offsets: range} = entry ?? {};
    check(Array.isArray(shape) && shape.every(isCount), `${name}: no shape`);
    check(Array.isArray(range) && range.length === 2 && range.every(isCount), `${name}: no place`);
    const [start, end] = range;
    check(start <= end && end <= all.length, `${name} lies outside of the file`);
    const bytes = dtype && shape.reduce((a, b) => a * b, ARRAYS[dtype].BYTES_PER_ELEMENT);
    check(!dtype || bytes === end - start, `${name}: its length is not that of its shape`);
    tensors.set(name, {dtype, shape, bytes: all.subarray(start, end)});
  }
  return {tensors, metadata: isObject(metadata) ? metadata : {}};
}

const isObject = x => typeof x === 'object' && x !== null && !Array.isArray(x);
const isCount = x => Number.isSafeInteger(x) && x >= 0;

/** A checked program: `inputs` and `outputs` have `{name, dtype, shape}`. */
export class Program {
  /**
   * @param {string | URL | ArrayBuffer} from where the file is, or what is in it
   * @returns {Promise<Program>}
   */
  static async load(from) {
    if (from instanceof ArrayBuffer) return new Program(from);
    const answer = await fetch(from);
    if (!answer.ok) refuse(`${from}: ${answer.status} ${answer.statusText}`);
    return new Program(await answer.arrayBuffer());
  }

  /** @param {ArrayBuffer} buffer the content of a file */
  constructor(buffer) {
    const {tensors, metadata} = safetensors(buffer);
    check(typeof metadata[KEY] === 'string', `no ${KEY} in the metadata`);
    let root;
    try {
      root = JSON.parse(metadata[KEY]);
    } catch (error) {
      check(false, error.message);
    }
    check(isObject(root) && VERSIONS.includes(root.version), `version ${root?.version}`);
    // The first version had no loops and drew no random numbers.
    if (root.version === 1) Object.assign(root, {repeats: [], generator: null});
    for (const [key, most] of Object.entries(LISTS)) {
      check(Array.isArray(root[key]) && root[key].length <= most, `${key} is no list`);
    }
    this.features = root.features ?? [];
    check(Array.isArray(this.features) && this.features.every(x => FEATURES.includes(x)) &&
      new Set(this.features).size === this.features.length, 'features');
    this.tensors = tensors;
    this.names = new Set();
    this.shaders = root.shaders;
    check(this.shaders.every(x => typeof x === 'string'), 'a shader is no text');
    this.buffers = root.buffers.map(x => this.size(x));
    for (const n of this.buffers) {
      check(n instanceof Size || (n >= 32 && n % 32 === 0), `a buffer of ${n} bytes`);
    }
    this.inputs = root.inputs.map((x, i) => this.array(x, i, true));
    this.outputs = root.outputs.map((x, i) => this.array(x, i, false));
    for (const list of [this.inputs, this.outputs]) {
      const bound = list.map(x => x.buffer).filter(x => x !== null);
      check(new Set(bound).size === bound.length, 'two arrays share a buffer');
    }
    this.constants = root.constants.map(x => this.held(x));
    this.state = root.state.map(x => this.held(x));
    this.conditions = root.conditions.map(x => {
      check(Array.isArray(x) && x.length === 4 && Object.hasOwn(RELATIONS, x[1]), 'a condition');
      return [this.size(x[0]), x[1], this.size(x[2]), x[3]];
    });
    this.numbers = [];
    for (const x of root.numbers) this.numbers.push(this.number(x));
    this.refusals = root.refusals.map(x => {
      check(isObject(x) && (x.kind === 'outside' || x.kind === 'false'), 'a refusal');
      check(x.kind !== 'outside' || Array.isArray(x.sizes), 'a refusal without sizes');
      const sizes = (x.sizes ?? []).map(n => this.size(n));
      const {says = 'index', axes = sizes.map((_, i) => i)} = x;
      check(['index', 'class', 'label'].includes(says), 'the word of a refusal');
      check(Array.isArray(axes) && axes.every(isCount), 'the axes of a refusal');
      return {...x, sizes, says, axes, hasSizes: x.sizes !== undefined};
    });
    this.faults = root.faults ?? null;
    if (this.refusals.length || this.faults !== null) {
      const length = this.buffers[this.position(this.faults, this.buffers)];
      check(isCount(length) && length >= 16 * this.refusals.length, 'the buffer of faults');
    }
    this.symbols = new Set();
    for (const {shape} of this.inputs) {
      for (const n of shape) if (n instanceof Size && n.isSymbol) this.symbols.add(n.text);
    }
    this.repeats = [];
    for (const x of root.repeats) this.repeats.push(this.repeat(x, root.dispatches.length));
    this.order = nested(this.repeats, root.dispatches.length);
    const counts = new Map();
    this.dispatches = root.dispatches.map((x, i) => this.dispatch(x, i, counts));
    this.generator = root.generator ?? null;
    if (this.generator !== null) {
      const {dtype, shape} = this.state[this.position(this.generator, this.state)];
      check(dtype === 'uint32' && shape.length === 1 && shape[0] === 4, 'the generator');
    }
    for (const name of this.names) check(this.symbols.has(name), `no input tells ${name}`);
  }

  position(x, list) {
    check(isCount(x) && x < list.length, `a position below ${list.length}: ${x}`);
    return x;
  }

  /** A size, which may use the numbers of rounds of some loops. */
  size(x, rounds = []) {
    if (typeof x !== 'string') {
      check(isCount(x), `no size: ${x}`);
      return x;
    }
    const size = new Size(x);
    for (const name of size.symbols) if (!rounds.includes(name)) this.names.add(name);
    return size;
  }

  times(x) {
    if (!isObject(x)) return this.size(x);
    check(isCount(x.log) && x.log >= 2 && x.log <= 64, `a logarithm to base ${x.log}`);
    return new Log(x.log, this.size(x.of));
  }

  repeat(x, count) {
    check(isObject(x) && typeof x.round === 'string', 'a loop');
    const {from: start, to: stop, round} = x;
    check(isCount(start) && isCount(stop) && start < stop && stop <= count, 'the range of a loop');
    const isNew = !this.symbols.has(round) && this.repeats.every(other => other.round !== round);
    check(new Size(round).isSymbol && isNew, `no new name for rounds: ${round}`);
    return {start, stop, round, times: this.times(x.times)};
  }

  array(x, i, isInput) {
    check(isObject(x) && Array.isArray(x.shape), 'an array without shape');
    const isUnread = isInput && (x.buffer ?? null) === null;
    check(Object.hasOwn(ARRAYS, x.dtype) || (isUnread && x.dtype === 'float64'),
      `unknown dtype ${x.dtype}`);
    const buffer = isUnread ? null : this.position(x.buffer, this.buffers);
    const shape = x.shape.map(n => this.size(n));
    return {name: String(x.name ?? i), dtype: x.dtype, shape, buffer};
  }

  held(x) {
    check(isObject(x), 'a tensor that is held');
    const tensor = this.tensors.get(String(x.tensor));
    check(tensor?.dtype, `tensor ${x.tensor}`);
    const buffer = this.position(x.buffer, this.buffers), length = this.buffers[buffer];
    check(isCount(length) && length >= tensor.bytes.length, `tensor ${x.tensor} in its buffer`);
    return {buffer, ...tensor};
  }

  number(x) {
    check(isObject(x), 'a number');
    const bits = y => {
      check(isObject(y) && /^[0-9a-f]{16}$/.test(y.bits), 'the bits of a number');
      return floatOf(y.bits);
    };
    if ('size' in x) return {size: this.size(x.size)};
    if (!('do' in x)) return {value: bits(x)};
    check(Object.hasOwn(CALCULATIONS, x.do), `unknown calculation ${x.do}`);
    check(Array.isArray(x.of) && x.of.length === 2, 'two operands');
    const of = x.of.map(
      y => (isObject(y) ? {value: bits(y)} : {entry: this.position(y, this.numbers)}));
    return {calculate: CALCULATIONS[x.do], of};
  }

  word(x, rounds) {
    if (typeof x === 'string') return this.size(x, rounds);
    if (!isObject(x)) {
      check(isCount(x) && x < 2 ** 32, `a word: ${x}`);
      return x;
    }
    this.position(x.number, this.numbers);
    check(Object.hasOwn(ARRAYS, x.dtype) && typeof x.high === 'boolean', 'a word of a number');
    return {number: x.number, dtype: x.dtype, high: x.high};
  }

  dispatch(x, i, counts) {
    check(isObject(x) && Array.isArray(x.bind) && x.bind.length > 0, 'a dispatch');
    check(Array.isArray(x.words) && x.words.length <= WORDS, 'words of a dispatch');
    x.bind.forEach(b => this.position(b, this.buffers));
    check(new Set(x.bind).size === x.bind.length, 'a buffer is bound twice');
    const shader = this.position(x.shader, this.shaders), {bind} = x;
    if (!counts.has(shader)) counts.set(shader, bind.length);
    check(counts.get(shader) === bind.length, 'a shader binds different counts of buffers');
    const inside = this.repeats.filter(({start, stop}) => start <= i && i < stop);
    const rounds = inside.map(({round}) => round);
    const words = x.words.map(w => this.word(w, rounds));
    const invocations = this.size(x.invocations, rounds), most = this.size(x.rounds, rounds);
    const used = [...words, invocations, most].filter(w => w instanceof Size);
    const varies = rounds.filter(name => used.some(w => w.symbols.has(name)));
    return {name: String(x.name), line: x.line, shader, bind, words, varies, invocations,
      rounds: most};
  }
}

/** The order of dispatches as a tree, in which loops are `{times, round, body}`. */
function nested(repeats, dispatches) {
  const root = [], open = [[dispatches, root]];
  let at = 0;
  const fill = stop => {
    while (at < stop) open.at(-1)[1].push(at++);
  };
  const close = () => {
    fill(open.at(-1)[0]);
    open.pop();
  };
  for (const {start, stop, times, round} of repeats) {
    while (open.length > 1 && open.at(-1)[0] <= start) close();
    check(start >= at && stop <= open.at(-1)[0] && open.length <= DEEPEST, 'loops cross');
    fill(start);
    const body = [];
    open.at(-1)[1].push({times, round, body});
    open.push([stop, body]);
  }
  while (open.length) close();
  return root;
}

/** How many dispatches a run has; refuses too many. */
function played(body, sizes) {
  let found = 0;
  for (const entry of body) {
    if (typeof entry === 'number') {
      found++;
      continue;
    }
    const times = valueOf(entry.times, sizes);
    if (times < 0) refuse(`a loop of ${times} rounds`);
    if (times) found += times * played(entry.body, sizes);
    if (found > MOST_PLAYED || times > MOST_PLAYED) {
      refuse(`loops of ${found} dispatches, at most ${MOST_PLAYED}`);
    }
  }
  return found;
}

/** The dispatches of a run in order; the numbers of rounds are among `sizes`. */
function* unrolled(body, sizes) {
  for (const entry of body) {
    if (typeof entry === 'number') {
      yield entry;
      continue;
    }
    const times = valueOf(entry.times, sizes);
    for (let round = 0; round < times; round++) {
      sizes.set(entry.round, round);
      yield* unrolled(entry.body, sizes);
    }
  }
}

// Players

/** Copies as much as there is of a buffer of the page that cannot be bound as it is. */
const COPY = `
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> to: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id < min(arrayLength(&source), arrayLength(&to)) { to[id] = source[id]; }
}`;

const isBuffer = x => x instanceof GPUBuffer;

/** Workgroups along x and y. */
function groupsOf(invocations) {
  const all = Math.ceil(Math.max(invocations, 0) / GROUP);
  const rows = Math.max(Math.ceil(all / MOST_GROUPS), 1);
  return [Math.ceil(all / rows), rows];
}

/**
 * Runs a program on a device. State lies there, and belongs to the player.
 *
 * Inputs are typed arrays in C order, those of `ARRAYS` for their dtypes, or `GPUBuffer`s of the
 * page with `STORAGE` in their usage, in a list or by name. A buffer is bound as it is if it is as
 * long as the array rounded up to 32 bytes; a shorter one, or one that is passed twice, is copied.
 */
export class Player {
  #sizes = new Map();
  #held = new Map();
  #layouts = new Map();
  #pipelines = null;
  #copy = null;
  #latest = null;
  #last = Promise.resolve();

  /**
   * @param {Program} program
   * @param {GPUDevice} device
   */
  constructor(program, device) {
    this.program = program;
    this.device = device;
    const missing = program.features.filter(name => !device.features.has(name));
    if (missing.length) {
      refuse(`the program needs ${missing.join(', ')}, the device was opened without; open it with ` +
        'requiredFeatures, or export without features');
    }
    const most = device.limits.maxStorageBuffersPerShaderStage;
    const needed = Math.max(0, ...program.dispatches.map(d => d.bind.length));
    if (needed > most) refuse(`a shader binds ${needed} buffers, the device allows ${most}`);
    for (const {buffer, bytes} of [...program.constants, ...program.state]) {
      const made = this.#buffer(this.#length(buffer, new Map()));
      device.queue.writeBuffer(made, 0, padded(bytes));
      this.#held.set(buffer, made);
    }
  }

  /**
   * Runs the program. Sizes that the lengths of inputs do not tell are given by name.
   *
   * @param {(ArrayBufferView | GPUBuffer)[] | Object<string, ArrayBufferView | GPUBuffer>} inputs
   * @param {Object<string, number>} [sizes]
   * @returns {Promise<ArrayBufferView[]>} the outputs, each with its `shape`
   */
  run(inputs, sizes = {}) {
    return this.#next(() => this.#run(inputs, sizes));
  }

  /** Compiles the shaders; `encode` needs them. */
  async ready() {
    this.#pipelines ??= await this.#compiled();
    return this;
  }

  /**
   * Records a run into an encoder of the page, which submits it. The player is `ready`. Nothing is
   * waited for: `outputs` hold the values once the commands have run, and `check` throws what they
   * refused. A run that refuses its data leaves state as it was.
   *
   * @param {GPUCommandEncoder} encoder
   */
  encode(encoder, inputs, sizes = {}) {
    if (!this.#pipelines) refuse('await player.ready() before encode');
    this.#recorded(encoder, inputs, sizes);
  }

  /** The buffers of the outputs of the latest run; the next run of the same sizes writes them. */
  get outputs() {
    if (!this.#latest) refuse('the player has not run yet');
    return this.program.outputs.map(x => this.#latest.at.buffers[x.buffer]);
  }

  /** Throws what the latest run refused, if it did. */
  check() {
    return this.#next(async () => {
      const {faults} = this.program, latest = this.#latest;
      if (!latest || faults === null) return;
      const data = await this.#read(latest.at.buffers[faults], latest.at.lengths[faults]);
      this.#raise(new DataView(data), latest.symbols);
    });
  }

  /** The values of the state of now, in the order of `program.state`, each with its `shape`. */
  state() {
    return this.#next(async () => {
      const found = [];
      for (const {buffer, dtype, shape, bytes} of this.program.state) {
        const data = await this.#read(this.#held.get(buffer), padded(bytes).length);
        const count = shape.reduce((a, b) => a * b, 1);
        found.push(Object.assign(new ARRAYS[dtype](data, 0, count), {shape}));
      }
      return found;
    });
  }

  /** Starts the generator of random numbers again, with a whole number as `wengert.random.seed`. */
  seed(seed) {
    const {program, device} = this;
    if (program.generator === null) refuse('the program draws no random numbers');
    if (!isCount(seed)) refuse(`expected a whole number: got ${seed}`);
    const words = Uint32Array.of(Math.floor(seed / 2 ** 32), seed % 2 ** 32, 0, 0);
    device.queue.writeBuffer(this.#held.get(program.state[program.generator].buffer), 0, words);
  }

  /** Frees the memory of the device. */
  async destroy() {
    await this.#last;
    for (const key of [...this.#sizes.keys()]) this.#drop(key);
    for (const buffer of this.#held.values()) buffer.destroy();
  }

  /** One at a time: a run writes over the buffers of the one before. */
  #next(work) {
    const result = this.#last.then(work);
    this.#last = result.catch(() => {});
    return result;
  }

  async #run(inputs, sizes) {
    const {program, device} = this;
    await this.ready();
    device.pushErrorScope('out-of-memory');
    device.pushErrorScope('validation');
    const encoder = device.createCommandEncoder();
    let recorded;
    try {
      recorded = this.#recorded(encoder, inputs, sizes);
    } catch (error) {
      await Promise.all([device.popErrorScope(), device.popErrorScope()]);
      throw error;
    }
    const {at, symbols, key} = recorded;
    let end = 0;
    const places = at.read.map(buffer => {
      const start = end;
      encoder.copyBufferToBuffer(at.buffers[buffer], 0, at.room, start, at.lengths[buffer]);
      end += at.lengths[buffer];
      return start;
    });
    device.queue.submit([encoder.finish()]);
    const scopes = [device.popErrorScope(), device.popErrorScope()];
    const mapped = at.room.mapAsync(GPUMapMode.READ, 0, end).catch(error => error);
    for (const scope of scopes) {
      const error = await scope;
      if (!error) continue;
      await mapped;
      this.#drop(key);
      refuse(`the device refuses the program: ${error.message}`);
    }
    const failure = await mapped;
    if (failure) throw failure;
    const data = at.room.getMappedRange(0, end).slice(0);
    at.room.unmap();
    if (program.faults !== null) this.#raise(new DataView(data, places.pop()), symbols);
    return program.outputs.map((output, i) => {
      const shape = at.shape(output), count = shape.reduce((a, b) => a * b, 1);
      return Object.assign(new ARRAYS[output.dtype](data, places[i], count), {shape});
    });
  }

  /** Records a run; typed arrays are written at once. */
  #recorded(encoder, inputs, sizes) {
    const {program, device} = this;
    const arrays = this.#arrays(inputs);
    const symbols = this.#symbols(arrays, sizes);
    const key = JSON.stringify([...symbols].sort());
    const prepared = this.#sizes.get(key) ? null : this.#prepared(symbols);
    const at = this.#at(key, prepared);
    const bound = new Map(), copies = [], own = new Set(at.buffers);
    program.inputs.forEach((want, i) => {
      const x = arrays[i];
      if (want.buffer === null) return;
      if (!isBuffer(x)) {
        device.queue.writeBuffer(at.buffers[want.buffer], 0, padded(bytesOf(x)));
      } else if (x.size >= at.lengths[want.buffer] && !own.has(x)) {
        own.add(x);
        bound.set(want.buffer, x);
      } else {
        copies.push([x, at.buffers[want.buffer]]);
      }
    });
    const pass = encoder.beginComputePass();
    for (const [source, to] of copies) this.#copied(pass, source, to);
    const given = new Map();
    for (const [i, offset, groups] of at.played) {
      if (!groups[0]) continue;
      const d = program.dispatches[i];
      let group = at.bound[i];
      if (bound.size && d.bind.some(k => bound.has(k))) {
        if (!given.has(i)) given.set(i, this.#group(i, at, bound));
        group = given.get(i);
      }
      pass.setPipeline(this.#pipelines[d.shader]);
      pass.setBindGroup(0, group, [offset]);
      pass.dispatchWorkgroups(...groups);
    }
    pass.end();
    this.#latest = {at, symbols};
    return {at, symbols, key};
  }

  /** The inputs in order, each of the type of its dtype, or a buffer. */
  #arrays(inputs) {
    const {program} = this;
    const arrays = Array.isArray(inputs) ? inputs : program.inputs.map(x => inputs[x.name]);
    if (arrays.length !== program.inputs.length) {
      refuse(`${program.inputs.length} inputs, got ${arrays.length}`);
    }
    program.inputs.forEach(({name, dtype}, i) => {
      const x = arrays[i], wanted = ARRAYS[dtype] ?? Float64Array;
      const isHalf = dtype === 'float16' && globalThis.Float16Array && x instanceof Float16Array;
      if (isBuffer(x)) {
        if (!(x.usage & GPUBufferUsage.STORAGE)) refuse(`${name}: a buffer without usage STORAGE`);
        if (x.size % 4) refuse(`${name}: a buffer of ${x.size} bytes, no multiple of 4`);
      } else if (!(x instanceof wanted) && !isHalf) {
        refuse(`${name}: ${dtype} is ${wanted.name}, got ${x?.constructor?.name ?? x}`);
      }
    });
    return arrays;
  }

  /** The values of the symbols: those given, then what lengths tell. */
  #symbols(arrays, sizes) {
    const {program} = this, bound = new Map();
    for (const [name, n] of Object.entries(sizes)) {
      if (!program.symbols.has(name)) refuse(`the program has no size ${name}`);
      if (!isCount(n)) refuse(`${name}: expected a size, got ${n}`);
      bound.set(name, n);
    }
    const elements = arrays.map((x, i) => {
      const {BYTES_PER_ELEMENT: bytes} = ARRAYS[program.inputs[i].dtype] ?? Float64Array;
      return isBuffer(x) ? x.size / bytes : x.length;
    });
    // What one length tells may make another one clear. Buffers may be longer than their arrays, so
    // arrays are asked first.
    for (const ofBuffers of [false, true]) {
      for (let before = -1; before < bound.size;) {
        before = bound.size;
        program.inputs.forEach(({shape}, i) => {
          if (isBuffer(arrays[i]) !== ofBuffers) return;
          const isKnown = n => !(n instanceof Size) || [...n.symbols].every(x => bound.has(x));
          const open = shape.filter(n => !isKnown(n));
          const known = shape.filter(isKnown).reduce((a, n) => a * valueOf(n, bound), 1);
          if (open.length === 1 && open[0].isSymbol && known > 0 && elements[i] % known === 0) {
            bound.set(open[0].text, elements[i] / known);
          }
        });
      }
    }
    for (const name of program.symbols) {
      if (!bound.has(name)) refuse(`lengths do not tell ${name}; give it as a size`);
    }
    program.inputs.forEach(({name, shape}, i) => {
      const wanted = shape.map(n => valueOf(n, bound)), count = wanted.reduce((a, b) => a * b, 1);
      const fits = isBuffer(arrays[i]) ? elements[i] >= count : elements[i] === count;
      if (!fits || wanted.some(n => n < 0)) {
        refuse(`${name}: shape (${wanted}) has ${count} elements, got ${elements[i]}`);
      }
    });
    for (const [left, relation, right, line] of program.conditions) {
      if (!RELATIONS[relation](valueOf(left, bound), valueOf(right, bound))) {
        const text = n => (n instanceof Size ? n.text : n);
        refuse(`${text(left)} ${relation} ${text(right)} does not hold${made(line)}`);
      }
    }
    return bound;
  }

  /** Buffers, words and counts at some sizes; those of a few are kept. */
  #at(key, prepared) {
    const found = this.#sizes.get(key) ?? this.#made(prepared);
    this.#sizes.delete(key);
    while (this.#sizes.size >= KEPT) this.#drop(this.#sizes.keys().next().value);
    this.#sizes.set(key, found);
    return found;
  }

  #drop(key) {
    this.#sizes.get(key).own.forEach(buffer => buffer.destroy());
    this.#sizes.delete(key);
  }

  /** What sizes decide, checked before anything is made. */
  #prepared(symbols) {
    const {program, device} = this;
    const shape = array => array.shape.map(n => valueOf(n, symbols));
    const lengths = program.buffers.map((_, i) => this.#length(i, symbols));
    for (const x of [...program.inputs, ...program.outputs]) {
      const bytes = shape(x).reduce((a, b) => a * b, ARRAYS[x.dtype]?.BYTES_PER_ELEMENT ?? 8);
      if (x.buffer !== null && !(bytes >= 0 && bytes <= lengths[x.buffer])) {
        refuse(`${x.name} does not fit its buffer of ${lengths[x.buffer]} bytes`);
      }
    }
    const numbers = this.#numbers(symbols), words = [], order = [], known = new Map();
    const step = device.limits.minUniformBufferOffsetAlignment;
    let end = 0;
    played(program.order, symbols);
    const now = new Map(symbols);
    for (const i of unrolled(program.order, now)) {
      const d = program.dispatches[i];
      // What no round changes is there once.
      const key = [i, ...d.varies.map(name => now.get(name))].join();
      if (!known.has(key)) {
        const rounds = valueOf(d.rounds, now);
        if (rounds > ROUNDS) {
          refuse(`${d.name}: ${rounds} rounds of a loop, at most ${ROUNDS}; export known sizes`);
        }
        const groups = groupsOf(valueOf(d.invocations, now));
        if (groups[1] > MOST_GROUPS) refuse(`${d.name}: too many invocations`);
        const data = new Uint32Array(Math.max(4, Math.ceil(d.words.length / 4) * 4));
        d.words.forEach((word, k) => {
          data[k] = wordOf(word, numbers, now);
        });
        words.push([end, data]);
        known.set(key, [i, end, groups]);
        end = Math.ceil((end + data.byteLength) / step) * step;
      }
      order.push(known.get(key));
    }
    return {shape, lengths, order, words, end: Math.max(end, 16)};
  }

  /** The same with buffers. */
  #made({shape, lengths, order, words, end}) {
    const {program, device} = this;
    const read = program.outputs.map(x => x.buffer);
    if (program.faults !== null) read.push(program.faults);
    const own = [];
    const make = (size, usage) => {
      own.push(device.createBuffer({size, usage}));
      return own.at(-1);
    };
    const {STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ, VERTEX, INDEX} = GPUBufferUsage;
    const drawn = new Set(program.outputs.map(x => x.buffer));
    const buffers = lengths.map((n, i) => this.#held.get(i)
      ?? make(n, STORAGE | COPY_SRC | COPY_DST | (drawn.has(i) ? VERTEX | INDEX : 0)));
    const uniforms = make(end, UNIFORM | COPY_DST);
    const all = new Uint32Array(end / 4);
    for (const [start, data] of words) all.set(data, start / 4);
    device.queue.writeBuffer(uniforms, 0, all);
    const room = make(Math.max(4, read.reduce((n, i) => n + lengths[i], 0)), MAP_READ | COPY_DST);
    const at = {shape, lengths, played: order, buffers, uniforms, read, room, own, bound: []};
    for (const i of new Set(order.map(([i]) => i))) at.bound[i] = this.#group(i, at, new Map());
    return at;
  }

  /** The bind group of a dispatch, with buffers of the page in some places. */
  #group(i, at, given) {
    const {bind, words} = this.program.dispatches[i];
    const resources = bind.map(k => ({buffer: given.get(k) ?? at.buffers[k], size: at.lengths[k]}));
    resources.push({buffer: at.uniforms, size: 4 * Math.max(4, Math.ceil(words.length / 4) * 4)});
    return this.device.createBindGroup({
      layout: this.#layout(bind.length),
      entries: resources.map((resource, binding) => ({binding, resource})),
    });
  }

  /** So many storage bindings, then the uniform buffer at an offset that each dispatch says. */
  #layout(count) {
    if (!this.#layouts.has(count)) {
      const kinds = Array.from({length: count}, () => ({type: 'storage'}));
      kinds.push({type: 'uniform', hasDynamicOffset: true});
      const entries = kinds.map(
        (buffer, binding) => ({binding, visibility: GPUShaderStage.COMPUTE, buffer}));
      this.#layouts.set(count, this.device.createBindGroupLayout({entries}));
    }
    return this.#layouts.get(count);
  }

  /** Records the copy of a buffer that is too short, or bound elsewhere. */
  #copied(pass, source, to) {
    const {device} = this;
    const compute = () => ({module: device.createShaderModule({code: COPY}), entryPoint: 'main'});
    this.#copy ??= device.createComputePipeline({layout: 'auto', compute: compute()});
    const size = Math.min(source.size, to.size);
    if (!size) return;
    const resources = [{buffer: source, size}, {buffer: to}];
    pass.setPipeline(this.#copy);
    pass.setBindGroup(0, device.createBindGroup({
      layout: this.#copy.getBindGroupLayout(0),
      entries: resources.map((resource, binding) => ({binding, resource})),
    }));
    pass.dispatchWorkgroups(...groupsOf(size / 4));
  }

  /** The bytes of a buffer. */
  async #read(buffer, size) {
    const {COPY_DST, MAP_READ} = GPUBufferUsage;
    const room = this.device.createBuffer({size, usage: COPY_DST | MAP_READ});
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, room, 0, size);
    this.device.queue.submit([encoder.finish()]);
    await room.mapAsync(GPUMapMode.READ);
    const data = room.getMappedRange().slice(0);
    room.destroy();
    return data;
  }

  #numbers(symbols) {
    const found = [];
    for (const number of this.program.numbers) {
      if ('value' in number) found.push(number.value);
      else if ('size' in number) found.push(valueOf(number.size, symbols));
      else {
        const [a, b] = number.of.map(x => ('value' in x ? x.value : found[x.entry]));
        found.push(number.calculate(a, b));
      }
    }
    return found;
  }

  /** The pipelines of the shaders that dispatches use. */
  #compiled() {
    const {program, device} = this;
    const counts = new Map(program.dispatches.map(d => [d.shader, d.bind.length]));
    return Promise.all(program.shaders.map(async (code, i) => {
      if (!counts.has(i)) return null;
      const module = device.createShaderModule({code});
      const layout = device.createPipelineLayout({bindGroupLayouts: [this.#layout(counts.get(i))]});
      try {
        const compute = {module, entryPoint: 'main'};
        return await device.createComputePipelineAsync({layout, compute});
      } catch (error) {
        return refuse(`the device refuses a shader: ${error.message}`);
      }
    }));
  }

  #buffer(size) {
    const {STORAGE, COPY_SRC, COPY_DST} = GPUBufferUsage;
    return this.device.createBuffer({size, usage: STORAGE | COPY_SRC | COPY_DST});
  }

  /** The bytes of a buffer, within the limits of the device. */
  #length(buffer, symbols) {
    const bytes = valueOf(this.program.buffers[buffer], symbols);
    const {maxStorageBufferBindingSize: most} = this.device.limits;
    if (bytes < 32 || bytes % 32) refuse(`a buffer of ${bytes} bytes, no multiple of 32`);
    if (bytes > most) refuse(`a buffer needs ${bytes} bytes, the device binds ${most}`);
    return bytes;
  }

  /** Throws what the first slot that refuses something says. */
  #raise(faults, symbols) {
    this.program.refusals.forEach((refusal, slot) => {
      const [first, axis] = [0, 4].map(i => faults.getUint32(16 * slot + i, true));
      if (first === 0xffffffff) return;
      if (refusal.kind === 'false') {
        const shape = refusal.sizes.map(n => valueOf(n, symbols));
        const shown = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
        const of = refusal.hasSizes ? ` of shape (${shown})` : '';
        const isNumber = refusal.hasSizes && !shape.length;
        const what = isNumber ? 'got false' : `element ${first} (in C order)${of} is false`;
        refuse(`check: ${refusal.message}: ${what}${made(refusal.line)}`);
      }
      const index = faults.getBigInt64(16 * slot + 8, true);
      const size = axis < refusal.sizes.length ? valueOf(refusal.sizes[axis], symbols) : 0;
      // Negative labels were moved below every index.
      const shown = refusal.says === 'label' && index < 0n ? index + BigInt(size) : index;
      const what = refusal.says === 'index'
        ? `index ${index} is out of bounds for axis ${refusal.axes[axis] ?? axis} with size ${size}`
        : `class ${shown} is out of range: there are ${size} classes`;
      refuse(`${refusal.op}: ${what}${made(refusal.line)}`);
    });
  }
}

const made = line => (line ? `\n  made at ${line}` : '');

function wordOf(word, numbers, symbols) {
  if (typeof word === 'number') return word;
  if (word instanceof Size) return Number(BigInt.asUintN(32, BigInt(word.at(symbols))));
  const bits = bitsOf(numbers[word.number], word.dtype);
  return Number(BigInt.asUintN(32, word.high ? bits >> 32n : bits));
}

const bytesOf = x => new Uint8Array(x.buffer, x.byteOffset, x.byteLength);

/** The same bytes in a length that a queue writes: a multiple of four. */
function padded(bytes) {
  if (bytes.length && bytes.length % 4 === 0) return bytes;
  const all = new Uint8Array(Math.max(4, Math.ceil(bytes.length / 4) * 4));
  all.set(bytes);
  return all;
}
