// BullMQ. Its documentation recommends several processes, and a high concurrency in each for work that waits for a network.
import { Queue, Worker } from 'bullmq';
import { STORE, call, main } from './driver.mjs';

const { hostname, port, pathname } = new URL(STORE);
const connection = { host: hostname, port: Number(port), db: Number(pathname.slice(1)), maxRetriesPerRequest: null };
let queue;

await main({
  batchSize: 1000,
  connections: 2,
  async connect() {
    queue = new Queue('calls', { connection });
    await queue.waitUntilReady();
  },
  async prepare() {},
  submit: jobs => queue.addBulk(jobs.map(({ url, due }) => (
    { name: 'call', data: { url }, opts: { delay: Math.max(0, due - Date.now()) } }
  ))),
  work() {
    new Worker('calls', job => call(job.data), { connection, concurrency: 100 }).on('error', error => console.error(error));
  },
});
