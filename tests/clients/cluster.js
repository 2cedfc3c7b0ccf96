'use strict';
// What the tests with ioredis' Cluster share.
const assert = require('node:assert');
const Redis = require('ioredis');

// Runs body with a cluster that is ready; any error event in between fails the test.
async function withCluster(port, options, body) {
  const cluster = new Redis.Cluster([{ host: '127.0.0.1', port }], { clusterRetryStrategy: (times) => (times > 3 ? null : 100), ...options });
  const errors = [];
  cluster.on('error', (error) => errors.push(error));
  try {
    await new Promise((resolve, reject) => { cluster.once('ready', resolve); cluster.once('end', () => reject(errors[0] || new Error('end'))); });
    await body(cluster);
  } finally {
    cluster.disconnect();
  }
  assert.deepStrictEqual(errors, []);
}

module.exports = { withCluster };
