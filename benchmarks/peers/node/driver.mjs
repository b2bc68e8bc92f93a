// The commands that all Node drivers share. Usage: node PEER.mjs COMMAND [JSON]. The answer is one JSON line on stdout.
// benchmarks/peers/python/driver.py is the same for Python.
import { Agent, request } from 'undici';

export const STORE = process.env.PEER_STORE;
const BODY = 'y'.repeat(200);
const agent = new Agent({ connections: 128, pipelining: 1, keepAliveTimeout: 60_000 });

// Send the request that a job stands for. The outcome is what the peer stores, if it stores one.
export async function call({ url }) {
  const response = await request(url, {
    method: 'POST', body: BODY, headers: { 'content-type': 'application/json' }, dispatcher: agent,
  });
  const body = await response.body.text();
  if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
  return { status: response.statusCode, body };
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const buildJob = (url, number, due) => ({ url: `${url}?due=${due}&job=${number}`, due });

// Submit jobs that are due at one moment, in batches, with as many batches at once as the peer has `connections`.
async function submit(peer, { url, first, count, due }) {
  const size = peer.batchSize;
  let next = 0;
  async function submitBatches() {
    while (next < count) {
      const start = next;
      next += size;
      const numbers = Array.from({ length: Math.min(size, count - start) }, (_, index) => first + start + index);
      await peer.submit(numbers.map(number => buildJob(url, number, due)));
    }
  }
  const started = performance.now();
  await Promise.all(Array.from({ length: peer.connections }, submitBatches));
  return { seconds: (performance.now() - started) / 1000 };
}

// Submit one job after the other on schedule, each due `ahead` ms later. Return by how much submission fell behind.
async function submitSteadily(peer, { url, count, rate, ahead }) {
  const start = Date.now() + 200, pending = [];
  let behind = 0;
  for (let number = 0; number < count; number++) {
    const at = start + number * 1000 / rate, delay = at - Date.now();
    if (delay > 0) await sleep(delay);
    behind = Math.max(behind, Date.now() - at);
    pending.push(peer.submit([buildJob(url, number, Math.round(at) + ahead)]));
  }
  await Promise.all(pending);
  return { behind_ms: behind };
}

export async function main(peer) {
  const [, , command, document] = process.argv;
  const options = document ? JSON.parse(document) : {};
  const commands = {
    prepare: () => peer.prepare(),
    submit: async () => { await peer.connect(); return submit(peer, options); },
    submit_steadily: async () => { await peer.connect(); return submitSteadily(peer, options); },
    settle: () => ({}),
    work: () => peer.work(),
  };
  const answer = await commands[command]();
  if (command !== 'work') process.stdout.write(JSON.stringify(answer ?? {}) + '\n', () => process.exit(0));
}
