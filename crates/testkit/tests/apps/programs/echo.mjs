// `node echo.mjs server|cluster|client PORT [ROUNDS]`: an HTTP server that sends bodies back, alone or by two workers that are passed the connections,
// and a client that checks them: so many on each connection, or fewer, and some on connections of their own.
import cluster from 'node:cluster';
import http from 'node:http';
import { randomBytes, randomInt } from 'node:crypto';

const [role, port] = [process.argv[2], Number(process.argv[3])];
const rounds = Number(process.argv[4] ?? 50);
const sizes = [0, 1, 100, 5000, 70000, 1000000];

function serve() {
  const server = http.createServer((request, response) => {
    const pieces = [];
    request.on('data', (piece) => pieces.push(piece));
    request.on('end', () => {
      const body = Buffer.concat(pieces);
      response.writeHead(200, { 'x-length': body.length });
      // In pieces, so that the answer meets a full socket.
      for (let at = 0; at < body.length; at += 30000) response.write(body.subarray(at, at + 30000));
      response.end();
    });
  });
  server.listen(port, '127.0.0.1');
}

function post(agent, body) {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, method: 'POST', agent, timeout: 20000 };
    const request = http.request(options, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('error', reject);
      response.on('end', () => {
        if (Buffer.concat(pieces).equals(body)) resolve();
        else reject(new Error(`a body of ${body.length} bytes came back wrong`));
      });
    });
    request.on('error', reject);
    request.on('timeout', () => request.destroy(new Error('no answer for 20 seconds')));
    request.end(body);
  });
}

async function call() {
  const agents = [new http.Agent({ keepAlive: true, maxSockets: 4 })];
  if (process.argv[4] === undefined) agents.push(new http.Agent({ keepAlive: false }));
  for (const agent of agents) {
    const lanes = Array.from({ length: 4 }, async () => {
      for (let round = 0; round < rounds; round++) {
        const size = sizes[randomInt(sizes.length)];
        await post(agent, randomBytes(size === 0 ? 0 : randomInt(size) + 1));
      }
    });
    await Promise.all(lanes);
    agent.destroy();
  }
  console.log('all bodies came back');
}

if (role === 'cluster' && cluster.isPrimary) for (let worker = 0; worker < 2; worker++) cluster.fork();
else if (role !== 'client') serve();
else await call();
