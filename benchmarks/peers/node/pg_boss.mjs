// pg-boss. Its documentation advises batches for throughput (`batchSize`), several `work()` loops per process, 0.5 s as
// the shortest polling interval, and `notifyWorker` to skip the wait while there is work.
import PgBoss from 'pg-boss';
import { STORE, call, main } from './driver.mjs';

const QUEUE = 'calls', BATCH_SIZE = 250, LOOPS = 2;
let boss;

async function start() {
  boss = new PgBoss({ connectionString: STORE, max: 10 });
  boss.on('error', error => console.error(error));
  await boss.start();
}

await main({
  batchSize: 1000,
  connections: 2,
  connect: start,
  async prepare() {
    await start();
    await boss.createQueue(QUEUE);
    await boss.stop({ graceful: false });
  },
  submit: jobs => boss.insert(jobs.map(({ url, due }) => ({ name: QUEUE, data: { url }, startAfter: new Date(due) }))),
  async work() {
    await start();
    for (let loop = 0; loop < LOOPS; loop++) {
      let id;
      id = await boss.work(QUEUE, { batchSize: BATCH_SIZE, pollingIntervalSeconds: 0.5 }, async jobs => {
        if (jobs.length === BATCH_SIZE) boss.notifyWorker(id);
        await Promise.all(jobs.map(job => call(job.data)));
      });
    }
  },
});
