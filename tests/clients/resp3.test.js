// RESP3 as ioredis's own socket would see it: ioredis 5 speaks RESP2, so HELLO 3 and the RESP3 types are checked on a socket, between ioredis clients on the same keys.
'use strict';
const test = require('node:test');
const assert = require('node:assert');
const crypto = require('node:crypto');
const net = require('node:net');
const Redis = require('ioredis');

const port = Number(process.env.ZG_PORT);
const prefix = `resp3-${crypto.randomBytes(6).toString('hex')}-`;

function exchange(commands, isComplete) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1');
    let text = '';
    socket.setTimeout(10000, () => reject(new Error(`no complete answer: ${text}`)));
    socket.on('error', reject);
    socket.on('data', (data) => {
      text += data.toString('latin1');
      if (isComplete(text)) {
        socket.destroy();
        resolve(text);
      }
    });
    socket.write(commands);
  });
}

test('a RESP3 socket sees maps, doubles and nulls where ioredis beside it sees RESP2', async () => {
  const redis = new Redis({ port, host: '127.0.0.1', maxRetriesPerRequest: 1 });
  await redis.hset(prefix + 'h', 'f', 'v');
  await redis.zadd(prefix + 'z', 1.5, 'm');
  const text = await exchange(`HELLO 3\r\nHGETALL ${prefix}h\r\nZSCORE ${prefix}z m\r\nGET ${prefix}none\r\nECHO end\r\n`, (got) => got.endsWith('$3\r\nend\r\n'));
  assert.match(text, /^%/);
  assert.ok(text.endsWith('%1\r\n$1\r\nf\r\n$1\r\nv\r\n,1.5\r\n_\r\n$3\r\nend\r\n'), text);
  assert.deepStrictEqual(await redis.hgetall(prefix + 'h'), { f: 'v' });
  assert.strictEqual(await redis.zscore(prefix + 'z', 'm'), '1.5');
  redis.disconnect();
});
