// Passes HTTP requests on to a server with a bearer token, for programs that cannot send one. Prints its port.
//
//   node bearer.mjs URL TOKEN

import http from "node:http";

const [url, token] = process.argv.slice(2);
const { hostname, port } = new URL(url);

http
  .createServer((request, response) => {
    const headers = { ...request.headers, authorization: `Bearer ${token}` };
    const onward = http.request(
      { hostname, port, path: request.url, method: request.method, headers },
      (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      },
    );
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  })
  .listen(0, "127.0.0.1", function () {
    console.log(`port ${this.address().port}`);
  });
