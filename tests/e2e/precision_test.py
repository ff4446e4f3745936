"""training.precision and fault_tolerance.on_nan as a user meets them."""

import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "huggingface", "fixtures")
CONTEXT, BATCH, STEPS, BAD_TOKEN = 64, 8, 6, 30  # one epoch

FROM_LLAMA = """
name: tuned
model: {from: llama}
data: {train: tokens}
training:
  steps: 6
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
checkpoint: {every_steps: 1, keep_last: 10}
"""


class Precision(TercioTest):

    def curve(self, job, state):
        steps = self.history(job, state)
        return [(line, step.get("skipped"), step.get("loss_scale"))
                for line, step in zip(super().curve(job, state), steps)]

    def test_fp16_finds_its_scale_and_says_which_steps_it_cost(self):
        fp16 = ("--set", "training.precision=fp16", "--set", "training.schedule.decay_steps=24")
        whole = self.path("whole")
        reference = self.run_job(whole, *fp16, "--set", "training.steps=24")
        steps = self.history(reference["id"], whole)
        skipped = [step for step in steps if step.get("skipped")]
        self.assertTrue(steps[0]["skipped"])
        self.assertEqual(steps[0]["loss_scale"], 2**32)
        self.assertIsNone(steps[0]["grad_norm"])
        self.assertIsNotNone(steps[0]["loss"])
        self.assertNotIn("skipped", steps[-1])
        self.assertLess(steps[-1]["loss_scale"], 2**32)
        # The schedule goes by the steps that were taken: a skipped one does not move it.
        self.assertEqual(steps[0]["learning_rate"], steps[1]["learning_rate"])
        out, _ = self.tercio("events", reference["id"], "--state-dir", whole, "-o", "jsonl")
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(sum(event["kind"] == "step_skipped" for event in events), len(skipped))

        # In parts, in other layouts, stopped while the scale is being found.
        first = self.run_job(self.state, *fp16, "--set", "training.steps=7", *layout(1, 2, 2))
        resumed = self.json("resume", first["id"], "--state-dir", self.state, "--set", "training.steps=24",
                            *layout(1, 1, 2))
        self.assertEqual(resumed["state"], "succeeded")
        ours = {line[0][0]: line for line in self.curve(first["id"], self.state)}
        for line in self.curve(reference["id"], whole):
            # Step 7 was a last step once, and evaluated.
            mine = ours[line[0][0]]
            self.assertEqual((mine[0][:-1], mine[1:]), (line[0][:-1], line[1:]))

        exported = self.path("exported")
        self.tercio("checkpoint", "export", reference["checkpoint"]["path"], "--format", "hf", "--output", exported)
        self.assertIn("config.json", os.listdir(exported))

        changed = self.json("resume", first["id"], "--state-dir", self.state, "--set", "training.steps=26", "--set",
                            "training.precision=bf16")
        self.assertEqual(changed["state"], "succeeded")
        last = self.history(first["id"], self.state)[-1]
        self.assertEqual((last["step"], "loss_scale" in last), (26, False))
        self.assertAlmostEqual(last["loss"], resumed["loss"], delta=0.5)


class OnNan(TercioTest):
    """A model with one token that is not a number, and data that holds this token once."""

    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(FIXTURES, "llama"), self.path("llama"))
        self.poison(BAD_TOKEN)
        tokens = [(i * i + 3 * i // 7) % BAD_TOKEN for i in range(CONTEXT * BATCH * STEPS + 1)]
        tokens[CONTEXT * 26 + 3] = BAD_TOKEN
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        with open(self.path("tokens.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) +
                       struct.pack("<q", 0) + struct.pack("<qq", 0, 1))
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(FROM_LLAMA)

    def poison(self, token):
        name = "model.embed_tokens.weight"
        with open(self.path("llama", "model.safetensors.index.json"), encoding="utf-8") as file:
            path = self.path("llama", json.load(file)["weight_map"][name])
        with open(path, "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            tensor = json.loads(file.read(size))[name]
            self.assertEqual(tensor["dtype"], "F32")
            file.seek(8 + size + tensor["data_offsets"][0] + token * tensor["shape"][1] * 4)
            file.write(struct.pack("<f", float("nan")))

    def test_stop_says_where_and_keeps_the_last_checkpoint(self):
        job = self.run_job(self.state, *layout(1, 1, 2), code=1)
        self.assertEqual((job["state"], job["attempt"]), ("failed", 1))
        self.assertRegex(job["error"], r"step [1-6]: the loss of sequence [0-7] is nan \(rank [01]\)")
        self.assertIn("on_nan: skip", job["error"])
        bad = job["step"] + 1
        self.assertGreater(bad, 1)
        self.assertEqual(job["checkpoint"]["step"], bad - 1)
        # The same job goes over that step when it is told to.
        resumed = self.json("resume", job["id"], "--state-dir", self.state, "--set", "fault_tolerance.on_nan=skip")
        self.assertEqual(resumed["state"], "succeeded")
        self.assertEqual([step["step"] for step in self.history(job["id"], self.state) if step.get("skipped")], [bad])

    def test_all_ranks_decide_alike(self):
        """Stages, shards and replicas: one rank of eight sees the number, all skip its step and none other."""
        skip = ("--set", "fault_tolerance.on_nan=skip")
        job = self.run_job(self.state, *skip, *layout(2, 2, 2))
        self.assertEqual((job["state"], job["step"], job["attempt"], job["restarts"]), ("succeeded", STEPS, 1, 0))
        other = self.path("other")
        alone = self.run_job(other, *skip, *layout(2, 1, 1))
        curves = [[(line, step.get("skipped")) for line, step in zip(self.curve(i, at), self.history(i, at))]
                  for i, at in ((job["id"], self.state), (alone["id"], other))]
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(sum(bool(skipped) for _, skipped in curves[0]), 1)
        out, _ = self.tercio("logs", job["id"], "--state-dir", self.state)
        self.assertEqual(out.count("skipped step"), 1, "rank 0 says it for all")

    def test_skip_goes_on(self):
        job = self.run_job(self.state, "--set", "training.precision=bf16", "--set",
                           "fault_tolerance.on_nan=skip", *layout(1, 2, 1))
        self.assertEqual((job["state"], job["step"]), ("succeeded", STEPS))
        skipped = [step for step in self.history(job["id"], self.state) if step.get("skipped")]
        self.assertEqual(len(skipped), 1)
        self.assertIsNone(skipped[0]["loss"])
        self.assertIsNone(skipped[0]["grad_norm"])
        out, _ = self.tercio("logs", job["id"], "--state-dir", self.state)
        self.assertRegex(out, r"skipped step [1-6]: the loss of sequence [0-7] is nan \(rank 1\)")
        self.assertRegex(out, r"bf16 products: (AVX512_BF16, |fp32 arithmetic: )")


if __name__ == "__main__":
    python_cases.main()
