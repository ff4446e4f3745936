"""`tercio serve` as its clients see it: plain HTTP, and OpenAI's own library where there is one."""

import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tiny_model  # noqa: E402
from certificates import Authority  # noqa: E402
from harness import ROOT, SECONDS, TercioTest, wait_for  # noqa: E402

CONTEXT = 512
KEY = "a-key-of-the-test-0123456789"


class ServeTest(TercioTest):

    def setUp(self):
        super().setUp()
        self.model = self.path("tiny")
        tiny_model.write(self.model, CONTEXT)

    def serve(self, *more):
        self.child, ready = self.daemon("tercio", "serve", self.model, "--tokenizer", "bytes", "--listen",
                                        "127.0.0.1:0", *more)
        self.address = ready["serve"]
        return ready

    def connect(self):
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method, path, body=None, headers=None):
        """(code, answer) of one request."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        self.headers = response.headers
        is_json = response.headers["Content-Type"].startswith("application/json")
        return response.status, json.loads(text) if is_json else text.decode()

    def complete(self, code=200, **body):
        status, answer = self.ask("POST", "/v1/completions", body)
        self.assertEqual(status, code, answer)
        return answer

    def begin(self, **body):
        """A connection with a request on its way."""
        connection = socket.create_connection(self.address.split(":"), timeout=SECONDS)
        self.addCleanup(connection.close)
        data = json.dumps(body).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return connection

    def metric(self, name):
        _, page = self.ask("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.M)
        return float(found.group(1)) if found else None

    def generated(self, prompt, *more):
        """The ids that `tercio generate` makes."""
        return self.json("generate", "--checkpoint", self.model, "--tokenizer", "bytes", "--prompt", prompt, *more)["tokens"]


def ids_of(choice):
    """Of a completion with log-probabilities: each token is a byte."""
    return [int(name[8:], 16) if name.startswith("bytes:\\x") else ord(name) for name in choice["logprobs"]["tokens"]]


def judge():
    """A Python with OpenAI's library."""
    found = subprocess.run([os.path.join(ROOT, "tests", "python", "environment.sh")], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise unittest.SkipTest(f"openai cannot be installed: {found.stderr.strip()[-200:]}")
    return found.stdout.strip()


def text_of(ids):
    return bytes(ids).decode(errors="replace")


class Completions(ServeTest):

    def test_tokens_are_those_of_generate(self):
        self.serve("--slots", "3")
        for prompt, seed, temperature, top_p in (("Once upon", 7, 0.8, 1), ("a", 1, 1, 0.9), ("The end", 3, 0, 1)):
            wanted = self.generated(prompt, "--tokens", "40", "--seed", str(seed), "--temperature", str(temperature),
                                    "--top-p", str(top_p))
            answer = self.complete(prompt=prompt, max_tokens=40, seed=seed, temperature=temperature, top_p=top_p, logprobs=0)
            self.assertEqual(ids_of(answer["choices"][0]), wanted)
            self.assertEqual(answer["choices"][0]["text"], text_of(wanted))
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(answer["usage"], {"prompt_tokens": len(prompt), "completion_tokens": 40,
                                               "total_tokens": len(prompt) + 40})
            # The prompt as ids, and in a list of several.
            ids = list(prompt.encode())
            several = self.complete(prompt=[ids, [65]], max_tokens=40, seed=seed, temperature=temperature, top_p=top_p)
            self.assertEqual([c["index"] for c in several["choices"]], [0, 1])
            self.assertEqual(several["choices"][0]["text"], text_of(wanted))

    def test_many_clients_at_once_get_what_each_would_get_alone(self):
        self.serve("--slots", "5")
        prompts = [f"client {i} says " + "x" * (5 * i) for i in range(64)]

        def one(i):
            return self.complete(prompt=prompts[i], max_tokens=10 + i % 7, seed=i, temperature=1, logprobs=0)["choices"][0]

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(one, range(64)))
        for i in (0, 13, 63):
            self.assertEqual(ids_of(together[i]), self.generated(prompts[i], "--tokens", str(10 + i % 7), "--seed", str(i),
                                                                 "--temperature", "1"))
        self.assertEqual([len(choice["logprobs"]["tokens"]) for choice in together], [10 + i % 7 for i in range(64)])
        self.assertEqual(self.metric('tercio_serve_requests_total{code="200",endpoint="/v1/completions"}'), 64)
        self.assertEqual(self.metric("tercio_serve_new_tokens_total"), sum(10 + i % 7 for i in range(64)))
        self.assertEqual(self.metric("tercio_serve_growing_texts"), 0)
        self.assertEqual(self.metric("tercio_serve_first_token_seconds_count"), 64)

    def test_many_clients_share_a_cache_that_is_smaller_than_their_texts(self):
        # Two contexts' worth of pages for 64 texts, some of which begin alike.
        self.serve("--slots", "64", "--cache-tokens", str(2 * CONTEXT))
        begin = "All of them begin with the same words, which are long enough for more than a page: " + "y" * 60
        prompts = [begin + f" {i}" if i % 4 == 0 else f"client {i} says " + "x" * (5 * i) for i in range(64)]
        with open(self.path("prompts"), "w", encoding="utf-8") as file:
            file.writelines(prompt + "\n" for prompt in prompts)
        alone = self.json("generate", "--checkpoint", self.model, "--tokenizer", "bytes", "--prompts", self.path("prompts"),
                          "--tokens", "150", "--seed", "7", "--temperature", "1")
        # Clients that go take their texts' pages with them.
        gone = [self.begin(prompt=f"gone {i}", max_tokens=400, stream=True, temperature=1) for i in range(8)]
        wait_for(lambda: self.metric("tercio_serve_used_cache_pages") >= 8, "pages of texts that grow")

        def one(i):
            return ids_of(self.complete(prompt=prompts[i], max_tokens=150, seed=7, temperature=1, logprobs=0)["choices"][0])

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = [pool.submit(one, i) for i in range(64)]
            for connection in gone:
                connection.close()
            self.assertEqual([each.result() for each in together], [each["tokens"] for each in alone])
        wait_for(lambda: self.metric("tercio_serve_growing_texts") == 0, "an end of the texts", 10)
        self.assertEqual(self.metric("tercio_serve_used_cache_pages"), 0)
        self.assertEqual(self.metric("tercio_serve_cache_pages"), 2 * CONTEXT / 64)
        self.assertGreater(self.metric("tercio_serve_evicted_texts_total"), 0)
        self.assertGreater(self.metric("tercio_serve_reused_prompt_tokens_total"), 0)

    def test_a_cache_has_room_for_a_whole_context(self):
        _, error = self.tercio("serve", self.model, "--tokenizer", "bytes", "--listen", "127.0.0.1:0", "--cache-tokens",
                               str(CONTEXT - 1), code=2)
        self.assertIn(f"a cache for {CONTEXT - 1} tokens has no room", error)

    def test_a_prompt_is_scored(self):
        self.serve()
        text = "To score this prompt"
        scored = self.complete(prompt=text, max_tokens=1, echo=True, logprobs=2, temperature=0)["choices"][0]
        self.assertEqual(ids_of(scored)[:-1], list(text.encode()))
        values = scored["logprobs"]["token_logprobs"]
        self.assertIsNone(values[0])
        self.assertTrue(all(value < 0 for value in values[1:]))
        self.assertEqual(scored["logprobs"]["text_offset"], list(range(len(text) + 1)))
        # The greedy token is the likeliest, in the score of the prompt that contains it, too.
        top = scored["logprobs"]["top_logprobs"][-1]
        self.assertEqual(max(top, key=top.get), scored["logprobs"]["tokens"][-1])
        longer = self.complete(prompt=list(text.encode()) + [ids_of(scored)[-1]], max_tokens=0, echo=True, logprobs=0)["choices"][0]
        self.assertEqual(len(longer["logprobs"]["tokens"]), len(text) + 1)
        self.assertAlmostEqual(longer["logprobs"]["token_logprobs"][-1], values[-1], places=9)

    def test_stop_words_end_a_text_across_tokens(self):
        self.serve()
        ids = self.generated("Stop", "--tokens", "60", "--temperature", "0")
        text = text_of(ids)
        # Two characters somewhere in the text, each of which is a token or more.
        stop = next(text[i:i + 2] for i in range(5, len(text) - 2) if "\ufffd" not in text[i:i + 2])
        answer = self.complete(prompt="Stop", max_tokens=60, temperature=0, stop=[stop])["choices"][0]
        self.assertEqual(answer["text"], text[:text.index(stop)])
        self.assertEqual(answer["finish_reason"], "stop")

    def test_a_stream_is_the_text_in_pieces(self):
        self.serve()
        whole = self.complete(prompt="Stream", max_tokens=50, seed=5, temperature=1)["choices"][0]["text"]
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": "Stream", "max_tokens": 50, "seed": 5, "temperature": 1, "stream": True,
            "stream_options": {"include_usage": True}}))
        response = connection.getresponse()
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        events = [line[6:] for line in response.read().decode().split("\n\n") if line]
        self.assertEqual(events.pop(), "[DONE]")
        events = [json.loads(event) for event in events]
        self.assertEqual(events.pop()["usage"]["completion_tokens"], 50)
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), whole)
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
        self.assertGreater(len(events), 10)
        # The connection is good for another request.
        connection.request("GET", "/v1/models")
        self.assertEqual(json.loads(connection.getresponse().read())["data"][0]["id"], "tiny")


class Chats(ServeTest):

    def test_a_chat_is_a_prompt_in_its_template(self):
        self.serve("--template", "chatml")
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        body = {"model": "tiny", "messages": messages, "max_completion_tokens": 20, "temperature": 0, "logprobs": True}
        status, answer = self.ask("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        ids = [token["bytes"][0] for token in choice["logprobs"]["content"]]
        self.assertEqual(ids, self.generated(prompt, "--tokens", "20", "--temperature", "0"))
        self.assertEqual(choice["message"], {"role": "assistant", "content": text_of(ids), "refusal": None})
        self.assertEqual(answer["usage"]["prompt_tokens"], len(prompt))
        # Without a limit it continues to the end of the context.
        del body["max_completion_tokens"]
        _, answer = self.ask("POST", "/v1/chat/completions", body)
        self.assertEqual(answer["usage"]["total_tokens"], CONTEXT + 1)


class Adapters(ServeTest):

    def setUp(self):
        super().setUp()
        tiny_model.write_adapter(self.path("terse"), self.model, 4, ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"], 2)
        tiny_model.write_adapter(self.path("polite"), self.model, 2, ["mlp.c_proj"], 3)

    def test_requests_choose_among_adapters(self):
        # Two of peft, and the first again as a checkpoint.
        self.tercio("checkpoint", "import", self.path("terse"), "--format", "peft", "--output", self.path("imported"))
        self.serve("--slots", "6", "--adapter", self.path("terse"), "--adapter", f"nice={self.path('polite')}", "--adapter",
                   f"again={self.path('imported')}")
        models = self.ask("GET", "/v1/models")[1]["data"]
        self.assertEqual([(model["id"], model.get("parent")) for model in models],
                         [("tiny", None), ("terse", "tiny"), ("nice", "tiny"), ("again", "tiny")])
        self.assertEqual(self.ask("GET", "/v1/models/nice")[1], models[2])
        directories = {"tiny": self.model, "terse": self.path("terse"), "nice": self.path("polite"), "again": self.path("imported")}

        # Texts of different adapters begin with the same words, for longer than a page of the cache.
        prompts = [f"client {i} says " + "the same as all others, " * 3 for i in range(6)]

        def one(i):
            name = list(directories)[i % 4]
            answer = self.complete(model=name, prompt=prompts[i // 4], max_tokens=20 + i % 3, seed=i // 4, temperature=0.9,
                                   logprobs=0)
            self.assertEqual(answer["model"], name)
            return ids_of(answer["choices"][0])

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            together = list(pool.map(one, range(24)))
        for i in range(8):
            self.model = list(directories.values())[i % 4]
            self.assertEqual(together[i], self.generated(prompts[i // 4], "--tokens", str(20 + i % 3), "--seed", str(i // 4),
                                                         "--temperature", "0.9"), i)
        self.assertEqual(len({tuple(together[i][:20]) for i in range(3)}), 3)
        # Without a name the base answers.
        self.assertEqual(self.complete(prompt="a", max_tokens=5, temperature=0)["choices"],
                         self.complete(prompt="a", max_tokens=5, temperature=0, model="tiny")["choices"])
        status, chat = self.ask("POST", "/v1/chat/completions", {"model": "nice", "max_tokens": 3, "messages": [
            {"role": "user", "content": "Hello"}]})
        self.assertEqual((status, chat["model"]), (200, "nice"))
        error = self.complete(code=404, prompt="a", model="polite")["error"]
        self.assertEqual((error["code"], error["param"]), ("model_not_found", "model"))
        self.assertIn("only tiny, terse, nice, again", error["message"])
        self.assertEqual(self.metric('tercio_serve_model_requests_total{model="nice"}'), 7)
        self.assertEqual(self.metric('tercio_serve_model_new_tokens_total{model="terse"}'), sum(20 + i % 3 for i in range(1, 24, 4)))

    def test_adapters_that_cannot_be_chosen_are_refused(self):
        def refusal(code, *arguments, model=self.model):
            return self.tercio("serve", model, "--tokenizer", "bytes", "--listen", "127.0.0.1:0", *arguments, code=code)[1]

        terse = self.path("terse")
        self.assertIn("terse is the name of", refusal(2, "--adapter", terse, "--adapter", f"terse={self.path('polite')}"))
        self.assertIn("is the name of the model itself", refusal(2, "--adapter", f"tiny={terse}"))
        self.assertIn("--adapter none: ", refusal(3, "--adapter", self.path("none")))
        self.assertIn("is a model without an adapter", refusal(2, "--adapter", f"other={self.model}"))
        self.assertIn("has an adapter already", refusal(2, "--adapter", self.path("polite"), model=terse))
        # Weights of the same shapes: a checkpoint is compared with its own base, peft's directory with the digest in it.
        tiny_model.write(self.path("twin"), CONTEXT, seed=9)
        self.tercio("checkpoint", "import", terse, "--format", "peft", "--base", self.path("twin"), "--output", self.path("imported"))
        self.assertIn("was trained beside other weights", refusal(7, "--adapter", self.path("imported")))
        with open(self.path("polite", "tercio_base.json"), "w", encoding="utf-8") as file:
            json.dump({"digest": "0123456789abcdef"}, file)
        message = refusal(7, "--adapter", f"nice={self.path('polite')}")
        self.assertIn("--adapter nice: the adapter in", message)
        self.assertIn("was trained beside other weights", message)


class BadClients(ServeTest):

    def test_faults_are_named(self):
        self.serve("--max-body", "5000")
        for code, parameter, body in ((400, None, b"{"), (400, "prompt", b"{}"), (400, "n", b'{"prompt":"a","n":3}'),
                                      (400, "prompt", json.dumps({"prompt": "x" * (CONTEXT + 1)}).encode()),
                                      (400, "prompt", b'{"prompt":[256]}'), (400, "prompt", b'{"prompt":""}'),
                                      (404, "model", b'{"prompt":"a","model":"gpt-5"}'),
                                      (413, None, b'{"prompt":"' + b"x" * 2_000_000 + b'"}')):
            status, answer = self.ask("POST", "/v1/completions", body)
            self.assertEqual((status, answer["error"]["param"]), (code, parameter), answer)
            self.assertTrue(answer["error"]["message"])
        self.assertEqual(self.ask("GET", "/v1/completions")[0], 405)
        self.assertEqual(self.headers["Allow"], "POST")
        self.assertEqual(self.ask("GET", "/v2/nothing")[0], 404)
        self.assertEqual(self.ask("GET", "/v1/models/other")[0], 404)
        self.assertEqual(self.ask("GET", "/v1/models/tiny")[1]["max_model_len"], CONTEXT)
        with socket.create_connection(self.address.split(":"), timeout=SECONDS) as junk:
            junk.sendall(b"\x16\x03\x01\x00\r\n\r\n")
            self.assertTrue(junk.recv(100).startswith(b"HTTP/1.1 400 "))
        self.complete(prompt="still here", max_tokens=1)

    def test_a_cut_connection_ends_its_text(self):
        self.model = self.path("long")
        tiny_model.write(self.model, 8192)
        self.serve("--slots", "2", "--max-queue", "4")
        gone = [self.begin(prompt=["a", "b", "c"], max_tokens=8000, stream=stream) for stream in (False, True)]
        wait_for(lambda: self.metric("tercio_serve_growing_texts") == 2 and self.metric("tercio_serve_queued_texts") == 4,
                 "texts that grow and wait")
        # The queue is full.
        answer = self.complete(code=429, prompt="d")
        self.assertIn("--max-queue", answer["error"]["message"])
        for connection in gone:
            connection.close()
        wait_for(lambda: self.metric("tercio_serve_growing_texts") == 0, "an end of the texts", 10)
        self.assertEqual(self.metric("tercio_serve_queued_texts"), 0)
        self.assertEqual(self.metric('tercio_serve_requests_total{code="499",endpoint="/v1/completions"}'), 2)
        # Six texts of 8000 tokens were asked for.
        self.assertLess(self.metric("tercio_serve_new_tokens_total"), 12000)
        self.complete(prompt="still here", max_tokens=1)

    def test_a_slow_reader_holds_up_nobody(self):
        self.serve("--slots", "2")
        slow = self.begin(prompt="slow", max_tokens=500, stream=True, logprobs=20)
        began = time.monotonic()
        self.complete(prompt="quick", max_tokens=20)
        self.assertLess(time.monotonic() - began, SECONDS / 4)
        # What was made meanwhile is still there.
        data = b""
        while b"[DONE]" not in data:
            piece = slow.recv(1000)
            self.assertTrue(piece, data[-500:])
            data += piece
        self.assertEqual(data.count(b"\r\ndata: {"), 500)


class Operation(ServeTest):

    def test_its_metrics_are_those_of_the_document(self):
        self.serve()
        self.complete(prompt="a", max_tokens=3)
        _, page = self.ask("GET", "/metrics")
        with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as file:
            documented = set(re.findall(r"^\| `(tercio_serve_\w+)` \|", file.read(), re.M))
        self.assertEqual({name for name in re.findall(r"^# TYPE (\w+) ", page, re.M) if name.startswith("tercio_serve_")},
                         documented)
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_keys_are_needed_where_there_is_a_file_of_them(self):
        with open(self.path("keys"), "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        os.chmod(self.path("keys"), 0o600)
        self.serve("--api-key-file", self.path("keys"))
        for path in ("/v1/models", "/metrics", "/v2/nothing"):
            self.assertEqual(self.ask("GET", path)[0], 401)
            self.assertEqual(self.ask("GET", path, headers={"Authorization": "Bearer wrong"})[0], 401)
        self.assertEqual(self.ask("GET", "/health")[0], 200)
        self.assertEqual(self.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})[0], 200)

    def write_keys(self, *keys):
        """As a renewal does it: the file is whole at every moment."""
        with open(self.path("new"), "w", encoding="utf-8") as file:
            file.writelines(key + "\n" for key in keys)
        os.chmod(self.path("new"), 0o600)
        os.replace(self.path("new"), self.path("keys"))

    def test_keys_are_read_again_when_their_file_changes(self):
        other = KEY[::-1]
        self.write_keys(KEY)
        self.serve("--api-key-file", self.path("keys"))

        def code(key):
            return self.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]

        self.assertEqual((code(KEY), code(other)), (200, 401))
        self.write_keys(KEY, other)
        wait_for(lambda: code(other) == 200, "the second key")
        self.write_keys(other)
        wait_for(lambda: code(KEY) == 401, "an end of the first key")
        # A file that cannot be used opens nothing, and closes nothing.
        self.write_keys()
        wait_for(lambda: code(other) and "stays in use" in self.log_of_server(), "a line of the log")
        self.assertEqual((code(KEY), code(other), code("")), (401, 200, 401))
        self.assertEqual(self.log_of_server().count("stays in use"), 1)

    def log_of_server(self):
        with open(self.path("tercio.0.log"), encoding="utf-8") as file:
            return file.read()

    def test_a_renewed_certificate_is_used_without_a_restart(self):
        authority = Authority(self.directory, "ours")
        first, second = authority.issue("first"), authority.issue("second")
        files = [self.path("server.pem"), self.path("server.key")]

        def renew(certificate, key):
            for source, file in zip((certificate, key), files):
                shutil.copy(source, file + ".new")
                os.replace(file + ".new", file)

        renew(first.certificate, first.key)
        self.serve("--tls-cert", files[0], "--tls-key", files[1])

        def name():
            context = ssl.create_default_context(cafile=authority.certificate)
            with socket.create_connection(self.address.split(":"), timeout=SECONDS) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as connection:
                    return dict(pair for part in connection.getpeercert()["subject"] for pair in part)["commonName"]

        self.assertEqual(name(), "first")
        # A key that is not the certificate's.
        renew(second.certificate, first.key)
        wait_for(lambda: name() and "stays in use" in self.log_of_server(), "a line of the log")
        self.assertEqual(name(), "first")
        renew(second.certificate, second.key)
        wait_for(lambda: name() == "second", "the second certificate")

    def test_certificates_of_both_sides(self):
        authority, other = Authority(self.directory, "ours"), Authority(self.directory, "theirs")
        self.serve(*authority.issue("server"))

        def models(client):
            context = ssl.create_default_context(cafile=authority.certificate)
            if client is not None:
                context.load_cert_chain(client.certificate, client.key)
            connection = http.client.HTTPSConnection(self.address, timeout=SECONDS, context=context)
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/models")
            return connection.getresponse().status

        self.assertEqual(models(authority.issue("client")), 200)
        for stranger in (None, other.issue("stranger")):
            with self.assertRaises((ssl.SSLError, OSError, http.client.RemoteDisconnected)):
                models(stranger)
        # Plain text is no handshake.
        with self.assertRaises((OSError, http.client.HTTPException)):
            self.ask("GET", "/v1/models")

    def test_nothing_is_open_off_loopback(self):
        arguments = ["serve", self.model, "--tokenizer", "bytes", "--listen", "0.0.0.0:0"]
        _, err = self.tercio(*arguments, code=2)
        self.assertIn("--insecure", err)
        flags = Authority(self.directory, "ours").issue("server")
        # TLS alone lets everybody in.
        _, err = self.tercio(*arguments, "--tls-cert", flags.certificate, "--tls-key", flags.key, code=2)
        self.assertIn("--api-key-file or --tls-ca", err)
        _, err = self.tercio("serve", self.model, "--tokenizer", "bytes", "--tls-cert", flags.certificate, code=2)
        self.assertIn("--tls-key", err)
        _, err = self.tercio("serve", self.model, code=2)
        self.assertIn("--tokenizer PATH", err)
        _, ready = self.daemon("tercio", *arguments, "--insecure")
        self.assertTrue(ready["serve"].startswith("0.0.0.0:"))

    def test_sigterm_lets_texts_end(self):
        self.serve()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.complete, prompt="to the end", max_tokens=400, logprobs=0)
            wait_for(lambda: self.metric("tercio_serve_new_tokens_total") > 0, "a first token")
            self.child.send_signal(signal.SIGTERM)
            self.assertEqual(len(running.result()["choices"][0]["logprobs"]["tokens"]), 400)
        self.assertEqual(self.child.wait(SECONDS), 0)


CLIENT = """
import json, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2], max_retries=0)
found = [model.id for model in client.models.list()]
completion = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0, logprobs=1)
pieces = [chunk.choices[0].text for chunk in
          client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0, stream=True)]
messages = [{"role": "user", "content": "Hello"}]
chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0, logprobs=True,
                                      top_logprobs=2)
deltas = [chunk.choices[0].delta.content or "" for chunk in
          client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0, stream=True)]
try:
    client.completions.create(model="tiny", prompt="Once", n=2)
    fault = None
except openai.BadRequestError as error:
    fault = error.param
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong", max_retries=0).models.list()
    refused = False
except openai.AuthenticationError:
    refused = True
print(json.dumps({"models": found, "text": completion.choices[0].text, "tokens": completion.choices[0].logprobs.tokens,
                  "streamed": "".join(pieces), "chat": chat.choices[0].message.content,
                  "scores": len(chat.choices[0].logprobs.content), "deltas": "".join(deltas), "fault": fault,
                  "refused": refused, "usage": chat.usage.total_tokens}))
"""


class OpenAiClient(ServeTest):

    def test_the_official_library_works(self):
        python = judge()
        with open(self.path("keys"), "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        self.serve("--api-key-file", self.path("keys"), "--template", "plain")
        done = subprocess.run([python, "-c", CLIENT, f"http://{self.address}", KEY], capture_output=True, text=True,
                              timeout=SECONDS, check=False, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        wanted = text_of(self.generated("Once", "--tokens", "12", "--temperature", "0"))
        chat = text_of(self.generated("User: Hello\nAssistant:", "--tokens", "12", "--temperature", "0"))
        self.assertEqual((result["models"], result["text"], result["streamed"]), (["tiny"], wanted, wanted))
        self.assertEqual((result["chat"], result["deltas"], result["scores"]), (chat, chat, 12))
        self.assertEqual((result["fault"], result["refused"]), ("n", True))
        self.assertEqual(result["usage"], len("User: Hello\nAssistant:") + 12)


TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
doc_to_choice: "{{choices}}"
target_delimiter: " "
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


class EvaluationHarness(ServeTest):

    def test_lm_evaluation_harness_scores_what_the_model_scores(self):
        python = os.environ.get("TERCIO_LM_EVAL_PYTHON")
        if not python:
            raise unittest.SkipTest("TERCIO_LM_EVAL_PYTHON names no Python with lm_eval[api] and transformers")
        tiny_model.write_tokenizer(self.model)
        questions = [{"question": f"Question {i}: which word comes next?", "choices": ["red", "green", "blue " + "x" * i], "answer": i % 3}
                     for i in range(7)]
        with open(self.path("data.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(question) + "\n" for question in questions)
        os.mkdir(self.path("tasks"))
        with open(self.path("tasks", "tiny.yaml"), "w", encoding="utf-8") as file:
            file.write(TASK.replace("DATA", self.path("data.jsonl")))
        self.serve()
        arguments = (f"model=tiny,base_url=http://{self.address}/v1/completions,tokenizer={self.model},"
                     f"tokenizer_backend=huggingface,max_length={CONTEXT},num_concurrent=2,max_retries=1")
        done = subprocess.run([python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks", "tiny",
                               "--include_path", self.path("tasks"), "--log_samples", "--output_path", self.path("out")],
                              capture_output=True, text=True, timeout=3 * SECONDS, check=False,
                              env={**self.environment(), "HF_HOME": self.path("cache"), "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.path("out")) for name in names
                 if name.startswith("samples_tiny")]
        with open(found[0], encoding="utf-8") as file:
            samples = [json.loads(line) for line in file]
        self.assertEqual(len(samples), len(questions))
        for sample in samples:
            question = sample["doc"]
            for choice, response in zip(question["choices"], sample["filtered_resps"]):
                ids = list((question["question"] + " " + choice).encode())
                scored = self.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
                self.assertAlmostEqual(float(response[0]), sum(scored[len(question["question"]):]), places=4)


if __name__ == "__main__":
    python_cases.main()
