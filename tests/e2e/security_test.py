"""Security by default: who gets in, who may do what, and that a job trains through all attempts."""

import json
import os
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from certificates import Authority  # noqa: E402
from harness import BIN, TercioTest, layout, processes, wait_for  # noqa: E402

PYTHON = "/usr/bin/python3"  # which sees Debian's python3-grpcio


def reachable(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class SecureTest(TercioTest):
    """A coordinator with an authority of its own; people and nodes get their certificates by tokens."""

    def setUp(self):
        super().setUp()
        self.cleared = self.json_of("init")
        self.people = {}

    def access(self, verb, *arguments, code=0):
        done = subprocess.run([os.path.join(BIN, "tercio-coordinator"), verb, "--state-dir", self.state, *arguments],
                              capture_output=True, text=True, env=self.environment(), check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def json_of(self, verb, *arguments):
        return json.loads(self.access(verb, *arguments, "-o", "json").stdout)

    def token(self, role, name=None, *more):
        return self.access("token", "--role", role, *(["--name", name] if name else []), *more).stdout.strip()

    def serve(self, *more):
        self.server, ready = self.coordinator("--enroll-listen", "127.0.0.1:0", *more)
        self.address, self.enroll, self.metrics = ready["coordinator"], ready["enroll"], ready["metrics"]

    def as_person(self, name):
        return {**self.environment(), "XDG_CONFIG_HOME": self.path("people", name)}

    def verb(self, name, *arguments, code=0, stdin=None):
        """A verb as somebody who has logged in; returns (stdout, stderr)."""
        done = subprocess.run([os.path.join(BIN, "tercio"), *arguments], capture_output=True, text=True,
                              env=self.as_person(name), input=stdin, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f"{name}: {arguments}\n{done.stdout}\n{done.stderr}")
        return done.stdout, done.stderr

    def login(self, name, role, token=None, code=0, address=None, enroll=None):
        return self.verb(name, "login", "--coordinator", address or self.address, "--enroll",
                         enroll or self.enroll, "--token-file", "-", stdin=token or self.token(role, name),
                         code=code)

    def files(self, name):
        """--tls flags with the files of somebody who has logged in."""
        folder = self.path("people", name, "tercio", self.address.replace(":", "_"))
        return ["--tls-cert", folder + "/certificate.pem", "--tls-key", folder + "/key.pem", "--tls-ca",
                folder + "/authority.pem"]

    def node(self, name="one", *more, token=None, slots=2):
        path = self.path(f"token-{name}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(token or self.token("agent", name))
        return self.agent(self.address, name, slots, "--enroll", self.enroll, "--join-token-file", path,
                          "--data-root", self.directory, *more)

    def audit(self):
        try:
            with open(os.path.join(self.state, "audit.log"), encoding="utf-8") as file:
                return [json.loads(line) for line in file]
        except FileNotFoundError:
            return []

    def audited(self, **wanted):
        """The first line with these values; a value may be a part of what is there."""
        def find():
            return next((line for line in self.audit() if all(value in line[key] for key, value in wanted.items())),
                        None)
        return wait_for(find, f"a line of the audit log with {wanted}", 20)

    def status(self, name, job):
        return json.loads(self.verb(name, "get", job, "-o", "json")[0])

    def log_of(self, program):
        number = next(i for i, child in enumerate(self.daemons) if child.args[0].endswith(program))
        with open(self.path(f"{program}.{number}.log"), encoding="utf-8") as file:
            return file.read()


class Joining(SecureTest):

    def test_from_nothing_to_a_job_in_four_commands(self):
        self.serve()
        self.login("ann", "admin")
        self.node(token=self.cleared["token"])
        # No flags: the coordinator and the files are remembered.
        job = self.verb("ann", "submit", self.path("job.yaml"), *layout(1, 1, 2))[0].strip()
        self.verb("ann", "wait", job, "--timeout", "100s")
        status = self.status("ann", job)
        self.assertEqual((status["state"], status["owner"]), ("succeeded", "ann"))
        self.assertEqual(status["checkpoint"]["step"], 60)  # which ranks send by TLS, too
        who = json.loads(self.verb("ann", "login", "--check", "-o", "json")[0])
        self.assertEqual((who["name"], who["role"]), ("ann", "admin"))
        self.audited(call="JobService/Submit", who="ann", subject=job, outcome="ok", address="127.0.0.1")
        self.audited(call="NodeService/Attach", who="one", subject="one", outcome="ok")
        enrolled = self.audited(call="EnrollService/Enroll", who="ann", outcome="ok")
        self.assertIn(enrolled["serial"], [one["serial"] for one in self.json_of("access")["certificates"]])

    def test_secrets_are_their_owners_alone(self):
        self.serve()
        self.login("ann", "admin")
        self.node()
        for folder in (os.path.join(self.state, "access"), self.path("people", "ann", "tercio"),
                       self.path("agent-one", "access")):
            for where, _, names in os.walk(folder):
                for name in names:
                    path = os.path.join(where, name)
                    self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600, path)
        for folder in (os.path.join(self.state, "access"), self.path("agent-one", "access")):
            self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700, folder)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.state, "audit.log")).st_mode), 0o600)

    def test_a_token_is_good_once_and_not_for_long(self):
        self.serve()
        token = self.token("user", "bob")
        self.login("bob", "user", token)
        _, err = self.login("eve", "user", token, code=4)
        self.assertIn("unknown, used up or expired", err)
        late = self.token("user", "carl", "--ttl", "1s")
        time.sleep(2.1)  # seconds are counted whole
        _, err = self.login("carl", "user", late, code=4)
        self.assertIn("unknown, used up or expired", err)
        self.audited(call="EnrollService/Enroll", outcome="refused", reason="unknown, used up or expired")
        # At rest there is a digest; neither secret is anywhere.
        secret = token.split(".")[1]
        with open(os.path.join(self.state, "access", "access.sqlite"), "rb") as file:
            self.assertNotIn(secret.encode(), file.read())
        rows = sqlite3.connect(os.path.join(self.state, "access", "access.sqlite")).execute(
            "SELECT COUNT(*) FROM tokens WHERE length(digest) = 64").fetchone()
        self.assertGreaterEqual(rows[0], 2)

    def test_a_token_is_good_once_also_at_the_same_instant(self):
        self.serve()
        token = self.token("user", "bob")
        children = [subprocess.Popen([os.path.join(BIN, "tercio"), "login", "--coordinator", self.address, "--enroll",
                                      self.enroll, "--token-file", "-"], stdin=subprocess.PIPE,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
                                     env=self.as_person(f"bob-{i}")) for i in range(6)]
        for child in children:  # all wait for their token
            child.stdin.write(token)
            child.stdin.flush()
        for child in children:
            child.stdin.close()
        self.assertEqual(sorted(child.wait(60) for child in children), [0] + [4] * 5)
        self.assertEqual(len([one for one in self.json_of("access")["certificates"] if one["name"] == "bob"]), 1)

    def test_a_token_is_not_spent_where_nothing_can_be_kept(self):
        self.serve()
        token = self.token("user", "bob")
        os.makedirs(self.path("people", "bob"))
        with open(self.path("people", "bob", "tercio"), "w", encoding="utf-8") as file:
            file.write("a file where a directory should be")
        self.assertNotEqual(self.login_code("bob", token), 0)
        os.remove(self.path("people", "bob", "tercio"))
        self.assertEqual(self.login_code("bob", token), 0)
        left = os.listdir(self.path("people", "bob", "tercio", self.address.replace(":", "_")))
        self.assertEqual(sorted(left), ["authority.pem", "certificate.pem", "key.pem"])

    def login_code(self, name, token):
        return subprocess.run([os.path.join(BIN, "tercio"), "login", "--coordinator", self.address, "--enroll",
                               self.enroll, "--token-file", "-"], input=token, capture_output=True, text=True,
                              env=self.as_person(name), timeout=60, check=False).returncode

    def test_an_agent_joins_a_cluster_that_was_made_anew(self):
        self.serve()
        self.node("one")
        self.stop_daemons()
        self.daemons.clear()
        self.state = self.path("anew")
        self.json_of("init")
        self.serve()
        self.login("ann", "admin")
        self.node("one")  # with the state directory from before
        wait_for(lambda: json.loads(self.verb("ann", "nodes", "-o", "json")[0]), "the node")

    def test_init_is_done_as_a_whole_or_not_at_all(self):
        self.assertIn("to start over, move the directory away", self.access("init", code=7).stderr)
        # One that was killed half-way.
        self.state = self.path("second")
        os.makedirs(os.path.join(self.state, "access.new"))
        with open(os.path.join(self.state, "access.new", "authority.key"), "w", encoding="utf-8") as file:
            file.write("half")
        self.json_of("init")
        self.assertEqual(sorted(os.listdir(self.state)), ["access", "access.lock"])
        # A name that no certificate can bear.
        self.state = self.path("third")
        self.access("init", "--host", "not a host", code=2)
        self.assertFalse(os.path.exists(os.path.join(self.state, "access")))
        self.json_of("init")
        self.serve()
        self.login("ann", "admin")

    @unittest.skipUnless(os.geteuid() == 0, "only root can mount a file system that is full")
    def test_init_on_a_full_disk_can_be_done_again(self):
        self.state = self.path("small")
        os.mkdir(self.state)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", self.state], capture_output=True,
                                 check=False)
        if mounted.returncode != 0:
            self.skipTest("a full disk needs the right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", self.state], check=False)
        with open(os.path.join(self.state, "filling"), "wb") as file:
            file.write(bytes(496 << 10))
        self.assertIn("cannot", self.access("init", code=7).stderr)
        self.assertEqual(sorted(os.listdir(self.state)), ["access.lock", "filling"])
        os.remove(os.path.join(self.state, "filling"))
        self.json_of("init")

    def test_without_tls_nothing_listens_off_loopback(self):
        # It answers in plain text and asks nobody who they are, whatever is in the directory.
        for address in ("0.0.0.0:0", "127.example.com:0"):
            done = subprocess.run([os.path.join(BIN, "tercio-coordinator"), "--state-dir", self.state, "--read-only",
                                   "--listen", address], capture_output=True, text=True, env=self.environment(),
                                  timeout=20, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("is not loopback", done.stderr)

    def test_tokens_that_nobody_could_use_are_not_made(self):
        for name in ("ann smith", "ann\n", "../ann", "a" * 65, "\u00e4nn", "*"):
            self.assertIn("a name must have 1 to 64", self.access("token", "--role", "user", "--name", name, code=2).stderr)
        # An empty name is that of tokens for any node: of a variable that is not set, likely.
        self.assertIn("give the name", self.access("revoke", "", code=2).stderr)
        tokens = self.json_of("access")["tokens"]
        self.assertEqual([token["name"] for token in tokens], [""])
        self.access("revoke", "--token", str(tokens[0]["id"]))
        self.assertEqual(self.json_of("access")["tokens"], [])
        self.access("revoke", "--token", "999", code=3)

    def test_a_token_of_several_uses_is_for_the_nodes_of_its_pattern(self):
        self.serve()
        for arguments, words in ((("--uses", "2"), "needs --nodes"), (("--nodes", "*"), "matches every node"),
                                 (("--nodes", "gpu-[0-9]"), "a pattern of node names"), (("--nodes", "gpu-*", "--name", "one"), "neither with --name")):
            self.assertIn(words, self.access("token", *arguments, code=2).stderr)
        self.assertIn("nor for people", self.access("token", "--role", "user", "--name", "ann", "--nodes", "a*", code=2).stderr)
        token = self.token("agent", None, "--nodes", "gpu-*,login-?", "--uses", "2")
        self.node("gpu-1", token=token)
        path = self.path("token-gpu-1")
        done = subprocess.run(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--enroll", self.enroll, "--state-dir", self.path("rogue"),
             "--name", "rogue", "--metrics-listen", "127.0.0.1:0", "--join-token-file", path],
            capture_output=True, text=True, env=self.environment(), timeout=60, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("is for nodes named gpu-*,login-?, not for rogue", done.stderr)
        listed = next(one for one in self.json_of("access")["tokens"] if one["nodes"])
        self.assertEqual((listed["nodes"], listed["uses_left"], listed["role"]), ("gpu-*,login-?", 1, "agent"))
        # Every enrolment has a line, with the number of its token.
        self.audited(call="EnrollService/Enroll", who="gpu-1", outcome="ok", reason=f"token {listed['id']}")
        self.audited(call="EnrollService/Enroll", who="rogue", outcome="refused", reason="is for nodes named")
        self.node("login-7", token=token)

    def test_another_server_gets_no_token(self):
        self.serve()
        token = self.token("user", "bob")
        real_state, self.state = self.state, self.path("impostor")
        self.json_of("init")
        self.serve()
        _, err = self.login("bob", "user", token, code=4)
        self.assertIn("fingerprint", err)
        self.assertIn("not sent", err)
        self.assertFalse([line for line in self.audit() if line["call"] == "EnrollService/Enroll"])
        self.state = real_state
        # A port that speaks no TLS.
        with socket.create_server(("127.0.0.1", 0)) as plain:
            plain.listen()
            address = f"127.0.0.1:{plain.getsockname()[1]}"
            child = subprocess.Popen([os.path.join(BIN, "tercio"), "login", "--coordinator", self.address, "--enroll",
                                      address, "--token-file", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                     text=True, env=self.as_person("bob"))
            child.stdin.write(token)
            child.stdin.close()
            connection, _ = plain.accept()
            received = connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            connection.close()
            self.assertEqual(child.wait(30), 4)
            self.assertIn("does not speak TLS", child.stderr.read())
            child.stderr.close()
            self.assertNotIn(token.split(".")[1].encode(), received)

    def test_a_flood_of_enrolments_is_cut_off_and_others_are_served(self):
        self.serve()
        self.login("ann", "admin")
        wrong = "tercio1." + "0" * 32 + "." + self.cleared["fingerprint"]
        codes, answers = [], []
        for _ in range(30):
            done = subprocess.run([os.path.join(BIN, "tercio"), "login", "--coordinator", self.address, "--enroll",
                                   self.enroll, "--token-file", "-"], input=wrong, capture_output=True, text=True,
                                  env=self.as_person("eve"), timeout=60, check=False)
            codes.append(done.returncode)
            answers.append(done.stderr)
        self.assertEqual(set(codes), {4, 7})
        self.assertIn("too many certificate requests", "".join(answers))
        self.verb("ann", "list")
        refused = [line for line in self.audit() if line["call"] == "EnrollService/Enroll"
                   and line["outcome"] == "refused"]
        self.assertLess(len(refused), 28)  # the log is no way to fill a disk

    def test_certificates_are_renewed_while_all_goes_on(self):
        self.serve("--certificate-life", "12s")
        self.login("ann", "admin")
        self.node()
        before = self.json_of("access")["certificates"]
        job = self.verb("ann", "submit", self.path("job.yaml"), *layout(1, 1, 2), "--set",
                        "training.steps=1000000")[0].strip()
        end = time.monotonic() + 14  # beyond the life of all that there were
        while time.monotonic() < end:
            self.assertIn(self.status("ann", job)["state"], ("queued", "starting", "running"))
            time.sleep(1)
        old = {one["serial"] for one in before}
        now = self.json_of("access")["certificates"]
        self.assertTrue(any(one["name"] == "one" and one["serial"] not in old for one in now), now)
        # A new connection takes the new certificate: the coordinator starts again.
        self.server.terminate()
        self.server.wait(30)
        port, enroll = self.address, self.enroll
        self.server, _ = self.coordinator("--listen", port, "--enroll-listen", enroll, "--certificate-life", "12s")
        step = self.status("ann", job)["step"]
        wait_for(lambda: self.status("ann", job)["step"] > step + 20, "steps after the restart", 60)
        self.assertEqual(self.status("ann", job)["restarts"], 0)
        self.verb("ann", "cancel", job, "--no-save")


class Roles(SecureTest):

    def setUp(self):
        super().setUp()
        self.serve()
        for name, role in (("ann", "admin"), ("bob", "user"), ("carl", "user"), ("vic", "viewer")):
            self.login(name, role)

    def test_who_may_do_what(self):
        job = self.verb("bob", "submit", self.path("job.yaml"), *layout(1, 1, 2))[0].strip()
        for name in ("ann", "bob", "carl", "vic"):
            self.assertEqual(self.status(name, job)["owner"], "bob")
        _, err = self.verb("vic", "submit", self.path("job.yaml"), *layout(1, 1, 2), code=4)
        self.assertIn("needs the role user or admin; vic has the role viewer", err)
        self.audited(call="JobService/Submit", who="vic", role="viewer", outcome="refused")
        _, err = self.verb("carl", "cancel", job, code=4)
        self.assertIn(f"job {job} is bob's", err)
        self.audited(call="JobService/Cancel", who="carl", subject=job, outcome="refused")
        _, err = self.verb("bob", "nodes", "drain", "one", code=4)
        self.assertIn("needs the role admin", err)
        self.audited(call="JobService/ChangeNode", who="bob", outcome="refused")
        self.verb("bob", "cancel", job)
        self.audited(call="JobService/Cancel", who="bob", subject=job, outcome="ok")
        other = self.verb("carl", "submit", self.path("job.yaml"), *layout(1, 1, 2))[0].strip()
        self.verb("ann", "cancel", other)  # an admin may all

    def test_a_revoked_person_is_out_at_once(self):
        follower = subprocess.Popen([os.path.join(BIN, "tercio"), "events", "--follow"], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True, env=self.as_person("bob"))
        self.addCleanup(follower.stderr.close)
        self.addCleanup(follower.kill)
        time.sleep(0.5)
        self.access("revoke", "bob")
        self.assertNotEqual(follower.wait(20), 0)  # a stream that is open ends, too
        _, err = self.verb("bob", "list", code=4)
        self.assertIn("was revoked", err)
        self.audited(who="bob", outcome="refused", reason="was revoked")
        self.verb("carl", "list")
        self.assertIn("no certificate or token", self.access("revoke", "nobody-of-that-name", code=3).stderr)
        # The name may come again, by a new token.
        self.login("bob", "user")
        self.verb("bob", "list")

    def test_an_agent_speaks_for_its_own_node_only(self):
        self.node("one")
        wait_for(lambda: json.loads(self.verb("ann", "nodes", "-o", "json")[0]), "the node")
        folder = self.path("agent-one", "access")
        stolen = ["--tls-cert", folder + "/certificate.pem", "--tls-key", folder + "/key.pem", "--tls-ca",
                  folder + "/authority.pem"]
        agent = subprocess.Popen(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--state-dir", self.path("thief"),
             "--name", "two", "--metrics-listen", "127.0.0.1:0", *stolen], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=self.environment())
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        line = self.audited(call="NodeService/Attach", who="one", subject="two", outcome="refused")
        self.assertIn("for node one, but the agent is named two", line["reason"])
        self.assertEqual([node["name"] for node in json.loads(self.verb("ann", "nodes", "-o", "json")[0])], ["one"])
        # It is no person, either; and a person is no agent.
        _, err = self.tercio("list", "--coordinator", self.address, *stolen, code=4)
        self.assertIn("one has the role agent", err)
        agent.kill()
        person = subprocess.Popen(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--state-dir", self.path("person"),
             "--name", "bob", "--metrics-listen", "127.0.0.1:0", *self.files("bob")], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=self.environment())
        self.addCleanup(person.wait)
        self.addCleanup(person.kill)
        self.audited(call="NodeService/Attach", who="bob", role="user", outcome="refused")

    def test_agents_refuse_a_revoked_node_among_themselves(self):
        for name in ("one", "two"):
            self.node(name)
        stolen = self.path("stolen")
        shutil.copytree(self.path("agent-two", "access"), stolen)
        with open(self.path("agent-one", "snapshot.port"), encoding="utf-8") as file:
            address = "127.0.0.1:" + file.read().strip()
        script = '''
import sys, grpc
address, folder = sys.argv[1:]
read = lambda name: open(folder + "/" + name, "rb").read()
credentials = grpc.ssl_channel_credentials(read("authority.pem"), read("key.pem"), read("certificate.pem"))
try:
    list(grpc.secure_channel(address, credentials).unary_stream("/tercio.v1.SnapshotService/Get")(b"", timeout=20))
except grpc.RpcError as error:
    print(error.code().name, error.details())
'''

        def answer():
            return subprocess.run([PYTHON, "-c", script, address, stolen], capture_output=True, text=True, timeout=60,
                                  check=False).stdout
        self.assertIn("ABORTED", answer())  # it may ask, and takes no part in that attempt
        self.access("revoke", "two")
        wait_for(lambda: "UNAUTHENTICATED" in answer(), "node one to hear of it", 30)
        self.assertIn("was revoked", answer())
        # Also when it has just come back.
        agent = next(child for child in self.daemons if "agent-one" in " ".join(child.args))
        agent.terminate()
        agent.wait(60)
        self.node("one")
        wait_for(lambda: "UNAUTHENTICATED" in answer(), "node one to hear of it again", 30)

    def test_a_token_for_any_node_is_none_for_one_that_is_there(self):
        self.node("one")
        path = self.path("any")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.token("agent"))
        done = subprocess.run(
            [os.path.join(BIN, "tercio-agent"), "--coordinator", self.address, "--enroll", self.enroll, "--state-dir",
             self.path("second"), "--name", "one", "--metrics-listen", "127.0.0.1:0", "--join-token-file", path],
            capture_output=True, text=True, env=self.environment(), timeout=60, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("one already has a certificate", done.stderr)
        self.audited(call="EnrollService/Enroll", who="one", outcome="refused", reason="already has a certificate")
        self.node("two", token=open(path, encoding="utf-8").read())  # it was not spent

    def test_a_machine_that_was_set_up_anew_ends_the_certificate_it_had(self):
        child, _ = self.node("one")
        child.terminate()
        self.assertEqual(child.wait(60), 0)
        folder = self.path("agent-one")
        os.rename(folder, folder + ".stolen")
        old = ["--tls-cert", folder + ".stolen/access/certificate.pem", "--tls-key", folder + ".stolen/access/key.pem", "--tls-ca",
               folder + ".stolen/access/authority.pem"]
        refusal = lambda: self.tercio("list", "--coordinator", self.address, *old, code=4)[1]  # noqa: E731
        self.assertNotIn("was revoked", refusal())
        self.node("one", token=self.token("agent"))
        wait_for(lambda: "was revoked" in refusal(), "the coordinator, which has revoked it itself, to know of it", 20)

    def test_an_agent_cannot_pass_for_the_coordinator(self):
        self.node("one")
        folder = self.path("agent-one", "access")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        chain = self.path("chain.pem")
        with open(chain, "w", encoding="utf-8") as file:
            for name in ("certificate.pem", "authority.pem"):
                with open(os.path.join(folder, name), encoding="utf-8") as part:
                    file.write(part.read())
        server = subprocess.Popen(["openssl", "s_server", "-accept", str(port), "-cert", folder + "/certificate.pem",
                                   "-key", folder + "/key.pem", "-cert_chain", chain, "-alpn", "h2", "-quiet"],
                                  stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdin.close)
        self.addCleanup(server.kill)
        wait_for(lambda: reachable(port), "openssl's server", 20)
        _, err = self.tercio("list", "--coordinator", f"127.0.0.1:{port}", *self.files("ann"), code=5)
        self.assertIn("has the role agent, not coordinator", err)


class Attacks(SecureTest):
    """Each is refused and said, and a job trains through all of them."""

    def setUp(self):
        super().setUp()
        self.serve()
        self.login("ann", "admin")
        self.node()
        self.job = self.verb("ann", "submit", self.path("job.yaml"), *layout(1, 1, 2), "--set",
                             "training.steps=1000000")[0].strip()
        self.trains()

    def trains(self):
        step = self.status("ann", self.job)["step"]
        wait_for(lambda: self.status("ann", self.job)["step"] > step + 5, "steps")
        self.assertEqual(self.status("ann", self.job)["restarts"], 0)

    def openssl(self, address, *arguments):
        done = subprocess.run(["openssl", "s_client", "-connect", address, "-alpn", "h2", *arguments], input="",
                              capture_output=True, text=True, errors="replace", timeout=30, check=False)
        return done.stdout + done.stderr

    def test_handshakes_that_are_none_of_ours(self):
        theirs = Authority(self.directory, "theirs")
        ours = self.files("ann")
        for address in (self.address, self.enroll):
            for old in ("-tls1_2", "-tls1_1"):
                self.assertIn("no peer certificate available", self.openssl(address, old, "-cipher", "ALL:@SECLEVEL=0"))
            self.assertIn("TLSv1.3", self.openssl(address, "-tls1_3"))
        self.audited(call="handshake", outcome="refused", reason="unsupported protocol")
        self.openssl(self.address)
        self.audited(call="handshake", outcome="refused", reason="did not return a certificate")
        strange = list(theirs.issue("eve"))
        _, err = self.tercio("list", "--coordinator", self.address, *strange[:4], *ours[4:], code=4)
        self.assertIn("does not know", err)
        self.audited(call="handshake", outcome="refused", reason="certificate verify failed")
        real = Authority(self.directory, "real")
        real.certificate, real.key = (os.path.join(self.state, "access", "authority" + end) for end in (".pem", ".key"))
        late = real.issue("late", days=-1)
        _, err = self.tercio("list", "--coordinator", self.address, *late, code=4)
        self.assertIn("expired", err)
        # No TLS at all: the connection is closed, and nothing is said.
        for address in (self.address, self.enroll):
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), timeout=30) as plain:
                plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
                answer = plain.recv(4096)
            self.assertNotIn(b"HTTP", answer)
        _, err = self.tercio("list", "--coordinator", self.address, code=4)
        self.assertIn("speaks TLS", err)
        self.audited(call="handshake", outcome="refused", reason="wrong version number")
        self.trains()

    def test_slow_and_silent_connections_are_closed(self):
        slow = {self.address: [], self.enroll: []}
        for address, connections in slow.items():
            host, port = address.split(":")
            for _ in range(40):
                connections.append(socket.create_connection((host, int(port)), timeout=60))
                connections[-1].sendall(b"\x16\x03\x01")  # a handshake that never goes on
                self.addCleanup(connections[-1].close)
        self.verb("ann", "list")
        self.login("bob", "user")
        self.trains()
        for connection in slow[self.enroll] + slow[self.address]:  # after 5 s and 20 s
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass

    def test_enrolment_takes_small_messages_only(self):
        script = '''
import sys, grpc
address, authority, size = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3])
channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority))
call = channel.unary_unary("/tercio.v1.EnrollService/Enroll")
try:
    length, encoded = size, b""
    while True:
        encoded += bytes([(length & 127) | (128 if length > 127 else 0)])
        length >>= 7
        if not length: break
    call(bytes([10]) + encoded + b"x" * size, timeout=20)
except grpc.RpcError as error:
    print(error.code().name)
'''
        authority = os.path.join(self.state, "access", "authority.pem")
        for size, code in ((1000, "UNAUTHENTICATED"), (1 << 20, "RESOURCE_EXHAUSTED")):
            done = subprocess.run([PYTHON, "-c", script, self.enroll, authority, str(size)], capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.stdout.strip(), code, done.stderr)
        self.trains()

    def test_secrets_are_nowhere_to_be_read(self):
        """Tokens of attempts and tokens for joining: in no command line, environment, log, answer or metric."""
        secrets = {self.cleared["token"].split(".")[1]}
        state = sqlite3.connect(f"file:{self.state}/state.sqlite?mode=ro", uri=True)
        record = state.execute("SELECT record FROM jobs").fetchone()[0]
        trainers = processes(f"tercio-trainer {self.job}")
        self.assertEqual(len(trainers), 2)
        # The token of the attempt is the only text of 32 hexadecimal digits in the record.
        found = set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", record))
        self.assertEqual(len(found), 1)
        secrets |= {token.decode() for token in found}
        seen = {}
        for pid in trainers + [child.pid for child in self.daemons]:
            for name in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    seen[f"/proc/{pid}/{name}"] = file.read().decode(errors="replace")
        for verb in (["get", self.job, "-o", "json"], ["list", "-o", "json"], ["events", self.job, "-o", "jsonl"],
                     ["logs", self.job], ["nodes", "-o", "json"]):
            seen[" ".join(verb)] = self.verb("ann", *verb)[0]
        seen["access"] = self.access("access", "-o", "json").stdout
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=20) as page:
            seen["metrics"] = page.read().decode()
        for where, _, names in os.walk(self.directory):
            for name in names:
                if name.startswith("token-") or ".sqlite" in name or name.startswith("agent.db"):
                    continue
                try:
                    with open(os.path.join(where, name), "rb") as file:
                        seen[os.path.join(where, name)] = file.read().decode(errors="replace")
                except FileNotFoundError:
                    pass  # of a checkpoint that the job, which goes on, has replaced
        self.assertGreater(len(seen), 20)
        for name, text in seen.items():
            for secret in secrets:
                self.assertNotIn(secret, text, f"a secret is in {name}")

    def test_the_coordinator_says_what_is_wrong_with_its_files(self):
        files = {name: os.path.join(self.state, "access", name)
                 for name in ("coordinator.pem", "coordinator.key", "authority.key")}
        # While it runs the old certificate stays in use.
        with open(files["coordinator.pem"], encoding="utf-8") as file:
            good = file.read()
        with open(files["coordinator.pem"], "w", encoding="utf-8") as file:
            file.write("no certificate")
        self.verb("ann", "list")
        self.assertIn("the previous certificate stays in use", self.log_of("tercio-coordinator"))
        self.server.terminate()
        self.server.wait(30)

        def refused(*words):
            done = subprocess.run([os.path.join(BIN, "tercio-coordinator"), "--state-dir", self.state, "--listen",
                                   "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"], capture_output=True, text=True,
                                  env=self.environment(), timeout=60, check=False)
            self.assertEqual(done.returncode, 7, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)

        # Without it nobody knows who was revoked.
        store = os.path.join(self.state, "access", "access.sqlite")
        with open(files["coordinator.pem"], "w", encoding="utf-8") as file:
            file.write(good)
        os.rename(store, store + ".away")
        refused(store, "is missing", "restore it")
        os.rename(store + ".away", store)
        with open(files["coordinator.pem"], "w", encoding="utf-8") as file:
            file.write("no certificate")
        refused(files["coordinator.pem"], "contains no certificate")
        with open(files["coordinator.pem"], "w", encoding="utf-8") as file:
            file.write(good)
        os.chmod(files["coordinator.key"], 0o644)
        refused("other users can read it", f"chmod 600 {files['coordinator.key']}")
        os.chmod(files["coordinator.key"], 0o600)
        shutil.copy(files["authority.key"], files["coordinator.key"])
        refused(files["coordinator.key"], "does not belong to the certificate")
        os.remove(files["coordinator.key"])
        refused(files["coordinator.key"])


if __name__ == "__main__":
    python_cases.main()
