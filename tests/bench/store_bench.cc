// Seconds for one rank's checkpoint from memory to the commit in a store on disk.
//
//   store_bench DIRECTORY MILLION_BYTES
//
// tests/bench/checkpoints.py runs it beside dd.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/rank_file.h"
#include "checkpoint/store.h"
#include "common/checksum.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

constexpr int64_t kColumns = 1 << 18;  // a row is one chunk of 1 MiB

absl::Status Save(checkpoint::Store& store, int64_t rows) {
  v1::UploadBegin begin;
  begin.mutable_run()->set_job_id("job");
  begin.mutable_run()->set_attempt(1);
  begin.set_step(1);
  v1::TensorSlice* slice = begin.add_slices();
  slice->set_tensor("weights");
  slice->set_dtype("F32");
  slice->add_shape(rows);
  slice->add_shape(kColumns);
  slice->set_row_end(rows);
  slice->set_column_end(kColumns);

  const std::string chunk(kColumns * sizeof(float), 'x');
  Checksum checksum;
  checksum.Update(checkpoint::RankFileOf(begin.slices())->header);
  for (int64_t i = 0; i < rows; ++i) checksum.Update(chunk);
  v1::UploadEnd end;
  end.set_bytes(rows * static_cast<int64_t>(chunk.size()));
  end.set_checksum(checksum.Hex());

  const absl::Time start = SteadyNow();
  auto upload = store.Begin(begin);
  if (!upload.ok()) return upload.status();
  for (int64_t i = 0; i < rows; ++i) {
    if (const absl::Status status = (*upload)->Write(chunk); !status.ok()) return status;
  }
  const auto part = (*upload)->Finish(end);
  if (!part.ok()) return part.status();
  if (const absl::Status status = store.ReadBack("job", 1, {*part}); !status.ok()) return status;
  const auto committed = store.Commit({"job", 1, 1, "{}", "{}", "", {*part}});
  if (committed.ok()) std::printf("%.3f\n", absl::ToDoubleSeconds(SteadyNow() - start));
  return committed.status();
}

}  // namespace
}  // namespace tercio

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: store_bench DIRECTORY MILLION_BYTES\n");
    return 2;
  }
  tercio::checkpoint::Store store(argv[1]);
  const absl::Status status = tercio::Save(store, std::atoll(argv[2]) * 1'000'000 / (1 << 20));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
