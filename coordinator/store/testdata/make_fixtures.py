"""Wrote version-N.sqlite: stores as coordinators of earlier versions left them, by the tables and messages of their time.

    python3 coordinator/store/testdata/make_fixtures.py

Takes both from the history of the repository: the SQL of the store's source, and protoc --encode with the .proto files of that
commit. The fixtures stay as they are; a new version of the tables adds one, of the last commit before it.
"""

import os
import re
import sqlite3
import subprocess
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))

# Version of the tables -> a commit that wrote them.
COMMITS = {0: "14d27ec", 2: "c980ded", 3: "8771727", 4: "fbfdd4f"}

SPEC = """
spec {
  name: "old" model { architecture: "gpt2" layers: 2 hidden: 32 heads: 2 context: 32 }
  data { train: "corpus.txt" } training { steps: 30 global_batch: 4 } checkpoint { every_steps: 10 }
}"""
# Up to version 4 the words of closed sets were text. Appended to the record of job-2, whose fields these replace.
WORDS = """
spec {
  model { architecture: "bert" norm: "pre" }
  training { optimizer { name: "adamw" } schedule { kind: "wsd" } precision: "bf16" reproducibility: "exact" }
  parallelism { schedule: "gpipe" recompute: "selective" } resources { device: "cuda" collectives: "host" }
  fault_tolerance { on_nan: "skip" stragglers: "exclude" on_spike: "rollback" }
} elastic_parallelism { schedule: "interleaved" recompute: "full" }"""
PLAN = ' layout { schedule: "gpipe" recompute: "selective" } model { architecture: "bert" norm: "pre" } collectives: "host"'
SLOTS = 'slots { node: "a" device: 0 } slots { node: "b" device: 1 }'


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


def job_text(number, phase, slots):
    return f"""id: "job-{number}" number: {number} {SPEC} phase: {phase} attempt: 2 restarts: 1 step: 20 tokens: 2560 loss: 2.5
        checkpoint_step: 20 checkpoint_path: "/checkpoints/job-{number}/step-00000020" submitted_at: 1700000000 {slots}"""


class Encoder:
    """Messages in text form to bytes, by the definitions of one commit."""

    def __init__(self, commit, folder):
        self.folder = folder
        archive = git("archive", commit, "proto")
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)

    def __call__(self, message, file, text):
        return subprocess.run(["protoc", f"--proto_path={self.folder}", f"--encode=tercio.v1.{message}", f"proto/tercio/v1/{file}.proto"],
                              input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def make(version, commit, encode):
    source = git("show", f"{commit}:coordinator/store/store.cc").decode()
    path = os.path.join(FOLDER, f"version-{version}.sqlite")
    if os.path.exists(path):
        os.remove(path)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA page_size=1024;" + re.search(r'kSchema\[\] = R"\((.*?)\)";', source, re.DOTALL).group(1))
    # Before version 3 the record itself said where the ranks are.
    field = SLOTS if version < 3 else ""
    for number, phase in ((1, "JOB_PHASE_SUCCEEDED"), (2, "JOB_PHASE_RUNNING")):
        job = f"job-{number}"
        text = job_text(number, phase, field if number == 2 else "")
        record = encode("JobRecord", "state", text)
        if version == 4 and number == 2:
            record += encode("JobRecord", "state", WORDS)
        database.execute("INSERT INTO jobs VALUES(?,?,?)", (job, number, record))
        database.execute("INSERT INTO requests VALUES(?,?)", (f"request-{number}", job))
        for step in (10, 20):
            text = f"step: {step} attempt: 1 loss: {30 / step} tokens: {128 * step}"
            database.execute("INSERT INTO steps VALUES(?,?,?,?)", (job, step, 1, encode("StepRecord", "events", text)))
        for kind in ("submitted", "attempt_started"):
            text = f'job_id: "{job}" attempt: 1 kind: "{kind}" message: "of version {version}" rank: -1'
            database.execute("INSERT INTO events(job, record) VALUES(?,?)", (job, encode("JobEvent", "events", text)))
        database.execute("INSERT INTO logs(job, record) VALUES(?,?)", (job, encode("LogLine", "events", 'attempt: 1 rank: 0 line: "hello"')))
        if version >= 2:
            database.execute("INSERT INTO plans VALUES(?,?)", (job, encode("Plan", "plan", "lanes: 8" + (PLAN if version == 4 else ""))))
    if version >= 2:
        database.execute("INSERT INTO nodes VALUES(?,?)", ("a", encode("NodeRecord", "state", 'name: "a" drained: true')))
    if version >= 3:
        database.execute("INSERT INTO placements VALUES(?,?)", ("job-2", encode("RankSlots", "state", SLOTS)))
    database.execute(f"PRAGMA user_version={version}")
    database.commit()
    database.execute("VACUUM")
    database.close()
    print(path, os.path.getsize(path), "bytes")


def main():
    for version, commit in COMMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(version, commit, Encoder(commit, folder))


if __name__ == "__main__":
    main()
