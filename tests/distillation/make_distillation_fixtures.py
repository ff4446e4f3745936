"""Writes fixtures/losses.json and fixtures/curves.json: what TRL and PyTorch make of distillation, in double precision. Run by hand,
once:

    python3 -m venv ~/trl-venv && ~/trl-venv/bin/pip install torch transformers trl==1.16.0
    ~/trl-venv/bin/python tests/distillation/make_distillation_fixtures.py

losses.json: [{"rows", "vocabulary", "student", "teacher": logits row by row, "targets", "temperature", "weight", "reverse",
  "divergence": of each row, "loss": the mean of (1 - weight) cross-entropy + weight temperature^2 divergence,
  "gradient": d(loss) / d(student), by autograd}]
The divergence is TRL's GKDTrainer.generalized_jsd_loss with beta 0, or in reverse 1; it takes logits and temperature, and has no
factor of temperature^2.

curves.json: [{"temperature", "weight", "reverse", "losses", "divergences", "cross_entropies"}], of 100 steps in which gpt2 of
tests/huggingface/fixtures learns from llama_bf16 of the same. A step is torch's AdamW behind the clipping of the gradient's norm, with
a constant learning rate. Sequence s of step t has the tokens (7 s + 3 (t mod 5) + (s + 1) i) mod 40 at positions i = 0 .. 16.
"""

import json
import os

import torch
from transformers import AutoModelForCausalLM
from trl.experimental.gkd import GKDTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "huggingface", "fixtures")
STEPS, SEQUENCES, CONTEXT, VOCABULARY = 100, 8, 16, 40
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, CLIP = 0.003, (0.9, 0.95), 1e-8, 0.1, 1.0


def divergence_of(student, teacher, temperature, reverse):
    """The sum over rows."""
    return GKDTrainer.generalized_jsd_loss(student[None], teacher[None], beta=1.0 if reverse else 0.0, temperature=temperature,
                                           reduction="sum")


def rounded(values):
    return [float(f"{value:.9g}") for value in values]


def loss_case(seed, rows, vocabulary, temperature, weight, reverse):
    generator = torch.Generator().manual_seed(seed)
    # Single precision holds them exactly.
    student = (2 * torch.randn(rows, vocabulary, generator=generator)).double().requires_grad_(True)
    teacher = (3 * torch.randn(rows, vocabulary, generator=generator)).double()
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    divergences = [divergence_of(student[i:i + 1], teacher[i:i + 1], temperature, reverse) for i in range(rows)]
    cross_entropy = torch.nn.functional.cross_entropy(student, targets)
    loss = (1 - weight) * cross_entropy + weight * temperature**2 * sum(divergences) / rows
    loss.backward()
    return {"rows": rows, "vocabulary": vocabulary, "student": student.detach().float().flatten().tolist(),
            "teacher": teacher.float().flatten().tolist(), "targets": targets.tolist(), "temperature": temperature, "weight": weight,
            "reverse": reverse, "divergence": rounded([value.item() for value in divergences]), "loss": float(f"{loss.item():.9g}"),
            "gradient": rounded(student.grad.flatten().tolist())}


def batch(step):
    rows = [[(7 * s + 3 * (step % 5) + (s + 1) * i) % VOCABULARY for i in range(CONTEXT + 1)] for s in range(SEQUENCES)]
    return torch.tensor(rows)


def model_of(name):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(MODELS, name), dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


def curve(temperature, weight, reverse):
    student, teacher = model_of("gpt2"), model_of("llama_bf16")
    parameters = list(student.parameters())
    decayed = [{"params": [p], "weight_decay": WEIGHT_DECAY if p.dim() > 1 else 0} for p in parameters]
    optimizer = torch.optim.AdamW(decayed, lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    figures = {"losses": [], "divergences": [], "cross_entropies": []}
    for step in range(1, STEPS + 1):
        tokens = batch(step)
        logits = student(input_ids=tokens[:, :-1]).logits.reshape(-1, VOCABULARY)
        with torch.no_grad():
            wanted = teacher(input_ids=tokens[:, :-1]).logits.reshape(-1, VOCABULARY)
        cross_entropy = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))
        divergence = divergence_of(logits, wanted, temperature, reverse) / logits.shape[0]
        loss = (1 - weight) * cross_entropy + weight * temperature**2 * divergence
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        figures["losses"].append(loss.item())
        figures["divergences"].append(divergence.item())
        figures["cross_entropies"].append(cross_entropy.item())
    return {"temperature": temperature, "weight": weight, "reverse": reverse, **{key: rounded(value) for key, value in figures.items()}}


def write(name, content):
    os.makedirs(os.path.join(HERE, "fixtures"), exist_ok=True)
    with open(os.path.join(HERE, "fixtures", name), "w", encoding="utf-8") as out:
        json.dump(content, out)
        out.write("\n")


def main():
    torch.set_num_threads(1)
    cases = [(1, 3, 17, 1.0, 1.0, False), (2, 4, 33, 2.0, 0.5, False), (3, 3, 40, 0.7, 0.9, False), (4, 3, 17, 1.0, 1.0, True),
             (5, 4, 33, 2.0, 0.5, True), (6, 2, 150, 4.0, 0.25, True)]
    write("losses.json", [loss_case(*case) for case in cases])
    write("curves.json", [curve(2.0, 0.7, False), curve(1.0, 0.5, True)])


if __name__ == "__main__":
    main()
