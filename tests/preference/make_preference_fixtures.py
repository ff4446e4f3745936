"""Writes fixtures/losses.json: what TRL's trainers make of log-probabilities of answers, with gradients by autograd. Run by
hand, once:

    python3 -m venv ~/trl-venv && ~/trl-venv/bin/pip install torch trl==1.16.0
    ~/trl-venv/bin/python tests/preference/make_preference_fixtures.py

[{"objective", "beta", "loss", "desirable_weight", "undesirable_weight",
  "answers": [{"log_probability", "reference", "tokens", "desirable"}], of pairs the chosen one and then the rejected one,
  "mismatched": [{"log_probability", "reference"}], of kto: what its divergence is made of,
  "loss_value", "gradients": d(loss) / d(log_probability) of each answer, "figures": TRL's metrics}]

The losses are those of DPOTrainer._compute_loss, KTOTrainer._compute_loss and ORPOTrainer.get_batch_loss_metrics, called with a
model that answers with the log-probabilities. ORPO's negative log-likelihood is given: that of the chosen answer, a mean over
its tokens and then over pairs, as Hong et al. 2024 define it (TRL takes prompt and answer, and a mean over the tokens of all).
"""

import json
import os
import random
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import DPOTrainer, KTOTrainer
from trl.experimental.orpo import ORPOTrainer

PAIRS = 4


class Accelerator:
    device = torch.device("cpu")

    def gather(self, value):
        return value

    gather_for_metrics = gather


def answers_of(random_numbers, count):
    answers = []
    for i in range(count):
        tokens = random_numbers.randint(2, 9)
        answers.append({"log_probability": -tokens * random_numbers.uniform(0.05, 3.5),
                        "reference": -tokens * random_numbers.uniform(0.05, 3.5), "tokens": tokens,
                        "desirable": i % 2 == 0})
    return answers


class Model:
    """Answers with one log-probability a sequence, dealt out evenly over its tokens."""

    def __init__(self, sums, mask):
        self.sums, self.mask = sums, mask

    def __call__(self, **_):
        counted = self.mask[:, 1:].double()
        zeros = torch.zeros_like(counted)
        return SimpleNamespace(log_probs=counted * (self.sums / counted.sum(1))[:, None], entropy=zeros, mean_logits=zeros,
                               is_top1=zeros.bool())


def inputs_of(answers):
    longest = max(answer["tokens"] for answer in answers)
    mask = torch.tensor([[0] * 3 + [1] * answer["tokens"] + [0] * (longest - answer["tokens"]) for answer in answers])
    sums = torch.tensor([answer["log_probability"] for answer in answers], dtype=torch.float64, requires_grad=True)
    references = torch.tensor([answer["reference"] for answer in answers], dtype=torch.float64)
    return sums, references, {"input_ids": torch.zeros_like(mask), "attention_mask": torch.ones_like(mask),
                              "completion_mask": mask}


def trainer_of(**fields):
    return SimpleNamespace(model=SimpleNamespace(training=True), accelerator=Accelerator(), aux_loss_enabled=False,
                           _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
                           precompute_ref_logps=True, **fields)


def figures_of(trainer):
    return {name: values[-1] for name, values in trainer._metrics["train"].items()
            if name.startswith(("rewards/", "logps/", "kl"))}


def dpo(answers, beta, loss):
    # TRL's batch has all chosen answers first.
    order = list(range(0, len(answers), 2)) + list(range(1, len(answers), 2))
    sums, references, inputs = inputs_of([answers[i] for i in order])
    trainer = trainer_of(beta=beta, loss_types=[loss], loss_weights=[1.0], ld_alpha=None, f_divergence_type="reverse_kl",
                         label_smoothing=0.0, use_weighting=False)
    inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = references.chunk(2)
    value = DPOTrainer._compute_loss(trainer, Model(sums, inputs["completion_mask"]), inputs, False)
    value.backward()
    gradients = [0.0] * len(answers)
    for place, i in enumerate(order):
        gradients[i] = sums.grad[place].item()
    return {"loss_value": value.item(), "gradients": gradients, "figures": figures_of(trainer)}


def orpo(answers, beta):
    sums, _, _ = inputs_of(answers)
    means = sums / torch.tensor([float(answer["tokens"]) for answer in answers], dtype=torch.float64)
    chosen, rejected = means[0::2], means[1::2]
    trainer = trainer_of(beta=beta)
    zeros = torch.zeros(1)
    trainer.concatenated_forward = lambda *_: (chosen, rejected, zeros, zeros, -chosen.mean())
    trainer.odds_ratio_loss = lambda *each: ORPOTrainer.odds_ratio_loss(trainer, *each)
    value, metrics = ORPOTrainer.get_batch_loss_metrics(trainer, None, None)
    value.backward()
    figures = {name: metrics[name] for name in
               ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")}
    return {"loss_value": value.item(), "gradients": sums.grad.tolist(), "figures": figures}


def kto(answers, mismatched, beta, desirable_weight, undesirable_weight):
    sums, references, inputs = inputs_of(answers)
    inputs.update(label=torch.tensor([answer["desirable"] for answer in answers]), ref_logps=references,
                  ref_KL_logps=torch.tensor([each["reference"] for each in mismatched], dtype=torch.float64))
    trainer = trainer_of(beta=beta, loss_type="kto", calculate_KL=True, desirable_weight=desirable_weight,
                         undesirable_weight=undesirable_weight)
    of_others = torch.tensor([each["log_probability"] for each in mismatched], dtype=torch.float64)
    trainer._compute_kl_logps = lambda *_: of_others
    value = KTOTrainer._compute_loss(trainer, Model(sums, inputs["completion_mask"]), inputs, False)
    value.backward()
    return {"loss_value": value.item(), "gradients": sums.grad.tolist(), "figures": figures_of(trainer)}


def main():
    numbers = random.Random(7)
    cases = []
    for beta in (0.1, 0.5):
        for loss in ("sigmoid", "hinge", "ipo"):
            answers = answers_of(numbers, 2 * PAIRS)
            cases.append({"objective": "dpo", "beta": beta, "loss": loss, "answers": answers, **dpo(answers, beta, loss)})
        answers = answers_of(numbers, 2 * PAIRS)
        cases.append({"objective": "orpo", "beta": beta, "answers": answers, **orpo(answers, beta)})
        for desirable, undesirable, closer in ((1.0, 1.0, 1.0), (1.0, 1.5, 1.0), (1.33, 1.0, -1.0)):
            answers = answers_of(numbers, 2 * PAIRS)
            mismatched = answers_of(numbers, 2 * PAIRS)
            for each in mismatched:
                # The policy is nearer to these answers than the reference, or further away: a divergence above 0, or 0.
                each["reference"] = each["log_probability"] - closer * numbers.uniform(0.1, 2)
            cases.append({"objective": "kto", "beta": beta, "desirable_weight": desirable, "undesirable_weight": undesirable,
                          "answers": answers, "mismatched": mismatched,
                          **kto(answers, mismatched, beta, desirable, undesirable)})
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "losses.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
