// ioredis `Redis`: one connection to the gateway as to a single server.
'use strict';
const test = require('node:test');
const assert = require('node:assert');
const crypto = require('node:crypto');
const Redis = require('ioredis');

const port = Number(process.env.ZG_PORT);
const prefix = `ioredis-${crypto.randomBytes(6).toString('hex')}-`;

async function withClient(options, body) {
  const redis = new Redis({ port, host: '127.0.0.1', maxRetriesPerRequest: 1, ...options });
  const errors = [];
  redis.on('error', (error) => errors.push(error));
  try {
    await body(redis);
  } finally {
    redis.disconnect();
  }
  assert.deepStrictEqual(errors, []);
}

test('connects and becomes ready with a name', async () => {
  await withClient({ connectionName: 'the-name' }, async (redis) => {
    await new Promise((resolve, reject) => { redis.once('ready', resolve); redis.once('error', reject); });
    assert.strictEqual(redis.status, 'ready');
    assert.strictEqual(await redis.client('GETNAME'), 'the-name');
    assert.strictEqual(await redis.ping(), 'PONG');
  });
});

test('strings, hashes, lists, sets, sorted sets, streams', async () => {
  await withClient({}, async (redis) => {
    assert.strictEqual(await redis.set(prefix + 's', 'v', 'EX', 100), 'OK');
    assert.strictEqual(await redis.get(prefix + 's'), 'v');
    await redis.hset(prefix + 'h', { a: 1, b: 2 });
    assert.deepStrictEqual(await redis.hgetall(prefix + 'h'), { a: '1', b: '2' });
    await redis.rpush(prefix + 'l', 'a', 'b');
    assert.deepStrictEqual(await redis.lrange(prefix + 'l', 0, -1), ['a', 'b']);
    await redis.sadd(prefix + 'set', 'a', 'b');
    assert.deepStrictEqual((await redis.smembers(prefix + 'set')).sort(), ['a', 'b']);
    await redis.zadd(prefix + 'z', 1, 'a', 2.5, 'b');
    assert.deepStrictEqual(await redis.zrange(prefix + 'z', 0, -1, 'WITHSCORES'), ['a', '1', 'b', '2.5']);
    const id = await redis.xadd(prefix + 'x', '*', 'f', 'v');
    assert.deepStrictEqual(await redis.xrange(prefix + 'x', '-', '+'), [[id, ['f', 'v']]]);
  });
});

test('binary values', async () => {
  await withClient({}, async (redis) => {
    for (const size of [0, 1, 255, 65536, 1000003]) {
      const value = crypto.randomBytes(size);
      await redis.set(prefix + 'bin', value);
      assert.ok(value.equals(await redis.getBuffer(prefix + 'bin')), `size ${size}`);
    }
  });
});

test('multi-key commands over slots', async () => {
  await withClient({}, async (redis) => {
    const keys = Array.from({ length: 100 }, (_, index) => `${prefix}m${index}`);
    assert.strictEqual(await redis.mset(keys.flatMap((key) => [key, `v${key}`])), 'OK');
    assert.deepStrictEqual(await redis.mget(keys), keys.map((key) => `v${key}`));
    assert.strictEqual(await redis.exists(keys), 100);
    assert.strictEqual(await redis.unlink(keys.slice(0, 50)), 50);
    assert.strictEqual(await redis.del(keys), 50);
  });
});

test('ten thousand commands at once, in order', async () => {
  await withClient({}, async (redis) => {
    const replies = await Promise.all(Array.from({ length: 10000 }, (_, index) => (index % 2 ? redis.echo(String(index)) : redis.set(`${prefix}p${index % 100}`, index))));
    replies.forEach((reply, index) => assert.strictEqual(reply, index % 2 ? String(index) : 'OK'));
  });
});

test('pipeline, and enableAutoPipelining', async () => {
  await withClient({ enableAutoPipelining: true }, async (redis) => {
    const pipeline = redis.pipeline();
    for (let index = 0; index < 200; index += 1) pipeline.set(`${prefix}q${index}`, index).get(`${prefix}q${index}`);
    const replies = await pipeline.exec();
    for (let index = 0; index < 200; index += 1) assert.deepStrictEqual([replies[2 * index], replies[2 * index + 1]], [[null, 'OK'], [null, String(index)]]);
    assert.deepStrictEqual(await Promise.all([redis.get(`${prefix}q1`), redis.get(`${prefix}q2`)]), ['1', '2']);
  });
});

test('errors reject and the connection stays', async () => {
  await withClient({}, async (redis) => {
    await redis.set(prefix + 'e', 'x');
    await assert.rejects(redis.incr(prefix + 'e'), /not an integer/);
    await assert.rejects(redis.call('NOSUCHCOMMAND', 'a'), /unknown command/);
    assert.strictEqual(await redis.get(prefix + 'e'), 'x');
  });
});

test('a hundred clients with their own nonces', async () => {
  await Promise.all(Array.from({ length: 100 }, () => withClient({}, async (redis) => {
    const nonce = crypto.randomBytes(8).toString('hex');
    for (let round = 0; round < 10; round += 1) {
      const [set, get, echo, mget] = await Promise.all([redis.set(prefix + nonce, nonce + round), redis.get(prefix + nonce), redis.echo(nonce), redis.mget(prefix + nonce, `${prefix}${nonce}none`)]);
      assert.deepStrictEqual([set, get, echo, mget], ['OK', nonce + round, nonce, [nonce + round, null]]);
    }
    assert.strictEqual(await redis.del(prefix + nonce), 1);
  })));
});

test('quit answers and closes', async () => {
  const redis = new Redis({ port, host: '127.0.0.1' });
  assert.strictEqual(await redis.quit(), 'OK');
});
