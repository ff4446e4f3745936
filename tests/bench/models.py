"""Files, tokenizers, generation, pipeline bubbles and what exact sums cost; prints tables of ratios. Beside the libraries that
people use for the same, alternating, on the machine it runs on:

    PYTHON_WITH_TORCH_TRANSFORMERS tests/bench/models.py --text TEXT [--rounds N] [--only PART,...]

Parts: tokenize, checkpoint, generate, bubble, exact, precision. ./deploy/build.sh and `bazel build //tests/bench/...` come first. TEXT is any
large text (some 5 MB): the GPT-2 tokenizer of tests/tokenizer/fixtures and one trained on TEXT cut it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TERCIO = os.path.join(ROOT, "bin/tercio")
BENCH = os.path.join(ROOT, "bazel-bin/tests/bench")
CORES = os.cpu_count()


def run(*command, **more):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


def timed(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def alternate(rounds, actions):
    """Median seconds of each action, one after the other in every round."""
    seconds = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name].append(action())
    return {name: statistics.median(values) for name, values in seconds.items()}


def tokenize(options, folder):
    if not options.text:
        sys.exit("error: tokenize needs --text")
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    with open(options.text, encoding="utf-8") as file:
        text = file.read()
    size = len(text.encode())
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=20000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    word_piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.decoder = decoders.WordPiece()
    word_piece.train_from_iterator([text], trainers.WordPieceTrainer(
        vocab_size=20000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    lines = text.splitlines(keepends=True)
    print("\n### Tokenising\n\n| tokenizer | Hugging Face tokenizers, MB/s on all cores | Tercio | times |\n|---|---|---|---|")
    for name, tokenizer in (("byte-level BPE, 20,000 ids", bpe), ("WordPiece, 20,000 ids", word_piece)):
        path = os.path.join(folder, "tokenizer.json")
        tokenizer.save(path)
        # Batches of lines, as people map a data set: the library's own threads.
        theirs = lambda: timed(lambda: tokenizer.encode_batch_fast(lines, add_special_tokens=False))

        def ours():
            out = run(os.path.join(BENCH, "tokenizer_bench"), path, options.text).splitlines()[-1]
            return size / (float(out.split(": ")[1].split()[0]) * 1e6)

        seconds = alternate(options.rounds, {"theirs": theirs, "ours": ours})
        a, b = (size / seconds[key] * 1e-6 for key in ("theirs", "ours"))
        print(f"| {name} | {a:.1f} | {b:.1f} | {b / a:.1f} |")


def random_gpt2(folder):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(7)
    path = os.path.join(folder, "gpt2-124m")
    if not os.path.exists(path):
        GPT2LMHeadModel(GPT2Config()).save_pretrained(path)
    return path


def checkpoint(options, folder):
    source = random_gpt2(folder)
    size = os.path.getsize(os.path.join(source, "model.safetensors"))
    imported, exported, copied = (os.path.join(folder, name) for name in ("imported", "exported", "copied"))

    def fresh(path, *command):
        subprocess.run(["rm", "-rf", path], check=True)
        return timed(lambda: run(*command))

    weights = f"{source}/model.safetensors"
    seconds = alternate(options.rounds, {
        "digest": lambda: timed(lambda: run("openssl", "sha256", weights)),
        "disk": lambda: fresh(copied, "dd", f"if={weights}", f"of={copied}", "bs=4M", "conv=fsync"),
        "tools": lambda: fresh(copied, "sh", "-c", 'tee "$2" < "$1" | openssl sha256 && sync "$2"', "sh", weights, copied),
        "import": lambda: fresh(imported, TERCIO, "checkpoint", "import", source, "--format", "hf", "--output", imported),
        "export": lambda: fresh(exported, TERCIO, "checkpoint", "export", imported, "--format", "hf", "--output",
                                exported),
    })
    names = {"digest": "`openssl sha256`: one core, no writing",
             "disk": "`dd` with fsync: no digest",
             "tools": "`tee FILE \\| openssl sha256`, then `sync FILE`: copied and digested at once",
             "import": "`tercio checkpoint import`: reads, transposes, digests, writes",
             "export": "`tercio checkpoint export`: reads, compares digests, transposes, writes"}
    print(f"\n### GPT-2 124M on disk, {size / 1e6:.0f} MB of weights\n\n| what | seconds | MB/s | of `dd`'s speed |\n|---|---|---|---|")
    for name, value in seconds.items():
        print(f"| {names[name]} | {value:.2f} | {size / value / 1e6:.0f} | {seconds['disk'] / value:.0%} |")


def generate(options, folder):
    import torch
    from transformers import GPT2LMHeadModel
    source = random_gpt2(folder)
    torch.set_num_threads(CORES)
    model = GPT2LMHeadModel.from_pretrained(source, dtype=torch.float32).eval()
    prompts = [[(i * i + 17 * k) % 50000 for i in range(64)] for k in range(8)]
    file = os.path.join(folder, "prompts.jsonl")
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts)

    def theirs(count, batch):
        with torch.no_grad():
            model.generate(torch.tensor(batch), attention_mask=torch.ones(len(batch), 64, dtype=torch.long),
                           max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True, pad_token_id=0)

    def ours(count, *which):
        run(TERCIO, "generate", "--checkpoint", source, *which, "--tokens", str(count), "--temperature", "0", "-o", "json")

    def seconds_a_token(action, texts):
        """Of two lengths, so that loading counts in neither; before them memory is found as both then find it."""
        action(8)
        return (timed(lambda: action(136)) - timed(lambda: action(8))) / 128 / texts

    one = ("--prompt-ids", ",".join(map(str, prompts[0])))
    seconds = alternate(options.rounds, {
        name: (lambda f=f, n=n: seconds_a_token(f, n)) for name, f, n in (
            ("transformers", lambda count: theirs(count, prompts[:1]), 1), ("tercio generate", lambda count: ours(count, *one), 1),
            ("transformers, 8 texts at once", lambda count: theirs(count, prompts), 8),
            ("tercio generate --prompts, 8 at once", lambda count: ours(count, "--prompts", file), 8))})
    print("\n### Generating with GPT-2 124M after 64 tokens, greedy\n\n| program | ms a token | times transformers |\n|---|---|---|")
    for name, value in seconds.items():
        base = seconds["transformers, 8 texts at once" if "8" in name else "transformers"]
        print(f"| {name} | {value * 1e3:.1f} | {base / value:.2f} |")


def bubble(options, folder):
    corpus = os.path.join(folder, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as file:
        file.write("".join(chr(97 + (i * i // 3) % 26) for i in range(60000)))
    print("\n### Bubble of two stages with 4 micro-batches, as the trace of a step measures it\n\n"
          "| schedule | formula | measured (median) |\n|---|---|---|")
    for schedule, chunks in (("1f1b", 1), ("interleaved", 2)):
        measured = []
        for i in range(max(3, options.rounds)):
            state = os.path.join(folder, f"bubble-{schedule}-{i}")
            job = {"model": {"layers": 8, "hidden": 256, "heads": 4, "context": 128}, "data": {"train": corpus},
                   "training": {"steps": 6, "global_batch": 16, "micro_batch": 4, "optimizer": {"learning_rate": 1e-3}},
                   "parallelism": {"pipeline": 2, "schedule": schedule, "virtual_pipeline": chunks},
                   "resources": {"threads_per_rank": 1}}
            path = os.path.join(folder, "job.yaml")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(job, file)
            result = subprocess.run([TERCIO, "run", path, "--state-dir", state, "--trace",
                                     os.path.join(folder, "trace.json"), "--trace-step", "5"], capture_output=True,
                                    text=True, check=True)
            line = [text for text in (result.stdout + result.stderr).splitlines() if "bubble" in text][-1]
            words = [word.strip(",;()") for word in line.split()]
            measured.append([float(word) for word in words if word.replace(".", "", 1).isdigit()])
        formula = measured[0][-1]
        print(f"| {schedule} | {formula:.3f} | {statistics.median(numbers[-2] for numbers in measured):.3f} |")


def exact(options, folder):
    engine = os.path.join(BENCH, "engine_bench")
    print("\n### What exact sums cost: one lane (a global batch of 9) against eight (of 8), per sequence, one thread\n\n"
          "| model | lanes 1, ms | lanes 8, ms | times |\n|---|---|---|---|")
    for model, steps in (("nanogpt", 60),):
        def step(batch):
            out = run(engine, model, str(steps), "1", "1", "1", "1", "fp32", str(batch), "1")
            return json.loads(out.strip().splitlines()[-1])["step_seconds"] / batch
        seconds = alternate(options.rounds, {"one": lambda: step(9), "eight": lambda: step(8)})
        print(f"| {model} | {seconds['one'] * 1e3:.2f} | {seconds['eight'] * 1e3:.2f} | "
              f"{seconds['eight'] / seconds['one']:.3f} |")


def precision(options, folder):
    engine = os.path.join(BENCH, "engine_bench")

    def processor_seconds(model, steps, name):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        run(engine, model, str(steps), "1", "1", "1", "1", name)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    # Two lengths, so that the start counts in neither; processor time moves less than that of the clock.
    def step(model, steps, name):
        return (processor_seconds(model, 4 + steps, name) - processor_seconds(model, 4, name)) / steps

    products = json.loads(run(engine, "gemm", "1"))["bf16_products"]
    print(f"\n### Precisions: processor time of a step, one thread (bf16 products: {products})\n\n"
          "| model | fp32, ms | bf16 / fp32 | fp16 / fp32 |\n|---|---|---|---|")
    for model, steps in (("nanogpt", 100), ("gpt2-124m", 2)):
        rounds = [{name: step(model, steps, name) for name in ("fp32", "bf16", "fp16")} for _ in range(options.rounds)]
        ratio = {name: statistics.median(r[name] / r["fp32"] for r in rounds) for name in ("bf16", "fp16")}
        print(f"| {model} | {statistics.median(r['fp32'] for r in rounds) * 1e3:.1f} | {ratio['bf16']:.3f} | "
              f"{ratio['fp16']:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="for the part tokenize")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="tokenize,checkpoint,generate,bubble,exact,precision")
    options = parser.parse_args()
    parts = {f.__name__: f for f in (tokenize, checkpoint, generate, bubble, exact, precision)}
    print(f"{time.strftime('%Y-%m-%d')}, {CORES} cores, load before the run {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="tercio-bench-") as folder:
        for name in options.only.split(","):
            parts[name](options, folder)


if __name__ == "__main__":
    main()
