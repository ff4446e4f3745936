"""The example deploy/examples/dpo as a user runs it: dpo, orpo and kto through `tercio run`, their figures in history, plots, reports
and metrics, a job that is resumed in another layout, and what is wrong with answers."""

import json
import math
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT, TercioTest, layout  # noqa: E402

EXAMPLE = os.path.join(ROOT, "deploy", "examples", "dpo")
PAIRS = 36


class Preference(TercioTest):

    def setUp(self):
        super().setUp()
        for name in ("dpo.yaml", "ferry.jsonl"):
            shutil.copy(os.path.join(EXAMPLE, name), self.path(name))
        self.job_file = self.path("dpo.yaml")

    def train(self, state, *changes, code=0):
        return self.json("run", self.job_file, "--state-dir", state, *changes, code=code)

    def labelled(self):
        """The example's pairs as kto's lines."""
        with open(self.path("ferry.jsonl"), encoding="utf-8") as pairs, \
                open(self.path("labelled.jsonl"), "w", encoding="utf-8") as file:
            for pair in map(json.loads, pairs):
                prompt = pair.get("prompt", pair["chosen"][:1])
                for key, label in (("chosen", True), ("rejected", False)):
                    answer = pair[key] if "prompt" in pair else pair[key][1:]
                    file.write(json.dumps({"prompt": prompt, "completion": answer, "label": label}) + "\n")
        return ["--set", "training.objective=kto", "--set", "data.train=labelled.jsonl"]

    def figures(self, job, state):
        """What must be equal to the bit."""
        return [{key: value for key, value in step.items()
                 if key in ("loss", "grad_norm") or key.startswith(("rewards_", "logps_", "kl", "validation_"))}
                for step in self.history(job, state)]

    def test_dpo_learns_and_resumes_in_another_layout(self):
        shown, _ = self.tercio("data", "preview", self.job_file, "--samples", "2")
        self.assertIn("[[At nine and at four.<|im_end|>]]", shown)
        self.assertIn("[[That depends on so many things, and I could not say.<|im_end|>]]", shown)

        # The weights of a job are the reference of the next.
        first = self.train(self.path("first"), "--set", "training.epochs=1")
        self.tercio("checkpoint", "export", first["id"], "--state-dir", self.path("first"), "--format", "hf", "--output",
                    self.path("model"))
        began = ["--set", f"model.from={self.path('model')}"]
        job = self.train(self.state, *began)
        self.assertEqual((job["state"], job["step"], job["steps"]), ("succeeded", 40, 40))
        history = self.history(job["id"], self.state)
        self.assertAlmostEqual(history[0]["loss"], math.log(2), delta=1e-6)
        self.assertAlmostEqual(history[0]["rewards_margin"], 0, delta=1e-6)
        self.assertLess(history[-1]["loss"], 0.5)
        self.assertGreater(history[-1]["rewards_margin"], 0.5)
        self.assertGreater(sum(step["rewards_accuracy"] for step in history[-8:]) / 8, 0.9)
        for step in history:
            self.assertAlmostEqual(step["rewards_margin"], step["rewards_chosen"] - step["rewards_rejected"], delta=1e-9)
            self.assertNotIn("kl", step)
        evaluated = [step for step in history if step["validation_loss"] is not None]
        self.assertEqual([step["step"] for step in evaluated], [8, 16, 24, 32, 40])
        self.assertGreater(evaluated[-1]["validation_rewards_margin"], 0)

        # Half of it here, the rest in another layout, which learns the reference again.
        state = self.path("half")
        half = self.train(state, *began, "--set", "training.epochs=null", "--set", "training.steps=20",
                          "--set", "training.schedule.decay_steps=40")
        self.json("resume", half["id"], "--state-dir", state, "--set", "training.steps=40", *layout(1, 2, 2))
        self.assertEqual([one["loss"] for one in self.history(half["id"], state)], [one["loss"] for one in history])
        self.assertEqual(self.figures(half["id"], state)[-1], self.figures(job["id"], self.state)[-1])

        here = ["--state-dir", self.state]
        self.tercio("plot", job["id"], *here, "--metric", "rewards_margin,rewards_accuracy,validation_rewards_margin",
                    "--output", self.path("run.svg"))
        with open(self.path("run.svg"), encoding="utf-8") as file:
            self.assertIn("Reward margin", file.read())
        self.tercio("report", job["id"], *here, "--output", self.path("report.html"))
        with open(self.path("report.html"), encoding="utf-8") as file:
            report = file.read()
        for text in ("Reward accuracy", "reward margin", "validation reward accuracy"):
            self.assertIn(text, report)

    def test_orpo_and_kto_learn_in_every_layout(self):
        for name, changes, begin in (("orpo", ["--set", "training.objective=orpo"], None), ("kto", self.labelled(), 0.5)):
            states = {}
            for place in ("one", "four"):
                state = states[place] = self.path(name + place)
                more = layout(1, 2, 2) if place == "four" else []
                states[place] = (self.train(state, *changes, "--set", "training.epochs=2", *more)["id"], state)
            history = self.history(*states["one"])
            self.assertEqual(self.figures(*states["one"]), self.figures(*states["four"]), name)
            if begin is not None:
                self.assertAlmostEqual(history[0]["loss"], begin, delta=1e-6)
                self.assertEqual(history[0]["kl"], 0)
                self.assertNotIn("rewards_accuracy", history[0])
            self.assertLess(history[-1]["loss"], history[0]["loss"])
            self.assertGreater(history[-1]["validation_rewards_margin"], 0)

    def check_line(self, line, fault, *changes):
        path = self.path("bad.jsonl")
        shutil.copy(self.path("ferry.jsonl"), path)
        with open(path, "a", encoding="utf-8") as file:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        message = self.tercio("run", self.job_file, "--state-dir", self.state, "--set", "data.train=bad.jsonl", *changes,
                              code=2)[1]
        self.assertIn(f"bad.jsonl:{PAIRS + 1}: {fault}", message)
        self.assertFalse(os.path.exists(os.path.join(self.state, "jobs")))

    def test_faults_name_file_and_line(self):
        def says(role, text):
            return {"role": role, "content": text}

        self.check_line({"prompt": "a", "chosen": "b", "rejected": "b"}, "'chosen' and 'rejected' are the same answer")
        self.check_line({"prompt": "a", "chosen": [says("assistant", "b")], "rejected": "b"},
                        "'chosen' and 'rejected' are the same answer, as the template writes them")
        self.check_line({"prompt": "a", "chosen": [says("user", "b")], "rejected": "c"},
                        "'chosen': message 2 is user's and follows user's")
        self.check_line({"prompt": [says("butler", "a")], "chosen": "b", "rejected": "c"},
                        "message 1 has the role 'butler'; expected system, user, assistant or tool")
        self.check_line({"prompt": "a", "chosen": [], "rejected": "c"}, "'chosen' has no answer behind the prompt")
        self.check_line({"prompt": [], "chosen": "b", "rejected": "c"},
                        "'chosen': message 1 is assistant's; a conversation begins with the user")
        self.check_line({"prompt": "a", "chosen": "", "rejected": "c"}, "'chosen': message 2 (assistant) has no text")
        self.check_line({"prompt": "a", "chosen": "b"}, "the object has no 'rejected'")
        self.check_line({"chosen": "b", "rejected": "c"}, "the object has no 'prompt'")
        self.check_line({"chosen": [says("user", "a"), says("assistant", "b")],
                         "rejected": [says("user", "other"), says("assistant", "b")]},
                        "'chosen': message 1 is user's; an answer begins with the assistant")
        self.check_line("{", "not valid JSON at byte")
        out, notices = self.tercio("data", "preview", self.job_file, "--set", "data.train=bad.jsonl", "--set",
                                   "data.skip_bad_lines=true")
        self.assertIn("1 line was skipped: ", notices)
        self.assertIn("sample 1 of 64", out)
        # Nothing of the answer is left before the cut.
        with open(self.path("bad.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": "x" * 400, "chosen": "b", "rejected": "c"}) + "\n")
        _, notices = self.tercio("data", "preview", self.job_file, "--set", "data.train=bad.jsonl", "--set",
                                 "data.skip_bad_lines=true")
        self.assertIn(f"1 line is left out, the first is {self.path('bad.jsonl')}:{PAIRS + 2}: no token of an answer is left",
                      notices)
        kto = self.labelled()
        with open(self.path("labelled.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": "a", "completion": "b", "label": "good"}) + "\n")
        message = self.tercio("run", self.job_file, "--state-dir", self.state, *kto, code=2)[1]
        self.assertIn(f"labelled.jsonl:{2 * PAIRS + 1}: 'label' is neither true nor false", message)
        message = self.tercio("run", self.job_file, "--state-dir", self.state, "--set", "training.objective=kto", code=2)[1]
        self.assertIn("ferry.jsonl:1: the object has no 'completion'", message)

    def test_faults_of_the_job_name_the_key(self):
        for changes, fault in (
                (["training.global_batch=7"], "training.global_batch: 7 is odd, and would cut a pair"),
                (["training.micro_batch=1"], "training.micro_batch: 1 is odd, and would cut a pair"),
                (["training.lanes=8"], "training.lanes: 8 lanes of global_batch 8 would cut a pair of answers; use at most 4"),
                (["training.label_smoothing=0.1"], "training.label_smoothing: changes probabilities of tokens"),
                (["training.preference.beta=0"], "training.preference.beta: "),
                (["training.preference.loss=other"], "'other' is not one of sigmoid, hinge, ipo"),
                (["training.preference.desirable_weight=2"], "only training.objective: kto has it"),
                (["training.objective=orpo", "training.preference.loss=ipo"], "only training.objective: dpo has it"),
                (["training.objective=sft"], "training.preference: only training.objective: dpo, orpo and kto"),
                (["data.loss_on=all"], "data.loss_on: only training.objective: sft has a choice"),
                (["data.train=other.txt"], "training.objective: dpo learns from .jsonl files")):
            message = self.tercio("run", self.job_file, "--state-dir", self.state,
                                  *[word for change in changes for word in ("--set", change)], code=2)[1]
            self.assertIn(fault, message)


if __name__ == "__main__":
    python_cases.main()
