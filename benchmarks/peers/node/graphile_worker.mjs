// graphile-worker, with the configuration that its documentation measures (https://worker.graphile.org/docs/performance):
// 24 concurrent jobs, a local queue of 500, completions in batches. Polling for future jobs is ten times as frequent as
// by default, because every future job waits for it.
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import { STORE, call, main } from './driver.mjs';

const logger = new Logger(() => (level, message) => { if (level === 'error') console.error(message); });
let utils;

await main({
  batchSize: 1000,
  connections: 2,
  async connect() { utils = await makeWorkerUtils({ connectionString: STORE, logger }); },
  async prepare() {
    await this.connect();
    await utils.migrate();
    await utils.release();
  },
  submit: jobs => utils.addJobs(jobs.map(({ url, due }) => ({ identifier: 'call', payload: { url }, runAt: new Date(due) }))),
  async work() {
    await run({
      preset: {
        worker: {
          connectionString: STORE, concurrentJobs: 24, maxPoolSize: 25, pollInterval: 200,
          localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
        },
      },
      logger,
      noHandleSignals: true,
      taskList: { call: async payload => { await call(payload); } },
    });
  },
});
