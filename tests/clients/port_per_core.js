// ioredis `Cluster` with a gateway whose data cores have ports of their own: it finds a node a core, and no command crosses from one core to another.
'use strict';
const test = require('node:test');
const assert = require('node:assert');
const crypto = require('node:crypto');
const Redis = require('ioredis');
const { withCluster } = require('./cluster');

const port = Number(process.env.ZG_CLUSTER_PORT);
const cores = Number(process.env.ZG_CORES_COUNT);
const prefix = `iocores-${crypto.randomBytes(6).toString('hex')}-`;

async function crossings() {
  const redis = new Redis({ port, host: '127.0.0.1' });
  try {
    return Number(/zgateway_legs_remote_total:(\d+)/.exec(await redis.info('zgateway'))[1]);
  } finally {
    redis.disconnect();
  }
}

test('its nodes are the cores that own slots', async () => {
  await withCluster(port, {}, async (cluster) => {
    const ports = cluster.nodes('all').map((node) => node.options.port).sort();
    assert.strictEqual(ports.length, Math.min(cores, 3));
    for (const one of ports) assert.ok(one > port && one <= port + cores, String(one));
  });
});

test('keys of all slots are served and cross nothing', async () => {
  await withCluster(port, {}, async (cluster) => {
    const before = await crossings();
    const keys = Array.from({ length: 1000 }, (_, index) => prefix + index);
    assert.deepStrictEqual(await Promise.all(keys.map((key) => cluster.set(key, `v${key}`))), keys.map(() => 'OK'));
    assert.deepStrictEqual(await Promise.all(keys.map((key) => cluster.get(key))), keys.map((key) => `v${key}`));
    const tagged = Array.from({ length: 10 }, (_, index) => `{${prefix}}${index}`);
    assert.strictEqual(await cluster.mset(tagged.flatMap((key) => [key, key])), 'OK');
    assert.deepStrictEqual(await cluster.mget(tagged), tagged);
    const pipeline = cluster.pipeline();
    for (let index = 0; index < 100; index += 1) pipeline.incr(`{${prefix}}counter`);
    assert.deepStrictEqual(await pipeline.exec(), Array.from({ length: 100 }, (_, index) => [null, index + 1]));
    assert.strictEqual(await crossings(), before);
  });
});
