"""Data ranks that divide the training state, as processes: the bits of ranks that have all of it, through a kill and a resumption in
any other division; and what the state takes."""

import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, ClusterTest, TercioTest, wait_for  # noqa: E402

STEPS = 60
# What a rank waits in, where its peers share the state.
NAMED_CALL = r"waits? in (gather of (layers\.\d+|embedding|head|table)|sum of (layers\.\d+|embedding|head|table), round \d+) #"


def divided(tensor, pipeline, data, stage, more=""):
    return ["--set", f"parallelism={{tensor: {tensor}, pipeline: {pipeline}, data: {data}, zero_stage: {stage}{more}}}",
            "--set", f"resources.ranks={tensor * pipeline * data}"]


class Sharding(TercioTest):

    memory = None  # bytes of the machine, for programs that start from now on; None: those that it has

    def environment(self):
        if self.memory is None:
            return super().environment()
        library = os.path.join(ROOT, "bazel-bin", "common", "testing", "small_machine", "libsmall_machine.so")
        return {**super().environment(), "LD_PRELOAD": library, "SMALL_MACHINE": str(self.memory)}

    def trained(self, name, *changes):
        job = self.run_job(self.path(name), *changes)
        self.assertEqual((job["state"], job["step"]), ("succeeded", STEPS), name)
        return job, self.curve(job["id"], self.path(name))

    def digests(self, job, state):
        """By step, of the steps that have one."""
        history = self.json("history", job["id"], "--state-dir", state)
        return {step["step"]: step["state_digest"] for step in history if "state_digest" in step}

    def saved_digest(self, job):
        with open(os.path.join(job["checkpoint"]["path"], "manifest.json"), encoding="utf-8") as file:
            return json.load(file)["training_state"]["state_digest"]

    def test_one_number_for_a_state(self):
        every = ["--set", "fault_tolerance.check_replicas_every=20"]
        found = {}
        for name, degrees in (("whole", (1, 1, 1, 0)), ("stages", (1, 2, 2, 3)), ("tensor", (2, 1, 2, 1)), ("tensor whole", (2, 1, 1, 0))):
            job, _ = self.trained(name, *divided(*degrees), *every)
            found[name] = self.digests(job, self.path(name))
            self.assertEqual(list(found[name]), [20, 40, 60], name)
            self.assertEqual(self.saved_digest(job), found[name][60], name)
            verified = self.json("checkpoint", "verify", job["id"], "--state-dir", self.path(name))
            self.assertTrue(all(each["ok"] for each in verified), verified)
        self.assertEqual(found["stages"], found["whole"])
        # Sums over tensor ranks have bits of their own.
        self.assertEqual(found["tensor"], found["tensor whole"])
        self.assertNotEqual(found["tensor"], found["whole"])
        # What is loaded in another layout is what was saved, and training goes on from there with equal bits.
        state = self.path("parts")
        longer = ("--set", f"training.schedule.decay_steps={STEPS}", *every)
        first = self.run_job(state, "--set", "training.steps=20", *longer, *divided(1, 2, 2, 3))
        last = self.json("resume", first["id"], "--state-dir", state, "--set", f"training.steps={STEPS}", *divided(1, 1, 2, 1))
        self.assertEqual(self.digests(last, state), found["whole"])
        logs, _ = self.tercio("logs", first["id"], "--state-dir", state)
        self.assertIn(f"the state of step 20 is what was saved: digest {found['whole'][20]}", logs)

    def test_frozen_tensors(self):
        """They take what their weights take, are in checkpoints without moments, and a run continues in any division."""
        every = ["--set", "fault_tolerance.check_replicas_every=20", "--set", "training.precision=bf16"]
        frozen = [*every, "--set", "training.frozen=[embedding.*, layers.0.*]"]
        state = self.path("whole")
        job = self.run_job(state, *divided(1, 1, 1, 0), *frozen)
        self.assertEqual((job["state"], job["step"]), ("succeeded", STEPS))
        with open(os.path.join(job["checkpoint"]["path"], "manifest.json"), encoding="utf-8") as file:
            tensors = json.load(file)["tensors"]
        for tensor in ("embedding.token.weight", "layers.0.mlp.up.weight"):
            self.assertIn(tensor, tensors)
            self.assertNotIn(f"adamw.m.{tensor}", tensors)
        self.assertIn("adamw.v.layers.1.mlp.up.weight", tensors)
        parts = self.path("parts")
        longer = ("--set", f"training.schedule.decay_steps={STEPS}", *frozen)
        first = self.run_job(parts, "--set", "training.steps=20", *longer, *divided(1, 2, 2, 3))
        last = self.json("resume", first["id"], "--state-dir", parts, "--set", f"training.steps={STEPS}", *divided(1, 1, 2, 1))
        # An evaluation that a shorter job makes at its end is not compared.
        self.assertEqual([step[:5] for step in self.curve(last["id"], parts)], [step[:5] for step in self.curve(job["id"], state)])
        self.assertEqual(self.digests(last, parts), self.digests(job, state))
        verified = self.json("checkpoint", "verify", last["id"], "--state-dir", parts)
        self.assertTrue(all(each["ok"] for each in verified), verified)

        def planned(changes):
            report = self.json("plan", self.path("job.yaml"), *divided(1, 2, 2, 1), *changes)
            return {division["zero_stage"]: division["state_bytes"] for division in report["divisions"]}[1]

        self.assertLess(planned(frozen), planned(every))

    def test_equal_bits_and_any_resumption(self):
        _, whole = self.trained("whole", *divided(1, 1, 1, 0))
        for name, degrees in (("two", (1, 1, 2)), ("stages", (1, 2, 2))):
            for precision in ("fp32", "bf16"):
                changes = ["--set", f"training.precision={precision}"]
                _, expected = self.trained(f"{name}-{precision}-whole", *divided(*degrees, 0), *changes)
                for stage in (1, 2, 3):
                    job, curve = self.trained(f"{name}-{precision}-{stage}", *divided(*degrees, stage), *changes)
                    self.assertEqual(curve, expected, (name, precision, stage))
                    self.assertEqual(job["plan"]["zero_stage"], stage)
                if precision == "fp32":
                    self.assertEqual(expected, whole)
        state = self.path("parts")
        changes = ("--set", "training.steps=20", "--set", f"training.schedule.decay_steps={STEPS}")
        first = self.run_job(state, *changes, *divided(1, 1, 4, 1))
        for steps, degrees in ((30, (1, 1, 1, 0)), (40, (1, 2, 2, 3)), (50, (1, 1, 2, 2)), (STEPS, (1, 4, 2, 0))):
            self.json("resume", first["id"], "--state-dir", state, "--set", f"training.steps={steps}", *divided(*degrees))
        curve = self.curve(first["id"], state)
        self.assertEqual(len(curve), STEPS)
        # An evaluation that a shorter job makes at its end is not compared.
        self.assertEqual([step[:5] for step in curve], [step[:5] for step in whole])

    def test_stages_of_unequal_layers(self):
        _, whole = self.trained("whole", *divided(1, 1, 1, 0))
        unequal = divided(1, 3, 1, 0, ", stage_layers: [1, 2, 1]")
        for name, changes, layers in (("named", unequal, [1, 2, 1]), ("gathered", divided(1, 2, 2, 3, ", stage_layers: [3, 1]"), [3, 1]),
                                      ("left open", divided(1, 3, 1, 0), [1, 2, 1]), ("equal", divided(1, 2, 1, 0, ", stage_layers: [2, 2]"), None)):
            job, curve = self.trained(name, *changes)
            self.assertEqual(curve, whole, name)
            self.assertEqual(job["plan"]["stage_layers"], layers, name)
        # Into other stages, and back.
        state = self.path("parts")
        first = self.run_job(state, "--set", "training.steps=20", "--set", f"training.schedule.decay_steps={STEPS}", *unequal)
        for steps, changes in ((30, divided(1, 4, 1, 0)), (40, divided(1, 2, 2, 1, ", stage_layers: [1, 3]")), (50, divided(1, 1, 2, 3)), (STEPS, unequal)):
            self.json("resume", first["id"], "--state-dir", state, "--set", f"training.steps={steps}", *changes)
        # An evaluation that a shorter job makes at its end is not compared.
        self.assertEqual([step[:5] for step in self.curve(first["id"], state)], [step[:5] for step in whole])
        out, _ = self.tercio("get", first["id"], "--state-dir", state)
        self.assertIn("pipeline 3 (1, 2, 1)", out)
        out, _ = self.tercio("plan", self.path("job.yaml"), *unequal)
        self.assertIn("3 (1, 2, 1)", out)
        out, _ = self.tercio("plan", self.path("job.yaml"), *unequal, "--effective")
        self.assertIn("stage_layers: [1, 2, 1]", out)
        for layers, fault in (("[1, 3]", "has 2 numbers, but pipeline 3 needs 3"), ("[1, 2, 2]", "adds up to 5 layers, but the model has 4"),
                              ("[4, 0, 0]", "'0': expected whole numbers")):
            _, err = self.tercio("run", self.path("job.yaml"), *divided(1, 3, 1, 0, f", stage_layers: {layers}"), code=2)
            self.assertIn(f"parallelism.stage_layers: {fault}", err)

    def test_groups_kept_layers_and_disks(self):
        _, whole = self.trained("whole", *divided(1, 1, 1, 0))
        on_disk = ["--set", "offload={optimizer: nvme, parameters: nvme, activations: nvme}"]
        for name, changes in (("groups", divided(1, 1, 4, 3, ", shard: 2, prefetch: 2")),
                              ("kept by neighbours", divided(1, 1, 4, 3, ", reshard_after_forward: 2, prefetch: 0")),
                              ("kept whole", divided(1, 2, 2, 3, ", reshard_after_forward: false")),
                              ("one rank's disk", divided(1, 1, 1, 3) + on_disk),
                              ("disks", divided(1, 1, 2, 3) + on_disk)):
            job, curve = self.trained(name, *changes)
            self.assertEqual(curve, whole, name)
            # What is in a scratch file is gone with its process.
            self.assertEqual(os.listdir(self.path(name, "agent", "scratch")), [])
        report = self.json("plan", self.path("job.yaml"), *divided(1, 1, 4, 2, ", shard: 2"))
        self.assertEqual([division["zero_stage"] for division in report["divisions"]], [0, 1, 2, 3])
        self.assertEqual((report["layouts"][0]["shard"], report["layouts"][0]["reshard_after_forward"]), (2, True))
        _, err = self.tercio("plan", self.path("job.yaml"), *divided(1, 1, 2, 1), "--set", "offload.parameters=nvme", code=2)
        self.assertIn("offload.parameters: the model's layers are read from there one by one; set parallelism.zero_stage: 3", err)

    def test_as_much_on_disk_as_must_be(self):
        for name, changes in (("one rank", divided(1, 1, 1, 1)), ("two ranks", divided(1, 1, 2, 1) + ["--set", "training.precision=bf16"])):
            self.memory = None
            # A micro-batch that is left open becomes smaller first.
            changes += ["--set", "model.hidden=64", "--set", "training.micro_batch=1"]
            ranks = int(changes[3].rpartition("=")[2])
            _, whole = self.trained(f"{name}, whole", *changes)

            def planned(share, changes=changes):
                offload = ("--set", f"offload={{optimizer: nvme, share: {share}}}")
                report = self.json("plan", self.path("job.yaml"), *changes, *offload)
                return report["layouts"][report["chosen"]]

            # With the memory that there is, nothing has to be elsewhere.
            self.assertEqual(planned("auto")["offload_share"], 0)
            self.assertIsNone(planned(1)["offload_share"])
            most, least = (planned(share)["predicted"]["memory_bytes_peak"] for share in (0.125, 1))
            self.assertLess(least, most)
            self.memory = ranks * (most + least) // 2
            chosen = planned("auto")
            print(name, "share", chosen["offload_share"], "of", self.memory, "bytes", file=sys.stderr)
            self.assertTrue(0.125 < chosen["offload_share"] < 1, chosen)
            self.assertLessEqual(chosen["predicted"]["memory_bytes_peak"], (most + least) // 2)
            offload = ["--set", "offload={optimizer: nvme, share: auto}"]
            _, said = self.tercio("plan", self.path("job.yaml"), *changes, *offload)
            self.assertIn(f"offload: {100 * chosen['offload_share']:g} % of the optimizer's state lies there (nvme)", said)
            self.assertIn("--scratch directory", said)
            job, curve = self.trained(name, *changes, *offload)
            self.assertEqual(curve, whole, name)
            self.assertTrue(0 < job["plan"]["offload_share"] < 1, job["plan"])
            # Without the offload it does not fit.
            self.tercio("plan", self.path("job.yaml"), *changes, code=2)

    def test_block_formats(self):
        formats = ["--set", "training.weight_format=int8", "--set", "training.gradient_format=int4"]
        _, plain = self.trained("plain", *divided(1, 1, 1, 0))
        _, whole = self.trained("whole", *divided(1, 1, 1, 0), *formats)
        self.assertNotEqual(whole, plain)
        for name, changes in (("two", divided(1, 1, 2, 0)), ("stage 2", divided(1, 1, 4, 2)), ("stage 3", divided(1, 2, 2, 3))):
            _, curve = self.trained(name, *changes, *formats)
            self.assertEqual(curve, whole, name)
        sent = [self.json("plan", self.path("job.yaml"), *divided(1, 1, 4, 3), *more)["divisions"][3] for more in ([], formats)]
        self.assertLess(sent[1]["sent_bytes_per_step"], 0.3 * sent[0]["sent_bytes_per_step"])
        _, err = self.tercio("plan", self.path("job.yaml"), "--set", "training.weight_format=int4", code=2)
        self.assertIn("training.weight_format: int4 is for gradients only; use int8 or none", err)

    def test_a_checkpoint_is_read_by_one_rank(self):
        job, _ = self.trained("state", *divided(2, 1, 2, 3))
        checkpoint = job["checkpoint"]["path"]
        answer = self.json("generate", "--checkpoint", checkpoint, "--prompt", "red ", "--tokens", "8", "--temperature", "0")
        exported = self.path("exported")
        self.tercio("checkpoint", "export", job["id"], "--state-dir", self.path("state"), "--format", "hf", "--output", exported)
        ids = ("--tokens", "8", "--temperature", "0", "--prompt", "red ")
        self.assertEqual(self.json("generate", "--checkpoint", exported, *ids)["text"], answer["text"])

    def test_memory(self):
        """What each stage saves of the whole state, at least, on four ranks: of 4 layers of 12 * 256 * 256 weights and more."""
        sizes = {}
        for stage in (0, 1, 2, 3):
            report = self.json("plan", self.path("job.yaml"), *divided(1, 1, 4, stage), "--set", "model.hidden=256")
            sizes[stage] = report["layouts"][0]["predicted"]["memory_bytes_peak"]
            self.assertEqual(report["layouts"][0]["zero_stage"], stage)
        layers = 4 * 12 * 256 * 256
        # Three quarters of 8 bytes of moments.
        self.assertGreater(sizes[0] - sizes[1], 0.95 * 6 * layers)
        # Sums of two lanes: two buffers of a quarter, and two of a layer, in place of a whole one and one of a layer.
        self.assertGreater(sizes[1] - sizes[2], 0.95 * 4 * layers * (1 + 1 / 4 - 2 / 4 - 2 / 4))
        # A quarter of the weights, and two layers, in place of all.
        self.assertGreater(sizes[2] - sizes[3], 0.8 * 4 * layers * (1 - 1 / 4 - 2 / 4))


class ShardingInCluster(ClusterTest):

    def test_a_scratch_directory_that_cannot_be_used(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2, "--scratch", "/proc")
        job = self.submit("--set", "offload.optimizer=nvme", *divided(1, 1, 2, 1))
        self.tercio(*self.reach("wait", job), code=1)
        status = self.get(job)
        self.assertEqual((status["state"], status["restarts"]), ("failed", 0))
        self.assertIn("scratch space in /proc", status["error"])

    # The call of a rank that waits, by the unit and the round it is for.
    def test_a_hang_names_unit_and_round(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 2)
        changes = ("--set", "training.steps=100000", "--set", "fault_tolerance.hang_timeout=5s", "--set",
                   "fault_tolerance.max_restarts=0", "--set", "model.hidden=256", *divided(1, 1, 2, 3))
        messages = []
        # A rank may be stopped where the others wait in the sum of losses, which is of no unit.
        while len(messages) < 5 and not any(re.search(NAMED_CALL, message) for message in messages):
            job = self.submit(*changes)
            self.after_step(job, 3)
            os.kill(self.trainers(job)[1], signal.SIGSTOP)
            self.tercio(*self.reach("wait", job), code=1)
            messages += [event["message"] for event in self.events(job) if event["kind"] == "hang"]
        self.assertRegex(messages[-1], NAMED_CALL)

    def position(self, pid):
        """What the trainer does, and the collective that it waits in: texts of its progress page (progress_page.cc)."""
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        with open(words[words.index(b"--progress") + 1], "rb") as file:
            page = file.read(168)
        return tuple(text.split(b"\0")[0].decode() for text in (page[48:88], page[136:168]))

    def test_kill_at_every_kind_of_step(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 4)
        # Snapshots and checks of replicas are short, and met only if there are many of them.
        changes = ("--set", "training.steps=600", "--set", "checkpoint.every_steps=5", "--set", "fault_tolerance.max_restarts=100",
                   "--set", "fault_tolerance.check_replicas_every=1",
                   "--set", "offload={optimizer: nvme, parameters: nvme}", *divided(1, 2, 2, 3))
        undisturbed = self.submit(*changes)
        self.tercio(*self.reach("wait", undisturbed))
        broken = self.submit(*changes)
        self.after_step(broken, 10)
        met = []
        for kind in ("forward", "backward", "gradient sum", "optimizer", "snapshot", "replica check", "gather of", "sum of layers"):
            restarts = self.get(broken)["restarts"]
            deadline = time.monotonic() + 30
            while len(met) == restarts and time.monotonic() < deadline:
                for pid in self.trainers(broken):
                    try:
                        action, call = self.position(pid)
                    except (OSError, ValueError):
                        continue  # it has ended, or has not begun
                    if action.startswith(kind) or call.startswith(kind):
                        os.kill(pid, signal.SIGKILL)
                        met.append(kind)
                        break
            if len(met) > restarts:
                wait_for(lambda: self.get(broken)["restarts"] > restarts, "a restart")
        self.tercio(*self.reach("wait", broken))
        print("killed in", met, file=sys.stderr)
        self.assertGreaterEqual(len(met), 6)
        self.assertEqual(self.curve_of(broken), self.curve_of(undisturbed))

    def test_kill_and_restart(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "one", 4)
        changes = ("--set", "training.steps=200", "--set", "checkpoint.every_steps=20", "--set", "offload={optimizer: nvme, parameters: nvme}",
                   *divided(1, 2, 2, 3))
        undisturbed = self.submit(*changes)
        self.tercio(*self.reach("wait", undisturbed))
        broken = self.submit(*changes)
        self.after_step(broken, 30)
        os.kill(self.trainers(broken)[1], signal.SIGKILL)
        self.tercio(*self.reach("wait", broken))
        self.assertGreaterEqual(self.get(broken)["restarts"], 1)
        self.assertEqual(self.curve_of(broken), self.curve_of(undisturbed))


if __name__ == "__main__":
    python_cases.main()
