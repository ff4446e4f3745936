"""Clients that do not read, come in thousands, send too much, or do not speak the protocol at all."""

import json
import os
import socket
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ClusterTest, layout, wait_for  # noqa: E402

PYTHON = "/usr/bin/python3"  # which sees Debian's python3-grpcio
LIMIT = 64 << 20  # bytes of a message
BUFFERS = 1 << 30  # bytes of all messages that are being received

# Raw bytes, so that no generated code is needed: field 1 of a request is the job.
PREAMBLE = """
import sys, time, grpc
address, job = sys.argv[1:3]
request = bytes([10, len(job)]) + job.encode()
"""


class BadClients(ClusterTest):

    def setUp(self):
        super().setUp()
        if subprocess.run([PYTHON, "-c", "import grpc"], capture_output=True, check=False).returncode != 0:
            self.skipTest("python3-grpcio is not installed")

    def start_job(self, *flags):
        """A coordinator that soon misses a heartbeat, and a job that trains on it."""
        self.daemon_, ready = self.coordinator("--heartbeat-interval", "0.7", *flags)
        self.address, self.metrics_address = ready["coordinator"], ready["metrics"]
        self.agent(self.address, "one", 2)
        self.job = self.tercio("submit", self.path("job.yaml"), *layout(1, 1, 2), "--set", "training.steps=1000000",
                               *self.reach())[0].strip()
        wait_for(lambda: self.status()["step"] > 5, "steps")

    def status(self):
        return self.json("get", self.job, *self.reach())

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=20) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        return None

    def resident(self, key="VmRSS"):
        with open(f"/proc/{self.daemon_.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))

    def script(self, text, *arguments):
        child = subprocess.Popen([PYTHON, "-c", PREAMBLE + text, self.address, self.job, *arguments],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child

    def goes_on(self):
        """The job has not noticed anything."""
        step = self.status()["step"]
        wait_for(lambda: self.status()["step"] > step + 20, "more steps")
        status = self.status()
        self.assertEqual((status["attempt"], status["restarts"]), (1, 0))
        out, _ = self.tercio("events", *self.reach(), "-o", "jsonl")
        self.assertNotIn("node_lost", [json.loads(line)["kind"] for line in out.splitlines()])

    def test_a_client_that_does_not_read_is_cut_off(self):
        self.start_job("--stream-patience", "3")
        child = self.script("""
stream = grpc.insecure_channel(address, options=[('grpc.http2.bdp_probe', 0)]).unary_stream(
    '/tercio.v1.JobService/Watch')(request)
next(stream)
print('watching', flush=True)
sys.stdin.readline()
try:
    while True: next(stream)
except grpc.RpcError as error:
    print(error.code().name, error.details())
""")
        self.assertEqual(child.stdout.readline(), "watching\n")
        wait_for(lambda: self.metric("tercio_streams_cut_off_total") == 1, "the end of its patience")
        out, err = child.communicate("read now\n", timeout=60)
        self.assertIn("RESOURCE_EXHAUSTED this client has read nothing for 3s", out, err)
        wait_for(lambda: self.metric("tercio_streams") == 0, "the end of the stream")
        self.goes_on()

    def test_more_watchers_than_are_served(self):
        self.start_job("--max-streams", "3")
        watchers = [self.start("watch", self.job, *self.reach()) for _ in range(3)]
        for watcher in watchers:
            self.addCleanup(watcher.communicate)
            self.addCleanup(watcher.kill)
        wait_for(lambda: self.metric("tercio_streams") == 3, "three watchers")
        for words in (["watch"], ["history", "-f"], ["logs", "-f"]):
            _, err = self.tercio(*words, self.job, *self.reach(), code=7)
            self.assertIn("--max-streams", err)
        # A page is some time old where making one takes long.
        wait_for(lambda: self.metric("tercio_streams_refused_total") == 3, "three refusals")
        watchers[0].kill()
        wait_for(lambda: self.metric("tercio_streams") == 2, "two watchers")
        self.goes_on()

    def test_a_thousand_idle_watchers(self):
        self.start_job()
        child = self.script("""
streams = []
for c in range(10):
    channel = grpc.insecure_channel(address, options=[('grpc.use_local_subchannel_pool', 1)])
    streams += [channel.unary_stream('/tercio.v1.JobService/Logs')(request + bytes([32, 1])) for _ in range(100)]
print('asked', flush=True)
sys.stdin.readline()
codes = [s.code().name if s.done() else 'OPEN' for s in streams]
print({code: codes.count(code) for code in set(codes)})
""")
        self.assertEqual(child.stdout.readline(), "asked\n")
        wait_for(lambda: self.metric("tercio_streams_refused_total") == 1000 - 256, "refusals")
        # Those that are refused count until gRPC is done with them.
        wait_for(lambda: self.metric("tercio_streams") == 256, "the end of those that are refused")
        self.goes_on()
        out, err = child.communicate("enough\n", timeout=60)
        self.assertIn("'RESOURCE_EXHAUSTED': 744", out, err)
        wait_for(lambda: self.metric("tercio_streams") == 0, "the end of all")

    def test_a_message_above_the_limit(self):
        self.start_job()
        before = self.resident()
        child = self.script("""
size = int(sys.argv[3])
big = bytearray(size)
head = bytearray([10])
while size >= 128:
    head.append(size & 127 | 128); size >>= 7
head.append(size)
call = grpc.insecure_channel(address).unary_unary('/tercio.v1.JobService/Get')
for _ in range(6):
    try: call(bytes(head + big), timeout=60)
    except grpc.RpcError as error: print(error.code().name, error.details(), flush=True)
    if sys.stdin.readline() == "": break
""", str(4 * LIMIT))
        grown = []
        for _ in range(6):
            line = child.stdout.readline()
            self.assertIn("RESOURCE_EXHAUSTED", line)
            self.assertIn(str(LIMIT), line)
            grown.append(self.resident() - before)
            child.stdin.write("next\n")
            child.stdin.flush()
        # gRPC takes all of a message before it looks at its size, up to the limit of the server's buffers.
        self.assertLess(self.resident("VmHWM") - before, BUFFERS + LIMIT)
        self.assertLess(grown[-1] - grown[1], 4 * LIMIT, f"memory grows with refused messages: {grown}")
        self.goes_on()

    def test_thousands_of_junk_connections(self):
        self.start_job()
        host, port = self.address.rsplit(":", 1)
        junk = [
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
            bytes(range(256)) * 8,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 512,  # frames of another kind
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",  # speaks, and asks for nothing
            b"",  # says nothing at all
        ]
        held = []
        for i in range(2000):
            connection = socket.create_connection((host, int(port)), timeout=20)
            held.append(connection)
            self.addCleanup(connection.close)
            try:
                connection.sendall(junk[i % len(junk)])
            except OSError:
                pass  # closed already
            if i % 500 == 250:
                self.goes_on()
        self.goes_on()
        self.assertLess(self.resident("VmHWM"), 1 << 30)
        for connection in held:
            connection.close()
        self.goes_on()
        self.tercio("cancel", self.job, *self.reach())
        self.json("wait", self.job, *self.reach(), code=8)
        self.assertGreater(self.status()["checkpoint"]["step"], 0)


if __name__ == "__main__":
    python_cases.main()
