"""clang finds what common/mutex.h is for, with the flags of bazel/thread_safety.bzl, and leaves good code alone."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import python_cases  # noqa: E402

COUNTER = """
#include "common/mutex.h"

class Counter {
 public:
  void Add() { BODY }
  void AddLocked() TERCIO_REQUIRES(mutex_) { ++count_; }
  void Wait() {
    tercio::MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, std::chrono::seconds(1), [this]() CONDITION { return count_ > 0; });
    while (count_ == 0) changed_.Wait(mutex_);
    lock.Unlock();
    lock.Lock();
    ++count_;
  }

 private:
  tercio::Mutex mutex_;
  tercio::ConditionVariable changed_;
  int count_ TERCIO_GUARDED_BY(mutex_) = 0;
};
"""


def flags():
    with open(os.path.join(ROOT, "bazel/thread_safety.bzl"), encoding="utf-8") as file:
        for statement in ast.parse(file.read()).body:
            if isinstance(statement, ast.Assign) and statement.targets[0].id == "CLANG_FLAGS":
                return ast.literal_eval(statement.value)
    raise AssertionError("bazel/thread_safety.bzl has no CLANG_FLAGS")


@unittest.skipUnless(shutil.which("clang++"), "clang is not installed (deploy/install_dependencies.sh --tests)")
class ThreadSafetyTest(unittest.TestCase):

    def check(self, body, condition="TERCIO_REQUIRES(mutex_)"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "counter.cc")
            with open(path, "w", encoding="utf-8") as file:
                file.write(COUNTER.replace("BODY", body).replace("CONDITION", condition))
            return subprocess.run(["clang++", *flags(), "-iquote", ROOT, path], capture_output=True, text=True)

    def refused(self, message, *arguments):
        result = self.check(*arguments)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("-Werror,-Wthread-safety", result.stderr)
        self.assertIn(message, result.stderr)

    def test_code_that_locks_is_good(self):
        result = self.check("tercio::MutexLock lock(mutex_); ++count_; AddLocked();")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_a_member_without_its_mutex_is_found(self):
        self.refused("requires holding mutex 'mutex_'", "++count_;")

    def test_a_call_without_the_mutex_that_it_requires_is_found(self):
        self.refused("calling function 'AddLocked' requires holding mutex 'mutex_'", "AddLocked();")

    def test_use_after_an_unlock_is_found(self):
        self.refused("requires holding mutex 'mutex_'", "tercio::MutexLock lock(mutex_); lock.Unlock(); ++count_;")

    def test_a_wait_without_the_mutex_is_found(self):
        self.refused("calling function 'Wait' requires holding mutex 'mutex_'", "changed_.Wait(mutex_);")

    def test_a_mutex_that_stays_locked_is_found(self):
        self.refused("still held at the end of function", "mutex_.Lock(); ++count_;")

    def test_a_condition_that_does_not_say_what_is_held_is_found(self):
        self.refused("requires holding mutex 'mutex_'", "", "")


if __name__ == "__main__":
    python_cases.main()
