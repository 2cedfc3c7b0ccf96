// ioredis `Cluster`: reads CLUSTER SLOTS and INFO from the gateway and finds every slot there.
'use strict';
const test = require('node:test');
const assert = require('node:assert');
const crypto = require('node:crypto');
const { withCluster } = require('./cluster');

const port = Number(process.env.ZG_CLUSTER_PORT);
const isDirect = process.env.ZG_IS_DIRECT === '1';
const prefix = `iocluster-${crypto.randomBytes(6).toString('hex')}-`;

test('becomes ready; its nodes are what was dialled', async () => {
  await withCluster(port, {}, async (cluster) => {
    const nodes = cluster.nodes('all').map((node) => `${node.options.host}:${node.options.port}`);
    if (isDirect) assert.ok(nodes.length >= 1);
    else assert.deepStrictEqual(nodes, [`127.0.0.1:${port}`]);
  });
});

test('keys of all slots', async () => {
  await withCluster(port, {}, async (cluster) => {
    const keys = Array.from({ length: 1000 }, (_, index) => prefix + index);
    assert.deepStrictEqual(await Promise.all(keys.map((key) => cluster.set(key, `v${key}`))), keys.map(() => 'OK'));
    assert.deepStrictEqual(await Promise.all(keys.map((key) => cluster.get(key))), keys.map((key) => `v${key}`));
    assert.deepStrictEqual(await Promise.all(keys.map((key) => cluster.del(key))), keys.map(() => 1));
  });
});

test('multi-key commands within a tag', async () => {
  await withCluster(port, {}, async (cluster) => {
    const keys = Array.from({ length: 10 }, (_, index) => `{${prefix}}${index}`);
    assert.strictEqual(await cluster.mset(keys.flatMap((key) => [key, key])), 'OK');
    assert.deepStrictEqual(await cluster.mget(keys), keys);
    assert.strictEqual(await cluster.sunionstore(`{${prefix}}u`, `{${prefix}}none`), 0);
  });
});

test('reads scaled to replicas, and READONLY on connect', async () => {
  await withCluster(port, { scaleReads: isDirect ? 'master' : 'slave' }, async (cluster) => {
    await cluster.set(prefix + 'r', 'v');
    assert.strictEqual(await cluster.get(prefix + 'r'), 'v');
  });
});

test('pipelines within a slot', async () => {
  await withCluster(port, {}, async (cluster) => {
    const pipeline = cluster.pipeline();
    for (let index = 0; index < 100; index += 1) pipeline.incr(`{${prefix}}counter`);
    const replies = await pipeline.exec();
    assert.deepStrictEqual(replies, Array.from({ length: 100 }, (_, index) => [null, index + 1]));
  });
});

test('fifty cluster clients at once', async () => {
  await Promise.all(Array.from({ length: 50 }, (_, number) => withCluster(port, {}, async (cluster) => {
    for (let round = 0; round < 5; round += 1) {
      const key = `${prefix}c${number}-${round}`;
      const [set, get] = await Promise.all([cluster.set(key, key), cluster.get(key)]);
      assert.deepStrictEqual([set, get], ['OK', key]);
    }
  })));
});
