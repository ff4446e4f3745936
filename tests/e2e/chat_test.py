"""The example deploy/examples/chat as a user runs it: what a preview shows, training in layouts, and what is wrong with
conversations."""

import json
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

EXAMPLE = os.path.join(ROOT, "deploy", "examples", "chat")


class Chat(TercioTest):

    def setUp(self):
        super().setUp()
        for name in ("chat.yaml", "lighthouse.jsonl"):
            shutil.copy(os.path.join(EXAMPLE, name), self.path(name))
        self.job_file = self.path("chat.yaml")

    def train(self, state, *changes, code=0):
        return self.json("run", self.job_file, "--state-dir", state, *changes, code=code)

    def preview(self, *options):
        return self.json("data", "preview", self.job_file, *options)

    def test_the_example_is_shown_and_trained_in_every_layout(self):
        shown, _ = self.tercio("data", "preview", self.job_file, "--samples", "1")
        self.assertIn("sample 1 of 32: ", shown)
        self.assertIn("<|im_start|>user\nWhen does the lamp go on?<|im_end|>\n<|im_start|>assistant\n"
                      "[[At dusk, every day of the year.<|im_end|>]]", shown)
        first = self.preview("--samples", "1")[0]
        counted = bytes(token["id"] for token in first["tokens"] if token["counts"]).decode()
        self.assertEqual(counted, "At dusk, every day of the year.<|im_end|>")
        self.assertEqual(first["counted"], len(counted))
        last = self.preview("--first", "32", "--samples", "9", "--set", "data.loss_on=all")
        self.assertEqual([sample["sample"] for sample in last], [32])
        self.assertEqual(last[0]["counted"], len(last[0]["tokens"]) - 1)

        job = self.train(self.state)
        self.assertEqual((job["state"], job["step"], job["steps"]), ("succeeded", 40, 40))
        history = self.history(job["id"], self.state)
        # A model without training gives each of 256 bytes about the same chance: 5.5 nats.
        self.assertAlmostEqual(history[0]["loss"], 5.55, delta=0.25)
        self.assertLess(history[-1]["loss"], 0.6 * history[0]["loss"])
        self.assertEqual([step["step"] for step in history if step["validation_loss"] is not None], [20, 40])
        for name, changes in (("pipeline", layout(1, 2, 1)), ("data", layout(1, 1, 2))):
            state = self.path(name)
            other = self.train(state, *changes)
            self.assertEqual(self.curve(other["id"], state), self.curve(job["id"], self.state), name)
        state = self.path("tensor")
        other = self.history(self.train(state, "--set", "training.epochs=1",
                                        *layout(2, 1, 1))["id"], state)
        for a, b in zip(history, other):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-4)

    def test_what_counts_decides_what_is_learnt(self):
        losses = {}
        for loss_on in ("assistant", "all", "last"):
            state = self.path(loss_on)
            job = self.train(state, "--set", f"data.loss_on={loss_on}", "--set", "training.epochs=1")
            losses[loss_on] = self.history(job["id"], state)[-1]["loss"]
        self.assertEqual(len(set(losses.values())), 3, losses)

    def test_conversations_share_sequences(self):
        packed = ["--set", "data.packing=true", "--set", "model.context=704"]
        out, notices = self.tercio("data", "preview", self.job_file, *packed, "--samples", "1")
        found = re.search(r"notice: .*lighthouse.jsonl: 32 conversations of the training part packed into (\d+) sequences, "
                          r"([\d.]+) % full \(([\d.]+) % without packing\)", notices)
        self.assertIsNotNone(found, notices)
        sequences = int(found[1])
        self.assertLessEqual(3 * sequences, 36)
        self.assertGreater(float(found[2]), 2.5 * float(found[3]))
        self.assertRegex(out, rf"sample 1 of {sequences}: [3-9] conversations, \d+ tokens, \d+ count")
        self.assertIn("\n--- conversation 2\n<|im_start|>", out)
        self.assertIn("[[At dusk, every day of the year.<|im_end|>]]", out)
        shown = self.preview(*packed, "--samples", str(sequences))
        self.assertEqual(len(shown), sequences)
        count = 0
        for sample in shown:
            count += sample["tokens"][-1]["conversation"]
            self.assertLessEqual(len(sample["tokens"]), 704 + sample["tokens"][-1]["conversation"])
        self.assertEqual(count, 32)

        packed += ["--set", "training.global_batch=4", "--set", "training.evaluate.every_epochs=2", "--set", "training.epochs=8"]
        job = self.train(self.state, *packed, *layout(2, 1, 1))
        steps = -(-8 * sequences // 4)
        self.assertEqual((job["state"], job["steps"]), ("succeeded", steps))
        self.assertLess(steps, 8 * 32 // 4 // 2)
        history = self.history(job["id"], self.state)
        self.assertLess(history[-1]["loss"], 0.8 * history[0]["loss"])
        # Half of it, and the rest in another layout: the same sequences in the same order.
        state = self.path("half")
        half = self.train(state, *packed, "--set", "training.epochs=null", "--set", f"training.steps={steps // 2}",
                          "--set", f"training.schedule.decay_steps={steps}", "--set", "training.evaluate.every_epochs=null",
                          *layout(2, 2, 1))
        self.json("resume", half["id"], "--state-dir", state, "--set", f"training.steps={steps}", *layout(2, 1, 2))
        self.assertEqual([(step["loss"], step["grad_norm"]) for step in self.history(half["id"], state)],
                         [(step["loss"], step["grad_norm"]) for step in history])

    def test_other_data_does_not_resume_a_job(self):
        job = self.train(self.state, "--set", "training.epochs=1")
        message = self.tercio("resume", job["id"], "--state-dir", self.state, "--set", "training.epochs=2",
                              "--set", "data.template=zephyr", code=1)[1]
        self.assertIn("the job's data has changed", message)

    def test_faults_name_file_and_line(self):
        with open(self.path("lighthouse.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"messages": [{"role": "assistant", "content": "Hello?"}]}) + "\n")
        message = self.tercio("run", self.job_file, "--state-dir", self.state, code=2)[1]
        self.assertIn("lighthouse.jsonl:37: message 1 is assistant's; a conversation begins with the user", message)
        out, notices = self.tercio("data", "preview", self.job_file, "--set", "data.skip_bad_lines=true")
        self.assertIn("1 line was skipped: ", notices)
        self.assertIn("sample 3 of 32", out)
        for change, fault in (
                ("data.template=auto", "data.template: auto: the tokenizer 'bytes' comes with no chat template"),
                ("data.template=none", "data.template: 'none' is not one of auto, chatml"),
                ("training.objective=pretrain", "data.template: only training.objective: sft learns from conversations"),
                ("model.context=20", "no conversation has a token that counts for the loss"),
                ("data.train=other.txt", "training.objective: sft learns from .jsonl files")):
            message = self.tercio("run", self.job_file, "--state-dir", self.state, "--set", change,
                                  "--set", "data.skip_bad_lines=true", code=2)[1]
            self.assertIn(fault, message)
        message = self.tercio("data", "preview", self.path("job.yaml"), code=2)[1]
        self.assertIn("data preview shows conversations", message)


if __name__ == "__main__":
    python_cases.main()
