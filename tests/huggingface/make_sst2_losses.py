"""Writes fixtures/sst2_losses.json: what transformers makes of the small model of deploy/examples/sst2, in Tercio's order of samples.

    PYTHON_WITH_TRANSFORMERS tests/huggingface/make_sst2_losses.py

tests/e2e/sst2_test.py compares a job with it.
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "deploy", "examples", "sst2")
STEPS = 50


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(EXAMPLE, "make_small_model.py"), folder], check=True)
        out = os.path.join(folder, "transformers.json")
        command = ["sst2.yaml", "--order", "tercio", "--classifier", "tercio"]
        subprocess.run([sys.executable, os.path.join(EXAMPLE, "transformers_baseline.py"), *command, "--output", out], check=True,
                       cwd=folder)
        with open(out, encoding="utf-8") as file:
            method = json.load(file)["methods"][0]
    test = method["evaluation"]["test"]
    fixture = {"software": method["software"], "command": " ".join(["transformers_baseline.py", *command]),
               "losses": [step["loss"] for step in method["history"][:STEPS]],
               "test": {key: test[key] for key in ("step", "loss", "confusion")}}
    with open(os.path.join(HERE, "fixtures", "sst2_losses.json"), "w", encoding="utf-8") as file:
        json.dump(fixture, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
