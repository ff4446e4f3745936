"""Fine-tunes the classifier of a job file with transformers' Trainer, on the job's data and with its settings, and writes
what it took and how good it became, for `tercio compare` (a baseline's `results`).

    python3 transformers_baseline.py sst2.yaml --output transformers.json
    python3 transformers_baseline.py sst2.yaml --output transformers.json --processes 1 2     # also with DDP, on 2 processes
    python3 transformers_baseline.py sst2.yaml --output transformers.json --order tercio --classifier tercio

Defaults of keys that the job leaves out are Tercio's, and so is the schedule: what differs is the program. --order tercio
reads the samples in the order of a Tercio job with the same seed, and --classifier tercio begins with the same weights for
what the published model lacks: without dropout the losses of both are the same then, but for rounding.

Needs torch, transformers and accelerate. Runs on a GPU for each process where torch finds them, else on the CPU.
"""

import argparse
import csv
import functools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.abspath(__file__)
M64 = (1 << 64) - 1
PHILOX_MULTIPLIERS, PHILOX_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)

# Keys that change the training, by section. Others of these sections are refused; sections that only say where and how a job
# runs are left to Tercio.
KNOWN = {
    "model": {"from", "labels", "context", "dropout"},
    "data": {"train", "validation", "test", "text_key", "text_pair_key", "label_key", "tokenizer"},
    "training": {"epochs", "steps", "global_batch", "micro_batch", "optimizer", "schedule", "clip_grad_norm", "seed",
                 "evaluate", "precision"},
    "training.optimizer": {"name", "learning_rate", "betas", "eps", "weight_decay"},
    "training.schedule": {"kind", "warmup_steps", "min_learning_rate", "decay_steps"},
    "training.evaluate": {"every_steps", "every_epochs", "metrics", "keep_best"},
}


def fail(message):
    sys.exit(f"error: {message}")


# ---- the job ----

class Job:
    """What this script needs of a job file, with Tercio's defaults."""

    def __init__(self, path, changes):
        import yaml  # transformers needs it, too
        with open(path, encoding="utf-8") as file:
            root = yaml.safe_load(file)
        for change in changes:
            keys, _, value = change.partition("=")
            *sections, key = keys.split(".")
            functools.reduce(lambda node, name: node.setdefault(name, {}), sections, root)[key] = yaml.safe_load(value)
        for section, known in KNOWN.items():
            node = functools.reduce(lambda node, name: node.get(name) or {}, section.split("."), root)
            unknown = [key for key in node if key not in known and node[key] is not None]
            if unknown:
                fail(f"{path}: {section}.{unknown[0]} is not supported by this script")
        self.directory = os.path.dirname(os.path.abspath(path))
        model, data, training = (root.get(section) or {} for section in ("model", "data", "training"))
        self.model = self.resolved(self.required(model, "model", "from"))
        labels = self.required(model, "model", "labels")
        self.names = [str(name) for name in labels] if isinstance(labels, list) else []
        self.classes = len(labels) if isinstance(labels, list) else int(labels)
        self.context = model.get("context")
        self.dropout = float(model.get("dropout", 0))
        self.tokenizer = self.resolved(data["tokenizer"]) if "tokenizer" in data else self.model
        self.keys = (data.get("text_key", "text"), data.get("text_pair_key", "text_pair"), data.get("label_key", "label"))
        self.data = {name: self.paths_of(data, name) for name in ("train", "validation", "test")}
        if not self.data["train"]:
            fail(f"{path}: data.train is missing")
        if training.get("precision", "fp32") not in ("fp32", "auto"):
            fail(f"{path}: training.precision is not fp32")
        self.epochs, self.steps = training.get("epochs"), training.get("steps")
        if (self.epochs is None) == (self.steps is None):
            fail(f"{path}: exactly one of training.epochs and training.steps")
        self.batch = int(self.required(training, "training", "global_batch"))
        self.clip = float(training.get("clip_grad_norm", 1))
        self.seed = int(training.get("seed", 1337))
        self.optimizer = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, **(training.get("optimizer") or {})}
        self.rate = float(self.required(self.optimizer, "training.optimizer", "learning_rate"))
        self.schedule = {"kind": "cosine", "warmup_steps": 0, "min_learning_rate": 0, **(training.get("schedule") or {})}
        if self.schedule["kind"] not in ("linear", "cosine", "constant"):
            fail(f"{path}: training.schedule.kind {self.schedule['kind']} is not supported by this script")
        self.evaluate = training.get("evaluate") or {}

    @staticmethod
    def required(node, section, key):
        if node.get(key) is None:
            fail(f"{section}.{key} is missing")
        return node[key]

    def resolved(self, path):
        return os.path.join(self.directory, str(path))

    def paths_of(self, data, name):
        given = data.get(name)
        paths = given if isinstance(given, list) else [given] if given is not None else []
        if not all(isinstance(path, str) for path in paths):
            fail(f"data.{name}: this script reads a path, or a list of paths")
        return [self.resolved(path) for path in sorted(paths)]

    def label_of(self, value, place):
        if str(value) in self.names:
            return self.names.index(str(value))
        try:
            label = int(value)
        except ValueError:
            label = -1
        if not 0 <= label < self.classes:
            fail(f"{place}: label {value!r} is not one of the {self.classes} classes")
        return label

    def rate_of(self, step):
        """The learning rate of a step, counted from 1, as a share of the peak."""
        warmup, least = self.schedule["warmup_steps"], float(self.schedule["min_learning_rate"]) / self.rate
        decay = self.schedule.get("decay_steps") or self.steps
        if step <= warmup:
            return step / warmup
        if self.schedule["kind"] == "constant":
            return 1.0
        if step >= decay:
            return least
        part = (step - warmup) / (decay - warmup)
        return least + (1 - least) * ((1 + math.cos(math.pi * part)) / 2 if self.schedule["kind"] == "cosine" else 1 - part)

    def is_evaluated(self, step, samples):
        every_steps, every_epochs = (int(self.evaluate.get(key) or 0) for key in ("every_steps", "every_epochs"))
        if step == self.steps or (every_steps and step % every_steps == 0):
            return True
        ended, before = (done * self.batch // samples for done in (step, step - 1))
        return bool(every_epochs) and ended // every_epochs > before // every_epochs


def records_of(path):
    """(place, record) of the lines of a .jsonl, .csv or .tsv file; a record is a dictionary."""
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", json.loads(line)
        return
    # Quotes mean nothing in a .tsv.
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.endswith(".tsv") else {}
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, **form)
        header = next(rows)
        for row in rows:
            if row and len(row) != len(header):
                fail(f"{path}:{rows.line_num}: has {len(row)} fields, but the header names {len(header)} columns")
            if row:
                yield f"{path}:{rows.line_num}", dict(zip(header, row))


def examples_of(job, paths):
    """(text, second text or None, label) of each line."""
    text_key, pair_key, label_key = job.keys
    found = []
    for path in paths:
        for place, record in records_of(path):
            for key in (text_key, label_key):
                if record.get(key) is None:
                    fail(f"{place}: there is no '{key}'")
            found.append((record[text_key], record.get(pair_key) or None, job.label_of(record[label_key], place)))
    return found


# ---- Tercio's order and first weights: docs/formats.md, kernels/random.h ----

def split_mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def permutation(seed, epoch, samples):
    """place -> sample of an epoch: a Feistel network, whose results outside of the range are encrypted again."""
    half = 1
    while 1 << (2 * half) < samples:
        half += 1
    keys = [split_mix(split_mix(split_mix(seed) ^ epoch))]
    while len(keys) < 8:
        keys.append(split_mix(keys[-1]))

    def encrypt(value):
        left, right = value >> half, value & ((1 << half) - 1)
        for key in keys:
            left, right = right, left ^ (split_mix(right ^ key) & ((1 << half) - 1))
        return left << half | right

    def sample_at(place):
        value = encrypt(place)
        while value >= samples:
            value = encrypt(value)
        return value

    return sample_at


def philox(key, counter):
    for _ in range(10):
        first, second = PHILOX_MULTIPLIERS[0] * counter[0], PHILOX_MULTIPLIERS[1] * counter[2]
        counter = ((second >> 32) ^ counter[1] ^ key[0], second & 0xFFFFFFFF, (first >> 32) ^ counter[3] ^ key[1],
                   first & 0xFFFFFFFF)
        key = tuple((part + step) & 0xFFFFFFFF for part, step in zip(key, PHILOX_STEPS))
    return counter


def normal_row(seed, tensor, row, columns, deviation=0.02):
    mixed = split_mix(split_mix(seed) ^ M64)
    values = []
    for block in range((columns + 3) // 4):
        bits = philox((mixed & 0xFFFFFFFF, mixed >> 32), (row, block, tensor, 0))
        for a, b in (bits[:2], bits[2:]):
            radius, angle = math.sqrt(-2 * math.log((a + 1) / 2 ** 32)), 2 * math.pi * b / 2 ** 32
            values += [deviation * radius * math.cos(angle), deviation * radius * math.sin(angle)]
    return values[:columns]


# ---- figures ----

def quality_of(confusion):
    """Accuracy, scores of each class, and their averages; a rate without any example is 0."""
    def ratio(part, whole):
        return part / whole if whole else 0.0

    classes = range(len(confusion))
    per_class = []
    for label in classes:
        right, support = confusion[label][label], sum(confusion[label])
        predicted = sum(confusion[other][label] for other in classes)
        per_class.append({"precision": ratio(right, predicted), "recall": ratio(right, support),
                          "f1": ratio(2 * right, predicted + support), "support": support})
    examples = sum(scores["support"] for scores in per_class)

    def average(weight_of):
        return {key: sum(scores[key] * weight_of(scores) for scores in per_class) for key in ("precision", "recall", "f1")}

    return {"accuracy": ratio(sum(confusion[label][label] for label in classes), examples), "per_class": per_class,
            "macro": average(lambda scores: 1 / len(confusion)),
            "weighted": average(lambda scores: ratio(scores["support"], examples))}


def overall_of(quality):
    """One figure for each metric: the second class's of two, as GLUE has it, else the mean."""
    return quality["per_class"][1] if len(quality["per_class"]) == 2 else quality["macro"]


def evaluation_of(job, step, loss, confusion):
    quality = quality_of(confusion)
    names = job.names or [str(label) for label in range(job.classes)]
    return {"step": step, "loss": loss, "accuracy": quality["accuracy"], "per_class": dict(zip(names, quality["per_class"])),
            "macro": quality["macro"], "weighted": quality["weighted"], "confusion": confusion}


def value_of(metric, evaluation):
    if metric in ("loss", "accuracy"):
        return evaluation[metric]
    return overall_of(quality_of(evaluation["confusion"]))[metric]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


# ---- the training: one process of it ----

def classifier_like_tercios(job, model):
    """The published model has no classifier; Tercio draws its weights from the seed."""
    import torch
    if model.config.model_type != "bert":
        fail("--classifier tercio is for models of the type bert")
    # Tensors are counted: 5 of the embedding, 16 of each layer, 2 of the pooler.
    index = 5 + 16 * model.config.num_hidden_layers + 2
    rows = [normal_row(job.seed, index, row, model.config.hidden_size) for row in range(job.classes)]
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(rows))
        model.classifier.bias.zero_()


def encoded(job, tokenizer, context, examples):
    found = []
    for text, text_pair, label in examples:
        entry = tokenizer(text, text_pair, truncation="longest_first", max_length=context)
        found.append({"input_ids": entry["input_ids"],
                      "token_type_ids": entry.get("token_type_ids", [0] * len(entry["input_ids"])), "labels": label})
    return found


def stream_of(job, samples, order):
    """The samples of all steps, one after the other; epochs follow each other without a gap."""
    import torch
    count = job.steps * job.batch
    found = []
    for epoch in range((count + samples - 1) // samples):
        if order == "tercio":
            sample_at = permutation(job.seed, epoch, samples)
            found += [sample_at(place) for place in range(samples)]
        else:
            generator = torch.Generator().manual_seed(job.seed + epoch)
            found += torch.randperm(samples, generator=generator).tolist()
    return found[:count]


class Recorder:
    """What is known of the training so far, in this process."""

    def __init__(self):
        self.losses, self.norms, self.seconds, self.evaluations = [], {}, [], {}
        self.tokens, self.cpu_seconds, self.wall_seconds = 0, 0.0, 0.0
        self.best = None  # (step, value, weights)


def clock_of(job, recorder, samples):
    """Measures the steps, and says after which of them the model is evaluated."""
    import transformers

    class Clock(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.began = time.perf_counter(), time.process_time()

        def on_step_begin(self, args, state, control, **kwargs):
            self.step_began = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            recorder.seconds.append(time.perf_counter() - self.step_began)
            control.should_evaluate = bool(job.data["validation"]) and job.is_evaluated(state.global_step, samples)

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "grad_norm" in logs:
                recorder.norms[state.global_step] = float(logs["grad_norm"])

        def on_train_end(self, args, state, control, **kwargs):
            recorder.wall_seconds = time.perf_counter() - self.began[0]
            recorder.cpu_seconds = time.process_time() - self.began[1]

    return Clock()


def trainer_of(job, recorder, **arguments):
    import torch
    import transformers

    class Baseline(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)  # they are in their order already

        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**{key: value for key, value in inputs.items() if key != "labels"})
            loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"])
            if model.training:
                recorder.losses.append(loss.detach().double())
                recorder.tokens += inputs["input_ids"].numel()
            return (loss, outputs) if return_outputs else loss

        def evaluate(self, *args, metric_key_prefix="eval", **kwargs):
            self.prefix = metric_key_prefix
            metrics = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            if metric_key_prefix == "eval":
                self.keep_if_best()
            return metrics

        def count(self, prediction):
            """As compute_metrics: of all examples, gathered from all processes."""
            logits = torch.tensor(prediction.predictions, dtype=torch.float64)
            labels = torch.tensor(prediction.label_ids)
            confusion = [[0] * job.classes for _ in range(job.classes)]
            for label, predicted in zip(labels.tolist(), logits.argmax(-1).tolist()):
                confusion[label][predicted] += 1
            loss = torch.nn.functional.cross_entropy(logits, labels).item()
            step = self.state.global_step
            recorder.evaluations[self.prefix, step] = evaluation_of(job, step, loss, confusion)
            return {}

        def keep_if_best(self):
            step, metric = self.state.global_step, job.evaluate.get("keep_best")
            if not metric:
                return
            value = value_of(metric, recorder.evaluations["eval", step])
            sign = -1 if metric == "loss" else 1
            if recorder.best is None or sign * value > sign * recorder.best[1]:
                weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
                recorder.best = (step, value, weights)

    trainer = Baseline(**arguments)
    trainer.compute_metrics = trainer.count
    trainer.remove_callback(transformers.PrinterCallback)  # the figures go to the output
    return trainer


def arguments_of(job, processes, folder):
    import torch
    import transformers
    share, rest = divmod(job.batch, processes)
    if rest:
        fail(f"training.global_batch {job.batch} is not a multiple of {processes} processes")
    return transformers.TrainingArguments(
        output_dir=folder, max_steps=job.steps, per_device_train_batch_size=share, per_device_eval_batch_size=64,
        max_grad_norm=job.clip, logging_strategy="steps", logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True, remove_unused_columns=False, seed=job.seed, use_cpu=not torch.cuda.is_available(),
        ddp_backend=None if processes == 1 else "nccl" if torch.cuda.is_available() else "gloo",
        log_level="error")


def collate(pad, entries):
    import torch
    longest = max(len(entry["input_ids"]) for entry in entries)

    def padded(key, value):
        return torch.tensor([entry[key] + [value] * (longest - len(entry[key])) for entry in entries])

    mask = [[1] * len(entry["input_ids"]) + [0] * (longest - len(entry["input_ids"])) for entry in entries]
    return {"input_ids": padded("input_ids", pad), "token_type_ids": padded("token_type_ids", 0),
            "attention_mask": torch.tensor(mask), "labels": torch.tensor([entry["labels"] for entry in entries])}


def groups_of(job, model):
    """Matrices are decayed, vectors are not."""
    decay = float(job.optimizer["weight_decay"])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]


def work(job, options):
    """Runs in each process; the first one writes the outcome."""
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    transformers.set_seed(job.seed)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.tokenizer)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        job.model, num_labels=job.classes, hidden_dropout_prob=job.dropout, attention_probs_dropout_prob=job.dropout,
        classifier_dropout=job.dropout).float()
    if options.classifier == "tercio":
        classifier_like_tercios(job, model)
    context = job.context or model.config.max_position_embeddings
    data = {name: encoded(job, tokenizer, context, examples_of(job, paths)) for name, paths in job.data.items()}
    samples = len(data["train"])
    if job.steps is None:
        job.steps = -(-job.epochs * samples // job.batch)
    train = [data["train"][sample] for sample in stream_of(job, samples, options.order)]
    recorder = Recorder()
    optimizer = torch.optim.AdamW(groups_of(job, model), lr=job.rate, betas=tuple(map(float, job.optimizer["betas"])),
                                  eps=float(job.optimizer["eps"]))
    # The scheduler counts the steps that are done.
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: job.rate_of(done + 1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(
            job, recorder, model=model, args=arguments_of(job, processes, folder), train_dataset=train,
            eval_dataset=data["validation"] or None, data_collator=functools.partial(collate, tokenizer.pad_token_id),
            optimizers=(optimizer, scheduler), callbacks=[clock_of(job, recorder, samples)])
        trainer.train()
        test = None
        if data["test"]:
            if recorder.best is not None:
                trainer.model.load_state_dict(recorder.best[2])
            trainer.evaluate(data["test"], metric_key_prefix="test")
            test = dict(recorder.evaluations["test", job.steps])
            test["step"] = recorder.best[0] if recorder.best is not None else job.steps
    mine = {"losses": [loss.item() for loss in recorder.losses], "tokens": recorder.tokens, "cpu": recorder.cpu_seconds,
            "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "used": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None}
    everyone = [mine]
    if processes > 1:
        everyone = [None] * processes
        torch.distributed.all_gather_object(everyone, mine)
    if rank == 0:
        method = method_of(job, recorder, everyone, samples, test)
        method["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        method["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        method["software"] = f"transformers {transformers.__version__}, torch {torch.__version__}"
        with open(options.worker, "w", encoding="utf-8") as file:
            json.dump(method, file)
    if processes > 1:
        torch.distributed.destroy_process_group()


def history_of(job, recorder, everyone):
    history = []
    for step in range(1, job.steps + 1):
        # Every process has the mean over as many samples.
        losses = [process["losses"][step - 1] for process in everyone]
        entry = {"step": step, "loss": sum(losses) / len(losses), "grad_norm": recorder.norms.get(step),
                 "step_seconds": recorder.seconds[step - 1]}
        found = recorder.evaluations.get(("eval", step))
        for metric in ("loss", "accuracy", "precision", "recall", "f1"):
            entry["validation_" + metric] = value_of(metric, found) if found else None
        history.append(entry)
    return history


def method_of(job, recorder, everyone, samples, test):
    seconds = recorder.seconds
    ends = [-(-epoch * samples // job.batch) for epoch in range((job.epochs or 0) + 1)]
    validations = [found for (prefix, _), found in sorted(recorder.evaluations.items()) if prefix == "eval"]
    used = [process["used"] for process in everyone]
    return {
        "kind": "baseline", "state": "succeeded", "error": None, "job_id": None,
        "layout": {"tensor": 1, "pipeline": 1, "data": len(everyone), "ranks": len(everyone)}, "global_batch": job.batch,
        "epochs": job.epochs, "steps": job.steps, "samples_per_epoch": samples, "seconds": recorder.wall_seconds,
        "epoch_seconds": [sum(seconds[begin:end]) for begin, end in zip(ends, ends[1:])],
        "step_seconds": {name: percentile(seconds, share) for name, share in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))},
        "micro_batch_seconds": None, "samples_per_second": job.steps * job.batch / sum(seconds),
        # Padding up to the longest text of a batch is computed, and counts.
        "tokens_per_second": sum(process["tokens"] for process in everyone) / sum(seconds),
        "cores_used": sum(process["cpu"] for process in everyone) / recorder.wall_seconds, "device_utilization": None,
        "memory": {"planned_bytes": None, "used_bytes": None if None in used else sum(used),
                   "resident_bytes": sum(process["resident"] for process in everyone)},
        "communication_bytes": None, "wait_share": None, "history": history_of(job, recorder, everyone),
        "evaluation": {"validation": validations[-1] if validations else None, "test": test,
                       "best_step": recorder.best[0] if recorder.best is not None else None},
        "cost": None, "largest_model": None}


# ---- the processes ----

def run(options, processes, folder):
    """The outcome of one way of training."""
    name = "transformers" if processes == 1 else f"transformers, DDP {processes}"
    out = os.path.join(folder, f"{processes}.json")
    start = [sys.executable] if processes == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone",
                                                     f"--nproc-per-node={processes}"]
    command = [*start, HERE, options.job, "--worker", out, "--order", options.order, "--classifier", options.classifier]
    for change in options.set:
        command += ["--set", change]
    print(f"{name} ...", file=sys.stderr)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0 and os.path.exists(out):
        with open(out, encoding="utf-8") as file:
            return {"name": name, **json.load(file)}
    print(done.stderr, file=sys.stderr)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in said if line.startswith("error: ")), said[-1] if said else "it said nothing")
    return {"name": name, "kind": "baseline", "state": "failed", "error": f"exit code {done.returncode}: {reason}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="job file of a classifier that starts from a published model")
    parser.add_argument("--output", help="file to write")
    parser.add_argument("--processes", type=int, nargs="+", default=[1], help="numbers of processes, each for a training")
    parser.add_argument("--order", choices=["shuffled", "tercio"], default="shuffled", help="order of the samples")
    parser.add_argument("--classifier", choices=["random", "tercio"], default="random",
                        help="first weights of the classifier")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the job file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    job = Job(options.job, options.set)
    if options.worker:
        work(job, options)
        return
    if not options.output:
        fail("--output is missing")
    with tempfile.TemporaryDirectory() as folder:
        methods = [run(options, processes, folder) for processes in options.processes]
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"format": "tercio-results-1", "methods": methods}, file, indent=1)
    for method in methods:
        print(f"{method['name']}: {method['state']}" + (f", {method['samples_per_second']:.1f} samples/s"
                                                       if method["state"] == "succeeded" else f", {method['error']}"))
    if any(method["state"] != "succeeded" for method in methods):
        sys.exit(1)


if __name__ == "__main__":
    main()
